"""docs/predicted-times.md says what is predicted, and how far off that is."""

from __future__ import annotations

import re

import pytest
import times_page


@pytest.mark.parametrize("name", ["cards", "eight", "summary", "errors"])
def test_tables_are_those_of_the_model(name: str) -> None:
    found = re.search(
        rf"<!-- {name}: made by [^>]*-->(.*?)<!-- end of {name} -->", times_page.PAGE.read_text(), re.DOTALL
    )
    assert found
    assert found.group(1).strip().splitlines() == getattr(times_page, name)(), (
        "run: PYTHONPATH=tests python tests/times_page.py"
    )


def test_every_time_is_called_predicted() -> None:
    for lines, first in ((times_page.cards(), 5), (times_page.eight(), 2)):
        heads = lines[0].strip("| ").split(" | ")
        assert all("*predicted*" in head for head in heads[first:])
