"""What a model's products are made in: which weights are marked, by name and by auto, and what a device refuses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_models import write_tiny

from sp.errors import ConfigError
from sp.kernels.specs.matmul.gemm_bytes import MOST_BY_PATH
from sp.models import load_model
from sp.models.network import arithmetic as marking
from sp.models.network.arithmetic import (
    AUTO,
    FASTER,
    FIRST_LAYERS,
    MOST_ERROR,
    Arithmetic,
    attention_precision,
    byte_layers,
    check_precision,
    is_eligible,
    is_faster,
    read_precision,
    rounding_error,
    sampled_rows,
    with_precision,
)
from sp.models.network.weights import ModelWeights, map_leaves
from sp.models.shards.load_shards import load_shards
from sp.models.synthetic.shapes import find_shape
from sp.ops.byte_rows.rows import ROUNDED_TOKENS, rotated
from sp.ops.matmul.byte_products import workspace_bytes
from sp.parallel.host import HostGroup
from sp.planning.memory import STREAMS, cold_layers, prefill_bytes, product_bytes, scoring_bytes
from sp.quant import Math, Weight
from sp.session.loaded import embedded


def past_the_first(names: Iterable[str]) -> set[str]:
    """Those of layers that are not at the start."""
    return {name for name in names if int(name.split(".")[1]) >= FIRST_LAYERS}


def precisions(weights: ModelWeights) -> dict[str, Math]:
    """Of the matrices of layers, by name."""
    found: dict[str, Math] = {}

    def look(leaf: Any) -> Any:
        if isinstance(leaf, Weight):
            found[leaf.name] = leaf.math
        return leaf

    map_leaves(weights.blocks, look)
    return found


@pytest.mark.parametrize("text", ["", "int4", "INT8", "f32", "bf16 "])
def test_other_words_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--precision is '.*auto, bf16, fp8, int8$"):
        read_precision(text, "--precision")
    with pytest.raises(ConfigError, match=r"^precision is "):
        load_model(embedded("drafter"), precision=text)


@pytest.mark.parametrize("precision", [Math.INT8, Math.FP8])
def test_wide_matrices_of_layers_are_marked_and_nothing_else(precision: Math) -> None:
    model = load_model(embedded("drafter"), precision=str(precision))
    found = precisions(model.weights)
    assert {name for name, made_in in found.items() if made_in is precision} == past_the_first(found)
    assert {model.weights.embed.math, model.weights.output.math} == {Math.BF16}
    assert model.arithmetic == Arithmetic(precision, precision, 21, 35, attention=precision)
    assert str(model.arithmetic) == f"{precision} for 21 of 35 matrices of layers"
    assert load_model(embedded("drafter")).arithmetic == Arithmetic(matrices=35)


def test_the_first_layers_stay_whatever_is_asked() -> None:
    wide = (17408, 5120)
    eligible = [n for n in range(64) if is_eligible(f"blk.{n}.ffn_up.weight", wide)]
    assert eligible == list(range(FIRST_LAYERS, 64))
    assert [n for n in range(12) if is_eligible(f"blk.{n}.attn_q.weight", wide, first=0)] == list(range(12))
    for name in ("output.weight", "token_embd.weight", "blk.weight", "blk.x.ffn_up.weight", "", "1.ffn_up.weight"):
        assert is_eligible(name, wide), "of no layer: the shape decides"
        assert not is_eligible(name, (17408,))


def test_every_gpu_leaves_the_same_layers() -> None:
    shards = load_shards(embedded("target"), HostGroup(2), precision="int8")
    narrow = ("attn_k.weight", "attn_v.weight")  # 128 rows a GPU
    for part in shards.models:
        found = precisions(part.weights)
        marked = {name for name, precision in found.items() if precision is Math.INT8}
        assert marked == {name for name in past_the_first(found) if not name.endswith(narrow)}
        assert len(marked) == 40


def test_a_model_of_narrow_matrices_says_that_none_is_marked(tmp_path) -> None:
    made_in = load_model(write_tiny(tmp_path / "m.gguf", "qwen3"), precision="int8").arithmetic
    assert (made_in.precision, made_in.weights, str(made_in)) == (Math.BF16, 0, "bf16")
    assert made_in.asked is Math.INT8
    assert made_in.matrices > 0


def test_auto_on_the_cpu_stays_and_says_why() -> None:
    made_in = load_model(embedded("drafter"), precision="auto").arithmetic
    assert (made_in.precision, made_in.weights) == (Math.BF16, 0)
    assert str(made_in) == "bf16, by auto: int8 is slower on the CPU"
    assert made_in.as_dict()["asked"] == AUTO


def test_auto_leaves_out_weights_that_rounding_costs_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = load_model(embedded("drafter")).weights
    monkeypatch.setattr(marking, "is_faster", lambda device: (True, "known"))
    monkeypatch.setattr(marking, "check_precision", lambda asked, device: None)
    monkeypatch.setattr(marking, "current_path", lambda: "portable")
    worst = "blk.2.ffn_up.weight"

    def sampled(weight: Any) -> np.ndarray:
        rows = sampled_rows(weight).copy()
        if weight.name == worst:
            rows = np.tile(rows, 16)
            rows[:, : rows.shape[1] // 16] *= 50
        return rows

    nothing, reason = with_precision(weights, AUTO, "cuda", sampled)
    assert set(precisions(nothing).values()) == {Math.BF16}
    assert reason == "no matrix has a number of inputs with which int8 is faster (4,096 is)"
    monkeypatch.setattr(marking, "gains", lambda *given: True)
    marked, reason = with_precision(weights, AUTO, "cuda", sampled)
    found = precisions(marked)
    assert {name for name, precision in found.items() if precision is not Math.BF16} == past_the_first(found) - {worst}
    assert reason.startswith("known; rounding costs 1 weights over 1.20%, at most ")
    plain, reason = with_precision(weights, AUTO, "cuda")
    found = precisions(plain)
    assert {name for name, precision in found.items() if precision is Math.INT8} == past_the_first(found)
    assert reason == "known; rounding costs weights at most 0.81%"


def test_the_error_of_a_weight_is_that_of_its_rotated_rows() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4, 512)).astype(np.float32)
    steps = np.abs(rotated(rows)).max(-1) / 512**0.5 / 127
    expected = np.sqrt((steps**2 / 12).mean() / np.square(rows).mean())  # of an even spread within a step
    assert rounding_error(rows) == pytest.approx(expected, rel=0.05)
    assert rounding_error(rows) < MOST_ERROR
    one = rows.copy()
    one[:, 5] = 10
    assert rounding_error(one) < MOST_ERROR, "one large value is spread over its block"
    uneven = rng.standard_normal((4, 16 * 1024)).astype(np.float32)
    uneven[:, :1024] *= 30
    assert rounding_error(uneven) > MOST_ERROR, "but not over the others"
    assert rounding_error(np.zeros((2, 256), np.float32)) == 0


@pytest.mark.parametrize(("path", "most"), [("sm_90a", 32768), ("portable", 24576)])
def test_wider_matrices_than_kernels_round_stay_in_bf16(monkeypatch: pytest.MonkeyPatch, path: str, most: int) -> None:
    monkeypatch.setattr(marking, "check_precision", lambda asked, device: None)
    monkeypatch.setattr(marking, "current_path", lambda: path)
    assert MOST_BY_PATH[path] == most
    assert not is_eligible("blk.5.ffn_down.weight", (5120, 53248))
    assert is_eligible("blk.5.ffn_down.weight", (5120, 32768))
    weights = load_model(embedded("drafter")).weights
    widest = max(leaf_widths(weights))
    monkeypatch.setitem(MOST_BY_PATH, path, widest - 1)
    assert max(leaf_widths(with_precision(weights, Math.INT8, "cuda")[0], Math.INT8)) < widest
    assert max(leaf_widths(with_precision(weights, Math.INT8, "cpu")[0], Math.INT8)) == widest


def leaf_widths(weights: ModelWeights, precision: Math = Math.BF16) -> list[int]:
    """Inputs of the matrices of layers that are marked so."""
    found: list[int] = []
    map_leaves(
        weights.blocks,
        lambda leaf: (
            found.append(leaf.shape[1]) or leaf
            if isinstance(leaf, Weight) and len(leaf.shape) == 2 and leaf.math is precision
            else leaf
        ),
    )
    return found


@pytest.mark.parametrize(
    ("shape", "some"),
    [
        ("qwen3.6-27b", True),
        ("qwen3-0.6b", True),
        ("gemma-4-31b", False),
        ("gemma-3-270m", True),
        ("gemma-2-9b", False),
    ],
)
def test_8_bit_attention_is_told_of_models_that_have_layers_for_it(shape: str, some: bool) -> None:
    config = find_shape(shape).config
    layers = byte_layers(config)
    assert bool(layers) == some
    assert attention_precision(Math.INT8, "cpu", config) is (Math.INT8 if some else Math.BF16)
    assert all(config.heads_of(i).head_dim == 128 or config.window_of(i) is None for i in layers)


def device(monkeypatch: pytest.MonkeyPatch, path: str, capability: tuple[int, int], *precisions: Math) -> None:
    """As if on a GPU whose kernels make these products."""
    known = [SimpleNamespace(maths=(Math.BF16,)), SimpleNamespace(maths=precisions)]
    monkeypatch.setattr(marking, "current_path", lambda: path)
    monkeypatch.setattr(marking, "kernels", lambda path: known)
    monkeypatch.setattr(marking, "capability", lambda device: capability)
    monkeypatch.setattr(marking, "current_device", lambda: 0)


@pytest.mark.parametrize(
    ("path", "capability", "precisions", "why"),
    [
        (
            "sm_90a",
            (9, 0),
            (Math.INT8, Math.FP8),
            "int8 was measured to be faster by path sm_90a on compute capability 9.0",
        ),
        (
            "portable",
            (8, 6),
            (Math.INT8,),
            "int8 was predicted to be faster by path portable on compute capability 8.6",
        ),
        ("portable", (8, 9), (), "no kernel of path portable multiplies int8"),
        ("portable", (8, 0), (Math.INT8,), "int8 is not known to be faster by path portable on compute capability 8.0"),
        ("portable", (9, 0), (Math.INT8,), "int8 was measured to be faster by path portable on compute capability 9.0"),
        (
            "portable",
            (12, 0),
            (Math.INT8,),
            "int8 is not known to be faster by path portable on compute capability 12.0",
        ),
    ],
)
def test_auto_wants_a_kernel_that_is_known_to_be_faster(monkeypatch, path, capability, precisions, why) -> None:
    device(monkeypatch, path, capability, *precisions)
    assert is_faster("cuda") == (why.startswith("int8 was"), why)
    assert ((path, capability) in FASTER) >= why.startswith("int8 was")


def test_what_no_kernel_makes_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    device(monkeypatch, "portable", (8, 6), Math.INT8)
    for fine in (Math.BF16, Math.INT8, "auto"):
        check_precision(fine, "cuda")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^precision fp8 needs a GPU of compute capability 9\.0 .* bf16 or int8$"):
        check_precision(Math.FP8, "cuda")
    check_precision(Math.FP8, "cpu")


@pytest.mark.parametrize("tokens", [511, 512, 5000, 100_000])
def test_memory_counts_both_sides_rounded(tokens: int) -> None:
    config = find_shape("qwen3.6-27b").config
    together = min(tokens, 16384)  # twice as many as in BF16
    taken = product_bytes(config, together, Math.INT8)
    shapes = ((2 * 17408, 5120), (5120, 17408))  # gate and up together, and down
    assert taken == (0 if tokens < ROUNDED_TOKENS else max(workspace_bytes(together, *shape) for shape in shapes))
    streams = STREAMS * 4 * config.hidden * (together - min(tokens, 8192))
    keys = tokens * 4 * 256 if tokens > 2048 else 0  # one layer's, in 8 bits
    assert prefill_bytes(config, tokens, Math.INT8) - prefill_bytes(config, tokens) == taken + streams + keys
    assert product_bytes(config, tokens, Math.BF16) == 0
    drafter = find_shape("qwen3-0.6b").config
    assert scoring_bytes(drafter, tokens, Math.FP8) - scoring_bytes(drafter, tokens) == product_bytes(
        drafter, min(tokens, 16384), Math.FP8
    )


def test_experts_make_room_for_products_of_bytes() -> None:
    config = replace(find_shape("qwen3.6-35b-a3b").config)
    stacks = ((1 << 20,),) * 40
    room = next(
        size << 20 for size in range(1 << 14, 1 << 15) if not cold_layers(config, 14 << 30, stacks, size << 20).layers
    )
    assert cold_layers(config, 14 << 30, stacks, room, Math.INT8).layers
