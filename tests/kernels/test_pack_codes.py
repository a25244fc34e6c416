"""The kernels that put codes into fragment order and take them out again, run on the host, against the NumPy twin."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from host_code import aligned, compiled, pointer

from sp.models.synthetic.synthetic import random_blocks
from sp.ops.matmul.fragment_order import pack_numpy
from sp.quant import format_by_name

PACK = r"""
extern "C" void run(const u8* rows, u8* low, u8* high, u8* codes, int bytes) {
    for (int row = 0; row < TILE_ROWS; ++row) memcpy(staged + row * PITCH, rows + row * bytes, bytes);
    for (threadIdx.x = 0; threadIdx.x < TILE_THREADS; ++threadIdx.x)
        for (int tile = 0; tile < P::span / TILE_K; ++tile)
            store_tile(low + tile * P::low_bytes, high + tile * P::high_bytes, tile);
    for (int i = 0; i < TILE_ROWS * P::span; ++i) codes[i] = staged_code(i / P::span, i % P::span);
}
"""
UNPACK = r"""
extern "C" void run(const u8* low, const u8* high, u8* codes, int width) {
    for (int k = 0; k < width; k += TILE_K)
        for (int t = 0; t < TILE_THREADS; ++t) {
            Quants<FORMAT> q;
            load_quants<FORMAT>(q, low + k / TILE_K * P::low_bytes, high + k / TILE_K * P::high_bytes, t);
            for (int s = 0; s < 4; ++s)
                for (int j = 0; j < 4; ++j)
                    for (int e = 0; e < 2; ++e) {
                        const int row = 16 * (t / 32) + t / 4 % 8 + 8 * (j % 2);
                        codes[row * width + k + 16 * s + 2 * (t % 4) + 8 * (j / 2) + e] = fragment_code(q, s, j, e);
                    }
        }
}
"""


@pytest.mark.parametrize("name", ["Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_codes_go_where_the_twin_puts_them_and_come_back(name: str, tmp_path: Path) -> None:
    fmt = format_by_name(name)
    p, width = fmt.packing, fmt.packing.span
    rows = aligned(random_blocks(np.random.default_rng(0), fmt, 64 * width // fmt.block_size, 1.0).reshape(64, -1))
    planes = pack_numpy(fmt, rows)
    held, codes = np.full((2, 64, width), 255, np.uint8)
    low, high = (aligned(np.full(size * p.tiles, 255, np.uint8)) for size in (p.low_bytes, max(1, p.high_bytes)))
    for source in ("pack", "unpack"):
        (tmp_path / source).mkdir()
    pack = compiled("pack.cu", PACK, {"FORMAT": fmt.ggml_type}, tmp_path / "pack")
    pack.run(pointer(rows), pointer(low), pointer(high), pointer(held), ctypes.c_int(rows.shape[1]))
    assert (low == planes["low"]).all()
    assert not p.high_bytes or (high == planes["high"]).all()
    unpack = compiled("unpack.cu", UNPACK, {"FORMAT": fmt.ggml_type, "ROUNDED": 0}, tmp_path / "unpack")
    unpack.run(pointer(low), pointer(high), pointer(codes), ctypes.c_int(width))
    assert (codes == held).all()
