"""attention_decode on emulated blocks, of every format of keys and values, against float64; and its banks."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from host_code import aligned, hosted, pointer
from test_attention_split_layout import COMBINE
from test_attention_split_layout import kernel as combine

from sp.kernels.specs.attention.attention_decode import ATTENTION_DECODE, GROUP_ROWS, variant
from sp.kernels.specs.attention.page_rows import PAIRS
from sp.ops.attention.attention import attention
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.attention.kv_pages import DEVICE_PAGES, PagedKV
from sp.ops.attention.masked_attention import masked_attention
from sp.ops.attention.score_rule import ScoreRule
from sp.ops.attention.tree_attention import visible
from sp.ops.hadamard import hadamard
from sp.quant.cached import K4, K5, V4

FORMATS = {number: fmt for fmt, number in DEVICE_PAGES.items() if fmt is not K4} | {14: V4}
KV_HEADS = 2
BEFORE = """
inline unsigned low_codes(unsigned w, unsigned magic) { return h2_sub(masked(w, 0x000f000fu, magic), 0x64086408u); }
inline unsigned high_codes(unsigned w, unsigned magic) {
    return h2_fma(masked(w, 0x00f000f0u, magic), 0x2c002c00u, 0xd480d480u);
}
inline unsigned transpose(unsigned matrix) {  // as movmatrix does: lane 4 r + c has columns 2 c and 2 c + 1 of row r
    const Letters& all = meet(warp_place(), 32, {matrix});
    const int lane = now % 32, column = lane / 4;
    unsigned out = 0;
    for (int half = 0; half < 2; ++half) {
        const int row = 2 * (lane % 4) + half;
        out |= unsigned(all[4 * row + column / 2][0] >> 16 * (column % 2) & 65535) << 16 * half;
    }
    return out;
}
"""
DRIVER = """
extern "C" int run(const u16* q, const u8* k, const u8* v, const i32* table, i32 tokens, const u64* seen,
                    u16* partial, f32* states, i32 n, i32 heads, i32 kv_heads, f32 scale, int splits, int groups) {
    int outside = 0;  // bytes of shared memory written that a launch does not ask for
    gridDim = {unsigned(splits), unsigned(kv_heads), unsigned(groups)};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
                memset(memory, 0xff, sizeof memory);
                run_block(32 * WARPS, [=] {
                    attention_decode(q, k, v, table, nullptr, tokens, seen, partial, states, n, heads, kv_heads, scale);
                });
                for (size_t i = SMEM; i < sizeof memory; ++i) outside += memory[i] != 0xff;
            }
    return outside;
}
extern "C" void places(u32* out) {
    for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4, c = lane % 4;
        const Places at(g, c);
        const u32 found[] = {at.scale, at.own[0], at.own[1], at.value_scale, at.value_own, u32(K_PITCH), u32(V_PITCH),
                             u32(g * K_PITCH + swizzled<false>(g, c) * 16),
                             u32(2 * c * V_PITCH + swizzled<true>(2 * c, g) * 16)};
        memcpy(out + 9 * lane, found, sizeof found);
    }
}
"""


@cache
def kernel(defines: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    return hosted("attention_decode.cu", DRIVER, Path(mkdtemp()) / "decode", before=BEFORE, **dict(defines))


def cases() -> list[tuple[int, tuple[int, int], int, int, bool]]:
    """Head size, formats, queries, tokens, shared memory: every pair with one size, the others with some."""
    pairs = [*PAIRS[1:], (5, 8), (5, 16), (16, 14), (8, 14), (4, 8)]
    found = [(128, pair, 1, 700, False) for pair in pairs]
    found += [(d, pair, 3, 333, True) for d in (64, 256) for pair in ((16, 4), (4, 4), (5, 14), (8, 8))]
    found += [(128, (5, 14), 5, 900, True), (256, (4, 4), 1, 900, True), (64, (14, 14), 10, 300, True)]
    found += [(256, (5, 14), 6, 70, False), (128, (8, 8), 10, 200, True)]
    return [*found, (64, (5, 14), 1, 1, True), (64, (5, 14), 5, 5, False), (64, (8, 4), 1, 129, False)]


@pytest.mark.parametrize(("d", "formats", "n", "tokens", "roomy"), cases(), ids=str)
def test_rows_are_those_of_float64(d: int, formats: tuple[int, int], n: int, tokens: int, roomy: bool) -> None:
    tree = n > 3
    rng, heads, splits = np.random.default_rng([d, n, *formats]), 3 * KV_HEADS, 3
    fmts, blocks = [FORMATS[number] for number in formats], -(-tokens // 128)
    table = aligned(rng.permutation(blocks + 1)[:blocks].astype(np.int32))
    pages = [aligned(np.full((blocks + 1, 128, KV_HEADS, fmt.row_bytes(d)), 0xFF, np.uint8)) for fmt in fmts]
    basis = KeyBasis.plain(KV_HEADS, d) if fmts[0] is K5 else None
    at = PagedKV(*pages, table.astype(np.int64), 0, fmts[0], True, None, None, fmts[1], basis)
    at.append(*rng.standard_normal((2, tokens, KV_HEADS, d)).astype(np.float32))
    q = aligned(at.queries(3 * rng.standard_normal((n, heads, d)).astype(np.float32)).astype(np.float16))
    gate = rng.standard_normal((n, heads, 2, d)).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    wide, out = aligned((gate >> 16).astype(np.uint16)), aligned(np.zeros((n, heads, d), np.uint16))

    defines = variant(d, formats, 3 * n, roomy)
    defines["SMEM"] = ATTENTION_DECODE.shared_bytes(defines)
    groups = -(-3 * n // GROUP_ROWS)
    held = groups * GROUP_ROWS
    partial = aligned(np.full((KV_HEADS, splits, held, d), 0xFFFF, np.uint16))
    states = aligned(np.full((KV_HEADS, splits, held, 2), np.nan, np.float32))
    last = np.uint64(1) << np.arange(n, dtype=np.uint64)
    seen = aligned((rng.integers(0, 1 << n, n).astype(np.uint64) & (last - np.uint64(1))) | last)
    sizes = [ctypes.c_int(size) for size in (n, heads, KV_HEADS)]
    outside = kernel(tuple(defines.items())).run(
        *map(pointer, (q, *pages, table)), tokens, pointer(seen) if tree else None, *map(pointer, (partial, states)),
        *sizes, ctypes.c_float(float(np.log2(np.e) * d**-0.5)), splits, groups,
    )  # fmt: skip
    assert outside == 0
    combining = {"HEAD_DIM": d, "ROTATE": 1, "FINISH": 1, "SINKS": 0}
    combine("attention_combine.cu", COMBINE, tuple(combining.items())).run(
        *map(pointer, (partial, states, wide, out)), tokens, 0, splits, held, *sizes, None
    )
    k, v = (stored.astype(np.float64) for stored in replace(at, tokens=tokens).gather())
    want = attention(q.astype(np.float64), k, v)
    if tree:
        want = masked_attention(q.astype(np.float64), k, v, visible(seen, tokens), ScoreRule())
    want = hadamard(want, 64) / (1 + np.exp(-gate.view(np.float32)[:, :, 1].astype(np.float64)))
    got = (out.astype(np.uint32) << 16).view(np.float32)
    assert np.square(got - want).mean() / np.square(want).mean() < 2e-5


def conflicts(addresses: np.ndarray) -> int:
    """Most words of one bank that lanes ask for together."""
    words = np.unique(addresses // 4)
    return int(np.bincount(words % 32).max())


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("formats", PAIRS, ids=str)
def test_lanes_meet_in_few_banks(d: int, formats: tuple[int, int]) -> None:
    """None twice, but for bytes, of which neighbours take every other word."""
    defines = variant(d, formats, 8, formats != (16, 16), True) | {"SMEM": 0}
    out = np.zeros((32, 9), np.uint32)
    kernel(tuple(defines.items())).places(pointer(out))
    scale, own, behind, value_scale, value_own, k_pitch, v_pitch, keys, values = out.T
    if formats[0] == 16:
        for eight in keys.reshape(4, 8):  # lanes of one phase, 16 bytes each
            assert len(set(eight // 16 % 8)) == 8
    else:
        assert k_pitch[0] % 16 == 0
        assert conflicts(scale) == 1
        assert max(conflicts(own), conflicts(behind)) <= (2 if formats[0] == 8 else 1)
    if formats[1] == 16:
        for eight in values.reshape(4, 8):
            assert len(set(eight // 16 % 8)) == 8
    else:
        assert v_pitch[0] % 16 == 0
        assert max(conflicts(value_scale), conflicts(value_own)) <= (2 if formats[1] == 8 else 1)
