"""docs/many-cards.md says what shapes and records say."""

from __future__ import annotations

import re

import many_cards_page
import pytest


@pytest.mark.parametrize("name", ["held", "moved", "needed", "drafting", "sharing", "first tokens"])
def test_tables_are_those_of_shapes_and_records(name: str) -> None:
    found = re.search(
        rf"<!-- {name}: made by [^>]*-->(.*?)<!-- end of {name} -->", many_cards_page.PAGE.read_text(), re.DOTALL
    )
    assert found
    wanted = many_cards_page.tables()[name]
    assert found.group(1).strip().splitlines() == wanted, "run: PYTHONPATH=tests python tests/many_cards_page.py"
