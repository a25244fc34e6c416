"""importance: how much a few query rows look at every cached token of a layer, folded into that of other layers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.attention.importance import FOLD_THREADS, IMPORTANCE_FOLD, IMPORTANCE_HEAT, LONGEST_POOL
from sp.ops.attention.attention_probs import attention_probs
from sp.ops.attention.attention_rows import device_rows, softmaxed
from sp.ops.attention.paged_kv import PagedKV
from sp.ops.attention.reduction import Reduction, chunk_means

HEAT_CHUNK = 32  # tokens of a chunk of a heat map


class Folded(NamedTuple):
    """What one layer leaves."""

    running: Floats  # float32 (queries or 1, tokens), see `Reduction.fold`
    by_layer: Floats  # float32 (chunks,), largest weight of all heads, mean over the queries and 32 tokens
    by_head: Floats | None  # float32 (heads, chunks), optional, mean weight of each head


def importance(
    q: Floats,
    at: PagedKV,
    reduction: Reduction,
    running: Floats | None = None,
    *,
    causal: bool = True,
    by_head: bool = False,
) -> Folded:
    """Softmax weights of `n` query rows over cached keys, reduced over the heads and folded into `running`.
    ``w[h, i, j] = softmax_j( q[i, h] · k[j, h // group] / sqrt(d) )``; the rest is `Reduction.fold`. Returns Folded, on
    the device the same from run to run: sums are taken in a fixed order. One layer's weights take ``4 n heads tokens``
    bytes there while this runs.

    Parameters
    ----------
    q : float32 (n, heads, d), on the device float16
    at : PagedKV
        Cached tokens, at least one, of which only the keys are read; those in the basis of `q`. On the device in Q4_0
        they are unpacked first.
    running : float32 (queries or 1, tokens), optional
        Result of the layers before; on the device it is overwritten by the new one.
    causal : bool, the queries are the last `n` of the tokens and see none after themselves; else each sees all tokens
    by_head : bool, keep a heat map of every head as well

    Examples
    --------
    >>> from sp.ops.attention.kv_pages import kv_append
    >>> from sp.quant import F32
    >>> pages = np.zeros((1, 4, 1, 8), np.uint8)
    >>> kv_append(pages, np.array([0]), 0, np.ones((4, 1, 2), np.float32), F32)
    >>> at = PagedKV(pages, pages, np.array([0]), 4, F32)
    >>> importance(np.ones((1, 2, 2), np.float32), at, Reduction(pool=1)).running.tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    n, tokens = len(q), at.tokens
    assert n > 0 < tokens, f"{n} queries, {tokens} tokens"
    assert not causal or n <= tokens, f"{n} queries among {tokens} tokens"
    if is_device(q):
        return _on_device(q, at, reduction, running, causal, by_head)
    limit = np.arange(tokens - n, tokens) if causal else np.full(n, tokens - 1)
    probs = attention_probs(q, at.keys(), limit)
    return fold_weights(probs, reduction, running, by_head=by_head)


def fold_weights(probs: Floats, reduction: Reduction, running: Floats | None, *, by_head: bool = False) -> Folded:
    """The part of `importance` after the softmax: weights (heads, queries, tokens), in NumPy or on the device."""
    heat = chunk_means(probs.max(axis=0).mean(axis=0), HEAT_CHUNK)
    heads = chunk_means(probs.mean(axis=1), HEAT_CHUNK) if by_head else None
    return Folded(reduction.fold(probs, running), heat, heads)


def _on_device(q: Any, at: PagedKV, reduction: Reduction, running: Any, causal: bool, by_head: bool) -> Folded:
    (scores, norms), tokens = device_rows(q, at, causal), at.tokens
    if not in_kernel(reduction):
        return fold_weights(softmaxed(scores, norms, tokens), reduction, running, by_head=by_head)
    cupy = import_cupy()
    heads, n, pitch = scores.shape
    chunks = -(-tokens // HEAT_CHUNK)
    by_layer = cupy.empty(chunks, np.float32)
    of_heads = cupy.empty((heads, chunks), np.float32) if by_head else None
    steps = fold_defines(reduction)
    last = n, tokens, heads, pitch
    IMPORTANCE_HEAT.launch((-(-chunks * 32 // FOLD_THREADS),), scores, norms, by_layer, of_heads, *last, defines=steps)
    rows = 1 if steps["QUERIES_FIRST"] else n
    first = running is None
    if running is None:
        running = cupy.empty((rows, tokens), np.float32)
    assert running.shape == (rows, tokens), f"running {running.shape}, expected {(rows, tokens)}"
    tile = FOLD_THREADS - steps["WIDTH"] + 1
    IMPORTANCE_FOLD.launch((-(-tokens // tile), rows), scores, norms, running, *last, int(first), defines=steps)
    return Folded(running, by_layer, of_heads)


def in_kernel(reduction: Reduction) -> bool:
    """Whether the fold kernel does the steps up to the heads: it pools by means alone."""
    return reduction.pooling == "mean" or reduction.pool == 1 or "pool" not in reduction.before


def fold_defines(reduction: Reduction) -> dict[str, int]:
    """What the fold kernel is compiled for.

    >>> fold_defines(Reduction("heads,queries,pool"))["POOL_AT"]
    0
    """
    if reduction.pool > LONGEST_POOL:
        raise ConfigError(f"pool is {reduction.pool}; on the GPU a moving average spans at most {LONGEST_POOL} tokens")
    before = reduction.before
    pools = reduction.pool > 1 and "pool" in before
    return {
        "WIDTH": reduction.pool if pools else 1,
        "ZERO_EDGES": int(reduction.edges == "zero"),
        "QUERIES_FIRST": int("queries" in before),
        "POOL_AT": (2 if before[0] == "queries" else 1) if pools else 0,
        "HEADS_MAX": int(reduction.heads == "max"),
        "QUERIES_MAX": int(reduction.queries == "max"),
    }
