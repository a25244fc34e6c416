"""The choice of a product's kernel: the fastest of the measured table, which has no gaps."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from sp.bench.cases import table as table_of
from sp.kernels.path import PATHS
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU, Epilogue
from sp.ops.byte_rows.rows import ROUNDED_TOKENS
from sp.ops.matmul import dispatch
from sp.ops.matmul.dispatch import ROWS, SHAPES, kernel_for, rows, shape_class, table, times
from sp.ops.matmul.registry import MatmulKernel, kernels
from sp.quant import FORMATS, Q4_K, Math, format_by_name, kernel_formats

ROOT = Path(__file__).parents[2]
KINDS = [fmt.ggml_type for fmt in kernel_formats()]
PREFILL = {"sm_90a": "gemm_sm90", "portable": "gemm_portable"}
FEW = {"sm_90a": range(2, 65), "portable": range(0)}
"""Rows of x for which K-quants take the Hopper kernel for few tokens whatever the table says."""
MADE = {"Q8_0 wide": {"gemv 1": 5.0, "gemv 2": 9.0, "gemm_small_m 2": 8.0, "gemm_small_m 4": 8.0, "gemm_sm90 4": 7.0}}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_fastest_measured_kernel_is_taken_or_that_for_drafts(kind: int, shape: str, path: str) -> None:
    measured = times(FORMATS[kind].name, shape, path)
    assert list(measured) == list(ROWS)
    assert all(measured.values()), "a format, a shape or rows are missing"
    for tokens in range(1, 2 * ROWS[-1]):
        kernel = kernel_for(tokens, kind, *SHAPES[shape], path)
        if tokens > ROWS[-1]:
            assert kernel.name == PREFILL[path]
            continue
        at = measured[min(count for count in ROWS if count >= tokens)]
        if kernel.name == "gemm_small_m_sm90":
            assert tokens in FEW[path]
            assert at[kernel.name] <= 1.15 * min(at.values()), "a rule that costs too much"
            continue
        assert all(at[kernel.name] <= us for us in at.values())


NEAREST = {"Q3_K": "Q4_K", "IQ4_XS": "Q4_K", "IQ3_S": "Q4_K", "IQ4_NL": "Q4_0", "MXFP4": "Q4_0", "Q5_1": "Q4_0"}


@pytest.mark.parametrize("name", NEAREST)
def test_a_format_that_was_not_timed_goes_by_the_nearest_that_was(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    us = {key: row for key, row in table()["us"].items() if key.split()[0] in ("Q4_K", "Q6_K", "Q4_0", "Q8_0", "BF16")}
    monkeypatch.setattr(dispatch, "table", lambda: {"us": us})
    assert dispatch.timed_as(name) == NEAREST[name]
    kind = format_by_name(name).ggml_type
    taken = [kernel_for(tokens, kind, *SHAPES["wide"], "portable").name for tokens in (1, 16, 4096)]
    assert taken == ["gemv", "gemm_small_m", "gemm_portable"]


def test_the_table_for_people_covers_all_rows() -> None:
    for path in PATHS:
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
    cached = dispatch._times, dispatch._kernel_for
    for function in cached:
        function.cache_clear()
    try:
        ranges = [(row["rows"], row["kernel"], row["us"]) for row in rows("sm_90a")]
    finally:
        monkeypatch.undo()
        for function in cached:
            function.cache_clear()
    assert ranges == [
        ("1..1", "gemv", 5.0),
        ("2..2", "gemm_small_m", 8.0),
        ("3..4", "gemm_sm90", 7.0),
        ("5..", "gemm_sm90", None),
    ]


def test_the_table_is_that_of_its_record() -> None:
    folder = ROOT / "results" / "nvidia-h200"
    records = [json.loads(line) for line in (folder / "dispatch.jsonl").read_text().splitlines()]
    newest = {(record["config"]["type"], record["config"]["shape"]): record for record in records}
    assert table_of(list(newest.values()))["us"] == table()["us"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("name", "few"), [("Q4_K", True), ("Q5_K", True), ("Q6_K", True), ("Q8_0", False)])
def test_few_rows_of_k_quants_take_the_hopper_kernel(
    name: str, few: bool, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "current_path", lambda: path)
    monkeypatch.setattr(MatmulKernel, "takes", lambda *given: True)  # this asks a device how much room there is
    fmt = format_by_name(name)
    weight = SimpleNamespace(format=fmt, shape=SHAPES["deep"], nbytes=1, math=Math.BF16)
    taken = [n for n in range(2, 130) if dispatch.choose(n, (weight,), False, ADD).name == "gemm_small_m_sm90"]
    assert taken == (list(FEW[path]) if few else [])


def test_each_shape_has_its_class() -> None:
    assert [shape_class(*shape) for shape in SHAPES.values()] == list(SHAPES)


@pytest.mark.parametrize("path", PATHS)
def test_every_path_has_one_kernel_for_any_product(path: str) -> None:
    known = {kernel.name: kernel for kernel in kernels(path)}
    assert [name for name, kernel in known.items() if kernel.prefill] == [PREFILL[path]]
    assert set(known) == {"gemv", "gemm_small_m", PREFILL[path]} | (
        {"gemm_small_m_sm90", "gemm_bytes_sm90"} if path == "sm_90a" else {"gemm_bytes_portable"}
    )
    for kernel in known.values():
        assert kernel.otherwise is None or kernel.otherwise.name in known
        assert set(kernel.formats) <= set(known[PREFILL[path]].formats)


def test_the_table_names_kernels_that_are_registered() -> None:
    names = {kernel.name for path in PATHS for kernel in kernels(path) if kernel.timed}
    assert {key.split()[0] for times in table()["us"].values() for key in times} == names


@pytest.mark.parametrize(
    ("tokens", "width", "math", "epilogue", "taken"),
    [
        (1024, 5120, Math.INT8, STORE, "gemm_bytes_sm90"),
        (8192, 17408, Math.FP8, ADD, "gemm_bytes_sm90"),
        (2048, 5120, Math.INT8, SWIGLU, "gemm_bytes_sm90"),
        (ROUNDED_TOKENS - 1, 5120, Math.INT8, STORE, "gemm_sm90"),
        (8192, 5184, Math.INT8, STORE, "gemm_sm90"),
        (8192, 5120, Math.BF16, STORE, "gemm_sm90"),
    ],
)
def test_prompts_are_multiplied_in_what_weights_ask_for(
    tokens: int, width: int, math: Math, epilogue: Epilogue, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "current_path", lambda: "sm_90a")
    weight = SimpleNamespace(format=Q4_K, shape=(5120, width), nbytes=1, math=math)
    weights = (weight, weight) if epilogue is SWIGLU else (weight,)
    assert dispatch.choose(tokens, weights, True, epilogue).name == taken


def test_gate_and_up_in_two_arithmetics_are_multiplied_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "current_path", lambda: "sm_90a")
    two = [SimpleNamespace(format=Q4_K, shape=(512, 512), nbytes=1, math=math) for math in (Math.INT8, Math.BF16)]
    assert dispatch.choose(4096, tuple(two), True, SWIGLU).name == "gemm_sm90"
