"""Attention over pages of the last few tokens of a sequence under a mask among these, such as a token tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.kernels import is_device
from sp.ops.attention.attention import gate_output
from sp.ops.attention.attention_split import split
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.attention.masked_attention import masked_attention
from sp.ops.attention.score_rule import PLAIN, ScoreRule
from sp.ops.matmul.chaining import tiles_for
from sp.quant import Weight

MOST_QUERIES = 64  # queries of a call: one bit each in a word of `seen`


def tree_attention(
    q: Floats,
    at: PagedKV,
    *,
    seen: Any,
    rule: ScoreRule = PLAIN,
    wide: Floats | None = None,
    reader: Weight | None = None,
) -> Floats:
    """Compute attention of the last ``n = len(q)`` tokens of `at` under a mask among these, then `gate_output`. With
    ``start = tokens - n``, query i sees key j of the last n (token ``start + j``) if bit j of ``seen[i]`` is set, by no
    other rule. Of the tokens before `start` it sees all, or those from ``rule.reach[i]`` on, or, for a window without
    `reach`, token t if ``start + i - t < window``. Returns float32 (n, heads * d), on the device BF16 (uint16), or
    InputTiles if the product with `reader` takes them. Source: Miao et al., "SpecInfer", 2024 (tree attention in one
    pass).

    Parameters
    ----------
    q : float32 (n, heads, d), on the device float16, not rotated for the cache; n is 1 to 64
    at : PagedKV, including the queries' own keys and values
    seen : uint64 (n,), bits from n on are ignored. Every query must see a key
    rule : ScoreRule
    wide : float32 (n, heads, 2 d), on the device bf16, optional, queries and gates; see `gate_output`
    reader : Weight of shape (out, heads * d), optional, the weight of the only consumer of the result, a `project_add`

    Examples
    --------
    >>> from sp.ops import kv_append
    >>> from sp.quant import F32
    >>> pages = np.zeros((1, 4, 1, 4), np.uint8)  # values 1, 2, 3: an earlier token, and two under a mask
    >>> kv_append(pages, np.array([0]), 0, np.array([1, 2, 3], np.float32).reshape(3, 1, 1), F32)
    >>> at = PagedKV(pages, pages, np.array([0]), 3, F32)
    >>> q, seen = np.zeros((2, 1, 1), np.float32), np.array([0b01, 0b10], np.uint64)
    >>> tree_attention(q, at, seen=seen).ravel()
    array([1.5, 2. ], dtype=float32)
    """
    assert 1 <= len(q) <= MOST_QUERIES, f"{len(q)} queries; 1 to {MOST_QUERIES} fit a word"
    assert seen.shape == (len(q),), f"seen {seen.shape} for {len(q)} queries"
    assert seen.dtype == np.uint64, f"seen is {seen.dtype}"
    window = rule.window
    assert window is None or window >= 1, f"a window of {window} tokens"
    if is_device(q):
        width = q.shape[1] * q.shape[2]
        tiles = tiles_for(reader, len(q))
        out: Any = split(at.queries(q), at, finish=True, wide=wide, seen=seen, rule=rule, tiles=tiles)
        attended: Floats = out.reshape(len(q), width) if tiles is None else out
        return attended
    q = at.queries(q)
    page, start = at.k.shape[1], at.tokens - len(q)
    reach = None if window is None else rule.first_seen(len(q), at.tokens, q)
    first = 0 if reach is None else min(int(reach.min()), start) // page  # page that a window reaches
    near = at.from_block(first)
    mask = visible(seen, near.tokens, None if reach is None else reach - first * page)
    out = masked_attention(q, *near.gather(), mask, rule)
    return gate_output(out, wide, at.rotated)


def visible(seen: Any, tokens: int, reach: Ints | None = None) -> Bools:
    """Return the mask of `tokens` keys that each of the last ``len(seen)`` sees: bool (n, tokens); see
    `tree_attention`.

    >>> visible(np.array([0b01, 0b11], np.uint64), 5, np.array([1, 2])).astype(int).tolist()
    [[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    """
    n = len(seen)
    found = np.arange(tokens) >= (np.zeros(n, np.int64) if reach is None else reach)[:, None]
    found[:, tokens - n :] = seen[:, None] >> np.arange(n, dtype=np.uint64) & np.uint64(1)
    return found


def seen_words(mask: Bools) -> Any:
    """Convert a mask of the queries among themselves, bool (n, n), to words for `tree_attention`: uint64 (n,).

    >>> seen_words(np.array([[True, False], [True, True]])).tolist()
    [1, 3]
    """
    bits = mask.astype(np.uint64) << np.arange(mask.shape[1], dtype=np.uint64)
    return np.bitwise_or.reduce(bits, axis=1)
