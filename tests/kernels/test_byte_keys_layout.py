"""Attention with keys in eight bits, thread by thread on the host: rounding of pages and products against the twin."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from host_code import aligned, hosted, pointer, tensor_map

from sp.kernels.specs.attention.attention_bytes import keys_smem
from sp.ops.attention.byte_attention.twin import (
    byte_key_attention,
    key_centre,
    key_codes,
    rotated_heads,
    sampled_blocks,
)
from sp.ops.attention.kv_pages import kv_append
from sp.quant import F16

ROUNDING = """
extern "C" void middle(const u8* k, const i32* table, f32* centre, i32 sampled, i32 step, i32 kv_heads) {
    gridDim = {unsigned(kv_heads), 1, 1};
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
        run_block(1024, [=] { key_centre(k, table, centre, sampled, step, kv_heads); });
}
extern "C" void bytes(const u8* k, const i32* table, const f32* centre, u8* codes, f32* scales, i32 tokens,
                      i32 kv_heads) {
    gridDim = {unsigned(kv_heads), unsigned((tokens + 127) / 128), 1};
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
            run_block(256, [=] { key_bytes(k, table, centre, codes, scales, tokens, kv_heads); });
}
"""
ATTENTION = """
extern "C" void attend(const TensorMap* q, const TensorMap* k, const TensorMap* v, const f32* scales, const i32* table,
                       u16* out, i32* next, i32 tokens, i32 n, i32 heads, i32 group, f32 scale) {
    gridDim = {2, 1, 1};
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        memset(memory, 0xff, sizeof memory);
        run_block(384, [=] {
            attention_byte_keys(*q, *k, *v, scales, table, out, next, tokens, n, heads, group, group, scale);
        });
    }
}
"""
D = 256


@pytest.fixture(scope="module")
def rounding(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return hosted("key_bytes.cu", ROUNDING, tmp_path_factory.mktemp("rounding") / "keys", WIDTH=D)


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return hosted("attention_byte_keys.cu", ATTENTION, tmp_path_factory.mktemp("products") / "keys", STAGES=3)


class Case:
    """Random keys and values in scattered pages, NaN past the last token; keys rounded by the kernels."""

    def __init__(self, lib: ctypes.CDLL, tokens: int, kv_heads: int, shared: float = 0) -> None:
        rng = np.random.default_rng([tokens, kv_heads])
        self.tokens, self.blocks, self.kv_heads = tokens, -(-tokens // 128), kv_heads
        k, v = rng.standard_normal((2, tokens, kv_heads, D)).astype(np.float32)
        k += shared * rng.standard_normal((kv_heads, D)).astype(np.float32)
        k[:, :, [7, 200]] *= 1 + shared
        self.table = aligned(rng.permutation(self.blocks + 2)[: self.blocks].astype(np.int32))
        self.pages = [aligned(np.full((self.blocks + 2, 128, kv_heads, 2 * D), 0xFF, np.uint8)) for _ in "kv"]
        for page, values in zip(self.pages, (k, v), strict=True):
            kv_append(page, self.table, 0, values, F16)
        every = np.arange(tokens)
        self.k, self.v = (F16.decode(page[self.table[every // 128], every % 128]) for page in self.pages)
        self.centre = aligned(np.full((kv_heads, D), np.nan, np.float32))
        sampled = range(10**6)[sampled_blocks(tokens)]
        sizes = map(ctypes.c_int, (len(sampled), sampled.step, kv_heads))
        lib.middle(*map(pointer, (self.pages[0], self.table, self.centre)), *sizes)
        self.codes = aligned(np.full((kv_heads, self.blocks, 128, D), 0x55, np.uint8))
        self.scales = aligned(np.full((kv_heads, self.blocks), np.nan, np.float32))
        given = (self.pages[0], self.table, self.centre, self.codes, self.scales)
        lib.bytes(*map(pointer, given), ctypes.c_int(tokens), ctypes.c_int(kv_heads))


@pytest.mark.parametrize("shared", [0, 10])
def test_keys_are_rounded_as_the_twin_rounds(rounding: Any, shared: float) -> None:
    case = Case(rounding, 300, 2, shared)
    np.testing.assert_allclose(case.centre, key_centre(case.k.astype(np.float64)), rtol=0, atol=1e-4)
    keys = key_codes(rotated_heads(case.k - case.centre), np.zeros_like(case.centre))
    np.testing.assert_allclose(case.scales.T, keys.scales[:, :, 0], rtol=1e-6)
    flat = case.codes.view(np.int8).reshape(2, -1, D).transpose(1, 0, 2)
    assert not flat[300:].any(), "zeros past the last token"
    assert (flat[:300] == keys.codes).mean() > 0.9999  # but for halves, after a last bit
    assert np.abs(flat[:300] - keys.codes).max() <= 1


def attended(lib: ctypes.CDLL, case: Case, q: np.ndarray) -> np.ndarray:
    """Out (n, heads, 256)."""
    n, heads, _ = q.shape
    q = aligned(q.astype(np.float16))
    out, following = aligned(np.full(q.shape, 0x7FC0, np.uint16)), aligned(np.zeros(1, np.int32))
    values = case.pages[1].view(np.float16)
    maps = [
        tensor_map(q, (64, n, 4, heads), (heads * 512, 128, 512), (64, 128, 4, 1)),
        tensor_map(case.codes, (128, case.kv_heads * case.blocks * 128, 2), (D, 128), (128, 64, 2)),
        tensor_map(values, (64, len(values) * 128, 4, case.kv_heads), (case.kv_heads * 512, 128, 512), (64, 64, 4, 1)),
    ]
    sizes = map(ctypes.c_int, (case.tokens, n, heads, heads // case.kv_heads))
    arrays = (*maps, case.scales, case.table, out, following)
    lib.attend(*map(pointer, arrays), *sizes, ctypes.c_float(D**-0.5))
    return (out.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize(
    ("n", "tokens", "heads", "kv_heads", "shared", "size"),
    [
        (1, 1, 1, 1, 0, 1),
        (150, 300, 4, 2, 0, 3),
        (130, 400, 2, 1, 10, 1),
        (200, 200, 1, 1, 0, 40),
        (64, 449, 1, 1, 0, 9),
    ],
)
def test_outputs_are_those_of_the_twin(
    rounding: Any, products: ctypes.CDLL, n: int, tokens: int, heads: int, kv_heads: int, shared: float, size: float
) -> None:
    case = Case(rounding, tokens, kv_heads, shared)
    q = size * np.random.default_rng(n).standard_normal((n, heads, D)).astype(np.float16).astype(np.float32)
    q = q.astype(np.float16).astype(np.float32)
    got, want = attended(products, case, q), byte_key_attention(q, case.k, case.v, D**-0.5, case.centre)
    assert np.isfinite(got).all()
    error = np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2))
    assert error < 4e-3, f"relative error {error:.2e}"


def test_shared_memory_fits() -> None:
    assert keys_smem({"STAGES": 5}) == 128 * 256 * 2 + 5 * 64 * 256 * 2 + 1024
