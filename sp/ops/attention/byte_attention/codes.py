"""Rows of queries, keys and values as bytes: what the kernels make of them, in NumPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sp.arrays import Floats
from sp.ops.attention.key_blocks import BLOCK
from sp.ops.byte_rows.e4m3 import LARGEST, round_e4m3

SAMPLED_BLOCKS = 16  # blocks of keys, spread over the sequence, whose mean stands for that of all


class Codes(NamedTuple):
    """``scales * codes``, in the shape of what they stand for. `scales`: float32, one for each query of a head, (n,
    heads, 1); for 128 keys of a head, (blocks, kv_heads, 1); for all values of a head, (kv_heads, 1)."""

    codes: Floats  # float32, whole numbers from -127 to 127 of queries and keys, e4m3 numbers of values
    scales: Floats


def sampled_blocks(tokens: int) -> slice:
    """Which of the whole blocks of a sequence are sampled; none of under 128 tokens.

    >>> list(range(1024))[sampled_blocks(131_072)][:3], sampled_blocks(100)
    ([0, 64, 128], slice(0, 0, 1))
    """
    whole = tokens // BLOCK
    return slice(0, whole, max(1, whole // SAMPLED_BLOCKS))


def key_centre(k: Floats) -> Floats:
    """The mean of some keys of each head, for `key_codes`: zeros for under 128 keys. Keys of trained models share a
    large part in few values, which would take most of a byte's range. What all keys of a head share adds the same to
    all scores of a query, so softmax does not see it. `k`: float32 (tokens, kv_heads, d). Returns float32
    (kv_heads, d). Source: Zhang et al., "SageAttention", 2024 (smoothing of keys)."""
    tokens, kv_heads, d = k.shape
    blocks = k[: tokens // BLOCK * BLOCK].reshape(-1, BLOCK, kv_heads, d)[sampled_blocks(tokens)]
    if not len(blocks):
        return np.zeros((kv_heads, d), k.dtype)
    centre: Floats = blocks.mean(axis=(0, 1), dtype=k.dtype)
    return centre


def query_codes(q: Floats) -> Codes:
    """Queries (n, heads, d) as whole numbers of a 127th of the largest of each row.

    >>> codes, scales = query_codes(np.array([[[1.0, -2.0]]], np.float32))
    >>> codes.tolist(), round(float(scales[0, 0, 0]), 5)
    ([[[64.0, -127.0]]], 0.01575)
    """
    return _whole(q, np.abs(q).max(axis=2, keepdims=True))


def key_codes(k: Floats, centre: Floats) -> Codes:
    """Keys (tokens, kv_heads, d) less `centre` as whole numbers of a 127th of the largest of a head's 128 tokens."""
    k = k - centre
    starts = np.arange(0, len(k), BLOCK)
    peaks = np.maximum.reduceat(np.abs(k).max(axis=2, keepdims=True), starts, axis=0)
    codes = _whole(k, peaks.repeat(BLOCK, axis=0)[: len(k)]).codes
    return Codes(codes, (peaks * np.float32(1 / 127)).astype(k.dtype))


def value_codes(v: Floats) -> Codes:
    """Values (tokens, kv_heads, d) as e4m3 numbers, the largest of a head as 448."""
    peaks = np.abs(v).max(axis=(0, 2))[:, None]
    rise = np.divide(LARGEST, peaks, out=np.zeros_like(peaks), where=peaks > 0)
    return Codes(round_e4m3(v * rise), (peaks * np.float32(1 / 448)).astype(v.dtype))


def _whole(x: Floats, peaks: Floats) -> Codes:
    inverse = np.divide(np.float32(127), peaks, out=np.zeros_like(peaks), where=peaks > 0)
    return Codes(np.rint(x * inverse), (peaks * np.float32(1 / 127)).astype(x.dtype))
