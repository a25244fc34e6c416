"""docs/predicted-times.md says what is predicted, and how far off that is."""

from __future__ import annotations

import re

import pytest
import times_page


@pytest.fixture(scope="module")
def made() -> dict[str, list[str]]:
    return times_page.tables()


@pytest.mark.parametrize("name", ["cards", "eight", "several", "summary", "errors", "before", "others"])
def test_tables_are_those_of_the_model(made: dict[str, list[str]], name: str) -> None:
    found = re.search(
        rf"<!-- {name}: made by [^>]*-->(.*?)<!-- end of {name} -->", times_page.PAGE.read_text(), re.DOTALL
    )
    assert found
    assert found.group(1).strip().splitlines() == made[name], "run: PYTHONPATH=tests python tests/times_page.py"


def test_every_time_is_called_predicted(made: dict[str, list[str]]) -> None:
    for lines, first in ((made["cards"], 5), (made["eight"], 2), (made["several"], 2)):
        heads = lines[0].strip("| ").split(" | ")
        assert all("*predicted*" in head for head in heads[first:])
