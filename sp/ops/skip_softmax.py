"""SkipSoftmax: attention that leaves out tiles of keys of little weight as it meets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.kernels import current_path, import_cupy, is_device
from sp.kernels.device import current_device, multiprocessors
from sp.kernels.specs.attention.attention_skip import (
    ATTENTION_SKIP,
    ATTENTION_SKIP_PORTABLE,
    WARPS,
    portable_variant,
    queries,
    tile_keys,
    variant,
)
from sp.kernels.tensor_map import tensor_map
from sp.ops.attention.key_blocks import BLOCK
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.sparse.block_energy import exp2_normal
from sp.ops.sparse.flashprefill import check_sizes
from sp.ops.threads import run_parallel

ROWS = 64  # query rows that leave out a tile together, on Hopper and in NumPy
OF_ONE = 0.2
"""Largest part of the budget that one tile may use. Without such a bound the tiles that come first use it up, and more
is lost for as many tiles."""


class TileCounts(NamedTuple):
    """Number of tiles whose values were read, int32 of any shape, and the number of tiles that rows see."""

    read: Any
    possible: int


@dataclass(frozen=True)
class SkipSoftmax:
    """Leave out tiles of keys of little weight, as long as no query row loses more than a share of its weight.

    Scores are computed for all keys, in the order first tile, last tile, ..., second tile. A tile is left out for some
    rows if for each of them it has at most `OF_ONE` of the budget, and all tiles left out and it at most the budget, of
    the weight that the row has met by then. The weights of such a tile are not multiplied by its values; those of the
    others are normalised. So no row loses more than `skip` of its weight in a layer, whatever its scores are.

    Parameters
    ----------
    skip : float
        In [0, 1): the budget, the largest share of a row's weight that may be left out.

    References
    ----------
    Yuan et al., "BLASST: Dynamic BLocked Attention Sparsity via Softmax Thresholding", 2025; there a tile is left out
    if each of its weights is below a share of the row's largest, which does not bound what a row loses.

    Examples
    --------
    >>> SkipSoftmax(0.01).skip
    0.01
    >>> SkipSoftmax(1.5)
    Traceback (most recent call last):
        ...
    sp.errors.ConfigError: SkipSoftmax: skip is 1.5; it must be at least 0 and below 1
    """

    skip: float

    def __post_init__(self) -> None:
        if not 0 <= self.skip < 1:  # NaN too
            raise ConfigError(f"SkipSoftmax: skip is {self.skip}; it must be at least 0 and below 1")


def skipping_attention(q: Floats, at: PagedKV, scale: float, rule: SkipSoftmax) -> tuple[Floats, TileCounts]:
    """Compute causal attention of the last ``len(q)`` tokens of `at`, without tiles of little weight.

    Returns `out`: float32 (n, heads, d), on the device bf16, in the basis of the cached values; and the tiles whose
    values were read: 64 rows by `tile_keys` keys on Hopper and in NumPy, the rows of a warp by 64 keys on other GPUs.
    ConfigError for an empty prompt or sizes that the kernels do not support.

    Parameters
    ----------
    q : float32 (n, heads, d), on the device float16
        In the basis of the cached keys, not yet scaled.
    scale : float, usually ``d ** -0.5``
    at : PagedKV
        The kernels take its number of tokens from the host, so their launches cannot be part of a CUDA graph.
    """
    check_sizes(q, at)
    assert at.tokens <= len(at.table) * BLOCK, f"{at.tokens} tokens, {len(at.table)} pages"
    if not is_device(q):
        return skipped(q, *at.gather(), scale, rule.skip)
    at = at.unpacked()
    return (_on_hopper if current_path() == "sm_90a" else _on_any)(q, at, scale, rule.skip)


def skipped(
    q: Floats, k: Floats, v: Floats, scale: float, budget: float, size: tuple[int, int] | None = None
) -> tuple[Floats, TileCounts]:
    """Compute `skipping_attention` in NumPy. `q`: (n, heads, d); `k`, `v`: (tokens, kv_heads, d); `size`: rows that
    leave out a tile together, and its keys; by default those on Hopper."""
    (n, heads, d), (tokens, kv_heads, _) = q.shape, k.shape
    rows_together, keys = size or (ROWS, tile_keys(d))
    out, read = np.empty_like(q), np.zeros((heads, -(-n // rows_together)), np.int32)

    def one(place: tuple[int, int]) -> None:
        head, i = place
        rows = slice(rows_together * i, min(rows_together * (i + 1), n))
        start, seen = tokens - n + rows.start, tokens - n + rows.stop
        score = q[rows, head] * q.dtype.type(scale * np.log2(np.e)) @ k[:seen, head // (heads // kv_heads)].T
        score[np.arange(seen) > np.arange(start, seen)[:, None]] = -np.inf
        weight = exp2_normal(score - score.max(axis=1, keepdims=True))
        tiles = np.add.reduceat(weight, np.arange(0, seen, keys), axis=1)
        omitted = left_out(tiles, (start + 1) // keys, budget)
        for tile in omitted:
            weight[:, tile * keys : (tile + 1) * keys] = 0
        read[place] = tiles.shape[1] - len(omitted)
        out[rows, head] = weight @ v[:seen, head // (heads // kv_heads)] / weight.sum(axis=1, keepdims=True)

    run_parallel(one, list(np.ndindex(*read.shape)))
    return out, TileCounts(read, heads * _tiles(n, tokens, rows_together, keys))


def left_out(tiles: Floats, whole: int, budget: float, of_one: float = OF_ONE) -> list[int]:
    """Return the tiles that rows leave out together, in the order in which they are met.

    Parameters
    ----------
    tiles : float (rows, tiles)
        The weight of each tile for each row, on any scale.
    whole : int
        Number of first tiles that all rows see entirely; others are always read, and so is the first.

    Examples
    --------
    >>> left_out(np.array([[90.0, 1.0, 2.0, 7.0]]), 3, 0.05)
    [1]
    """
    met, lost, omitted = tiles[:, 0].copy(), np.zeros(len(tiles), tiles.dtype), list[int]()
    for tile in range(tiles.shape[1] - 1, 0, -1):
        weight = tiles[:, tile]
        met += weight
        if tile < whole and ((weight <= of_one * budget * met) & (lost + weight <= budget * met)).all():
            lost += weight
            omitted.append(tile)
    return omitted


def _tiles(n: int, tokens: int, rows: int, keys: int) -> int:
    """Return how many tiles of keys the last `n` tokens see for a head, in runs of so many rows."""
    ends = tokens - n + np.minimum(np.arange(rows, n + rows, rows), n)
    return int((-(-ends // keys)).sum())


def _on_hopper(q: Any, at: PagedKV, scale: float, budget: float) -> tuple[Any, TileCounts]:
    cupy, (n, heads, d) = import_cupy(), q.shape
    assert q.dtype == np.float16, f"queries of {q.dtype}"
    at.check_queries(q)
    blocks, group, keys = -(-n // BLOCK), heads // at.kv_heads, tile_keys(d)
    out, read = cupy.empty((n, heads, d), np.uint16), cupy.empty((heads, blocks, 2), np.int32)
    pool = at.k.shape[0] * BLOCK
    maps = (
        tensor_map(
            pages.view(np.float16),
            (64, pool, d // 64, at.kv_heads),
            (at.kv_heads * d * 2, 128, d * 2),
            (64, keys, d // 64, 1),
        )
        for pages in (at.k, at.v)
    )
    ATTENTION_SKIP.launch(
        (min(blocks * heads, multiprocessors(current_device())),),
        tensor_map(q, (64, n, d // 64, heads), (q.strides[0], 128, q.strides[1]), (64, BLOCK, d // 64, 1)),
        *maps,
        at.table,
        out,
        read,
        cupy.zeros(1, np.int32),
        *(at.tokens, n, heads, group),
        group,  # heads that share pages run at the same time, so that these stay in L2
        *(scale, OF_ONE * budget, budget),
        defines=variant(d),
    )
    return out, TileCounts(read, heads * _tiles(n, at.tokens, ROWS, keys))


def _on_any(q: Any, at: PagedKV, scale: float, budget: float) -> tuple[Any, TileCounts]:
    cupy, (n, heads, d) = import_cupy(), q.shape
    at.check_queries(q)
    defines = portable_variant(d)
    rows = queries(defines)
    out, read = cupy.empty((n, heads, d), np.uint16), cupy.empty((heads, -(-n // rows), WARPS), np.int32)
    ATTENTION_SKIP_PORTABLE.launch(
        (heads * -(-n // rows),),
        q,
        at.k,
        at.v,
        at.table,
        out,
        read,
        *(at.tokens, n, heads, at.kv_heads, scale * float(np.log2(np.e)), OF_ONE * budget, budget),
        defines=defines,
    )
    return out, TileCounts(read, heads * _tiles(n, at.tokens, rows // WARPS, 64))
