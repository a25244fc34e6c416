"""attention_heads on an emulated warp: one row a warp, several that share their angles, a token; against the twin."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from host_code import aligned, compiled, pointer

from sp.kernels.specs.attention.attention_rows import HEAD_DIMS, HEADS_A_WARP, ROWS_A_BLOCK
from sp.models.cache.kv_type import KVType
from sp.ops.attention.attention_heads import HeadNorms, attention_heads
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.attention.kv_pages import DEVICE_PAGES, PagedKV, basis_arrays
from sp.ops.attention.recent_rows import RecentRows, RunRows
from sp.ops.rope import Rope
from sp.quant import F16, BlockFormat
from sp.quant.cached import IN_BASIS, K4

DRIVER = """
struct Job {
    const u16 *q, *k, *v;
    const f32 *q_weight, *k_weight;
    const i64 *positions, *turns;
    u16* q_out;
    u8 *k_pages, *v_pages;
    const i32* table;
    i32 offset, tokens, heads, kv_heads, stride, half;
    const i32* order;
    const f32 *shift, *inverse;
    u16* exact[4];
    i32 warp;
};
static void warp_of(int lane, void* given) {
    const Job& j = *static_cast<Job*>(given);
    threadIdx.x = 32 * j.warp + lane;
    CALLED(j.q, j.k, j.v, j.q_weight, j.k_weight, j.positions, j.turns, j.q_out, j.k_pages, j.v_pages, j.table,
          nullptr, j.offset, j.tokens, j.heads, j.kv_heads, j.stride, TURNED 1e-6f, 1.25f BASIS);
}
extern "C" void run(const u16* q, const u16* k, const u16* v, const f32* q_weight, const f32* k_weight,
                    const i64* positions, const i64* turns, u16* q_out, u8* k_pages, u8* v_pages, const i32* table,
                    int offset, int tokens, int heads, int kv_heads, int stride, int half, int blocks,
                    const i32* order, const f32* shift, const f32* inverse, u16* ring_k, u16* ring_v, u16* run_k,
                    u16* run_v) {
    Job job = {q, k, v, q_weight, k_weight, positions, turns, q_out, k_pages, v_pages, table,
               offset, tokens, heads, kv_heads, stride, half, order, shift, inverse, {ring_k, ring_v, run_k, run_v}, 0};
    for (blockIdx.x = 0; blockIdx.x < unsigned(blocks); ++blockIdx.x)
        for (job.warp = 0; job.warp < WARPS; ++job.warp) run_warp(warp_of, &job);
}
"""
DRIVERS = {
    "head_norm_rope.cu": DRIVER.replace("CALLED", "attention_heads")
    .replace("TURNED", "j.half,")
    .replace("BASIS", ", j.order, j.shift, j.inverse, j.exact[0], j.exact[1], j.exact[2], j.exact[3]"),
    "prompt_heads.cu": DRIVER.replace("CALLED", "prompt_heads").replace("TURNED", "").replace("BASIS", ""),
}
EXACT = KVType("f16")
SHAPES = [(3, 1, 128, 1, 128), (4, 2, 256, 2, 64), (2, 1, 64, 1, 64), (16, 1, 128, 2, 0), (3, 1, 512, 1, 512)]
"""The last but one without RoPE."""


def bf16(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bits, and the float32 values that they are."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return aligned((bits >> 16).astype(np.uint16)), bits.view(np.float32)


@pytest.mark.parametrize("value_norm", [0, 1])
@pytest.mark.parametrize("rows", [1, HEADS_A_WARP])
@pytest.mark.parametrize(("heads", "kv_heads", "d", "wide", "turned"), SHAPES)
def test_rows_are_those_of_the_twin(
    rows: int, value_norm: int, heads: int, kv_heads: int, d: int, wide: int, turned: int, tmp_path: Any
) -> None:
    defines = {"HEAD_DIM": d, "K_FORMAT": 16, "V_FORMAT": 16, "ROTATE": 0, "ROWS": rows, "VALUE_NORM": value_norm}
    a_block = ROWS_A_BLOCK * rows
    compare("head_norm_rope.cu", defines, (heads, kv_heads, d, wide, turned), True, "halves", a_block, tmp_path)


@pytest.mark.parametrize("rows", [1, HEADS_A_WARP])
@pytest.mark.parametrize("d", HEAD_DIMS)
@pytest.mark.parametrize("kv", ["q4_0", "q8_0", "5bit", "4bit", "k=q8_0,v=q4_0", "k=f16,v=v4", "k=k5,v=q8_0"])
def test_packed_rows_are_those_of_the_twin(kv: str, d: int, rows: int, tmp_path: Any) -> None:
    kv_type = KVType.parse(kv, "kv")
    numbers = {"K_FORMAT": DEVICE_PAGES[kv_type.k], "V_FORMAT": DEVICE_PAGES[kv_type.v]}
    defines = {"HEAD_DIM": d, **numbers, "ROTATE": 1, "ROWS": rows, "VALUE_NORM": 0}
    a_block = ROWS_A_BLOCK * rows
    compare("head_norm_rope.cu", defines, (3, 2, d, 1, d), True, "halves", a_block, tmp_path, kv_type)


def test_scales_tried_are_finite(tmp_path: Any) -> None:
    """Also above a covering one that is nearly the largest; a value, rotated, is an eighth of it in 64 places."""
    kv_type = KVType.parse("k=f16,v=v4", "kv")
    numbers = {"K_FORMAT": DEVICE_PAGES[kv_type.k], "V_FORMAT": DEVICE_PAGES[kv_type.v]}
    defines = {"HEAD_DIM": 64, **numbers, "ROTATE": 1, "ROWS": 1, "VALUE_NORM": 0}
    compare(
        "head_norm_rope.cu", defines, (3, 2, 64, 1, 64), True, "halves", ROWS_A_BLOCK, tmp_path, kv_type, 8 * 540672
    )


@pytest.mark.parametrize(
    ("heads", "kv_heads", "d", "wide", "normed", "pairing"),
    [
        (3, 1, 128, 1, True, "halves"),
        (20, 9, 128, 2, True, "halves"),
        (5, 2, 128, 1, False, "interleaved"),
        (2, 1, 128, 1, False, "halves"),
        (17, 3, 64, 1, False, "halves"),
    ],
)
def test_heads_of_a_token_are_those_of_the_twin(
    heads: int, kv_heads: int, d: int, wide: int, normed: bool, pairing: Any, tmp_path: Any
) -> None:
    defines = {"HEAD_DIM": d, "INTERLEAVED": int(pairing == "interleaved"), "NORM": int(normed)}
    a_block = ROWS_A_BLOCK * (heads + 2 * kv_heads)
    compare("prompt_heads.cu", defines, (heads, kv_heads, d, wide, d), normed, pairing, a_block, tmp_path)


def compare(
    source: str,
    defines: dict[str, int],
    shape: tuple[int, int, int, int, int],
    normed: bool,
    pairing: Any,
    a_block: int,
    tmp_path: Any,
    kv: KVType = EXACT,
    largest: float | None = None,
) -> None:
    """A kernel's queries and pages beside the twin's; it takes `a_block` rows a block. The values of one token are but
    one, `largest`."""
    heads, kv_heads, d, wide, turned = shape
    tokens, offset = 11, 125  # rows end within a warp, tokens cross a page
    rng = np.random.default_rng([a_block, d])
    shapes = ((heads, wide * d), (kv_heads, d), (kv_heads, d))
    given = [rng.standard_normal((tokens, *shape)) for shape in shapes]
    if largest is not None:
        given[2][3], given[2][3, :, 0] = 0, largest
    (q_bits, q), (k_bits, k), (v_bits, v) = map(bf16, given)
    weights = [aligned(rng.uniform(0.5, 2, d).astype(np.float32)) for _ in range(2)]
    rotary = Rope(1e6, turned, pairing, magnitude=1.25)
    positions, table = aligned(rng.integers(0, 200_000, tokens)), aligned(np.array([1, 0], np.int32))
    pages = [aligned(np.zeros((2, 128, kv_heads, fmt.row_bytes(d)), np.uint8)) for fmt in (kv.k, kv.v) * 2]
    basis = some_basis(rng, kv_heads, d) if kv.k in IN_BASIS else None
    at = PagedKV(pages[0], pages[1], table.astype(np.int64), offset, kv.k, kv is not EXACT, None, None, kv.v, basis)
    rings = [aligned(np.zeros((1, 128, kv_heads, 2 * d), np.uint8)) for _ in range(4)]  # two for the twin
    runs = [aligned(np.zeros((tokens, kv_heads, d), np.float16)) for _ in "kv"]
    if kv.k is K4:
        at = replace(at, recent=RecentRows(*rings[:2], np.zeros((1, 2), np.int64), 0, RunRows()))
    norms = HeadNorms(*weights, 1e-6, bool(defines.get("VALUE_NORM"))) if normed else HeadNorms()
    want = attention_heads(q, k, v, norms, positions, rotary, at)

    got = aligned(np.zeros((tokens, heads, d), np.uint16))
    library = compiled(source, DRIVERS[source], defines, tmp_path, whole=True)
    turns = aligned(np.ascontiguousarray(rotary.turn_fractions()).view(np.int64))
    arrays = (q_bits, k_bits, v_bits, *weights, positions, turns, got, pages[2], pages[3], table)
    blocks = -(-tokens * (heads + 2 * kv_heads) // a_block)
    sizes = (offset, tokens, heads, kv_heads, wide * d, turned // 2, blocks)
    turn = (None,) * 3 if basis is None else tuple(map(aligned, basis_arrays(basis)))
    basis_given = (None if array is None else pointer(array) for array in turn)
    exact = [pointer(array) if kv.k is K4 else None for array in (*rings[2:], *runs)]
    library.run(*(pointer(array) for array in arrays), *(ctypes.c_int(size) for size in sizes), *basis_given, *exact)
    close(got, want)
    if kv.k is K4:
        slots = np.arange(offset, offset + tokens) % 128
        for ring, expected, run in zip(rings[2:], rings[:2], runs, strict=True):
            close(ring, expected.view(np.float16).astype(np.float32))
            np.testing.assert_array_equal(ring.view(np.float16)[0, slots], run)
    for stored, expected, fmt in zip(pages[2:], pages[:2], (kv.k, kv.v), strict=True):
        if fmt is F16:
            close(stored, expected.view(np.float16))
        else:
            nearly_equal(stored, expected, fmt)


def some_basis(rng: np.random.Generator, kv_heads: int, d: int) -> KeyBasis:
    """Make a basis of keys of any mean and size, with another order for each head."""
    mean, keys, queries = rng.standard_normal((3, kv_heads, d))
    return KeyBasis.measured(mean, np.exp(keys), np.exp(queries))


def nearly_equal(stored: np.ndarray, expected: np.ndarray, fmt: BlockFormat) -> None:
    """The same bytes, but where float32 was rounded otherwise before; and no value is off by more than a step."""
    assert (stored == expected).mean() > 0.97
    got, want = fmt.decode(stored), fmt.decode(expected)
    assert np.abs(got - want).max() < 0.3 * np.abs(want).max()
    # A group whose scale changes with a rounding counts a hundredth of its square; of some hundred groups a few can.
    assert np.square(got - want).mean() < 2e-4 * np.square(want).mean()


def close(got: np.ndarray, want: np.ndarray) -> None:
    """Within a unit of float16, whose values `got` holds as bits."""
    np.testing.assert_allclose(got.view(np.float16).astype(np.float32), want, rtol=2e-3, atol=4e-3)
