"""Which kernel takes a product: the fastest of the measured table, and a table with no gaps."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from sp.bench.dispatch_times import table as table_of
from sp.ops.matmul import dispatch
from sp.ops.matmul.dispatch import MATMUL, ROWS, SHAPES, kernel_for, rows, shape_class, table, times
from sp.ops.matmul.gemv import ADD
from sp.quant import FORMATS, format_by_name, kernel_formats

ROOT = Path(__file__).parents[2]
KINDS = [fmt.ggml_type for fmt in kernel_formats()]
MADE = {"Q8_0 wide": {"gemv 1": 5.0, "gemv 2": 9.0, "gemm_few 2": 8.0, "gemm_few 4": 8.0, "gemm_sm90 4": 7.0}}


@pytest.mark.parametrize("path", MATMUL)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_fastest_measured_kernel_is_taken_or_that_for_drafts(kind: int, shape: str, path: str) -> None:
    measured = times(FORMATS[kind].name, shape, path)
    assert list(measured) == list(ROWS)
    assert all(measured.values()), "a format, a shape or rows are missing"
    for tokens in range(1, 2 * ROWS[-1]):
        kernel = kernel_for(tokens, kind, *SHAPES[shape], path)
        if tokens > ROWS[-1]:
            assert kernel == MATMUL[path]
            continue
        at = measured[min(count for count in ROWS if count >= tokens)]
        if kernel == "gemm_few_sm90":
            assert tokens in dispatch.DRAFTS
            assert at[kernel] <= 1.15 * min(at.values()), "a rule that costs too much"
            continue
        assert all(at[kernel] <= us for us in at.values())


def test_the_table_for_people_covers_all_rows() -> None:
    for path in MATMUL:
        for key in table()["us"]:
            name, shape = key.split()
            mine = [row for row in rows(path) if (row["format"], row["shape"]) == (name, shape)]
            ends = [row["rows"].split("..") for row in mine]
            assert ends[0][0] == "1"
            assert ends[-1] == [str(ROWS[-1] + 1), ""]
            assert all(int(one[1]) + 1 == int(other[0]) for one, other in pairwise(ends))


def test_ranges_of_one_kernel_are_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "ROWS", (1, 2, 4))
    monkeypatch.setattr(dispatch, "table", lambda: {"us": MADE})
    cached = dispatch.times, dispatch.kernel_for
    for function in cached:
        function.cache_clear()
    try:
        found = [(row["rows"], row["kernel"], row["us"]) for row in rows("sm_90a")]
    finally:
        monkeypatch.undo()
        for function in cached:
            function.cache_clear()
    assert found == [
        ("1..1", "gemv", 5.0),
        ("2..2", "gemm_few", 8.0),
        ("3..4", "gemm_sm90", 7.0),
        ("5..", "gemm_sm90", None),
    ]


def test_the_table_is_that_of_its_record() -> None:
    folder = ROOT / "results" / "nvidia-h200"
    records = [json.loads(line) for line in (folder / "dispatch.jsonl").read_text().splitlines()]
    newest = {(record["config"]["type"], record["config"]["shape"]): record for record in records}
    assert table_of(list(newest.values()))["us"] == table()["us"]


@pytest.mark.parametrize("path", MATMUL)
@pytest.mark.parametrize(("name", "few"), [("Q4_K", True), ("Q5_K", True), ("Q6_K", True), ("Q8_0", False)])
def test_few_rows_of_k_quants_take_the_hopper_kernel(
    name: str, few: bool, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "current_path", lambda: path)
    monkeypatch.setattr(dispatch, "held", lambda *given: dispatch.HELD_AT_LEAST)  # these ask a device how much it holds
    monkeypatch.setattr(dispatch, "fits", lambda *given: True)
    fmt = format_by_name(name)
    weight = SimpleNamespace(format=fmt, shape=SHAPES["deep"], nbytes=1)
    taken = [n for n in range(2, 130) if dispatch.choose(n, (weight,), False, ADD) == "gemm_few_sm90"]
    assert taken == (list(range(2, 65)) if few and path == "sm_90a" else [])


def test_shapes_are_told_apart() -> None:
    assert [shape_class(*shape) for shape in SHAPES.values()] == list(SHAPES)
