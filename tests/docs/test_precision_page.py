"""docs/precision.md says what its records and the code say."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import precision_page
import pytest

from sp.bench.record import newest
from sp.models import load_model
from sp.models.device.prequantized import SHARE
from sp.models.network.arithmetic import (
    FASTER,
    FIRST_LAYERS,
    MOST_ERROR,
    SAMPLED,
    Arithmetic,
    is_eligible,
    rounding_error,
)
from sp.models.synthetic.shapes import find_shape
from sp.ops.byte_rows.kept import kept_bytes
from sp.ops.byte_rows.rows import ROUNDED_TOKENS
from sp.planning.memory import device_weights, layer_matrices, product_bytes
from sp.quant import Math
from sp.session.loaded import embedded

TEXT = precision_page.PAGE.read_text()
ALLOWED = 0.077 / 5
"""Nats: a fifth of llama.cpp's on a GPU."""


@pytest.mark.parametrize("name", list(precision_page.tables()))
def test_tables_are_those_of_records(name: str) -> None:
    found = re.search(rf"<!-- {name}: made by [^>]*-->(.*?)<!-- end of {name} -->", TEXT, re.DOTALL)
    assert found
    anew = "run: PYTHONPATH=tests python tests/precision_page.py"
    assert found.group(1).strip().splitlines() == precision_page.tables()[name], anew


def test_numbers_of_the_text_are_those_of_the_code() -> None:
    assert f"at most {100 * MOST_ERROR:.2f} %" in TEXT
    assert f"{SAMPLED} rows" in TEXT
    assert f"From {ROUNDED_TOKENS:,} tokens on." in TEXT
    assert {f"{major}.{minor}" for path, (major, minor) in FASTER if path == "portable"} == {"8.6", "8.9", "9.0"}
    taken = product_bytes(find_shape("qwen3.6-27b").config, 8192, Math.INT8)
    assert f"{taken >> 20} MiB" in TEXT


def test_what_is_kept_of_the_27b_shape_is_what_the_page_says() -> None:
    shape = find_shape("qwen3.6-27b")
    config, matrices = shape.config, layer_matrices(shape.config)
    marked = [
        SimpleNamespace(shape=t.shape, row_tiles=-(-t.shape[0] // 64)) for t in matrices if is_eligible(t.name, t.shape)
    ]
    nbytes = sum(kept_bytes([one]) for one in marked)
    told = Arithmetic(Math.INT8, Math.INT8, len(marked), len(matrices), kept=nbytes)
    assert f"`target: {told}`" in TEXT
    packed = sum(row.nbytes for row in device_weights(config, {name: fmt for name, _, fmt in shape.plan("q4_k_m")}))
    assert f"they take {nbytes / 2**30:.2f} GiB next to {packed / 2**30:.2f} of the packed weights" in TEXT
    assert SHARE == 2
    assert "at most half of the memory that is free" in TEXT


def test_as_many_first_layers_stay_as_the_page_says() -> None:
    assert FIRST_LAYERS == 2
    assert "all weights of the first two layers" in TEXT
    assert "leaves the first two layers" in TEXT
    assert f"`drafter: {load_model(embedded('drafter'), precision='int8').arithmetic}," in TEXT


def test_normal_weights_lose_what_the_page_says() -> None:
    rng = np.random.default_rng(0)
    for inputs in (1024, 17408):
        error = rounding_error(rng.standard_normal((64, inputs)).astype(np.float32))
        told = re.search(rf"([\d.]+) %\s+with {inputs:,}", TEXT)
        assert told
        assert abs(100 * error - float(told[1])) < 0.02
        assert error < MOST_ERROR


def test_int8_loses_no_more_than_was_allowed_on_real_text() -> None:
    """And less than without outlier channels apart, or without rotation."""
    texts: dict[tuple[str, str], dict[str, float]] = {}
    for record in precision_page.records("eight_bits", precision_page.LATER):
        c = record["config"]
        texts.setdefault((c["model"], c["text"]), {})[c["way"]] = record["metrics"]["kl"]
    assert len(texts) == 6
    for kl in texts.values():
        assert kl["int8"] <= ALLOWED
        assert kl.get("attention", 0) <= ALLOWED
        assert all(kl["int8"] < kl[way] for way in precision_page.WAYS if way != "int8")


def test_int8_loses_no_more_than_was_allowed_on_a_gpu() -> None:
    """Of the 27B shape: as `--precision` has it, and, by the page, with no layer left."""
    records = [r for r in newest(precision_page.GPU / "eight_bit_large.jsonl") if r["config"]["math"] == "int8"]
    for record in records:
        if record["config"].get("left", FIRST_LAYERS) == FIRST_LAYERS:
            assert record["metrics"]["kl"] <= ALLOWED, record["config"]
    (none_left,) = (r for r in records if (r["config"].get("left"), r["config"]["path"]) == (0, "sm_90a"))
    assert f"[{none_left['metrics']['kl']:.3f} nats from BF16](#errors-of-a-model), where {ALLOWED:.3f} are" in TEXT


def test_answers_differ_by_at_most_a_point() -> None:
    for record in precision_page.records("eight_bit_answers"):
        metrics = record["metrics"]
        assert metrics["n"] >= 100
        assert min(map(int, metrics["products_whole_int8"])) > 0, "int8 was taken"
        assert metrics["products_bf16"] == {"0": metrics["n"]}
        for way in ("whole", "compressed"):
            assert abs(metrics[f"{way}_difference"][0]) <= 0.01 + 1e-9, (record["config"]["task"], way)
