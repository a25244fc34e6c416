"""Tokens of a cache in the space of a trained head, and what parts of a text have there of what is asked.

In that space late interaction compares (ColBERT, arXiv 2004.12832): a part of a text has for each asking token its best
cosine, and of these a weighted mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device
from sp.kernels.specs.attention.space import (
    ALIKE_SIDE,
    MOST_RANK,
    SPACE_ALIKE,
    SPACE_ROWS,
    SPACE_WORTH,
    WORTH_WARPS,
    block_tokens,
)
from sp.ops.attention.attention_heads import turns, unrotate
from sp.ops.attention.kv_pages import PagedKV, checked_head_dim
from sp.ops.rope import Rope

STEP, WINDOW = 8, 64  # tokens from the start of a window to that of the next, and of a window
SLICE = 1 << 16  # tokens that the CPU compares at once, whole steps: a bound on memory


def padded_rank(rank: int) -> int:
    """Dimensions of a space as the device holds it: what more there is than `rank` is zero.

    >>> padded_rank(7), padded_rank(96), padded_rank(130)
    (16, 96, 256)
    """
    whole = 16 if rank <= MOST_RANK else MOST_RANK
    return -(-rank // whole) * whole


def space_rows(at: PagedKV, positions: Ints, rotary: Rope, weights: Floats, document: Floats | None = None) -> Floats:
    """Rows of a layer's tokens in the space, ``unrotated(k[t]) @ B_k + v[t] @ B_v``, added to those of layers before.
    Returns float32 (tokens, rank): `document`, changed in place, or a new array.

    Parameters
    ----------
    at : PagedKV
        All of whose tokens are taken, at least one.
    positions : int64 (tokens,)
        By which keys were turned.
    rotary : Rope
        How.
    weights : float32 (2 x kv_heads x head_dim, rank), on the device float16
        ``B_k``, and below it ``B_v``. On the device the rank is a `padded_rank`.
    document : float32 (tokens, rank), optional
        Rows of the layers before.

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


def space_worth(document: Floats, asking: Floats, bounds: Ints) -> tuple[Floats, Floats]:
    """What parts of a text have of what is asked: ``sum_r softmax_r(gate_r) max_t cos(document[t], asking[r])`` over a
    part's tokens t. Returns two arrays of float32, on the device only queued: of units (units,), and of windows of
    `WINDOW` tokens, one every `STEP`, of which the first ends with the first step and the last begins with the last
    one, and only tokens of the text count: (steps + WINDOW / STEP - 1,).

    Parameters
    ----------
    document : float32 (tokens or more, rank)
        Rows of tokens; the rank on the device a multiple of 16.
    asking : float32 (rows, rank + 1)
        Rows of asking tokens, at least one, and in the last column their gates.
    bounds : int64 (units + 1,), NumPy
        Of units that follow each other, from 0 to the text's end, none of them empty or longer than `SLICE`.

    Examples
    --------
    >>> document, asking = np.eye(2, dtype=np.float32), np.array([[1, 0, 0]], np.float32)
    >>> units, windows = space_worth(document, asking, np.array([0, 1, 2]))
    >>> units.round(3).tolist(), windows.round(3).tolist() == [1] * 8
    ([1.0, 0.0], True)
    """
    tokens = int(bounds[-1])
    assert 0 < tokens <= len(document), f"units of {tokens} tokens, rows of {len(document)}"
    assert asking.shape[1] == document.shape[1] + 1, f"asking {asking.shape}, document {document.shape}"
    if is_device(document):
        return _worth_on_device(document, asking, bounds, tokens)
    gates, asked = asking[:, -1], _unit_length(asking[:, :-1]).T
    weights = np.exp(gates - gates.max())
    weights /= weights.sum()
    units, first = [], 0
    while first < len(bounds) - 1:
        last = max(int(np.searchsorted(bounds, bounds[first] + SLICE, "right")) - 1, first + 1)
        alike = _unit_length(document[bounds[first] : bounds[last]]) @ asked
        units.append(np.maximum.reduceat(alike, bounds[first:last] - bounds[first], axis=0) @ weights)
        first = last
    edge = np.full((WINDOW // STEP - 1, len(asking)), -1, np.float32)  # at an edge windows hold fewer tokens
    steps = [edge]
    for first in range(0, tokens, SLICE):
        alike = _unit_length(document[first : min(first + SLICE, tokens)]) @ asked
        steps.append(np.maximum.reduceat(alike, np.arange(0, len(alike), STEP), axis=0))
    best, span = np.concatenate([*steps, edge]), 1
    while span < WINDOW // STEP:
        best = np.maximum(best[:-span], best[span:])
        span *= 2
    return np.concatenate(units), best @ weights


def _flat(rows: Floats) -> Floats:
    """Heads (n, heads, d) side by side as float32 (n, heads x d)."""
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
        table = None  # they lie in order
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


def _worth_on_device(document: Any, asking: Any, bounds: Ints, tokens: int) -> tuple[Floats, Floats]:
    (rows, stride), rank, cupy = asking.shape, document.shape[1], import_cupy()
    units, windows = len(bounds) - 1, -(-tokens // STEP) + WINDOW // STEP - 1
    alike = cupy.empty((tokens, rows), np.float32)
    grid = -(-tokens // ALIKE_SIDE), -(-rows // ALIKE_SIDE)
    SPACE_ALIKE.launch(grid, document, asking, alike, tokens, rank, stride, rows)
    found = []
    for count, places in ((units, cupy.asarray(bounds.astype(np.int32))), (windows, None)):
        worth = cupy.empty(count, np.float32)
        sizes = count, tokens, rank, stride, rows, STEP, WINDOW
        SPACE_WORTH.launch((-(-count // WORTH_WARPS),), alike, asking, places, worth, *sizes)
        found.append(worth)
    return found[0], found[1]
