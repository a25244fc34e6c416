"""Scaled RoPE on the device against its NumPy twin: kernels with an attention factor, and whole models under YaRN."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64
from device_models import case

cp = pytest.importorskip("cupy")

from sp.models import RopeScaling, load_model, prefill, prefill_layer_major  # noqa: E402
from sp.models.run.tree import TreeReader  # noqa: E402
from sp.ops import kv_append  # noqa: E402
from sp.ops.attention.attention_heads import HeadNorms, attention_heads, head_norm_rope, unrotate  # noqa: E402
from sp.ops.attention.kv_pages import PagedKV  # noqa: E402
from sp.ops.rope import LinearScaling, Rope, YarnScaling, rope  # noqa: E402
from sp.quant import F16, Q4_0  # noqa: E402
from sp.scoring import SCORERS, ScoreRequest  # noqa: E402

F16_ROUNDING, LOGITS, SCORES = 2e-7, 1e-3, 2e-4
N = 700  # no whole number of pages
YARN = RopeScaling("yarn", 4.0)


def rotations(rope_dim: int, pairing: str) -> tuple[Rope, ...]:
    yarn = YarnScaling(4.0, 32768)
    return (
        Rope(1e7, rope_dim, pairing, LinearScaling(2.5)),  # type: ignore[arg-type]
        Rope(1e7, rope_dim, pairing, yarn, yarn.attention_factor),  # type: ignore[arg-type]
        Rope(1e7, rope_dim, pairing, magnitude=0.75),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("tokens", [1, 33, 1000])
@pytest.mark.parametrize(
    ("heads", "d", "stride", "rope_dim"), [(24, 256, 512, 64), (2, 128, 128, 128), (3, 64, 64, 34)]
)
@pytest.mark.parametrize(("pairing", "normed"), [("halves", True), ("interleaved", False)])
def test_head_norm_rope(tokens, heads, d, stride, rope_dim, pairing, normed) -> None:
    rng = np.random.default_rng(tokens)
    bits = to_bf16(rng.standard_normal((tokens, heads, stride)).astype(np.float32))
    weight = rng.uniform(0.5, 2, d).astype(np.float32) if normed else None
    exact, placed = (None, None) if weight is None else (weight.astype(np.float64), cp.asarray(weight))
    positions = rng.integers(0, 1_000_000, tokens)
    for rotary in rotations(rope_dim, pairing):
        want = head_norm_rope(to_float64(bits), d, exact, 1e-6, positions, rotary)
        got = head_norm_rope(cp.asarray(bits), d, placed, 1e-6, cp.asarray(positions), rotary)
        assert nmse(got, want) < F16_ROUNDING
        plain = head_norm_rope(cp.asarray(bits), d, placed, 1e-6, cp.asarray(positions), Rope(1e7, rope_dim, pairing))
        assert nmse(plain, want) > 0.005


@pytest.mark.parametrize(("fmt", "rotate"), [(F16, False), (Q4_0, True)])
@pytest.mark.parametrize(("heads", "kv_heads", "d", "wide", "rope_dim"), [(24, 4, 256, 2, 64), (4, 2, 128, 1, 128)])
@pytest.mark.parametrize("normed", [True, False])
def test_attention_heads_is_norm_rope_append_in_one_launch(
    fmt, rotate, heads, kv_heads, d, wide, rope_dim, normed
) -> None:
    tokens, start, rng = 130, 120, np.random.default_rng(7)
    q, k, v = (
        cp.asarray(to_bf16(rng.standard_normal((tokens, h, s))))
        for h, s in ((heads, wide * d), (kv_heads, d), (kv_heads, d))
    )
    weight = cp.asarray(rng.uniform(0.5, 2, d).astype(np.float32))
    norms = HeadNorms(weight, weight, 1e-6) if normed else HeadNorms()
    positions, table = cp.asarray(rng.integers(0, 200_000, tokens)), cp.asarray(rng.permutation(4).astype(np.int32))
    for rotary in rotations(rope_dim, "halves"):
        pages = [cp.full((4, 128, kv_heads, fmt.row_bytes(d)), 0xA5, np.uint8) for _ in range(3)]
        keys = head_norm_rope(k, d, norms.k, 1e-6, positions, rotary)
        kv_append(pages[0], table, start, keys, fmt, d if rotate else 0)
        at = PagedKV(pages[1], pages[2], table, start, fmt, rotate)
        found = attention_heads(q, k, v, norms, positions, rotary, at)
        want = head_norm_rope(q, d, norms.q, 1e-6, positions, rotary)
        np.testing.assert_array_equal(found.get().view(np.uint16), want.get().view(np.uint16))
        np.testing.assert_array_equal(pages[1].get(), pages[0].get())


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
@pytest.mark.parametrize(("d", "rope_dim"), [(128, 128), (256, 64)])
def test_unrotate_undoes_rope(d, rope_dim, pairing) -> None:
    rng = np.random.default_rng(d)
    x, positions = rng.standard_normal((133, 3, d)), rng.integers(0, 1_000_000, 133)
    for rotary in rotations(rope_dim, pairing):
        turned = rope(x, positions, rotary).astype(np.float16)
        assert nmse(unrotate(cp.asarray(turned), cp.asarray(positions), rotary), x) < 4e-7


@cache
def twins(name: str):
    """A model under YaRN in NumPy and on the device, tokens, positions with gaps, and the logits of the former."""
    c = case(name)
    ids, where = c.ids[:N], np.cumsum(np.random.default_rng(2).integers(1, 60, N))
    cpu, gpu = (load_model(c.path, device=on, rope=YARN) for on in ("cpu", "cuda"))
    assert where[-1] < cpu.config.context
    return cpu, gpu, ids, where, prefill(cpu, ids, where, cpu.new_cache(N))


MODELS = ["tiny-qwen3:bf16", "target", "drafter"]


@pytest.mark.parametrize("walk", [prefill, prefill_layer_major])
@pytest.mark.parametrize("name", MODELS)
def test_logits_of_a_model_under_yarn(name, walk, path) -> None:
    _, gpu, ids, where, want = twins(name)
    found = walk(gpu, ids, where, gpu.new_cache(N))
    plain = case(name).cpu
    off = nmse(prefill(plain, ids, where, plain.new_cache(N)), want)
    print(f"{name} {walk.__name__}: nmse {nmse(found, want):.2e}, unscaled {off:.2e}")
    assert nmse(found, want) < LOGITS
    assert off > 3 * LOGITS, "the scaling must matter for this test to mean much"


@pytest.mark.parametrize("name", MODELS)
def test_a_chain_of_guesses_under_yarn(name, path) -> None:
    _, gpu, ids, where, want = twins(name)
    cache_ = gpu.new_cache(N)
    prefill(gpu, ids[:-6], where[:-6], cache_)
    found = TreeReader(gpu, cache_, most=6).read_tree(ids[-6:], np.arange(6) - 1, where[-6:])
    assert nmse(found.logits[-1], want) < LOGITS


@pytest.mark.parametrize("scorer", ["tail", "mid_layer", "snapkv"])
def test_scores_under_yarn(scorer, path) -> None:
    cpu, gpu, ids, where, _ = twins("drafter")
    question, needle = np.arange(N) >= N - 20, np.arange(N) // 40 == 5
    got, want = (
        SCORERS.build(scorer).score(ScoreRequest(model, ids, where, question, needle)).scores for model in (gpu, cpu)
    )
    assert nmse(got, want) < SCORES
