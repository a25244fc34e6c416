"""Rows into pages and out of them, and queries and keys into the basis of cached keys, on emulated blocks."""

from __future__ import annotations

import ctypes
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from host_code import aligned, hosted, pointer

from sp.kernels.specs.attention.attention_rows import HEAD_DIMS, ROWS_A_BLOCK
from sp.kernels.specs.attention.page_rows import row_bytes
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.attention.kv_pages import DEVICE_PAGES, kv_append
from sp.quant import F16, BlockFormat
from sp.quant.cached import IN_BASIS, K4, K5, V4

GATHER = """
extern "C" void gather(const u8* pages, const i32* table, u16* out, i64 rows, i64 tokens, i32 kv_heads, int blocks) {
    run_blocks(blocks, 256, [=] { kv_gather(pages, table, out, rows, tokens, kv_heads); });
}
"""
APPEND = """
extern "C" void append(const u16* values, u8* pages, const i32* table, i32 offset, i64 rows, i32 kv_heads,
                       const i32* order, const f32* shift, const f32* inverse, int blocks) {
    run_blocks(blocks, 128, [=] {
        kv_append(values, pages, table, nullptr, offset, rows, kv_heads, order, shift, inverse);
    });
}
"""
TURN = """
extern "C" void turn(const u16* x, const i32* order, const f32* offset, const f32* scale, u16* y, i64 rows, i32 heads,
                     i32 group, int blocks) {
    run_blocks(blocks, 128, [=] { turn_keys(x, order, offset, scale, y, rows, heads, group); });
}
"""
TOKENS, KV_HEADS = 133, 3
TABLE = np.array([2, 0], np.int32)
of_formats = pytest.mark.parametrize("fmt", DEVICE_PAGES, ids=lambda fmt: fmt.name)
of_sizes = pytest.mark.parametrize("d", HEAD_DIMS)


def library(source: str, driver: str, **defines: int) -> ctypes.CDLL:
    return hosted(source, driver, Path(mkdtemp()) / "rows", **defines)


def random_pages(rng: np.random.Generator, fmt: BlockFormat, d: int) -> np.ndarray:
    """Make rows of random bytes, but for scales, which are finite."""
    pages = rng.integers(0, 256, (3, 128, KV_HEADS, fmt.row_bytes(d))).astype(np.uint8)
    blocks = pages.reshape(-1, fmt.block_bytes)
    if fmt in (K5, K4, V4):
        blocks[:, :4] %= 0xA8 if fmt is K5 else 0xDE  # up to the largest whose values float16 holds
    else:  # f16: values themselves, or scales
        halves = rng.standard_normal(len(blocks)).astype(np.float16)
        blocks[:, :2] = halves.view(np.uint8).reshape(-1, 2)
    return aligned(pages)


@of_sizes
@of_formats
def test_every_row_is_unpacked_as_its_format_says(fmt: BlockFormat, d: int) -> None:
    assert row_bytes(DEVICE_PAGES[fmt], d) == fmt.row_bytes(d)
    pages, rows = random_pages(np.random.default_rng(d), fmt, d), TOKENS + 5
    out = aligned(np.full((rows, KV_HEADS, d), 0xFFFF, np.uint16))
    table = aligned(TABLE)
    library("kv_pages.cu", GATHER, HEAD_DIM=d, FORMAT=DEVICE_PAGES[fmt]).gather(
        *map(pointer, (pages, table, out)), *map(ctypes.c_int64, (rows, TOKENS)), KV_HEADS, -(-out.size // 8 // 256)
    )
    slots = np.arange(TOKENS)
    want = fmt.decode(pages[TABLE[slots // 128], slots % 128]).astype(np.float16)
    got = out.view(np.float16)
    assert not out[TOKENS:].any(), "zeros past the last token"
    # Levels of four bits are made in float16, and those of eight are products of whole numbers and a float16.
    np.testing.assert_allclose(got[:TOKENS].astype(np.float32), want.astype(np.float32), rtol=3e-3, atol=1e-6)


@of_sizes
@pytest.mark.parametrize(
    ("fmt", "based"), [*((fmt, fmt in IN_BASIS) for fmt in DEVICE_PAGES), (F16, True)], ids=lambda value: str(value)[:9]
)
def test_rows_are_packed_as_the_encoder_packs_them(fmt: BlockFormat, based: bool, d: int) -> None:
    rng, offset = np.random.default_rng(d), 120
    values = rng.standard_normal((11, KV_HEADS, d)).astype(np.float16)
    basis = KeyBasis.measured(*np.exp(rng.standard_normal((3, KV_HEADS, d)))) if based else None
    turn = d if not based and fmt.block_size > 1 else 0
    pages = [aligned(np.full((3, 128, KV_HEADS, fmt.row_bytes(d)), 0x55, np.uint8)) for _ in range(2)]
    kv_append(pages[0], TABLE.astype(np.int64), offset, values.astype(np.float32), fmt, turn, basis)
    arrays = [None] * 3 if basis is None else [aligned(one) for one in (basis.order, basis.offset, basis.inverse)]
    given, table = aligned(values.view(np.uint16)), aligned(TABLE)
    defines = {"HEAD_DIM": d, "FORMAT": DEVICE_PAGES[fmt], "BF16": 0, "ROTATE": turn, "BASIS": int(based)}
    library("kv_pages.cu", APPEND, **defines).append(
        *map(pointer, (given, pages[1], table)), offset, ctypes.c_int64(11 * KV_HEADS), KV_HEADS,
        *(None if one is None else pointer(one) for one in arrays), -(-11 * KV_HEADS // ROWS_A_BLOCK),
    )  # fmt: skip
    same = pages[0] == pages[1]
    assert same.mean() > 0.999, "but where sums of float32 went another way"
    assert same[1].all(), "a page of somebody else's"


@of_sizes
@pytest.mark.parametrize("group", [1, 4])
def test_queries_meet_keys_as_the_twin_has_them(d: int, group: int) -> None:
    rng, n = np.random.default_rng([d, group]), 5
    basis = KeyBasis.measured(*np.exp(rng.standard_normal((3, KV_HEADS, d))))
    heads, arrays = KV_HEADS * group, [aligned(one) for one in (basis.order, basis.offset, basis.scale)]
    q = rng.standard_normal((n, heads, d)).astype(np.float16)
    keys = basis.stored(q[:, :KV_HEADS].astype(np.float32)).astype(np.float16)
    for rows, share, back in ((q, group, 0), (keys, 1, 1)):
        given, out = aligned(rows.view(np.uint16)), aligned(np.zeros(rows.shape, np.uint16))
        count = rows.shape[0] * rows.shape[1]
        library("gate_output.cu", TURN, HEAD_DIM=d, TO_KEYS=back).turn(
            pointer(given), *map(pointer, arrays), pointer(out), ctypes.c_int64(count), rows.shape[1], share,
            -(-count // ROWS_A_BLOCK),
        )  # fmt: skip
        whole = rows.astype(np.float32)
        want = basis.keys(whole) if back else basis.queries(whole)
        np.testing.assert_allclose(out.view(np.float16).astype(np.float32), want, rtol=2e-3, atol=2e-3)


def test_products_of_turned_queries_and_keys_are_those_of_the_model() -> None:
    rng = np.random.default_rng(3)
    basis = KeyBasis.measured(*np.exp(rng.standard_normal((3, KV_HEADS, 128))))
    q, k = (rng.standard_normal((7, KV_HEADS, 128)).astype(np.float32) for _ in "qk")
    actual = np.einsum("nhd,thd->nht", basis.queries(q), basis.stored(k))
    at = np.zeros_like(basis.offset)
    np.put_along_axis(at, basis.order, basis.offset, 1)  # offsets by channel
    want = np.einsum("nhd,thd->nht", q, k - at)
    np.testing.assert_allclose(actual, want, atol=1e-3)
