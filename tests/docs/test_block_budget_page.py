"""The tables of rules for key blocks are those that their study prints of its records."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "sparse-attention.md"


def printed() -> list[str]:
    spec = importlib.util.spec_from_file_location("block_budget_report", ROOT / "experiments/block_budget/report.py")
    assert spec is not None
    assert spec.loader is not None
    report = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(report)
    return [line for line in report.tables(report.rows_of(ROOT / "results")).splitlines() if line.startswith("|")]


def test_the_page_has_every_line_of_the_tables_and_no_other() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## By rule")[2]
    assert [line for line in section.splitlines() if line.startswith("|")] == printed()


@pytest.mark.parametrize("line", printed())
def test_tables_fit_a_terminal(line: str) -> None:
    assert len(line) <= 80
