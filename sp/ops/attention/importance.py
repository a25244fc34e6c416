"""Attention weights of a few query tokens over a long context, and their reduction to one importance per token.

``A[h, n, j] = softmax_j( q[n, h] . k[j, h // group] / sqrt(head_dim) )``, ``j <= limit[n]``, is the input of every
attention scorer. Published systems differ in the steps that reduce it, and in their order:

* SpecPrefill (arXiv 2502.02789) pools along the prompt, takes the maximum over layers and heads, then the
  mean over queries: ``order="pool,heads,queries"``.
* The seed of this project, Lucebox, takes the maximum over heads, then the mean over queries, and pools last:
  ``order="heads,queries,pool"``, with averages at the ends over existing tokens only.
* SpecPC (arXiv 2506.08373) takes the maximum over everything and pools last by a maximum over 64 tokens:
  ``order="heads,queries,pool", queries="max", pooling="max", pool=64``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from sp.arrays import Floats, Ints
from sp.config import check_fields
from sp.errors import ConfigError
from sp.kernels import import_cupy, is_device
from sp.kernels.specs.attention.importance import (
    FOLD_THREADS,
    HEAD_WARPS,
    IMPORTANCE_FOLD,
    IMPORTANCE_HEAT,
    IMPORTANCE_NORMS,
    IMPORTANCE_SCORES,
    LONGEST_POOL,
)
from sp.ops.array_module import array_module
from sp.ops.attention.kv_pages import PAGE_TOKENS, PagedKV, page_head_dim, unpacked_pages
from sp.quant import F16

SPLIT_KEYS = 1024  # keys per split on the device: equal on every GPU, so that sums are


def attention_probs(q: Floats, k: Floats, limit: Ints, *, logits: bool = False) -> Floats:
    """Compute softmax weights of `n` queries over `s` keys, exactly zero beyond each query's limit. Returns float32
    (heads, n, s); each row sums to one.

    Parameters
    ----------
    q : array (n, heads, head_dim), queries, with rotary embedding already applied or deliberately omitted
    k : array (s, kv_heads, head_dim), keys, treated the same way; `heads` is a multiple of `kv_heads`
    limit : array (n,), index of the last key each query may see
    logits : bool, return the logits in place of the weights; -inf beyond each query's limit

    Examples
    --------
    >>> q = np.ones((1, 2, 4), np.float32)
    >>> k = np.ones((3, 1, 4), np.float32)
    >>> attention_probs(q, k, np.array([1]))[0, 0].tolist()
    [0.5, 0.5, 0.0]
    """
    n, heads, head_dim = q.shape
    s, kv_heads, _ = k.shape
    group = heads // kv_heads
    grouped = q.reshape(n, kv_heads, group, head_dim).transpose(1, 2, 0, 3).reshape(kv_heads, group * n, head_dim)
    scores: Floats = np.matmul(grouped, k.transpose(1, 2, 0))
    scores *= np.float32(1.0 / np.sqrt(head_dim))
    scores = scores.reshape(heads, n, s)
    scores[:, np.arange(s)[None, :] > limit[:, None]] = -np.inf
    if not logits:
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def attention_rows(q: Floats, at: PagedKV, *, causal: bool = True, logits: bool = False) -> Floats:
    """Compute softmax weights of `n` query rows over cached keys, per head.
    ``w[h, i, j] = softmax_j( q[i, h] · k[j, h // group] / sqrt(d) )``. Returns float32 (heads, n, tokens),
    ``4 n heads tokens`` bytes, on the device of `q`; the caller may change it.

    Parameters
    ----------
    q, at, causal : see `importance`
    logits : bool, return the logits in place of the weights; -inf where a query sees nothing

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
    if is_device(q):
        scores, norms = device_rows(q, at, causal)
        if not logits:
            return softmaxed(scores, norms, tokens)
        scores *= np.float32(np.log(2))
        return _whole_logits(scores[..., :tokens], q, at)
    assert n > 0 < tokens, f"{n} queries, {tokens} tokens"
    assert not causal or n <= tokens, f"{n} queries among {tokens} tokens"
    limit = np.arange(tokens - n, tokens) if causal else np.full(n, tokens - 1)
    found = attention_probs(at.queries(q) if at.rotated else q, at.keys(), limit, logits=logits)
    return _whole_logits(found, q, at) if logits else found


def _whole_logits(logits: Floats, q: Floats, at: PagedKV) -> Floats:
    """Convert logits (heads, n, tokens) over keys as stored to those over keys as appended, in place."""
    if at.basis is not None:
        shift = at.basis.shift.repeat(q.shape[1] // at.kv_heads, axis=0)
        lacking = (at.queries(q).astype(np.float32) * shift).sum(axis=2) * np.float32(q.shape[2] ** -0.5)
        logits += lacking.T[:, :, None]
    return logits


def device_rows(q: Any, at: PagedKV, causal: bool) -> tuple[Any, Any]:
    """Return logits times log2(e), float32 (heads, n, pitch), and their (largest, 1 / sum of 2^(. - largest)), (heads,
    n, 2). The pitch is the number of tokens rounded up to whole pages; the padding is -inf."""
    cupy, q = import_cupy(), at.queries(q)
    (n, heads, d), tokens, kv_heads = q.shape, at.tokens, at.kv_heads
    assert n > 0 < tokens, f"{n} queries, {tokens} tokens"
    assert not causal or n <= tokens, f"{n} queries among {tokens} tokens"
    assert page_head_dim(at.k, at.fmt) == d, f"q {q.shape}, pages {at.k.shape}"
    assert heads % kv_heads == 0, f"{heads} query heads on {kv_heads} kv heads"
    blocks = -(-tokens // PAGE_TOKENS)
    assert blocks <= len(at.table), f"{tokens} tokens in {len(at.table)} pages"
    k_pages, table = at.k, at.table
    if at.fmt is not F16:
        # Unpacked pages are consecutive, so that their table is the identity.
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
    """Turn the results of `device_rows` into weights (heads, n, tokens), in the same memory."""
    scores -= norms[..., :1]
    import_cupy().exp2(scores, out=scores)
    scores *= norms[..., 1:]
    weights: Floats = scores[..., :tokens]
    return weights


STEPS = ("pool", "heads", "queries")
Edges = Literal["renormalise", "zero"]
Pooling = Literal["mean", "max"]


def average_pool(values: Floats, width: int, edges: Edges) -> Floats:
    """Moving average of odd `width` along the last axis, in NumPy or on the device. `zero` divides by `width`
    everywhere, which damps the ends of the prompt (as in the reference code of SpecPrefill); `renormalise` divides by
    the number of tokens inside the window.

    >>> average_pool(np.ones(4, np.float32), 3, "renormalise").tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    xp = array_module(values)
    n, half = values.shape[-1], width // 2
    total = xp.zeros((*values.shape[:-1], n + 1), np.float64)
    total[..., 1:] = xp.cumsum(values, axis=-1, dtype=np.float64)
    low = xp.maximum(xp.arange(n) - half, 0)
    high = xp.minimum(xp.arange(n) + half + 1, n)
    sums = total[..., high] - total[..., low]
    pooled: Floats = (sums / (width if edges == "zero" else high - low)).astype(np.float32)
    return pooled


def max_pool(values: Floats, width: int) -> Floats:
    """Moving maximum along the last axis of the `width` values from ``width // 2`` before each; fewer at the ends.

    >>> max_pool(np.array([1, 0, 0, 3, 0], np.float32), 2).tolist()
    [1.0, 1.0, 0.0, 3.0, 3.0]
    """
    xp = array_module(values)
    n = values.shape[-1]
    most = xp.full((*values.shape[:-1], n + width - 1), -np.inf, np.float32)
    most[..., width // 2 : width // 2 + n] = values
    span = 1
    while span < width:  # each pass doubles the windows, or completes them
        step = min(span, width - span)
        most = xp.maximum(most[..., :-step], most[..., step:])
        span += step
    pooled: Floats = most
    return pooled


def chunk_means(values: Floats, size: int) -> Floats:
    """Mean over chunks of `size` along the last axis; a short last chunk uses its own length.

    >>> chunk_means(np.array([1, 3, 5], np.float32), 2).tolist()
    [2.0, 5.0]
    """
    xp = array_module(values)
    n = values.shape[-1]
    chunks = -(-n // size)
    padded = xp.zeros((*values.shape[:-1], chunks * size), np.float32)
    padded[..., :n] = values
    sums = padded.reshape(*values.shape[:-1], chunks, size).sum(axis=-1)
    means: Floats = (sums / xp.minimum(n - size * xp.arange(chunks), size)).astype(np.float32)
    return means


@dataclass(frozen=True)
class Reduction:
    """The reduction of attention weights to importance.

    Parameters
    ----------
    order : str
        A permutation of ``pool,heads,queries``, applied from left to right.
    heads : {"max", "mean"}
        Reduction over all heads of all layers.
    queries : {"mean", "max"}
        Reduction over the query tokens.
    pool : int
        Width of the window in tokens, odd for a mean; 1 disables pooling.
    edges : {"renormalise", "zero"}
        Treatment of a mean's window at the ends of the prompt.
    pooling : {"mean", "max"}
        Reduction over the window.
    """

    order: str = "pool,heads,queries"
    heads: Literal["max", "mean"] = "max"
    queries: Literal["mean", "max"] = "mean"
    pool: int = 13
    edges: Edges = "renormalise"
    pooling: Pooling = "mean"

    def __post_init__(self) -> None:
        check_fields(self, "reduction")
        if sorted(self.order.split(",")) != sorted(STEPS):
            raise ConfigError(f"order must be a permutation of {','.join(STEPS)}, not {self.order!r}")
        if self.pool < 1 or (self.pool % 2 == 0 and self.pooling == "mean"):
            raise ConfigError(f"pool must be a positive width, and odd for a mean; not {self.pool}")

    @cached_property
    def before(self) -> tuple[str, ...]:
        """Steps before the reduction over heads, in order."""
        steps = self.order.split(",")
        return tuple(steps[: steps.index("heads")])

    @cached_property
    def after(self) -> tuple[str, ...]:
        """Steps after the reduction over heads, in order."""
        steps = self.order.split(",")
        return tuple(steps[steps.index("heads") + 1 :])

    @cached_property
    def in_kernel(self) -> bool:
        """True if the fold kernel does the steps up to the heads: it pools by means only."""
        return self.pooling == "mean" or self.pool == 1 or "pool" not in self.before

    def step(self, name: str, values: Floats) -> Floats:
        """Apply the step `pool` or `queries` to (..., queries, tokens)."""
        if name == "pool":
            if self.pool == 1:
                return values
            if self.pooling == "max":
                return max_pool(values, self.pool)
            return average_pool(values, self.pool, self.edges)
        reduced: Floats = (values.max if self.queries == "max" else values.mean)(axis=-2, keepdims=True)
        return reduced

    def fold(self, probs: Floats, running: Floats | None) -> Floats:
        """Fold one layer's weights (heads, queries, tokens) into the running result (queries or 1, tokens): the maximum
        over heads so far, or for a mean their sum. Heads are processed one by one, because pooling makes copies."""
        folded = running
        for head in probs:
            for name in self.before:
                head = self.step(name, head)
            if folded is None:
                folded = head.astype(np.float32)
            elif self.heads == "max":
                folded = array_module(head).maximum(folded, head)
            else:
                folded = folded + head
        assert folded is not None, "no heads to fold"
        return folded

    def finish(self, running: Floats, heads: int) -> Floats:
        """Return importance (tokens,) from the running result after `heads` heads of all layers."""
        values = running if self.heads == "max" else running / np.float32(heads)
        for name in self.after:
            values = self.step(name, values)
        importance: Floats = values[0].astype(np.float32)
        return importance


HEAT_CHUNK = 32  # tokens per chunk of a heat map


class Folded(NamedTuple):
    """The result of folding one layer."""

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
    """Compute softmax weights of `n` query rows over cached keys, reduce them over the heads and fold into `running`.
    ``w[h, i, j] = softmax_j( q[i, h] · k[j, h // group] / sqrt(d) )``; the rest is `Reduction.fold`. Returns Folded, on
    the device with equal bits in every run: sums have a fixed order. One layer's weights temporarily take
    ``4 n heads tokens`` bytes there.

    Parameters
    ----------
    q : float32 (n, heads, d), on the device float16
    at : PagedKV
        Cached tokens, at least one; only the keys are read, which are in the basis of `q`. On the device packed keys
        are unpacked first.
    running : float32 (queries or 1, tokens), optional
        Result of the previous layers; on the device it is overwritten by the new one.
    causal : bool, the queries are the last `n` tokens and see none after themselves; otherwise each sees all tokens
    by_head : bool, return a heat map of every head as well

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
    if is_device(q) and reduction.in_kernel:
        return _fold_on_device(*device_rows(q, at, causal), at.tokens, reduction, running, by_head)
    return fold_weights(attention_rows(q, at, causal=causal), reduction, running, by_head=by_head)


def fold_weights(probs: Floats, reduction: Reduction, running: Floats | None, *, by_head: bool = False) -> Folded:
    """The part of `importance` after the softmax: weights (heads, queries, tokens), of any sign, in NumPy or on the
    device, where two kernels do it and `running` is overwritten."""
    if is_device(probs) and reduction.in_kernel:
        return _fold_on_device(_whole_rows(probs), None, probs.shape[2], reduction, running, by_head)
    heat = chunk_means(probs.max(axis=0).mean(axis=0), HEAT_CHUNK)
    of_heads = chunk_means(probs.mean(axis=1), HEAT_CHUNK) if by_head else None
    return Folded(reduction.fold(probs, running), heat, of_heads)


def _whole_rows(probs: Any) -> Any:
    """Return weights (heads, queries, tokens) in consecutive rows: the array that they are a view of, if possible."""
    rows = probs.base
    if rows is None or (rows.ndim, rows.data.ptr, *rows.shape[:2]) != (3, probs.data.ptr, *probs.shape[:2]):
        rows = probs
    return import_cupy().ascontiguousarray(rows, np.float32)


def _fold_on_device(scores: Any, norms: Any, tokens: int, reduction: Reduction, running: Any, by_head: bool) -> Folded:
    """Fold logits and norms from `device_rows`, or without norms weights (heads, queries, tokens), in consecutive rows
    of memory."""
    cupy, (heads, n, _), pitch = import_cupy(), scores.shape, scores.strides[1] // 4
    chunks = -(-tokens // HEAT_CHUNK)
    by_layer = cupy.empty(chunks, np.float32)
    of_heads = cupy.empty((heads, chunks), np.float32) if by_head else None
    steps = fold_defines(reduction)
    how = steps if norms is not None else steps | {"GIVEN": 1}
    last = n, tokens, heads, pitch
    IMPORTANCE_HEAT.launch((-(-chunks * 32 // FOLD_THREADS),), scores, norms, by_layer, of_heads, *last, defines=how)
    rows = 1 if steps["QUERIES_FIRST"] else n
    first = running is None
    if running is None:
        running = cupy.empty((rows, tokens), np.float32)
    assert running.shape == (rows, tokens), f"running {running.shape}, expected {(rows, tokens)}"
    tile = FOLD_THREADS - steps["WIDTH"] + 1
    IMPORTANCE_FOLD.launch((-(-tokens // tile), rows), scores, norms, running, *last, int(first), defines=how)
    return Folded(running, by_layer, of_heads)


def fold_defines(reduction: Reduction) -> dict[str, int]:
    """Return the defines of the fold kernel.

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
