"""NumPy reference of 8-bit causal attention, over all key blocks or listed ones, in the kernel's order."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from sp.arrays import Floats, Ints
from sp.ops.attention.attention import attention
from sp.ops.attention.key_blocks import BLOCK, BlockLists
from sp.ops.attention.score_rule import ScoreRule
from sp.ops.byte_rows.e4m3 import LARGEST, near_exp2, round_e4m3
from sp.ops.byte_rows.rows import rotated
from sp.ops.threads import run_parallel

SAMPLED_BLOCKS = 16  # blocks of keys, spread over the sequence, whose mean is used for that of all


class Codes(NamedTuple):
    """Quantised values ``scales * codes``, in the shape of the originals. `scales`: float32, one per query and head,
    (n, heads, 1); per 128 keys of a head, (blocks, kv_heads, 1); for all values of a head, (kv_heads, 1)."""

    codes: Floats  # float32, whole numbers from -127 to 127 of queries and keys, e4m3 numbers of values
    scales: Floats


def sampled_blocks(tokens: int) -> slice:
    """Return the slice of whole blocks of a sequence that are sampled; empty for under 128 tokens.

    >>> list(range(1024))[sampled_blocks(131_072)][:3], sampled_blocks(100)
    ([0, 64, 128], slice(0, 0, 1))
    """
    whole = tokens // BLOCK
    return slice(0, whole, max(1, whole // SAMPLED_BLOCKS))


def key_centre(k: Floats) -> Floats:
    """Return the mean of some keys of each head, for `key_codes`; zeros for under 128 keys. Keys of trained models
    share a large offset in few channels, which would take most of the int8 range. An offset common to all keys of a
    head adds the same to all scores of a query, which softmax ignores. `k`: float32 (tokens, kv_heads, d). Returns
    float32 (kv_heads, d). Source: Zhang et al., "SageAttention", 2024 (smoothing of keys)."""
    tokens, kv_heads, d = k.shape
    blocks = k[: tokens // BLOCK * BLOCK].reshape(-1, BLOCK, kv_heads, d)[sampled_blocks(tokens)]
    if not len(blocks):
        return np.zeros((kv_heads, d), k.dtype)
    centre: Floats = blocks.mean(axis=(0, 1), dtype=k.dtype)
    return centre


def query_codes(q: Floats) -> Codes:
    """Quantise queries (n, heads, d) to integers, in units of a 127th of the absmax of each row.

    >>> codes, scales = query_codes(np.array([[[1.0, -2.0]]], np.float32))
    >>> codes.tolist(), round(float(scales[0, 0, 0]), 5)
    ([[[64.0, -127.0]]], 0.01575)
    """
    return _whole(q, np.abs(q).max(axis=2, keepdims=True))


def key_codes(k: Floats, centre: Floats) -> Codes:
    """Quantise keys (tokens, kv_heads, d) minus `centre` to integers, in units of a 127th of the absmax of a head's 128
    tokens."""
    k = k - centre
    starts = np.arange(0, len(k), BLOCK)
    peaks = np.maximum.reduceat(np.abs(k).max(axis=2, keepdims=True), starts, axis=0)
    codes = _whole(k, peaks.repeat(BLOCK, axis=0)[: len(k)]).codes
    return Codes(codes, (peaks * np.float32(1 / 127)).astype(k.dtype))


def value_codes(v: Floats) -> Codes:
    """Quantise values (tokens, kv_heads, d) to e4m3 numbers, the absmax of a head to 448."""
    peaks = np.abs(v).max(axis=(0, 2))[:, None]
    rise = np.divide(LARGEST, peaks, out=np.zeros_like(peaks), where=peaks > 0)
    return Codes(round_e4m3(v * rise), (peaks * np.float32(1 / 448)).astype(v.dtype))


def _whole(x: Floats, peaks: Floats) -> Codes:
    inverse = np.divide(np.float32(127), peaks, out=np.zeros_like(peaks), where=peaks > 0)
    return Codes(np.rint(x * inverse), (peaks * np.float32(1 / 127)).astype(x.dtype))


BIAS = 6  # a score equal to its row's reference has the weight 2 ** BIAS
RISEN = 2  # scores (in log2) may exceed the reference by this before it moves: the range of e4m3 above 2 ** BIAS
MOST_SCORES = 1 << 20  # scores of a query block that are computed at once, in whole tiles


def byte_attention(
    q: Floats,
    k: Floats,
    v: Floats,
    scale: float,
    lists: BlockLists | None = None,
    centre: Floats | None = None,
    reach: Ints | None = None,
) -> Floats:
    """Compute attention of the last queries over all keys or the listed blocks, without keys after a row.

    Queries and keys are rounded to int8, values to e4m3 (see `query_codes`). Weights are the e4m3 numbers near 2 to a
    score (`near_exp2`), relative to a reference of their row: the largest score when it was last exceeded by more than
    `RISEN`. Tiles of 128 keys are processed from the diagonal down. Sums use the same rounded weights.

    `q`: float32 (n, heads, d), not yet scaled; `k`, `v`: float32 (tokens, kv_heads, d); `lists`: on the host; by
    default all blocks; `centre`: float32 (kv_heads, d), optional, subtracted from keys before rounding; by default
    their `key_centre`; `reach`: (n,), ascending, optional and without `lists`: the first key that each query sees.

    Returns float32 (n, heads, d), zeros for a row that sees no key. Source: Shah et al., "FlashAttention-3", 2024;
    Zhang et al., "SageAttention2", 2024.

    >>> ones = np.ones((200, 1, 128), np.float32)
    >>> byte_attention(ones, ones, 2 * ones, 0.1)[-1, 0, :2].tolist()
    [2.0, 2.0]
    """
    n, heads, _ = q.shape
    tokens, kv_heads, d = k.shape
    group, blocks = heads // kv_heads, -(-tokens // BLOCK)
    queries = query_codes(q)
    keys, values = key_codes(k, key_centre(k) if centre is None else centre), value_codes(v)
    padding = ((0, blocks * BLOCK - tokens), (0, 0), (0, 0))
    key_tiles, value_tiles = (
        np.pad(each, padding).reshape(blocks, BLOCK, kv_heads, d) for each in (keys.codes, values.codes)
    )
    factor = q.dtype.type(scale * math.log2(math.e))
    out = np.zeros_like(q)

    def one(place: tuple[int, int]) -> None:
        head, i = place
        rows = slice(BLOCK * i, min(BLOCK * (i + 1), n))
        positions = np.arange(tokens - n + rows.start, tokens - n + rows.stop)
        first = 0 if reach is None else int(reach[rows.start]) // BLOCK
        every = np.arange(first, positions[-1] // BLOCK + 1)
        listed = every if lists is None else lists.indices[place][: lists.counts[place]]
        state = _Rows(len(positions), d, q.dtype)
        row_factor = queries.scales[rows, head] * factor  # (rows, 1)
        for part in _parts(listed[::-1].astype(np.int64), len(positions)):
            sums = queries.codes[rows, head] @ key_tiles[part, :, head // group].reshape(-1, d).T
            scores = (sums * row_factor).reshape(len(positions), len(part), BLOCK)
            scores *= keys.scales[part, head // group, 0][:, None]
            keys_at = part[:, None] * BLOCK + np.arange(BLOCK)
            scores[keys_at > positions[:, None, None]] = -np.inf
            if reach is not None:
                scores[keys_at < reach[rows, None, None]] = -np.inf
            state.add(scores, value_tiles[part, :, head // group])
        out[rows, head] = state.out() * values.scales[head // group]

    run_parallel(one, list(np.ndindex(heads, -(-n // BLOCK))))
    return out


def byte_key_attention(q: Floats, k: Floats, v: Floats, scale: float, centre: Floats | None = None) -> Floats:
    """Compute attention of the last queries over all keys, with queries and keys rotated and rounded to int8 as
    `byte_attention` does, and weights and values as they are. Arguments and result as there. Source: Ashkboos et al.,
    "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", 2024 (rotation).

    >>> ones = np.ones((200, 1, 256), np.float32)
    >>> byte_key_attention(ones, ones, 2 * ones, 0.1)[-1, 0, :2].tolist()
    [2.0, 2.0]
    """
    centred = k - (key_centre(k) if centre is None else centre)
    queries, keys = query_codes(rotated_heads(q)), key_codes(rotated_heads(centred), np.zeros_like(k[0]))
    rounded = keys.codes * keys.scales.repeat(BLOCK, axis=0)[: len(k)]
    return attention(queries.codes * queries.scales, rounded, v, ScoreRule(scale=scale))


def rotated_heads(x: Floats) -> Floats:
    """Rotate rows of heads, (n, heads, 256), see `rotated`: channels that are large are spread over a head, and
    products of queries and keys stay as they are."""
    n, heads, d = x.shape
    turned: Floats = rotated(x.reshape(-1, d)).reshape(n, heads, d) * x.dtype.type(d**-0.5)
    return turned


def _parts(blocks: np.ndarray, rows: int) -> list[np.ndarray]:
    """Split `blocks`, in order, into parts of bounded size."""
    step = max(1, MOST_SCORES // (rows * BLOCK))
    return [blocks[at : at + step] for at in range(0, len(blocks), step)]


class _Rows:
    """Online softmax state of the rows of a query block: references, sums of weights, and outputs so far."""

    def __init__(self, rows: int, d: int, dtype: np.dtype[Any]) -> None:
        self._reference: Floats = np.full(rows, -np.inf, dtype)
        self._sum: Floats = np.zeros(rows, dtype)
        self._out: Floats = np.zeros((rows, d), dtype)

    def add(self, scores: Floats, values: Floats) -> None:
        """Add tiles in the order in which they are processed: scores (rows, tiles, 128) in log2, values (tiles, 128,
        d)."""
        top = scores.max(axis=2)
        reference = self._reference
        for at in range(top.shape[1]):
            reference = np.where(top[:, at] > reference + RISEN, top[:, at], reference)
            top[:, at] = reference
        safe = np.where(np.isinf(top), 0, top)
        weights = near_exp2(scores - safe[:, :, None] + scores.dtype.type(BIAS))
        last: Floats = top[:, -1]
        known = np.where(np.isinf(last), 0, last)
        keep = np.exp2(top - known[:, None])  # rescales each tile's weights to the last reference
        before = np.exp2(self._reference - known)
        rounded = weights * keep[:, :, None]
        self._sum = self._sum * before + rounded.sum(axis=(1, 2))
        flat: Floats = rounded.reshape(len(rounded), -1) @ values.reshape(-1, values.shape[2])
        self._out = self._out * before[:, None] + flat
        self._reference = last

    def out(self) -> Floats:
        """Return the normalised outputs."""
        sums: Floats = np.where(self._sum > 0, self._sum, 1)
        return self._out / sums[:, None]
