"""8-bit attention, thread by thread on the host: rounding of pages and products against their twins."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
import pytest
from host_code import aligned, hosted, pointer, tensor_map

from sp.kernels.flatten import flatten
from sp.kernels.specs.attention.attention_bytes import HEAD_DIMS, STAGES, smem
from sp.kernels.specs.attention.attention_sm90 import CAPACITY
from sp.ops.attention.byte_attention.twin import byte_attention, key_centre, key_codes, sampled_blocks, value_codes
from sp.ops.attention.kv_pages import kv_append
from sp.ops.sparse.block_lists import lists_of
from sp.quant import F16

ROUNDING = """
extern "C" void peaks(const u8* v, const i32* table, u32* peaks, i32 tokens, i32 kv_heads) {
    gridDim = {unsigned(kv_heads), unsigned((tokens + 127) / 128), 1};
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
            run_block(256, [=] { value_peaks(v, table, peaks, tokens, kv_heads); });
}
extern "C" void bytes(const u8* k, const u8* v, const i32* table, const f32* centre, const f32* peaks, u8* k_codes,
                      f32* key_scales, u8* v_codes, i32 tokens, i32 kv_heads) {
    gridDim = {unsigned(kv_heads), unsigned((tokens + 127) / 128), 1};
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
            run_block(256, [=] {
                kv_bytes(k, v, table, centre, peaks, k_codes, key_scales, v_codes, tokens, kv_heads);
            });
}
"""
CENTRE = """
extern "C" void middle(const u8* k, const i32* table, f32* centre, i32 sampled, i32 step, i32 kv_heads) {
    gridDim = {unsigned(kv_heads), 1, 1};
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
        run_block(1024, [=] { key_centre(k, table, centre, sampled, step, kv_heads); });
}
"""
ATTENTION = """
extern "C" void attend(const TensorMap* q, const TensorMap* k, const TensorMap* v, const f32* key_scales,
                       const f32* peaks, const i32* counts, const i32* indices, u16* out, i32* next, i32 tokens, i32 n,
                       i32 heads, i32 group, i32 early, i32 width, f32 scale, i32 blocks, const i32* reach) {
    gridDim = {unsigned(blocks), 1, 1};
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        memset(memory, 0xff, sizeof memory);
        run_block(384, [=] {
            attention_bytes(*q, *k, *v, key_scales, peaks, counts, indices, out, next, tokens, n, heads, group, group,
                            early, width, scale, reach);
        });
    }
}
"""


class Libraries(NamedTuple):
    """The kernels for heads of `d` values: what rounds keys and values, what finds the centres of keys, attention."""

    d: int
    rounding: ctypes.CDLL
    centres: ctypes.CDLL
    products: ctypes.CDLL
    windowed: ctypes.CDLL


@pytest.fixture(scope="module", params=HEAD_DIMS)
def libs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    d, folder = request.param, tmp_path_factory.mktemp("libraries")
    return Libraries(
        d,
        hosted("kv_bytes.cu", ROUNDING, folder / "rounding", WIDTH=d),
        hosted("key_bytes.cu", CENTRE, folder / "centres", WIDTH=d),
        hosted("attention_bytes.cu", ATTENTION, folder / "products", STAGES=3, HEAD_DIM=d),
        hosted("attention_bytes.cu", ATTENTION, folder / "windowed", STAGES=3, HEAD_DIM=d, WINDOW=1),
    )


def key_place(token: int) -> int:
    """Where a token of 32 goes, spelt out from what wgmma gives a thread and takes from it."""
    group, inside = divmod(token, 8)
    thread, which = divmod(inside, 2)
    return 16 * (group // 2) + 4 * thread + 2 * (group % 2) + which


def e4m3_numbers() -> np.ndarray:
    """The 256 of them, by their byte."""
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, byte & 7
    size = np.where(exponent, np.ldexp(8.0 + fraction, exponent - 10), np.ldexp(fraction.astype(float), -9))
    return np.where(byte & 128, -size, size)


class Case:
    """Random keys and values in scattered pages, rounded by the kernels."""

    def __init__(self, libs: Libraries, tokens: int, kv_heads: int, kind: str = "random") -> None:
        d = self.d = libs.d
        rng = np.random.default_rng([tokens, kv_heads, len(kind)])
        self.tokens, self.blocks, self.kv_heads = tokens, -(-tokens // 128), kv_heads
        k, v = rng.standard_normal((2, tokens, kv_heads, d)).astype(np.float32)
        if kind == "shared":  # what trained keys have in common, and one loud value
            k += 10 * rng.standard_normal((kv_heads, d)).astype(np.float32)
            v[tokens // 2, 0, 5] = 300
        table = aligned(rng.permutation(self.blocks + 2)[: self.blocks].astype(np.int32))
        pages = [aligned(np.full((self.blocks + 2, 128, kv_heads, 2 * d), 0xFF, np.uint8)) for _ in "kv"]
        for page, values in zip(pages, (k, v), strict=True):
            kv_append(page, table, 0, values, F16)
        every = np.arange(tokens)
        self.k, self.v = (F16.decode(page[table[every // 128], every % 128]) for page in pages)
        self.centre = aligned(np.full((kv_heads, d), np.nan, np.float32))
        sampled = range(10**6)[sampled_blocks(tokens)]
        sizes = map(ctypes.c_int, (len(sampled), sampled.step, kv_heads))
        libs.centres.middle(pointer(pages[0]), pointer(table), pointer(self.centre), *sizes)
        shape = kv_heads, self.blocks
        self.key_bytes = aligned(np.full((*shape, 128, d), 0x55, np.uint8))
        self.value_bytes = aligned(np.full((*shape, d, 128), 0x55, np.uint8))
        self.key_scales = aligned(np.full(shape, np.nan, np.float32))
        self.peaks = aligned(np.zeros(kv_heads, np.float32))
        size = ctypes.c_int(tokens), ctypes.c_int(kv_heads)
        libs.rounding.peaks(pointer(pages[1]), pointer(table), pointer(self.peaks), *size)
        given = (*pages, table, self.centre, self.peaks, self.key_bytes, self.key_scales, self.value_bytes)
        libs.rounding.bytes(*map(pointer, given), *size)

    def key_numbers(self) -> np.ndarray:
        """(tokens, kv_heads, d)."""
        flat = self.key_bytes.view(np.int8).reshape(self.kv_heads, -1, self.d)
        assert not flat[:, self.tokens :].any(), "zeros past the last token"
        return flat[:, : self.tokens].transpose(1, 0, 2)

    def value_numbers(self) -> np.ndarray:
        """(tokens, kv_heads, d)."""
        order = [32 * (token // 32) + key_place(token % 32) for token in range(128)]
        numbers = e4m3_numbers()[self.value_bytes][..., order].transpose(0, 1, 3, 2).reshape(self.kv_heads, -1, self.d)
        assert not numbers[:, self.tokens :].any(), "zeros past the last token"
        return numbers[:, : self.tokens].transpose(1, 0, 2)


@pytest.mark.parametrize("kind", ["random", "shared"])
def test_pages_are_rounded_as_the_twin_rounds(libs: Libraries, kind: str) -> None:
    case = Case(libs, 300, 2, kind)
    keys, values = key_codes(case.k, case.centre), value_codes(case.v)
    np.testing.assert_allclose(case.key_scales.T, keys.scales[:, :, 0], rtol=1e-6)
    np.testing.assert_allclose(case.peaks / 448, values.scales[:, 0], rtol=1e-6)
    assert (case.key_numbers() == keys.codes).mean() > 0.9999  # but for halves, after a last bit
    assert np.abs(case.key_numbers() - keys.codes).max() <= 1
    np.testing.assert_array_equal(case.value_numbers(), values.codes)


@pytest.mark.parametrize("tokens", [100, 300, 2600, 4500])
def test_the_mean_of_sampled_keys(libs: Libraries, tokens: int) -> None:
    case = Case(libs, tokens, 3 if tokens < 1000 else 1, "shared")
    want = key_centre(case.k.astype(np.float64))
    np.testing.assert_allclose(case.centre, want, rtol=0, atol=2e-6 * np.abs(case.k).max())
    assert (tokens < 128) == (not want.any())


def attended(
    lib: ctypes.CDLL, case: Case, q: np.ndarray, mask: np.ndarray | None, reach: np.ndarray | None = None
) -> np.ndarray:
    """Out (n, heads, d)."""
    n, heads, d = q.shape
    q = aligned(q.astype(np.float16))
    out, following = aligned(np.full((n, heads, d), 0x7FC0, np.uint16)), aligned(np.zeros(1, np.int32))
    tiles = case.kv_heads * case.blocks
    maps = [
        tensor_map(q, (64, n, d // 64, heads), (heads * 2 * d, 128, 2 * d), (64, 128, d // 64, 1)),
        tensor_map(case.key_bytes, (d, tiles * 128), (d,), (d, 128)),
        tensor_map(case.value_bytes, (128, tiles * d), (128,), (128, d)),
    ]
    lists = [None, None]
    if mask is not None:
        found = lists_of(mask)
        lists = [aligned(np.ascontiguousarray(each)) for each in (found.counts, found.indices)]
    arrays = (*maps, case.key_scales, case.peaks, *lists, out, following)
    group, width = heads // case.kv_heads, case.blocks if mask is not None else 0
    sizes = (case.tokens, n, heads, group, 0, width)
    lib.attend(
        *(None if each is None else pointer(each) for each in arrays), *map(ctypes.c_int, sizes),
        ctypes.c_float(d**-0.5), ctypes.c_int(2), None if reach is None else pointer(reach),
    )  # fmt: skip
    return (out.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize(
    ("n", "tokens", "heads", "kv_heads", "kind"),
    [(1, 1, 1, 1, "random"), (200, 300, 4, 2, "random"), (130, 500, 2, 1, "shared"), (257, 257, 1, 1, "random")],
)
def test_dense(libs: Libraries, n: int, tokens: int, heads: int, kv_heads: int, kind: str) -> None:
    case = Case(libs, tokens, kv_heads, kind)
    q = 3 * np.random.default_rng(n).standard_normal((n, heads, libs.d)).astype(np.float16).astype(np.float32)
    q = q.astype(np.float16).astype(np.float32)
    got = attended(libs.products, case, q, None)
    close(got, byte_attention(q, case.k, case.v, libs.d**-0.5, centre=case.centre))


def test_lists_of_blocks(libs: Libraries) -> None:
    case = Case(libs, 700, 1)
    q = np.random.default_rng(1).standard_normal((300, 2, libs.d)).astype(np.float16).astype(np.float32)
    mask = np.random.default_rng(2).random((2, 3, 6)) < 0.5
    mask &= np.arange(6) <= (np.arange(3)[:, None] * 128 + 127 + 400) // 128
    mask[0, 1] = False  # sees nothing
    got = attended(libs.products, case, q, mask)
    close(got, byte_attention(q, case.k, case.v, libs.d**-0.5, lists_of(mask), case.centre))
    assert not got[128:256, 0].any()


@pytest.mark.parametrize(
    ("n", "tokens", "window"), [(1, 1, 1), (200, 300, 1), (200, 300, 90), (130, 700, 128), (60, 60, 99)]
)
def test_windows(libs: Libraries, n: int, tokens: int, window: int) -> None:
    case = Case(libs, tokens, 1)
    q = np.random.default_rng(n).standard_normal((n, 2, libs.d)).astype(np.float16).astype(np.float32)
    reach = aligned(np.maximum(np.arange(tokens - n, tokens) - (window - 1), 0).astype(np.int32))
    got = attended(libs.windowed, case, q, None, reach)
    close(got, byte_attention(q, case.k, case.v, libs.d**-0.5, centre=case.centre, reach=reach))


def test_windows_of_gaps(libs: Libraries) -> None:
    case = Case(libs, 600, 2)
    rng = np.random.default_rng(8)
    q = rng.standard_normal((300, 2, libs.d)).astype(np.float16).astype(np.float32)
    reach = aligned(np.minimum(np.sort(rng.integers(0, 599, 300)), np.arange(300, 600)).astype(np.int32))
    got = attended(libs.windowed, case, q, None, reach)
    close(got, byte_attention(q, case.k, case.v, libs.d**-0.5, centre=case.centre, reach=reach))


def close(got: np.ndarray, want: np.ndarray) -> None:
    """Within the rounding of bf16, but for the few weights that the last bit of a score rounds to a neighbour."""
    assert np.isfinite(got).all()
    error = np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2))
    assert error < 4e-3, f"relative error {error:.2e}"


@pytest.mark.parametrize("d", HEAD_DIMS)
def test_shared_memory_is_counted_as_it_is_laid_out(d: int) -> None:
    text = flatten("attention_bytes.cu")
    assert "QUERY_BYTES (QUERIES * D * 2)" in text
    assert smem({"HEAD_DIM": d, "STAGES": 3}) == 128 * d * (2 + 1 + 3) + 3 * 1024 + 1024
    assert smem({"HEAD_DIM": d, "STAGES": STAGES}) <= CAPACITY
