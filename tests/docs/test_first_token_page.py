"""docs/results/time-to-first-token.md says what records say of a real drafter."""

from __future__ import annotations

import re

import first_token_page
import pytest

TEXT = first_token_page.PAGE.read_text()


@pytest.mark.parametrize("name", list(first_token_page.tables()))
def test_tables_are_those_of_records(name: str) -> None:
    found = re.search(rf"<!-- {name}: made by [^>]*-->(.*?)<!-- end of {name} -->", TEXT, re.DOTALL)
    assert found
    anew = "run: PYTHONPATH=tests python tests/first_token_page.py"
    assert found.group(1).strip().splitlines() == first_token_page.tables()[name], anew


def test_stages_add_up_to_the_first_token() -> None:
    for line in first_token_page.stages()[2:]:
        *stages, whole = (float(cell) for cell in line.split("|")[6:12])
        assert abs(sum(stages) - whole) <= 3, line  # each is rounded
