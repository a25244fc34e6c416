"""Causal prefill attention over the key blocks that a selector lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError, DeviceError
from sp.kernels import debugging, import_cupy, is_device
from sp.kernels.specs.flashprefill import CORRECTION_ROWS, MEAN_CORRECTION, variant
from sp.ops.attention.attention import prefill_attention
from sp.ops.attention.key_blocks import BlockLists
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.attention.score_rule import PLAIN, ScoreRule
from sp.ops.sparse.block_means import block_means
from sp.ops.sparse.block_selector import BlockSelector
from sp.ops.sparse.block_sparse import block_sparse
from sp.ops.sparse.flashprefill import FlashPrefill, check_sizes

_debug = debugging()


def sparse_attention(
    q: Floats, at: PagedKV, scale: float, selector: BlockSelector, rule: ScoreRule = PLAIN
) -> tuple[Floats, Ints]:
    """Compute attention of the last ``len(q)`` tokens of `at` over the key blocks that the selector lists for them.

    Rows see the keys of their listed blocks up to their own position; other keys do not enter the softmax. If a prompt
    is processed in chunks, the last query blocks of each chunk would attend to all blocks: use `last_n` for the last
    chunk only (``dataclasses.replace(selector, last_n=0)`` for the others). Returns `out`: float32 (n, heads, d), on
    the device bf16, in the basis of the cached values; `counts`: int32 (heads, query_blocks), number of listed blocks,
    which `sp.ops.sparse.block_lists.density` converts to a share. ConfigError for an empty prompt or sizes that the
    kernels do not support. DeviceError with SP_KERNEL_DEBUG=1 if queries, keys or values are not finite.

    Parameters
    ----------
    q : float32 (n, heads, d), on the device float16
        In the basis of the cached keys (rotated if those are), not yet scaled.
    scale : float, usually ``d ** -0.5``
    selector : BlockSelector, e.g. ``FlashPrefill(alpha=0.1)``
    rule : ScoreRule, without a window; its scale is not used. It does not affect the selection of blocks
    """
    check_sizes(q, at)
    correct = isinstance(selector, FlashPrefill) and selector.mean_correction
    if correct and (rule.softcap is not None or rule.sinks is not None):
        raise ConfigError("the means of left out blocks know neither softcap nor sinks; leave the correction out")
    if not is_device(q):
        lists = selector.select(q, at, scale)
        return block_sparse(q, *at.gather(), lists, scale, _means(at) if correct else None, rule), lists.counts
    if _debug:
        check_finite(q, at)
    lists = selector.select(q, at, scale)
    if not correct:
        return prefill_attention(q, at, scale, lists, rule=rule), lists.counts
    lse = import_cupy().empty((q.shape[1], len(q)), np.float32)
    out = prefill_attention(q, at, scale, lists, lse=lse)
    correct_by_means(out, lse, q, _means(at), at.tokens, scale, lists)
    return out, lists.counts


def _means(at: PagedKV) -> tuple[Floats, Floats]:
    """Return the mean keys and mean values of all blocks."""
    return block_means(at.k, at.table, at.tokens, at.fmt), block_means(at.v, at.table, at.tokens, at.of_values)


def correct_by_means(
    out: Any, lse: Any, q: Any, means: tuple[Any, Any], tokens: int, scale: float, lists: BlockLists
) -> None:
    """Add the contribution of the means of the omitted blocks to `out`, in place; see `block_sparse`."""
    (n, heads, d), (mean_k, mean_v) = q.shape, means
    MEAN_CORRECTION.launch(
        (heads * -(-n // CORRECTION_ROWS),),
        q,
        mean_k,
        mean_v,
        lists.counts,
        lists.indices,
        lse,
        out,
        n,
        tokens,
        heads,
        mean_k.shape[0],
        lists.indices.shape[2],
        scale * float(np.log2(np.e)),
        defines=variant(d, mean_k.shape[1]),
    )


def check_finite(q: Any, at: PagedKV) -> None:
    """Raise DeviceError if an input has NaN or infinity; reads everything and waits for the device."""
    cupy = import_cupy()
    for name, rows in zip("QKV", (q, *at.gather()), strict=True):
        wrong = int(rows.size - cupy.count_nonzero(cupy.isfinite(rows)))
        if wrong:
            raise DeviceError(f"sparse attention: {wrong} of {rows.size} values of {name} are NaN or infinite")
