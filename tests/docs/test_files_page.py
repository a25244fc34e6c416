"""docs/files-and-gpus.md says what plans and records say."""

from __future__ import annotations

import re
from types import ModuleType

import files_page
import pytest
import times_page

from sp.planning.gpus import GPUS


@pytest.mark.parametrize("script", [files_page, times_page], ids=lambda module: module.__name__)
def test_tables_are_those_of_plans_and_records(script: ModuleType) -> None:
    page, anew = files_page.PAGE.read_text(), f"run: PYTHONPATH=tests python tests/{script.__name__}.py"
    for name, lines in script.tables().items():
        found = re.search(rf"<!-- {name}: made by [^>]*-->(.*?)<!-- end of {name} -->", page, re.DOTALL)
        assert found, name
        assert found.group(1).strip().splitlines() == lines, anew


def test_every_time_is_called_predicted_and_every_far_one_is_told() -> None:
    assert all("*predicted*" in head for head in times_page.gpus()[0].strip("| ").split(" | ")[5:])
    assert len(times_page.outside()) - 2 == sum(abs(row.error) > times_page.ERROR for row in times_page.rows())


def test_every_cell_says_what_it_rests_on() -> None:
    _, _, *rows = files_page.cells()
    cells = [cell for row in rows for cell in row.strip("| ").split(" | ")[3:]]
    assert len(cells) == len(rows) * len(GPUS)
    assert all(("predicted" in cell) or cell.endswith("measured") for cell in cells)
    assert sum("measured" in cell for cell in cells) >= 4


def test_files_that_the_page_names_are_there() -> None:
    for path in re.findall(r"`(tests/[\w/]+\.py)`", files_page.PAGE.read_text()):
        assert (files_page.ROOT / path).exists(), path
