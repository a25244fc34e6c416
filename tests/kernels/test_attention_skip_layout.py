"""attention_skip and attention_skip_portable on emulated blocks, against their twin in float64."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from host_code import aligned, hosted, pointer, tensor_map

from sp.kernels.specs.attention.attention_skip import WARPS, portable_variant, queries, tile_keys
from sp.ops.attention.kv_pages import kv_append
from sp.ops.skip_softmax import OF_ONE, skipped
from sp.quant import F16

BEFORE = """
inline bool group_all(unsigned group, bool mine) {
    const Letters& all = meet(400 + int(group), 128, {mine});
    bool every = true;
    for (int i = 0; i < 128; ++i) every = every && all[i][0];
    return every;
}
"""
HOPPER = """
extern "C" void run(const TensorMap* q, const TensorMap* k, const TensorMap* v, const i32* table, u16* out, i32* read,
                    i32* next, i32 tokens, i32 n, i32 heads, i32 group, f32 scale, f32 share, f32 budget) {
    gridDim = {2, 1, 1};
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        memset(memory, 0xff, sizeof memory);
        run_block(384, [=] {
            attention_skip(*q, *k, *v, table, out, read, next, tokens, n, heads, group, group, scale, share, budget);
        });
    }
}
"""
PORTABLE = """
extern "C" void run(const u16* q, const u8* k, const u8* v, const i32* table, u16* out, i32* read, i32 tokens, i32 n,
                    i32 heads, i32 kv_heads, f32 scale, f32 share, f32 budget, i32 blocks) {
    run_blocks(blocks, THREADS, [=] {
        attention_skip_portable(q, k, v, table, out, read, tokens, n, heads, kv_heads, scale, share, budget);
    });
}
"""


@cache
def kernel(path: str, d: int) -> ctypes.CDLL:
    folder = Path(mkdtemp()) / "skip"
    if path == "sm_90a":
        return hosted("attention_skip.cu", HOPPER, folder, before=BEFORE, D=d, STAGES=3)
    return hosted("attention_skip_portable.cu", PORTABLE, folder, **portable_variant(d))


def attended(path: str, q, pages, table, tokens: int, budget: float) -> tuple[np.ndarray, int]:
    """Outputs, and how many tiles are read."""
    (n, heads, d), kv_heads = q.shape, pages[0].shape[2]
    out, scale = aligned(np.full(q.shape, 0x7FC0, np.uint16)), d**-0.5
    numbers = [ctypes.c_float(x) for x in (OF_ONE * budget, budget)]
    if path == "sm_90a":
        rows, keys, blocks = pages[0].shape[0] * 128, tile_keys(d), -(-n // 128)
        read, following = aligned(np.full((heads, blocks, 2), -1, np.int32)), aligned(np.zeros(1, np.int32))
        maps = [tensor_map(q, (64, n, d // 64, heads), (heads * d * 2, 128, d * 2), (64, 128, d // 64, 1))]
        maps += [
            tensor_map(
                page.view(np.float16),
                (64, rows, d // 64, kv_heads),
                (kv_heads * d * 2, 128, d * 2),
                (64, keys, d // 64, 1),
            )
            for page in pages
        ]
        arrays, sizes = (*maps, table, out, read, following), (tokens, n, heads, heads // kv_heads)
        kernel(path, d).run(*map(pointer, arrays), *map(ctypes.c_int, sizes), ctypes.c_float(scale), *numbers)
    else:
        blocks = -(-n // queries(portable_variant(d)))
        read = aligned(np.full((heads, blocks, WARPS), -1, np.int32))
        arrays, sizes = (q, *pages, table, out, read), (tokens, n, heads, kv_heads)
        base2 = ctypes.c_float(scale * float(np.log2(np.e)))
        last = ctypes.c_int(heads * blocks)
        kernel(path, d).run(*map(pointer, arrays), *map(ctypes.c_int, sizes), base2, *numbers, last)
    assert read.min() >= 0
    return (out.astype(np.uint32) << 16).view(np.float32), int(read.sum())


@pytest.mark.parametrize("path", ["sm_90a", "portable"])
@pytest.mark.parametrize(
    ("n", "tokens", "heads", "kv_heads", "d"),
    [(200, 500, 2, 1, 64), (70, 300, 2, 2, 128), (130, 130, 1, 1, 256), (1, 290, 2, 1, 64)],
)
@pytest.mark.parametrize("budget", [0.0, 0.1, 0.6])
def test_it_is_as_in_numpy(path: str, n: int, tokens: int, heads: int, kv_heads: int, d: int, budget: float) -> None:
    rng = np.random.default_rng([n, tokens, d])
    q, k, v = (rng.standard_normal((rows, h, d)) for rows, h in ((n, heads), (tokens, kv_heads), (tokens, kv_heads)))
    direction = rng.standard_normal(d) / d**0.5
    q += 4 * direction
    k[:4] += 30 * direction
    q = aligned(q.astype(np.float16))
    blocks = -(-tokens // 128)
    table = aligned(rng.permutation(blocks + 1)[:blocks].astype(np.int32))
    pages = [aligned(np.full((blocks + 1, 128, kv_heads, 2 * d), 0xFF, np.uint8)) for _ in "kv"]  # NaN past the tokens
    for page, values in zip(pages, (k, v), strict=True):
        kv_append(page, table, 0, values.astype(np.float32), F16)
    every = np.arange(tokens)
    k, v = (F16.decode(page[table[every // 128], every % 128]).astype(np.float64) for page in pages)
    size = None if path == "sm_90a" else (16 * portable_variant(d)["SLICES"], 64)
    want, counts = skipped(q.astype(np.float64), k, v, d**-0.5, budget, size)
    got, read = attended(path, q, pages, table, tokens, budget)
    np.testing.assert_allclose(got, want, rtol=0.02, atol=0.01)
    assert read == counts.read.sum()
    assert budget < 0.6 or n == 1 or read < counts.possible
