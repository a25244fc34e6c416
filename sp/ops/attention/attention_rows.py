"""attention_rows: what a few query rows give each cached token of a layer, before any reduction."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.attention.importance import HEAD_WARPS, IMPORTANCE_NORMS, IMPORTANCE_SCORES
from sp.ops.attention.attention_probs import attention_logits, softmax
from sp.ops.attention.kv_pages import PAGE_TOKENS, is_packed, page_head_dim, unpacked_pages
from sp.ops.attention.paged_kv import PagedKV

SPLIT_KEYS = 1024  # keys of a split on the device: the same on every card, so that sums are


def attention_rows(q: Floats, at: PagedKV, *, causal: bool = True, logits: bool = False) -> Floats:
    """Softmax weights of `n` query rows over cached keys, head by head.
    ``w[h, i, j] = softmax_j( q[i, h] · k[j, h // group] / sqrt(d) )``. Returns float32 (heads, n, tokens),
    ``4 n heads tokens`` bytes, where `q` is; the caller's to change.

    Parameters
    ----------
    q, at, causal : See `importance`
    logits : bool, what the softmax is taken of in place of the weights; -inf where a query sees nothing

    Examples
    --------
    >>> from sp.ops.attention.kv_pages import kv_append
    >>> from sp.quant import F32
    >>> pages = np.zeros((1, 4, 1, 8), np.uint8)
    >>> kv_append(pages, np.array([0]), 0, np.ones((4, 1, 2), np.float32), F32)
    >>> attention_rows(np.ones((1, 1, 2), np.float32), PagedKV(pages, pages, np.array([0]), 4, F32)).tolist()
    [[[0.25, 0.25, 0.25, 0.25]]]
    """
    n, tokens = len(q), at.tokens
    assert n > 0 < tokens, f"{n} queries, {tokens} tokens"
    assert not causal or n <= tokens, f"{n} queries among {tokens} tokens"
    if is_device(q):
        scores, norms = device_rows(q, at, causal)
        if not logits:
            return softmaxed(scores, norms, tokens)
        scores *= np.float32(np.log(2))
        rows: Floats = scores[..., :tokens]
        return rows
    limit = np.arange(tokens - n, tokens) if causal else np.full(n, tokens - 1)
    found = attention_logits(q, at.keys(), limit)
    return found if logits else softmax(found)


def device_rows(q: Any, at: PagedKV, causal: bool) -> tuple[Any, Any]:
    """Logits times log2(e), float32 (heads, n, pitch), and their (largest, 1 / sum of 2^(. - largest)), (heads, n, 2).
    The pitch is the tokens rounded up to whole pages; what lies between is -inf."""
    cupy = import_cupy()
    (n, heads, d), tokens, kv_heads = q.shape, at.tokens, at.kv_heads
    assert page_head_dim(at.k, at.fmt) == d, f"q {q.shape}, pages {at.k.shape}"
    assert heads % kv_heads == 0, f"{heads} query heads on {kv_heads} kv heads"
    blocks = -(-tokens // PAGE_TOKENS)
    assert blocks <= len(at.table), f"{tokens} tokens in {len(at.table)} pages"
    k_pages, table = at.k, at.table
    if is_packed(at.fmt):
        k_pages = unpacked_pages(k_pages, table, tokens, at.fmt).view(np.uint8)
        table = cupy.arange(blocks, dtype=np.int32)
    pitch = blocks * PAGE_TOKENS
    splits, tiles = -(-pitch // SPLIT_KEYS), -(-n * (heads // kv_heads) // 16)
    scores = cupy.empty((heads, n, pitch), np.float32)
    parts = cupy.empty((heads, n, splits, 2), np.float32)
    norms = cupy.empty((heads, n, 2), np.float32)
    before, scale = (tokens - n if causal else tokens), float(np.log2(np.e) / np.sqrt(d))
    shape, defines = (n, tokens, before, heads, kv_heads, pitch), {"HEAD_DIM": d}
    IMPORTANCE_SCORES.launch(
        (splits, kv_heads, tiles), q, k_pages, table, scores, parts, *shape, scale, defines=defines
    )
    IMPORTANCE_NORMS.launch((-(-n * heads // HEAD_WARPS),), parts, norms, n * heads, splits, defines=defines)
    return scores, norms


def softmaxed(scores: Any, norms: Any, tokens: int) -> Floats:
    """Weights (heads, n, tokens) from what `device_rows` gives, in the same memory."""
    scores -= norms[..., :1]
    import_cupy().exp2(scores, out=scores)
    scores *= norms[..., 1:]
    weights: Floats = scores[..., :tokens]
    return weights
