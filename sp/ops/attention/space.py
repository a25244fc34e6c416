"""Tokens of a cache in the embedding space of a trained head, and the relevance of parts of a text to a query there.

The head scores by late interaction (ColBERT, arXiv 2004.12832): each part of a text has the best cosine similarity to
each query token, and its relevance is their weighted mean. A token's score combines the relevance of the parts that
contain it with the attention that it receives."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device
from sp.kernels.specs.attention.space import (
    ALIKE_SIDE,
    MOST_RANK,
    SCORED,
    SPACE_ALIKE,
    SPACE_PARTS,
    SPACE_ROWS,
    SPACE_SCORES,
    SPACE_WORTH,
    WORTH_WARPS,
    block_tokens,
)
from sp.ops.attention.attention_heads import turns, unrotate
from sp.ops.attention.importance import average_pool
from sp.ops.attention.kv_pages import PagedKV, checked_head_dim
from sp.ops.rope import Rope

STEP, WINDOW = 8, 64  # tokens between the starts of windows, and tokens per window
SLICE = 1 << 16  # tokens that the CPU compares at once, whole steps, to bound memory


def padded_rank(rank: int) -> int:
    """Return the dimensions of a space on the device: those beyond `rank` are zero.

    >>> padded_rank(7), padded_rank(96), padded_rank(130)
    (16, 96, 256)
    """
    whole = 16 if rank <= MOST_RANK else MOST_RANK
    return -(-rank // whole) * whole


def space_rows(at: PagedKV, positions: Ints, rotary: Rope, weights: Floats, document: Floats | None = None) -> Floats:
    """Project a layer's tokens into the space, ``unrotated(k[t]) @ B_k + v[t] @ B_v``, and add the previous layers'.
    Returns float32 (tokens, rank): `document`, changed in place, or a new array.

    Parameters
    ----------
    at : PagedKV
        All of its tokens are used, at least one.
    positions : int64 (tokens,)
        Positions by which keys were rotated.
    rotary : Rope
        The rotation of keys.
    weights : float32 (2 x kv_heads x head_dim, rank), on the device float16
        ``B_k`` stacked on ``B_v``. On the device the rank is a `padded_rank`.
    document : float32 (tokens, rank), optional
        Sum over the previous layers.

    Examples
    --------
    >>> from sp.ops.attention.kv_pages import kv_append
    >>> from sp.quant import F32
    >>> pages, table = np.zeros((1, 4, 1, 8), np.uint8), np.array([0])
    >>> kv_append(pages, table, 0, np.ones((3, 1, 2), np.float32), F32)
    >>> weights = np.array([[1], [2], [3], [4]], np.float32)
    >>> space_rows(PagedKV(pages, pages, table, 3, F32), np.arange(3), Rope(1e4, 0), weights).ravel().tolist()
    [10.0, 10.0, 10.0]
    """
    deep = 2 * at.kv_heads * at.head_dim
    assert len(positions) == at.tokens > 0, f"{len(positions)} positions for {at.tokens} tokens"
    assert len(weights) == deep, f"weights {weights.shape} for rows of {deep}"
    shape = at.tokens, weights.shape[1]
    assert document is None or document.shape == shape, f"document {np.shape(document)}, expected {shape}"
    if is_device(at.k):
        return _rows_on_device(at, positions, rotary, weights, document)
    (keys, values), (k, v) = np.split(weights, 2), at.model_rows()
    k = unrotate(k, positions, rotary)
    found = np.zeros(shape, np.float32) if document is None else document
    for first in range(0, at.tokens, SLICE):
        part = slice(first, first + SLICE)
        found[part] += _flat(k[part]) @ keys + _flat(v[part]) @ values
    return found


class Units(NamedTuple):
    """Consecutive parts of a text, from its first token to its last; none is empty or longer than `SLICE`.

    >>> Units.of(np.array([0, 3, 4]), np.zeros(1, np.float32)).tokens
    4
    """

    bounds: Ints  # int64 (units + 1,), NumPy
    places: Any  # the same on the device where they are used, there int32

    @classmethod
    def of(cls, bounds: Ints, like: Any) -> Units:
        """Return the units with these bounds, on the device of `like`."""
        return cls(bounds, import_cupy().asarray(bounds.astype(np.int32)) if is_device(like) else bounds)

    @property
    def tokens(self) -> int:
        """Number of tokens of the text."""
        return int(self.bounds[-1])


def space_worth(document: Floats, asking: Floats, units: Units) -> tuple[Floats, Floats]:
    """Compute the relevance of parts of a text: ``sum_r softmax_r(gate_r) max_t cos(document[t], asking[r])`` over a
    part's tokens t. Returns two float32 arrays, on the device only queued: for units (units,), and for windows of
    `WINDOW` tokens, one every `STEP`, the first of which ends with the first step and the last of which begins with the
    last one; only tokens of the text count: (steps + WINDOW / STEP - 1,).

    Parameters
    ----------
    document : float32 (tokens or more, rank)
        Rows of tokens; on the device the rank is a multiple of 16.
    asking : float32 (rows, rank + 1)
        Rows of query tokens, at least one, with their gates in the last column.
    units : Units
        Parts of the first tokens.

    Examples
    --------
    >>> document, asking = np.eye(2, dtype=np.float32), np.array([[1, 0, 0]], np.float32)
    >>> worth, windows = space_worth(document, asking, Units.of(np.array([0, 1, 2]), document))
    >>> worth.round(3).tolist(), windows.round(3).tolist() == [1] * 8
    ([1.0, 0.0], True)
    """
    tokens, bounds = units.tokens, units.bounds
    assert 0 < tokens <= len(document), f"units of {tokens} tokens, rows of {len(document)}"
    assert asking.shape[1] == document.shape[1] + 1, f"asking {asking.shape}, document {document.shape}"
    if is_device(document):
        return _worth_on_device(document, asking, units)
    gates, asked = asking[:, -1], _unit_length(asking[:, :-1]).T
    weights = np.exp(gates - gates.max())
    weights /= weights.sum()
    worth, first = [], 0
    while first < len(bounds) - 1:
        last = max(int(np.searchsorted(bounds, bounds[first] + SLICE, "right")) - 1, first + 1)
        alike = _unit_length(document[bounds[first] : bounds[last]]) @ asked
        worth.append(np.maximum.reduceat(alike, bounds[first:last] - bounds[first], axis=0) @ weights)
        first = last
    edge = np.full((WINDOW // STEP - 1, len(asking)), -1, np.float32)  # at an edge windows hold fewer tokens
    steps = [edge]
    for first in range(0, tokens, SLICE):
        alike = _unit_length(document[first : min(first + SLICE, tokens)]) @ asked
        whole = np.full((-(-len(alike) // STEP) * STEP, len(asking)), -1, np.float32)
        whole[: len(alike)] = alike
        steps.append(whole.reshape(-1, STEP, len(asking)).max(axis=1))
    best, span = np.concatenate([*steps, edge]), 1
    # Maxima over 2, 4, 8, ... steps: the number of steps in a window is a power of two.
    while span < WINDOW // STEP:
        best = np.maximum(best[:-span], best[span:])
        span *= 2
    return np.concatenate(worth), best @ weights


def space_scores(
    units: Units, worth: Floats, windows: Floats, looked: Floats, pool: int, weights: tuple[float, float, float]
) -> Floats:
    """Compute scores of a text's tokens: ``w_0 z(its unit's worth) + w_1 z(maximum of the windows that contain it) +
    w_2 z(looked, averaged)``, where z subtracts the mean over all tokens and divides by their standard deviation; a
    term that is equal for all tokens counts as 0. Returns float32 (tokens,), on the device only queued.

    Parameters
    ----------
    units, worth, windows : arguments and results of `space_worth`
    looked : float32 (tokens,)
        Attention that each token receives.
    pool : int, odd
        Tokens over which that is averaged, fewer at the ends.
    weights : three numbers

    Examples
    --------
    >>> units = Units.of(np.array([0, 1, 2]), np.zeros(1))
    >>> space_scores(units, np.array([3.0, 1.0]), np.ones(8), np.ones(2, np.float32), 1, (1, 1, 1)).tolist()
    [1.0, -1.0]
    """
    tokens, count = units.tokens, len(units.bounds) - 1
    assert worth.shape == (count,), f"worth {worth.shape} of {count} units"
    assert windows.shape == (_windows(tokens),), f"windows {windows.shape} of {tokens} tokens"
    assert looked.shape == (tokens,), f"looked {looked.shape} of {tokens} tokens"
    assert pool % 2 == 1, f"an average over {pool} tokens has no middle"
    if is_device(worth):
        return _scores_on_device(units, worth, windows, looked, pool, weights)
    # The tokens of a step are in WINDOW // STEP windows, which follow each other.
    inside = np.lib.stride_tricks.sliding_window_view(windows, WINDOW // STEP).max(axis=1)
    parts = (
        np.repeat(worth, np.diff(units.bounds)),
        np.repeat(inside, STEP)[:tokens],
        average_pool(looked, pool, "renormalise"),
    )
    total = np.zeros(tokens)  # float64, as the statistics of the terms
    for part, weight in zip(parts, weights, strict=True):
        spread = float(part.std(dtype=np.float64))
        if spread > 0:
            total += weight * (part - part.mean(dtype=np.float64)) / spread
    return total.astype(np.float32)


def _windows(tokens: int) -> int:
    return -(-tokens // STEP) + WINDOW // STEP - 1


def _flat(rows: Floats) -> Floats:
    """Concatenate heads (n, heads, d) as float32 (n, heads x d)."""
    flat: Floats = rows.reshape(len(rows), -1).astype(np.float32)
    return flat


def _unit_length(rows: Floats) -> Floats:
    """Rows (n, rank) scaled to length one."""
    scaled: Floats = rows / np.sqrt((rows * rows).sum(axis=1, keepdims=True) + np.float32(1e-12))
    return scaled


def _rows_on_device(at: PagedKV, positions: Any, rotary: Rope, weights: Any, document: Any) -> Floats:
    tokens, pitch, d = at.tokens, weights.shape[1], checked_head_dim(at.head_dim)
    assert pitch == padded_rank(pitch), f"a space of {pitch} dimensions is not padded"
    first, rank = document is None, min(pitch, MOST_RANK)
    if document is None:
        document = import_cupy().empty((tokens, pitch), np.float32)
    if at.exact and not at.rotated:
        k, v, table = at.k, at.v, at.table
    else:
        k, v = (rows.view(np.uint8) for rows in at.model_rows())
        table = None  # their rows are consecutive
    pairs = {"INTERLEAVED": 1} if rotary.pairing == "interleaved" else {}
    SPACE_ROWS.launch(
        (-(-tokens // block_tokens(d)), pitch // rank),
        k,
        v,
        table,
        positions,
        turns(rotary, current_device()),
        weights,
        document,
        tokens,
        at.kv_heads,
        rotary.dim // 2,
        pitch,
        int(first),
        rotary.undone().magnitude,
        defines={"HEAD_DIM": d, "RANK": rank, **pairs},
    )
    whole: Floats = document
    return whole


def _worth_on_device(document: Any, asking: Any, units: Units) -> tuple[Floats, Floats]:
    (rows, stride), rank, tokens, cupy = asking.shape, document.shape[1], units.tokens, import_cupy()
    alike = cupy.empty((tokens, rows), np.float32)
    grid = -(-tokens // ALIKE_SIDE), -(-rows // ALIKE_SIDE)
    SPACE_ALIKE.launch(grid, document, asking, alike, tokens, rank, stride, rows)
    found = []
    for count, places in ((len(units.bounds) - 1, units.places), (_windows(tokens), None)):
        worth = cupy.empty(count, np.float32)
        sizes = count, tokens, rank, stride, rows, STEP, WINDOW
        SPACE_WORTH.launch((-(-count // WORTH_WARPS),), alike, asking, places, worth, *sizes)
        found.append(worth)
    return found[0], found[1]


def _scores_on_device(
    units: Units, worth: Any, windows: Any, looked: Any, pool: int, weights: tuple[float, float, float]
) -> Floats:
    tokens, cupy = units.tokens, import_cupy()
    blocks = -(-tokens // SCORED)
    parts, sums = cupy.empty((3, tokens), np.float32), cupy.empty((blocks, 6), np.uint64)  # whose bits are float64's
    sizes = len(worth), tokens, STEP, WINDOW // STEP, pool // 2
    SPACE_PARTS.launch((blocks,), worth, units.places, windows, looked, parts, sums, *sizes)
    scores: Floats = cupy.empty(tokens, np.float32)
    SPACE_SCORES.launch((blocks,), parts, sums, scores, tokens, blocks, *weights)
    return scores
