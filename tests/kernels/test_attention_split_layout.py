"""attention_split and attention_combine for heads of 512 values on emulated blocks, against attention in float64."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from host_code import aligned, hosted, pointer

from sp.kernels.specs.attention.attention_split import ATTENTION_SPLIT, queries, variant
from sp.ops.attention.attention import attention
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.attention.kv_pages import DEVICE_PAGES, PagedKV
from sp.ops.attention.score_rule import ScoreRule
from sp.ops.hadamard import hadamard
from sp.quant import F16, Q4_0, Q8_0
from sp.quant.cached import K5, V4

D = 512
BEFORE = """
inline float sink_weight(const float*, int, float) { return 0; }
inline void pair_barrier(unsigned pair) { meet(300 + int(pair), 64); }
"""
SPLIT = """
extern "C" int run(const u16* q, const u8* k, const u8* v, const i32* table, i32 blocks, i32 tokens, const u64* seen,
                    i32 window, u16* partial, f32* states, i32 n, i32 heads, i32 kv_heads, f32 scale, const i32* reach,
                    int splits, int across, int all_parts) {
    int outside = 0;  // bytes of shared memory written that a launch does not ask for
    gridDim = {unsigned(splits), unsigned(kv_heads), unsigned(across)};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
                memset(memory, 0xff, sizeof memory);
                run_block(THREADS, [=] {
                    attention_split(q, k, v, table, blocks, nullptr, tokens, seen, window, partial, states, n, heads,
                                    kv_heads, scale, 0, reach, all_parts);
                });
                for (size_t i = SMEM; i < sizeof memory; ++i) outside += memory[i] != 0xff;
            }
    return outside;
}
"""
COMBINE = """
extern "C" void run(const u16* partial, const f32* states, const u16* wide, u16* out, i32 tokens, i32 window,
                    i32 splits, i32 rows, i32 n, i32 heads, i32 kv_heads, const i32* reach) {
    run_blocks(n * heads, 32 * WARPS, [=] {
        attention_combine(partial, states, wide, out, nullptr, 0, nullptr, tokens, window, splits, rows, n, heads,
                          kv_heads, nullptr, reach);
    });
}
"""


@cache
def kernel(source: str, driver: str, defines: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    return hosted(source, driver, Path(mkdtemp()) / "split", before=BEFORE, **dict(defines))


def attended(
    q, pages, table, tokens: int, fmts, rotated: bool, rule: ScoreRule, roomy: bool, splits: int
) -> np.ndarray:
    """Return the output of the two kernels: float32 (n, heads, d), rounded to bf16."""
    (n, heads, _), kv_heads = q.shape, pages[0].shape[2]
    rows = n * heads // kv_heads
    defines = variant(D, (DEVICE_PAGES[fmts[0]], DEVICE_PAGES[fmts[1]]), rows, roomy) | {"SOFTCAP": 0}
    defines["SMEM"] = ATTENTION_SPLIT.shared_bytes(defines)
    across = -(-rows // queries(defines))
    held = across * queries(defines)
    partial = aligned(np.full((kv_heads, splits, held, D), 0xFFFF, np.uint16))
    states = aligned(np.full((kv_heads, splits, held, 2), np.nan, np.float32))
    out, window = aligned(np.zeros((n, heads, D), np.uint16)), ctypes.c_int(rule.window or 0)
    asked, first = aligned(q), None if rule.reach is None else aligned(rule.reach)
    reach = None if first is None else pointer(first)
    scale = ctypes.c_float(float(np.log2(np.e)) * (rule.scale or D**-0.5))
    sizes = [ctypes.c_int(size) for size in (n, heads, kv_heads)]
    outside = kernel("attention_split.cu", SPLIT, tuple(defines.items())).run(
        pointer(asked), *map(pointer, (*pages, table)), len(table), tokens, None, window, pointer(partial),
        pointer(states), *sizes, scale, reach, splits, across, 0,
    )  # fmt: skip
    assert outside == 0
    combining = {"HEAD_DIM": D, "ROTATE": int(rotated), "FINISH": int(rotated), "SINKS": 0}
    kernel("attention_combine.cu", COMBINE, tuple(combining.items())).run(
        *map(pointer, (partial, states)), None, pointer(out), tokens, window, splits, held, *sizes, reach
    )
    return (out.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("roomy", [True, False])
@pytest.mark.parametrize(
    ("n", "heads", "kv_heads", "tokens", "splits", "rule"),
    [
        (1, 8, 1, 150, 2, ScoreRule(scale=0.05)),
        (3, 8, 2, 97, 1, ScoreRule()),
        (9, 8, 1, 200, 3, ScoreRule(scale=0.05)),
        (4, 4, 1, 190, 2, ScoreRule(window=70)),
        (4, 4, 1, 190, 2, ScoreRule(window=70, reach=np.array([110, 130, 187, 189], np.int32))),
    ],
)
def test_rows_are_those_of_float64(
    n: int, heads: int, kv_heads: int, tokens: int, splits: int, rule: ScoreRule, roomy: bool
) -> None:
    compare(n, heads, kv_heads, tokens, splits, rule, (F16, F16), False, roomy)


@pytest.mark.parametrize("roomy", [True, False])
@pytest.mark.parametrize(
    ("fmts", "rotated"),
    [
        ((Q4_0, Q4_0), True),
        ((Q4_0, Q4_0), False),
        ((Q8_0, Q8_0), True),
        ((F16, F16), True),
        ((K5, V4), True),
        ((K5, F16), True),
        ((F16, V4), True),
        ((Q8_0, Q4_0), True),
        ((Q4_0, Q8_0), True),
        ((F16, Q4_0), True),
    ],
    ids=lambda value: "-".join(fmt.name for fmt in value) if isinstance(value, tuple) else "",
)
def test_packed_and_rotated_pages(fmts, rotated: bool, roomy: bool) -> None:
    compare(5, 8, 1, 140, 2, ScoreRule(scale=0.05), fmts, rotated, roomy)


def compare(
    n: int, heads: int, kv_heads: int, tokens: int, splits: int, rule, fmts, rotated: bool, roomy: bool
) -> None:
    rng = np.random.default_rng([n, tokens])
    blocks = -(-tokens // 128)
    table = aligned(rng.permutation(blocks + 1)[:blocks].astype(np.int32))
    pages = [aligned(np.full((blocks + 1, 128, kv_heads, fmt.row_bytes(D)), 0xFF, np.uint8)) for fmt in fmts]
    basis = KeyBasis.plain(kv_heads, D) if fmts[0] is K5 else None
    at = PagedKV(*pages, table.astype(np.int64), 0, fmts[0], rotated, None, None, fmts[1], basis)
    at.append(*rng.standard_normal((2, tokens, kv_heads, D)).astype(np.float32))
    q = at.queries(rng.standard_normal((n, heads, D)).astype(np.float32)).astype(np.float16)
    k, v = (stored.astype(np.float64) for stored in replace(at, tokens=tokens).gather())
    want = attention(q.astype(np.float64), k, v, rule)
    want = hadamard(want, 64) if rotated else want
    got = attended(q, pages, table, tokens, fmts, rotated, rule, roomy, splits)
    assert np.square(got - want).mean() / np.square(want).mean() < 2e-5
