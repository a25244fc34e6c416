"""docs/files-and-cards.md says what plans and records say."""

from __future__ import annotations

import re

import files_page
import pytest

from sp.models.inspect.cards import CARDS


@pytest.mark.parametrize("name", ["cells", "records"])
def test_tables_are_those_of_plans_and_records(name: str) -> None:
    page = files_page.PAGE.read_text()
    found = re.search(rf"<!-- {name}: made by [^>]*-->(.*?)<!-- end of {name} -->", page, re.DOTALL)
    assert found
    wanted = {"cells": files_page.cells, "records": files_page.records}[name]()
    anew = "run: PYTHONPATH=tests python tests/files_page.py"
    assert found.group(1).strip().splitlines() == wanted, anew


def test_every_cell_says_what_it_rests_on() -> None:
    _, _, *rows = files_page.cells()
    cells = [cell for row in rows for cell in row.strip("| ").split(" | ")[3:]]
    assert len(cells) == len(rows) * len(CARDS)
    assert all(("predicted" in cell) or cell.endswith("measured") for cell in cells)
    assert sum("measured" in cell for cell in cells) >= 4


def test_files_that_the_page_names_are_there() -> None:
    for path in re.findall(r"`(tests/[\w/]+\.py)`", files_page.PAGE.read_text()):
        assert (files_page.ROOT / path).exists(), path
