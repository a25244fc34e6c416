"""importance_scores on emulated blocks, of narrow heads and of those that registers hold in parts, against float64."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from host_code import aligned, hosted, pointer

from sp.ops.attention.kv_pages import kv_append, kv_gather
from sp.quant import F16

RUN = """
extern "C" void run(const u16* q, const u8* pages, const i32* table, f32* scores, f32* parts, i32 n, i32 tokens,
                    i32 before, i32 heads, i32 kv_heads, i32 pitch, f32 scale, int splits, int tiles) {
    gridDim = {unsigned(splits), unsigned(kv_heads), unsigned(tiles)};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
                run_block(32 * WARPS, [=] {
                    importance_scores(q, pages, table, scores, parts, n, tokens, before, heads, kv_heads, pitch, scale);
                });
}
"""


@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(4, 2, 128), (8, 1, 512)])
def test_scores_and_their_parts(heads: int, kv_heads: int, d: int, tmp_path: Path) -> None:
    rng, n, tokens, splits = np.random.default_rng(d), 5, 150, 2
    table = aligned(rng.permutation(3)[:2].astype(np.int32))
    pages = aligned(np.full((3, 128, kv_heads, 2 * d), 0xFF, np.uint8))
    kv_append(pages, table, 0, rng.standard_normal((tokens, kv_heads, d)).astype(np.float32), F16)
    q = aligned(rng.standard_normal((n, heads, d)).astype(np.float16))
    scores = aligned(np.full((heads, n, 256), np.nan, np.float32))
    parts = aligned(np.full((heads, n, splits, 2), np.nan, np.float32))
    scale = float(np.log2(np.e) / np.sqrt(d))
    tiles = -(-n * (heads // kv_heads) // 16)
    hosted("importance.cu", RUN, tmp_path / "run", HEAD_DIM=d).run(
        *map(pointer, (q, pages, table, scores, parts)), n, tokens, tokens - n, heads, kv_heads, 256,
        ctypes.c_float(scale), splits, tiles,
    )  # fmt: skip
    k = np.repeat(kv_gather(pages, table, tokens, F16).astype(np.float64), heads // kv_heads, axis=1)
    want = np.full((heads, n, 256), -np.inf)
    want[..., :tokens] = scale * np.einsum("nhd,thd->hnt", q.astype(np.float64), k)
    want[..., :tokens][:, np.arange(tokens) > np.arange(tokens - n, tokens)[:, None]] = -np.inf
    np.testing.assert_allclose(scores, want, rtol=1e-4, atol=1e-4)
    most = parts[..., 0].max(axis=-1)
    total = (parts[..., 1] * np.exp2(parts[..., 0] - most[..., None])).sum(axis=-1)
    np.testing.assert_allclose(most, want.max(axis=-1), rtol=1e-4)
    np.testing.assert_allclose(total, np.exp2(want - want.max(axis=-1, keepdims=True)).sum(axis=-1), rtol=1e-3)
