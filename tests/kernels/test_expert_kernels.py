"""Kernels round the products of experts, on the host: routing, sorting, rows there and back, against NumPy.

A coroutine stands for each thread of a block (host_block.h), so a wrong lane, place or order shows without a GPU.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from host_code import library, pointer, without_ptx

from sp.kernels.flatten import flatten
from sp.ops.experts.routing import route

COLS8 = 20
"""Rows of 160 values: more than a block's threads in one walk of `combine_rows` would need, and no power of two."""


ROUTE = """
extern "C" void run(const f32* logits, i32* experts, f32* weights, i32 tokens, i32 count, i32 used, i32 normalised,
                    const f32* bias) {
    run_blocks((tokens + 3) / 4, 128, [=] { route(logits, experts, weights, tokens, count, used, normalised, bias); });
}"""
SORT = """
extern "C" void run(const i32* experts, i32* places, i32* tiles, u32* made, i32 slots, i32 count, i32 block,
                    i32 widest) {
    run_blocks(1, 1024, [=] { sort_slots(experts, places, tiles, made, slots, count, block, widest); });
}"""
ROWS = """
extern "C" void there(const u16* h, const i32* places, u16* sorted, i32 tokens, i32 used, i32 cols8) {
    run_blocks(tokens, 128, [=] { scatter_rows(h, places, sorted, used, cols8); });
}
extern "C" void back(const u16* y, const i32* places, const f32* weights, const u16* h, const f32* mix,
                     const u16* shared, f32* x, i32 tokens, i32 used, i32 cols8) {
    run_blocks(tokens, 128, [=] { combine_rows(y, places, weights, h, mix, shared, x, used, cols8); });
}
extern "C" void back_biased(const u16* y, const i32* places, const f32* weights, const u16* h, const f32* mix,
                            const u16* shared, f32* x, i32 tokens, i32 used, i32 cols8, const i32* experts,
                            const f32* bias) {
    run_blocks(tokens, 128, [=] { combine_biased(y, places, weights, h, mix, shared, x, used, cols8, experts, bias); });
}"""


@cache
def compiled(source: str, driver: str, **defines: int) -> ctypes.CDLL:
    """A library of a whole source and of `driver`; skips without a compiler."""
    text = re.sub(r"#pragma (once|unroll.*)|^#line.*$", "", "".join(without_ptx(flatten(source))), flags=re.MULTILINE)
    return library("host_block.h", text + driver, defines, Path(mkdtemp()), "-std=c++20", "-O1")


def bf16(values: np.ndarray) -> np.ndarray:
    """BF16 bits, cut."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def wide(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize(("count", "used", "each"), [(7, 3, 4), (128, 8, 4), (256, 8, 8), (300, 32, 16), (1, 1, 4)])
@pytest.mark.parametrize("normalised", [0, 1])
@pytest.mark.parametrize("biased", [False, True])
def test_route(count, used, each, normalised, biased) -> None:
    tokens = 9
    logits = np.random.default_rng(count).standard_normal((tokens, count)).astype(np.float32)
    logits[3] = 0  # all alike: by index
    logits[4, : count // 2] = 50
    logits[5] = np.float32(1e30) * (np.arange(count) % 3)
    library = compiled("route.cu", ROUTE, EACH=each)
    experts, weights = np.full((tokens + 1, used), -7, np.int32), np.full((tokens + 1, used), np.nan, np.float32)
    bias = (2 * np.random.default_rng(used).standard_normal(count)).astype(np.float32) if biased else None
    library.run(
        *map(pointer, (logits, experts, weights)),
        tokens,
        count,
        used,
        normalised,
        None if bias is None else pointer(bias),
    )
    want = route(logits, used, normalised=bool(normalised), bias=bias)
    assert (experts[:tokens] == want.experts).all()
    np.testing.assert_allclose(weights[:tokens], want.weights, rtol=2e-6)
    assert (experts[tokens] == -7).all(), "past the end nothing is written"
    assert np.isnan(weights[tokens]).all()


def test_a_router_that_gives_no_numbers_stays_within_bounds() -> None:
    experts, weights = np.full((1, 4), -7, np.int32), np.empty((1, 4), np.float32)
    logits = np.full((1, 16), np.nan, np.float32)
    compiled("route.cu", ROUTE, EACH=4).run(pointer(logits), pointer(experts), pointer(weights), 1, 16, 4, 1, None)
    assert set(experts.ravel().tolist()) <= set(range(16))


@pytest.mark.parametrize(("block", "widest"), [(32, 32), (128, 256)])
@pytest.mark.parametrize(
    ("slots", "count", "kind"), [(1, 256, "spread"), (3000, 256, "spread"), (777, 128, "one"), (50, 512, "last")]
)
def test_sort_slots(slots, count, kind, block, widest) -> None:
    rng = np.random.default_rng(slots)
    chosen = {"spread": rng.integers(0, count, slots), "one": np.full(slots, 5), "last": np.full(slots, count - 1)}
    experts = chosen[kind].astype(np.int32)
    most = max(min(slots, -(-slots // block) + count), 1)
    places, tiles, made = np.full(slots, -1, np.int32), np.full(most + 1, -7, np.int32), np.zeros(1, np.uint32)
    library = compiled("sort_slots.cu", SORT)
    library.run(pointer(experts), pointer(places), pointer(tiles), pointer(made), slots, count, block, widest)
    counts = np.bincount(experts, minlength=count)
    needed = -(-counts // widest)
    assert made[0] == needed.sum() <= most
    mine = tiles[: made[0]]
    assert np.sort(mine & 1023).tolist() == np.repeat(np.arange(count), needed).tolist()
    order = [(-(tile >> 10 & 3), tile & 1023, tile >> 12) for tile in mine.tolist()]
    assert order == sorted(order), "wide tiles first, then by expert"
    assert (tiles[made[0] :] == -7).all()
    assert len(set(places.tolist())) == slots
    starts = np.concatenate([[0], np.cumsum(-(-counts // block))[:-1]]) * block
    for e in np.unique(experts):  # close together from the beginning of their blocks on
        assert np.sort(places[experts == e]).tolist() == list(range(starts[e], starts[e] + counts[e]))
        left = np.minimum(counts[e] - widest * np.arange(needed[e]), widest)
        assert (mine[mine & 1023 == e] >> 10 & 3).tolist() == [0 if n <= 64 else 1 if n <= 128 else 2 for n in left]
        assert ((mine[mine & 1023 == e] >> 12) * block).tolist() == (starts[e] + widest * np.arange(needed[e])).tolist()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_rows_there_and_back(shared, biased) -> None:
    library, rng = compiled("expert_rows.cu", ROWS), np.random.default_rng(2)
    tokens, used, cols, rows = 5, 3, 8 * COLS8, 40
    places = rng.permutation(rows)[: tokens * used].reshape(tokens, used).astype(np.int32)
    h, common = (bf16(rng.standard_normal((tokens, cols))) for _ in range(2))
    actual = np.full((rows, cols), 0x7FC1, np.uint16)
    library.there(pointer(h), pointer(places), pointer(actual), tokens, used, COLS8)
    want = np.full((rows, cols), 0x7FC1, np.uint16)
    want[places] = h[:, None]
    assert (actual == want).all()

    y = np.full((rows, cols), 0x7FC1, np.uint16)  # NaN where no slot is
    y[places] = bf16(rng.standard_normal((tokens, used, cols)))
    weights, x = rng.random((tokens, used), np.float32), rng.standard_normal((tokens, cols)).astype(np.float32)
    mix = (rng.standard_normal(cols) / 10).astype(np.float32)
    experts, bias = (
        rng.integers(0, 4, (tokens, used)).astype(np.int32),
        rng.standard_normal((4, cols)).astype(np.float32),
    )
    said = wide(y[places]) + bias[experts].astype(np.float64) if biased else wide(y[places])
    exact = x + (weights[..., None].astype(np.float64) * said).sum(1)
    if shared:
        exact += wide(common) / (1 + np.exp(-(wide(h).astype(np.float64) @ mix)))[:, None]
    given = [pointer(h), pointer(mix), pointer(common)] if shared else [None, None, None]
    guarded = np.concatenate([x, np.full((1, cols), 3, np.float32)])
    args = pointer(y), pointer(places), pointer(weights), *given, pointer(guarded), tokens, used, COLS8
    if biased:
        library.back_biased(*args, pointer(experts), pointer(bias))
    else:
        library.back(*args)
    assert np.abs(guarded[:tokens] - exact).max() < 2e-6 * np.abs(exact).max()
    assert (guarded[tokens] == 3).all()
