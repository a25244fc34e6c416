"""Exact causal attention: in NumPy tile by tile, over pages by the best kernel, and its output gate."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels import current_path, import_cupy, is_device
from sp.kernels.specs.attention.attention_rows import GATE_OUTPUT, ROWS_A_BLOCK
from sp.kernels.specs.attention.attention_sm90 import HEAD_DIMS as NARROW_DIMS
from sp.ops.activations import sigmoid
from sp.ops.attention.few_heads import few_attended
from sp.ops.attention.key_blocks import BlockLists
from sp.ops.attention.kv_pages import PagedKV, value_block
from sp.ops.attention.score_rule import PLAIN, ScoreRule, soft_capped
from sp.ops.hadamard import hadamard
from sp.ops.threads import run_parallel
from sp.quant import Math

QUERY_ROWS = 1024  # most score rows of a tile: query tokens times the query heads that share a kv head
TILE_SCORES = 1024 * 512  # most scores of a tile: 2 MiB, which stay in cache between the passes
KEY_TOKENS = 512  # fewest keys of a tile; with few queries, as in decoding, a tile has more
HEADROOM = 64.0  # a score may exceed its row's reference by 2**64 before the accumulator is rescaled


def attention(q: Floats, k: Floats, v: Floats, rule: ScoreRule = PLAIN) -> Floats:
    """Causal attention of the last queries of a sequence over all its keys.

    ``out[i, h] = sum_j softmax_j( q[i, h] · k[j, h // group] / sqrt(d) ) v[j, h // group]`` over keys
    ``j <= kv_tokens - n + i``: the queries are the last `n` tokens, so query ``n - 1`` sees every key.
    ``group = heads / kv_heads`` (grouped-query attention). `rule` modifies this, see `ScoreRule`.

    Only one tile of scores exists at a time; memory besides the output does not grow with the sequence, and tiles
    entirely above the diagonal, or before the window, are never computed. Scores are relative to a row reference (the
    row maximum of the first tile), which moves only if a later score exceeds it by 2**64: float32 can represent the
    sums until then, and most tiles need no row maximum and no rescaling. Returns float32 (n, heads, d). Source: Dao et
    al., "FlashAttention", 2022 (online softmax); lazy rescaling as in FlashAttention-4.

    Parameters
    ----------
    q : float32 (n, heads, d), rotated queries, not yet scaled
    k, v : float32 (kv_tokens, kv_heads, d), ``kv_tokens >= n``; ``heads % kv_heads == 0``

    Examples
    --------
    >>> v = np.array([[[1.0]], [[3.0]]], np.float32)
    >>> attention(np.zeros((2, 1, 1), np.float32), v, v).ravel().tolist()
    [1.0, 2.0]
    """
    n, heads, d = q.shape
    kv_tokens, kv_heads, _ = k.shape
    assert k.shape == v.shape == (kv_tokens, kv_heads, d), f"q {q.shape}, k {k.shape}, v {v.shape}"
    assert kv_tokens >= n, f"{n} queries, {kv_tokens} keys"
    assert heads % kv_heads == 0, f"{heads} query heads on {kv_heads} kv heads"
    group = heads // kv_heads
    reach = None if rule.window is None else rule.first_seen(n, kv_tokens, q)
    out = np.empty_like(q)
    step = max(1, QUERY_ROWS // group)
    tiles: list[tuple[Any, ...]] = []
    for start in range(0, n, step)[::-1]:  # longest rows first, so that no core is left with a long tile at the end
        rows = slice(start, min(start + step, n))
        seen = kv_tokens - n + rows.stop  # keys the last query of this tile sees
        for head in range(kv_heads):
            mine = slice(head * group, (head + 1) * group)
            near = slice(0 if reach is None else int(reach[start]), seen)  # keys that any query of this tile sees
            hidden = None if reach is None else reach[rows] - near.start
            its = rule if rule.sinks is None else rule.of_heads(mine)
            tiles.append((q[rows, mine], k[near, head], v[near, head], out[rows, mine], hidden, its))
    if tiles:
        run_parallel(_query_tile, *zip(*tiles, strict=True))
    return out


def _query_tile(q: Floats, k: Floats, v: Floats, attended: Floats, hidden: Ints | None, rule: ScoreRule) -> None:
    """Compute attention of q (tokens, group, d), the last tokens of k, v (seen, d), for one kv head, and write it to
    `attended`. `hidden`, (tokens,): the number of first keys that each token does not see."""
    tokens, group, d = q.shape
    rows, first = tokens * group, len(k) - tokens
    # Base 2 and 1/sqrt(d) are folded into q: one multiply per query instead of one per score.
    q = (q * q.dtype.type(math.log2(math.e) * (rule.scale or d**-0.5))).reshape(rows, d)
    cap = None if rule.softcap is None else math.log2(math.e) * rule.softcap
    reference = total = np.empty((rows, 1), q.dtype)
    out = np.empty((rows, d), q.dtype)
    # With a window all keys form one tile: in a smaller one some rows would see no key, and have no maximum.
    step = len(k) if hidden is not None else min(max(KEY_TOKENS, TILE_SCORES // rows), len(k))
    scratch = np.empty(rows * step, q.dtype)
    for start in range(0, len(k), step):
        keys = slice(start, min(start + step, len(k)))
        width = keys.stop - start
        score = np.matmul(q, k[keys].T, out=scratch[: rows * width].reshape(rows, width))
        if cap is not None:
            soft_capped(score, cap)
        if keys.stop - 1 > first:
            unseen = np.arange(width) > np.arange(first - start, len(k) - start)[:, None]
            if hidden is not None:
                unseen |= np.arange(width) < hidden[:, None]
            score.reshape(tokens, group, width)[...] += np.where(unseen, -np.inf, 0.0).astype(q.dtype)[:, None]
        if start == 0:
            reference = score.max(axis=1, keepdims=True)
            score -= reference
        else:
            score -= reference
            if score.max() > HEADROOM:
                rise = np.maximum(score.max(axis=1, keepdims=True), 0)
                score -= rise
                reference += rise
                out *= np.exp2(-rise)
                total *= np.exp2(-rise)
        weight = np.exp2(score, out=score)
        if start == 0:
            total = weight.sum(axis=1, keepdims=True)
            np.matmul(weight, v[keys], out=out)
        else:
            total += weight.sum(axis=1, keepdims=True)
            out += weight @ v[keys]
    if rule.sinks is not None:
        sinks = np.tile(np.asarray(rule.sinks, q.dtype) * q.dtype.type(math.log2(math.e)), tokens)[:, None]
        total += np.exp2(sinks - reference)
    np.divide(out.reshape(attended.shape), total.reshape(tokens, group, 1), out=attended)


FEW_QUERIES = 64  # small_m limit: most queries for the split-KV kernels, which read the cache's length on the device
BYTE_QUERIES = 2049
"""Fewest queries for which keys and values are quantised to int8 and fp8: it must pay off, and CUDA graphs, whose
counts are on the device, have fewer."""


def takes_bytes(math: Math, queries: int) -> bool:
    """Return True if attention of so many queries uses int8 and fp8 operands, for a cache with precision `math`.

    >>> takes_bytes(Math.INT8, 4096), takes_bytes(Math.INT8, 512), takes_bytes(Math.BF16, 4096)
    (True, False, False)
    """
    return math is not Math.BF16 and queries >= BYTE_QUERIES


def paged_attention(q: Floats, at: PagedKV, rule: ScoreRule = PLAIN) -> Floats:
    """Compute causal attention of the last ``len(q)`` tokens of `at`; see `attention` for the formula. Returns float32
    (n, heads, d), on the device bf16, in the basis of the cached values: rotated if those are.

    Parameters
    ----------
    q : float32 (n, heads, d), on the device float16, not rotated for the cache
    at : PagedKV, including the queries' own keys and values. Its `total` is used for at most 64 queries
    """
    out: Floats
    if is_device(q) and _are_split(q, rule):
        out = _by_runs(q, at, rule)
        return out
    q = at.queries(q) if at.rotated else q
    if is_device(q):
        out = prefill_attention(q, at, rule.scale or q.shape[2] ** -0.5, rule=rule)
        return out
    found = few_attended(q, at, rule)
    if found is not None:
        return found
    if rule.window is not None:  # pages before the window are not unpacked
        reach = rule.first_seen(len(q), at.tokens, q)
        at = at.from_block(int(reach[0]) // at.k.shape[1])
        rule = replace(rule, reach=reach - at.before)
    return attention(q, *at.gather(), rule)


def attention_output(q: Floats, at: PagedKV, wide: Floats | None = None, rule: ScoreRule = PLAIN) -> Floats:
    """`paged_attention` followed by `gate_output` with `wide`: (n, heads * d). On the device both are fused for few
    queries."""
    if is_device(q) and _are_split(q, rule):
        out: Floats = _by_runs(q, at, rule, finish=True, wide=wide)
        return out.reshape(len(q), q.shape[1] * q.shape[2])
    return gate_output(paged_attention(q, at, rule), wide, at.rotated)


def prefill_attention(
    q: Any,
    at: PagedKV,
    scale: float,
    blocks: BlockLists | None = None,
    *,
    lse: Any = None,
    rule: ScoreRule = PLAIN,
) -> Any:
    """Compute attention of many queries on the device, over all blocks or listed ones, by the kernel of the current
    path. `q`: cupy float16 (n, heads, d), in the basis of the cached keys, not yet scaled; `at`: packed pages are
    unpacked first; `scale`, `blocks`, `lse`, `rule`: see `sp.ops.attention.attention_portable.prefill`. Returns cupy
    uint16 (n, heads, d), bf16, in the basis of the cached values."""
    at = at.unpacked()
    if current_path() == "sm_90a":
        from sp.ops.attention.attention_sm90 import prefill

        return prefill(q, at, scale, blocks, lse=lse, rule=rule)
    from sp.ops.attention.attention_portable import prefill as portable

    return portable(q, at, scale, blocks, lse=lse, rule=rule)


def _are_few(q: Any, rule: ScoreRule) -> bool:
    """Return True if queries go to the split-KV kernels for small m, which mask the last ``len(q)`` keys by `reach`
    only."""
    return len(q) <= FEW_QUERIES and (rule.window is None or rule.reach is not None or rule.window >= len(q))


def _are_split(q: Any, rule: ScoreRule) -> bool:
    """Return True if queries go to the split-KV kernels, at once or in runs: so do wide heads, which no other kernel
    supports."""
    return _are_few(q, rule) or q.shape[2] not in NARROW_DIMS


def _by_runs(q: Any, at: PagedKV, rule: ScoreRule, *, finish: bool = False, wide: Any = None) -> Any:
    """Process as many queries at once as the split-KV kernels take, each run over the tokens before it and itself."""
    from sp.ops.attention.attention_split import split

    q = at.queries(q)
    if _are_few(q, rule):
        return split(q, at, finish=finish, wide=wide, rule=rule)
    at = at if at.recent is None else at.unpacked()  # the ring has too few tokens
    n, out = len(q), import_cupy().empty(q.shape, np.uint16)
    most = FEW_QUERIES if rule.window is None or rule.reach is not None else min(rule.window, FEW_QUERIES)
    for first in range(0, n, most):
        run = slice(first, min(first + most, n))
        how: dict[str, Any] = {"finish": finish, "wide": None if wide is None else wide[run]}
        split(q[run], at, rule=rule.of_run(run), behind=n - run.stop, out=out[run], **how)
    return out


def gate_output(out: Floats, wide: Floats | None, unrotate: bool) -> Floats:
    """Undo the rotation of cached values, then multiply by the sigmoid of the gate. Returns float32 (tokens, heads *
    d), on the device bf16.

    Parameters
    ----------
    out : float32 (tokens, heads, d), on the device bf16, may be overwritten
    wide : float32 (tokens, heads, 2 d), on the device bf16, optional
        Each head's query and then its gate, the output of the wide query matrix; None without a gate.
    unrotate : bool
        True if values were cached rotated by a Hadamard matrix over blocks of 64, or fewer; see `rotated_block`.

    Examples
    --------
    >>> gate_output(np.ones((1, 2, 1), np.float32), np.zeros((1, 2, 2), np.float32), False)
    array([[0.5, 0.5]], dtype=float32)
    """
    if is_device(out):
        return _gate_on_device(out, wide, unrotate)
    if unrotate:
        out = hadamard(out, value_block(out.shape[2]))
    if wide is not None:
        out *= sigmoid(wide[..., out.shape[2] :])
    return out.reshape(len(out), out.shape[1] * out.shape[2])


def _gate_on_device(out: Floats, wide: Floats | None, unrotate: bool) -> Floats:
    tokens, heads, head_dim = out.shape
    if wide is None and not unrotate:
        return out.reshape(tokens, heads * head_dim)
    assert wide is None or wide.shape == (tokens, heads, 2 * head_dim), f"out {out.shape}, wide {wide.shape}"
    y: Floats = import_cupy().empty((tokens, heads * head_dim), np.uint16)
    defines = {"HEAD_DIM": head_dim, "GATED": int(wide is not None), "UNROTATE": int(unrotate)}
    GATE_OUTPUT.launch((-(-tokens * heads // ROWS_A_BLOCK),), out, wide, y, tokens * heads, defines=defines)
    return y
