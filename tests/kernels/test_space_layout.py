"""Kernels of the space of a trained head on emulated blocks, against float64."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from host_code import aligned, hosted, pointer

from sp.ops.attention.attention_heads import unrotate
from sp.ops.attention.kv_pages import kv_append, kv_gather
from sp.ops.rope import Rope, rope
from sp.quant import F16

ROWS = """
extern "C" void run(const u8* k, const u8* v, const i32* table, const i64* places, const i64* turns, const u16* weights,
                    f32* document, i64 tokens, i32 kv_heads, i32 half, i32 pitch, i32 first, f32 size) {
    gridDim = {unsigned((tokens + TOKENS - 1) / TOKENS), unsigned(pitch / RANK), 1};
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
            run_block(32 * WARPS, [=] {
                space_rows(k, v, table, places, turns, weights, document, tokens, kv_heads, half, pitch, first, size);
            });
}
"""
SINES = """
inline void sincospif(float turns, float* sine, float* cosine) {
    *sine = float(std::sin(M_PI * turns)), *cosine = float(std::cos(M_PI * turns));
}
"""
WORTH = """
extern "C" void run(const f32* document, const f32* asking, const i32* bounds, f32* alike, f32* units, f32* windows,
                    i32 tokens, i32 rank, i32 stride, i32 rows, i32 count, i32 others) {
    gridDim = {unsigned((tokens + SIDE - 1) / SIDE), unsigned((rows + SIDE - 1) / SIDE), 1};
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
            run_block(256, [=] { space_alike(document, asking, alike, tokens, rank, stride, rows); });
    run_blocks((count + WARPS - 1) / WARPS, 32 * WARPS, [=] {
        space_worth(alike, asking, bounds, units, count, tokens, rank, stride, rows, 0, 0);
    });
    run_blocks((others + WARPS - 1) / WARPS, 32 * WARPS, [=] {
        space_worth(alike, asking, nullptr, windows, others, tokens, rank, stride, rows, 8, 64);
    });
}
"""
SCORES = """
extern "C" void run(const f32* units, const i32* bounds, const f32* windows, const f32* looked, f32* x, u64* sums,
                    f32* scores, i32 count, i32 tokens, i32 half) {
    const int blocks = (tokens + EACH - 1) / EACH;
    run_blocks(blocks, THREADS, [=] {
        space_parts(units, bounds, windows, looked, x, sums, count, tokens, 8, 8, half);
    });
    run_blocks(blocks, THREADS, [=] { space_scores(x, sums, scores, tokens, blocks, 1, 2, 0.25); });
}
"""


@pytest.mark.parametrize(
    ("d", "kv_heads", "rotary", "rank", "pitch", "paged"),
    [
        (64, 3, Rope(1e4, 64), 96, 96, True),
        (64, 1, Rope(1e4, 24, magnitude=1.25), 16, 48, False),
        (128, 2, Rope(1e4, 128, "interleaved"), 16, 16, True),
        (256, 1, Rope(1e4, 64), 32, 32, True),
        (512, 1, Rope(1e4, 0), 16, 16, True),
    ],
)
def test_rows_of_pages(d: int, kv_heads: int, rotary: Rope, rank: int, pitch: int, paged: bool, tmp_path: Path) -> None:
    """Two layers, of which the first writes over what is no number; one value of each is much larger than others."""
    rng, tokens = np.random.default_rng(d), 150
    positions = aligned(rng.integers(0, 200_000, tokens))
    table = aligned(rng.permutation(3)[:2].astype(np.int32) if paged else np.arange(2, dtype=np.int32))
    turns = aligned(rotary.turn_fractions() if rotary.dim else np.zeros(1, np.int64))
    document, want = aligned(np.full((tokens + 1, pitch), np.nan, np.float32)), np.zeros((tokens, pitch))
    kernel = hosted(
        "space_rows.cu", ROWS, tmp_path / "run", SINES, HEAD_DIM=d, RANK=rank,
        INTERLEAVED=int(rotary.pairing == "interleaved"),
    )  # fmt: skip
    for first in (1, 0):
        pages = [aligned(np.full((3, 128, kv_heads, 2 * d), 0xFF, np.uint8)) for _ in range(2)]
        plain = rng.standard_normal((2, tokens, kv_heads, d))
        plain[:, 7, 0, 3] = 50
        kv_append(pages[0], table, 0, rope(plain[0], positions, rotary).astype(np.float32), F16)
        kv_append(pages[1], table, 0, plain[1].astype(np.float32), F16)
        weights = aligned((rng.standard_normal((2 * kv_heads * d, pitch)) / 8).astype(np.float16))
        places = None if not paged else pointer(table)
        kernel.run(
            *map(pointer, pages), places, *map(pointer, (positions, turns, weights, document)), ctypes.c_int64(tokens),
            kv_heads, rotary.dim // 2, pitch, first, ctypes.c_float(rotary.undone().magnitude),
        )  # fmt: skip
        k, v = (kv_gather(one, table, tokens, F16).astype(np.float64) for one in pages)
        k = unrotate(k, positions, rotary).reshape(tokens, -1)
        want += np.concatenate([k, v.reshape(tokens, -1)], axis=1) @ weights.astype(np.float64)
    assert np.square(document[:tokens] - want).sum() < 1e-6 * np.square(want).sum()
    assert np.isnan(document[tokens]).all()


@pytest.mark.parametrize(("tokens", "rows", "rank"), [(201, 70, 32), (9, 1, 16)])
def test_worth_of_ranges(tokens: int, rows: int, rank: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(tokens)
    document = aligned(
        (rng.standard_normal((tokens, rank)) * np.exp(rng.standard_normal((tokens, 1)))).astype(np.float32)
    )
    asking = aligned(rng.standard_normal((rows, rank + 1)).astype(np.float32))
    bounds = aligned(np.unique(np.append(rng.integers(0, tokens, 20), [0, tokens])).astype(np.int32))
    alike, units = aligned(np.full((tokens, rows), np.nan, np.float32)), aligned(np.zeros(len(bounds) - 1, np.float32))
    windows = aligned(np.zeros(-(-tokens // 8) + 7, np.float32))
    hosted("space_worth.cu", WORTH, tmp_path / "run").run(
        *map(pointer, (document, asking, bounds, alike, units, windows)), tokens, rank, rank + 1, rows, len(units),
        len(windows),
    )  # fmt: skip
    d, a = document.astype(np.float64), asking[:, :rank].astype(np.float64)
    cosines = d @ a.T / np.linalg.norm(d, axis=1)[:, None] / np.linalg.norm(a, axis=1)
    np.testing.assert_allclose(alike, cosines, atol=1e-6)
    shares = np.exp(asking[:, rank].astype(np.float64))
    shares /= shares.sum()
    ranges = list(pairwise(bounds))
    np.testing.assert_allclose(units, [cosines[a:b].max(axis=0) @ shares for a, b in ranges], atol=1e-6)
    ranges = [(max(first, 0), first + 64) for first in range(-56, tokens, 8)]
    np.testing.assert_allclose(windows, [cosines[a:b].max(axis=0) @ shares for a, b in ranges], atol=1e-6)


@pytest.mark.parametrize(("tokens", "pool"), [(1, 1), (1500, 13)])
def test_scores_of_tokens(tokens: int, pool: int, tmp_path: Path) -> None:
    rng, half = np.random.default_rng(tokens), pool // 2
    bounds = aligned(np.unique(np.append(rng.integers(0, tokens, 60), [0, tokens])).astype(np.int32))
    units = aligned((0.7 + 0.01 * rng.standard_normal(len(bounds) - 1)).astype(np.float32))
    windows = aligned(rng.standard_normal(-(-tokens // 8) + 7).astype(np.float32))
    looked = aligned((1e-5 * rng.random(tokens)).astype(np.float32))
    x, scores = aligned(np.full((3, tokens), np.nan, np.float32)), aligned(np.full(tokens, np.nan, np.float32))
    sums = aligned(np.full((-(-tokens // 1024), 6), -1, np.int64))
    hosted("space_scores.cu", SCORES, tmp_path / "run").run(
        *map(pointer, (units, bounds, windows, looked, x, sums, scores)), len(units), tokens, half
    )
    want = np.zeros((3, tokens))
    for unit, (first, last) in enumerate(pairwise(bounds)):
        want[0, first:last] = units[unit]
    for t in range(tokens):
        want[1, t] = windows[t // 8 : t // 8 + 8].max()
        want[2, t] = looked[max(t - half, 0) : t + half + 1].astype(np.float64).mean()
    np.testing.assert_allclose(x, want, rtol=1e-5)
    spread = want.std(axis=1, keepdims=True)
    want -= want.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(scores, np.array([1, 2, 0.25]) @ (want / np.where(spread > 0, spread, 1)), atol=1e-4)
