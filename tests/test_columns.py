"""Tables on narrow terminals: every digit stands whole at 40 and at 80 columns, in whichever table has room for it."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from sp.columns import ColumnTable
from sp.planning.tables import _kv, _types
from sp.studies.pages.run_report import stage_table

STAGES = [
    {"name": "tokenise for drafter", "seconds": 0.0123, "tokens": 1_048_576},
    {"name": "target prefill", "seconds": 114.3211, "tokens": 1_048_576},
]
FIGURES = ["0.012", "114.321", "1,048,576", "100.0", "114.333"]


def printed(table: Any, columns: int) -> str:
    console = Console(file=io.StringIO(), width=columns, highlight=False)
    console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= columns
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    return text


def run_result() -> Any:
    """A compressed pass and a full one, with seconds and tokens of many digits."""
    stages = [SimpleNamespace(**stage, as_dict=lambda stage=stage: stage) for stage in STAGES]
    answer = SimpleNamespace(trace=SimpleNamespace(stages=stages, seconds=114.3334), ttft_s=114.3334)
    return SimpleNamespace(answer=answer, full=SimpleNamespace(**vars(answer)), selection=object())


@pytest.mark.parametrize("columns", [40, 80])
def test_stages_of_a_run(columns: int) -> None:
    text = printed(stage_table(run_result()), columns)
    for figure in FIGURES:
        assert text.split().count(figure) >= 2, f"{figure}: once for each pass\n{text}"


@pytest.mark.parametrize("columns", [40, 80])
def test_cache_sizes_of_a_model(columns: int) -> None:
    sizes = {"q8_0": {str(1024 << i): (123_456_789 << i) for i in range(6)}}
    text = printed(_kv({"kv_bytes": sizes, "state_bytes": 0}), columns)
    for figure in ("117.74 MiB", "235.48 MiB", "470.95 MiB", "941.90 MiB", "1.84 GiB", "3.68 GiB"):
        assert figure in text, text


@pytest.mark.parametrize("columns", [40, 80])
def test_types_of_a_file(columns: int) -> None:
    row = {"type": "Q4_K", "count": 1234, "bytes": 12_345_678_901, "supported": True}
    text = printed(_types({"tensors_by_type": [row], "tensors": 1234, "device": None}), columns)
    for figure in ("1234", "11.50 GiB", "100.0%"):
        assert figure in text, text


def test_brackets_are_no_markup() -> None:
    assert "[b]x[/b]" in printed(ColumnTable(["name"], [["[b]x[/b]"]], 1), 40)
