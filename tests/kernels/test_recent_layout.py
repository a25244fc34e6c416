"""Attention of few queries with exact rows of the newest tokens, on emulated blocks, against attention in float64."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from host_code import aligned, pointer
from test_attention_decode_layout import kernel as decode_kernel
from test_attention_heads_layout import some_basis
from test_attention_split_layout import COMBINE, SPLIT
from test_attention_split_layout import kernel as split_kernel

from sp.kernels.specs.attention import attention_decode, attention_split
from sp.kernels.specs.attention.page_rows import RECENT
from sp.ops.attention.attention import attention
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.attention.masked_attention import masked_attention
from sp.ops.attention.recent_rows import RecentRows, RunRows
from sp.ops.attention.score_rule import ScoreRule
from sp.ops.attention.tree_attention import visible
from sp.ops.hadamard import hadamard
from sp.quant.cached import K4, V4

KV_HEADS, SPLITS = 2, 3
LENGTHS = [(1, 1), (3, 3), (1, 64), (1, 65), (1, 66), (2, 80), (1, 129), (3, 300), (1, 700), (9, 200)]
"""Queries, and tokens with theirs: none is packed, few are, or most."""


def case(rng: np.random.Generator, n: int, tokens: int, d: int) -> tuple[PagedKV, np.ndarray]:
    """Return the cache of a sequence whose last run are `n` tokens, with poison where no token lies, and queries."""
    blocks = -(-tokens // 128)
    table = rng.permutation(blocks + 1)[:blocks]
    pages = [aligned(np.full((blocks + 1, 128, KV_HEADS, fmt.row_bytes(d)), 0xFF, np.uint8)) for fmt in (K4, V4)]
    rings = [aligned(np.full((2, 128, KV_HEADS, 2 * d), 0xFF, np.uint8)) for _ in "kv"]
    recent = RecentRows(*rings, np.repeat([[0], [1]], blocks, axis=1), 1, RunRows())
    basis = some_basis(rng, KV_HEADS, d)
    at = PagedKV(*pages, table, 0, K4, True, None, None, V4, basis, recent)
    k, v = rng.standard_normal((2, tokens, KV_HEADS, d)).astype(np.float32)
    first = tokens - n
    if first:
        at.append(k[:first], v[:first])
        recent.end()
    replace(at, tokens=first).append(k[first:], v[first:])
    q = 3 * rng.standard_normal((n, 3 * KV_HEADS, d)).astype(np.float32)
    return replace(at, tokens=tokens), aligned(at.queries(q).astype(np.float16))


def close(out: np.ndarray, want: np.ndarray) -> None:
    got = (out.astype(np.uint32) << 16).view(np.float32)
    assert np.square(got - want).mean() / np.square(want).mean() < 3e-5  # levels, weights and parts are float16


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize(("n", "tokens"), LENGTHS)
def test_decode_sums_packed_and_exact_rows(n: int, tokens: int, d: int) -> None:
    rng, heads = np.random.default_rng([d, n, tokens]), 3 * KV_HEADS
    at, q = case(rng, n, tokens, d)
    assert at.recent is not None
    out, sizes = aligned(np.zeros((n, heads, d), np.uint16)), [ctypes.c_int(size) for size in (n, heads, KV_HEADS)]
    packed = attention_decode.variant(d, RECENT, 3 * n, recent=True)
    ring = attention_split.ring_variant(attention_split.variant(d, RECENT, 3 * n)) | {"SOFTCAP": 0}
    parts, scale = SPLITS + 1, ctypes.c_float(float(np.log2(np.e) * d**-0.5))
    held = -(-3 * n // 16) * 16
    partial = aligned(np.full((KV_HEADS, parts, held, d), 0xFFFF, np.uint16))
    states = aligned(np.full((KV_HEADS, parts, held, 2), np.nan, np.float32))
    tables = aligned(at.recent.tables[1].astype(np.int32)), aligned(at.table.astype(np.int32))
    ring["SMEM"] = attention_split.ATTENTION_SPLIT.shared_bytes(ring)
    packed["SMEM"] = attention_decode.ATTENTION_DECODE.shared_bytes(packed)
    outside = split_kernel("attention_split.cu", SPLIT, tuple(ring.items())).run(
        *map(pointer, (q, at.recent.k, at.recent.v, tables[0])), len(tables[0]), tokens, None, 0,
        *map(pointer, (partial, states)), *sizes, scale, None, 1, 1, parts,
    )  # fmt: skip
    outside += decode_kernel(tuple(packed.items())).run(
        *map(pointer, (q, at.k, at.v, tables[1])), tokens, None, *map(pointer, (partial, states)), *sizes, scale,
        SPLITS, held // 16,
    )  # fmt: skip
    assert outside == 0
    combining = {"HEAD_DIM": d, "ROTATE": 1, "FINISH": 1, "SINKS": 0, "RECENT": 1}
    split_kernel("attention_combine.cu", COMBINE, tuple(combining.items())).run(
        *map(pointer, (partial, states)), None, pointer(out), tokens, 0, parts, held, *sizes, None
    )
    want = attention(q.astype(np.float64), *(rows.astype(np.float64) for rows in at.gather()))
    close(out, hadamard(want, 64))


RULES = [
    ScoreRule(),
    ScoreRule(window=40),
    ScoreRule(window=100),
    ScoreRule(window=100, reach=np.array([120, 150, 180, 190, 195], np.int32)),
]


@pytest.mark.parametrize("d", [64, 256, 512])
@pytest.mark.parametrize(
    ("n", "tokens", "rule"), [(1, 1, RULES[0]), (5, 66, RULES[0]), (20, 300, RULES[0])]
    + [(5, 200, rule) for rule in RULES], ids=str,
)  # fmt: skip
def test_split_sums_packed_and_exact_rows(n: int, tokens: int, rule: ScoreRule, d: int) -> None:
    at, q = case(np.random.default_rng([d, n, tokens]), n, tokens, d)
    want = attention(q.astype(np.float64), *(rows.astype(np.float64) for rows in at.gather()), rule)
    close(split(at, q, rule), hadamard(want, min(64, d)))


@pytest.mark.parametrize("tokens", [30, 64, 90, 300])
def test_trees_sum_packed_and_exact_rows(tokens: int) -> None:
    rng, d, n = np.random.default_rng(tokens), 64, 30
    at, q = case(rng, n, tokens, d)
    seen = rng.integers(0, 1 << 30, n).astype(np.uint64) | np.uint64(1) << np.arange(n, dtype=np.uint64)
    k, v = (rows.astype(np.float64) for rows in at.gather())
    want = masked_attention(q.astype(np.float64), k, v, visible(seen, tokens), ScoreRule())
    close(split(at, q, ScoreRule(), seen), hadamard(want, 64))


def split(at: PagedKV, q: np.ndarray, rule: ScoreRule, seen: np.ndarray | None = None) -> np.ndarray:
    """Return the output of the three launches: bf16 bits (n, heads, d)."""
    assert at.recent is not None
    (n, heads, d), parts = q.shape, SPLITS + 1
    packed = attention_split.variant(d, RECENT, n * heads // KV_HEADS, d < 512) | {"SOFTCAP": 0, "RECENT": 1}
    across = -(-n * heads // KV_HEADS // attention_split.queries(packed))
    held = across * attention_split.queries(packed)
    partial = aligned(np.full((KV_HEADS, parts, held, d), 0xFFFF, np.uint16))
    states = aligned(np.full((KV_HEADS, parts, held, 2), np.nan, np.float32))
    tables = aligned(at.recent.tables[1].astype(np.int32)), aligned(at.table.astype(np.int32))
    launches = (
        (attention_split.ring_variant(packed), (at.recent.k, at.recent.v, tables[0]), 1),
        (packed, (at.k, at.v, tables[1]), SPLITS),
    )
    first, mask = None if rule.reach is None else aligned(rule.reach), None if seen is None else aligned(seen)
    reach, sizes = None if first is None else pointer(first), [ctypes.c_int(size) for size in (n, heads, KV_HEADS)]
    window, scale = ctypes.c_int(rule.window or 0), ctypes.c_float(float(np.log2(np.e)) * d**-0.5)
    for defines, arrays, splits in launches:
        defines["SMEM"] = attention_split.ATTENTION_SPLIT.shared_bytes(defines)
        outside = split_kernel("attention_split.cu", SPLIT, tuple(defines.items())).run(
            pointer(q), *map(pointer, arrays), len(tables[0]), at.tokens, None if mask is None else pointer(mask),
            window, pointer(partial), pointer(states), *sizes, scale, reach, splits, across, parts,
        )  # fmt: skip
        assert outside == 0
    out = aligned(np.zeros((n, heads, d), np.uint16))
    combining = {"HEAD_DIM": d, "ROTATE": 1, "FINISH": 1, "SINKS": 0, "RECENT": 1}
    split_kernel("attention_combine.cu", COMBINE, tuple(combining.items())).run(
        *map(pointer, (partial, states)), None, pointer(out), at.tokens, window, parts, held, *sizes, reach
    )
    return out
