"""8-bit attention of a long run, on the host and, over quantised keys, on Hopper."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sp.arrays import Floats
from sp.errors import DeviceError
from sp.kernels import import_cupy, is_device
from sp.kernels.device import current_device, multiprocessors
from sp.kernels.signature import describe, rows_contiguous
from sp.kernels.specs.attention.attention_bytes import (
    ATTENTION_BYTES,
    HEAD_DIMS,
    KEYS_ONLY,
    KV_BYTES,
    STAGES,
    TILE,
    VALUE_PEAKS,
)
from sp.kernels.tensor_map import tensor_map
from sp.ops.attention.attention import gate_output
from sp.ops.attention.byte_attention.byte_keys import prefill_with_keys, sampled_centre
from sp.ops.attention.byte_attention.twin import byte_attention, byte_key_attention
from sp.ops.attention.key_blocks import BLOCK, BlockLists
from sp.ops.attention.kv_pages import PagedKV, page_head_dim
from sp.ops.attention.score_rule import PLAIN, ScoreRule


@dataclass(frozen=True)
class BytePages:
    """Quantised keys and values for `attention_bytes`; see `Codes` for the granularity of the scales."""

    k: Any  # uint8 (kv_heads, blocks, 128, d), signed bytes, tokens by values; zeros past the last token
    key_scales: Any  # float32 (kv_heads, blocks)
    v: Any  # uint8 (kv_heads, blocks, d, 128), e4m3, values by tokens, of 32 tokens in the order of kv_bytes.cu
    value_peaks: Any  # float32 (kv_heads,), 448 times the scales of values
    tokens: int


def byte_pages(at: PagedKV, centre: Any = None) -> BytePages:
    """Quantise a sequence's cache: keys minus `centre` to int8, values to e4m3. `at`: on the device, heads of d
    = 64 or 128 values, at least one token; packed pages are unpacked first; `centre`: cupy float32 (kv_heads, d),
    optional, by default the mean of some of the keys, sampled as in `key_centre`."""
    cupy, at = import_cupy(), at.unpacked()
    head_dim, blocks = page_head_dim(at.k, at.fmt), -(-at.tokens // TILE)
    assert head_dim in HEAD_DIMS, f"heads of {head_dim} values"
    assert 0 < blocks <= len(at.table), f"{at.tokens} tokens in {len(at.table)} pages"
    assert at.k.shape == at.v.shape, f"{at.k.shape}, {at.v.shape}"
    grid, defines = (at.kv_heads, blocks), {"WIDTH": head_dim}
    k, v = cupy.empty((*grid, TILE, head_dim), np.uint8), cupy.empty((*grid, head_dim, TILE), np.uint8)
    key_scales, peaks = cupy.empty(grid, np.float32), cupy.zeros(at.kv_heads, np.float32)
    centre = sampled_centre(at) if centre is None else centre
    assert centre.shape == (at.kv_heads, head_dim), f"centre {centre.shape}"
    VALUE_PEAKS.launch(grid, at.v, at.table, peaks.view(np.uint32), at.tokens, at.kv_heads, defines=defines)
    pages = at.k, at.v, at.table
    KV_BYTES.launch(grid, *pages, centre, peaks, k, key_scales, v, at.tokens, at.kv_heads, defines=defines)
    return BytePages(k, key_scales, v, peaks, at.tokens)


def prefill(
    q: Any,
    at: BytePages,
    scale: float,
    blocks: BlockLists | None = None,
    *,
    out: Any = None,
    rule: ScoreRule = PLAIN,
) -> Any:
    """Compute attention of the last `n` tokens of `at` over all tokens before them, or over listed blocks of those. The
    NumPy reference is `sp.ops.attention.byte_attention.twin.byte_attention`. Returns cupy uint16 (n, heads, d), bf16.

    Parameters
    ----------
    q : cupy float16 (n, heads, d), heads of those of `at`
        Rotated queries, not yet scaled; rows and heads may be strided by multiples of 16 bytes.
    at : BytePages, at least `n` tokens; ``heads % kv_heads == 0``
    scale, blocks, out : see `sp.ops.attention.attention_sm90.prefill`
    rule : ScoreRule
        Without `blocks`, its window is used, its scale is not; it has neither softcap nor sinks.
    """
    cupy = import_cupy()
    n, heads, d = q.shape
    if q.dtype != np.float16 or (n > 0 and not rows_contiguous(q)):  # CuPy gives empty arrays strides of 0
        raise DeviceError(f"attention: expected float16 queries with contiguous rows, got {describe(q)}, {q.strides}")
    kv_heads, held = at.k.shape[:2]
    assert d == at.k.shape[3], f"head_dim {d}, {at.k.shape[3]}"
    assert heads % kv_heads == 0, f"{heads} query heads on {kv_heads} kv heads"
    assert out is None or out.shape == q.shape, f"out {out.shape}, q {q.shape}"
    assert n <= at.tokens <= held * TILE, f"{n} queries, {at.tokens} tokens, {held} blocks"
    if out is None:
        out = cupy.empty((n, heads, d), np.uint16)
    if n == 0:
        return out
    assert rule.fits_bytes, "a softcap, or sinks"
    assert blocks is None or rule.window is None, "lists of blocks, and a window"
    query_blocks, group = -(-n // BLOCK), heads // kv_heads
    counts = indices = None
    if blocks is not None:
        counts, indices = blocks.counts, blocks.indices
        assert counts.shape == (heads, query_blocks) == indices.shape[:2], f"{counts.shape}, {indices.shape}"
    tiles = kv_heads * held
    ATTENTION_BYTES.launch(
        (min(query_blocks * heads, multiprocessors(current_device())),),
        tensor_map(q, (64, n, d // 64, heads), (q.strides[0], 128, q.strides[1]), (64, BLOCK, d // 64, 1)),
        tensor_map(at.k, (d, tiles * TILE), (d,), (d, TILE), swizzle=d),
        tensor_map(at.v, (TILE, tiles * d), (TILE,), (TILE, d)),
        at.key_scales,
        at.value_peaks,
        counts,
        indices,
        out,
        cupy.zeros(1, np.int32),
        at.tokens,
        n,
        heads,
        group,
        group,  # heads that read the same pages run side by side
        0 if blocks is None else min(blocks.long_blocks, query_blocks),
        0 if indices is None else indices.shape[2],
        scale,
        None if rule.window is None else rule.first_seen(n, at.tokens, q),
        defines={"HEAD_DIM": d, "STAGES": STAGES} | rule.defines("WINDOW"),
    )
    return out


def fits(head_dim: int, rule: ScoreRule, listed: bool = False) -> bool:
    """Return True if 8-bit attention supports heads of this size with `rule`, and with lists of blocks if `listed`."""
    if head_dim == KEYS_ONLY:
        return rule.fits_bytes and rule.window is None and not listed
    return head_dim in HEAD_DIMS and rule.fits_bytes


def attend(q: Floats, at: PagedKV, scale: float, lists: BlockLists | None = None, rule: ScoreRule = PLAIN) -> Floats:
    """Compute 8-bit causal attention of the last ``len(q)`` tokens of `at`, over all blocks or listed ones, see `fits`.
    Returns float32 (n, heads, d), on the device bf16, in the basis of the cached values.

    Parameters
    ----------
    q : float32 (n, heads, d), on the device float16
        In the basis of the cached keys (rotated if those are), not yet scaled.
    at : PagedKV, on the device of compute capability 9.0
    lists : BlockLists, optional, on the device of `q`
    rule : ScoreRule
        Its window is used, if there are no `lists`.
    """
    assert fits(q.shape[2], rule, lists is not None), f"heads of {q.shape[2]} values"
    if q.shape[2] == KEYS_ONLY:
        return prefill_with_keys(q, at, scale) if is_device(q) else byte_key_attention(q, *at.gather(), scale)
    if not is_device(q):
        reach = None if rule.window is None else rule.first_seen(len(q), at.tokens, q)
        return byte_attention(q, *at.gather(), scale, lists, reach=reach)
    out: Any = prefill(q, byte_pages(at), scale, lists, rule=rule)
    attended: Floats = out
    return attended


def byte_output(q: Floats, at: PagedKV, wide: Floats | None = None, rule: ScoreRule = PLAIN) -> Floats:
    """`attend` of queries that are not rotated for the cache yet, over all keys that `rule` allows, then `gate_output`
    with `wide`."""
    scale = q.shape[2] ** -0.5 if rule.scale is None else rule.scale
    seen, rule = within_window(at, len(q), rule, q)
    return gate_output(attend(at.queries(q), seen, scale, rule=rule), wide, at.rotated)


def within_window(at: PagedKV, n: int, rule: ScoreRule, like: Any) -> tuple[PagedKV, ScoreRule]:
    """Return the pages of `at` that the last `n` tokens may see, and the rule for these only: earlier pages are not
    quantised.

    Tokens have ascending positions, so that none sees more than ``window`` keys: the host need not wait for the exact
    `ScoreRule.first_seen`, which is computed on the device of the array `like`.
    """
    if rule.window is None:
        return at, rule
    near = at.from_block(max(0, at.tokens - n - rule.window + 1) // at.k.shape[1])
    reach = rule.first_seen(n, at.tokens, like) - np.int32(near.before)
    return near, replace(rule, reach=reach)
