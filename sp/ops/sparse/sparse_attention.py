"""sparse_attention: causal prefill attention over the key blocks that a selector picks."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.arrays import Bytes, Floats, Ints
from sp.errors import DeviceError
from sp.kernels import current_path, debugging, import_cupy, is_device
from sp.kernels.specs.flashprefill import CORRECTION_ROWS, MEAN_CORRECTION, variant
from sp.ops.attention.attention_sm90 import BlockLists
from sp.ops.attention.kv_pages import is_packed, kv_gather, unpacked_pages
from sp.ops.attention.paged_attention import WORKSPACE_BYTES
from sp.ops.sparse.block_means import block_means
from sp.ops.sparse.block_selector import BlockSelector
from sp.ops.sparse.block_sparse import block_sparse
from sp.ops.sparse.flashprefill import FlashPrefill, check_sizes
from sp.quant import F16, BlockFormat

_debug = debugging()


def sparse_attention(
    q: Floats,
    k_pages: Bytes,
    v_pages: Bytes,
    table: Ints,
    tokens: int,
    scale: float,
    selector: BlockSelector,
    fmt: BlockFormat = F16,
) -> tuple[Floats, Ints]:
    """Attention of the last ``len(q)`` of `tokens` tokens over the blocks of keys that the selector lists for them.

    Rows see the keys of their listed blocks up to their own position; what is left out is left out of the softmax too.
    Of a prompt that is read in chunks, the last query blocks of each chunk would read all blocks: give `last_n` to the
    last chunk alone (``dataclasses.replace(selector, last_n=0)`` for the others).

    Parameters
    ----------
    q : float32 (n, heads, d), on the device float16
        In the basis of the cached keys (rotated if those are), not yet scaled.
    k_pages, v_pages : uint8 (pool_pages, page_tokens, kv_heads, row_bytes)
        On the device pages hold 128 tokens.
    table : int64 (pages,), on the device int32
    tokens : int
    scale : float
        Usually ``d ** -0.5``.
    selector : BlockSelector
        E.g. ``FlashPrefill(alpha=0.1)``.
    fmt : BlockFormat
        How pages are packed; on the device F16 or Q4_0.

    Returns
    -------
    out : float32 (n, heads, d), on the device bf16
        In the basis of the cached values.
    counts : int32 (heads, query_blocks)
        Blocks listed; `sp.ops.sparse.block_lists.density` makes a share of them.

    Raises
    ------
    ConfigError
        For an empty prompt or sizes the kernels do not take.
    DeviceError
        With SP_KERNEL_DEBUG=1, when queries, keys or values are not finite.
    """
    check_sizes(q, k_pages, tokens)
    correct = isinstance(selector, FlashPrefill) and selector.mean_correction
    if not is_device(q):
        lists = selector.select(q, k_pages, table, tokens, scale, fmt)
        k, v = (kv_gather(pages, table, tokens, fmt) for pages in (k_pages, v_pages))
        means = (block_means(k_pages, table, tokens, fmt), block_means(v_pages, table, tokens, fmt))
        return block_sparse(q, k, v, lists, scale, means if correct else None), lists.counts
    if _debug:
        check_finite(q, k_pages, v_pages, table, tokens, fmt)
    lists = selector.select(q, k_pages, table, tokens, scale, fmt)
    if not correct:
        return _attend(q, k_pages, v_pages, table, tokens, scale, lists, fmt), lists.counts
    lse = import_cupy().empty((q.shape[1], len(q)), np.float32)
    out = _attend(q, k_pages, v_pages, table, tokens, scale, lists, fmt, lse)
    means = (block_means(k_pages, table, tokens, fmt), block_means(v_pages, table, tokens, fmt))
    correct_by_means(out, lse, q, *means, tokens, scale, lists)
    return out, lists.counts


def correct_by_means(
    out: Any, lse: Any, q: Any, mean_k: Any, mean_v: Any, tokens: int, scale: float, lists: BlockLists
) -> None:
    """Add to `out`, in place, what the means of the blocks that are not listed contribute; see `block_sparse`."""
    n, heads, d = q.shape
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


def _attend(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    table: Any,
    tokens: int,
    scale: float,
    lists: BlockLists,
    fmt: BlockFormat,
    lse: Any = None,
) -> Any:
    head_dim, pages = q.shape[2], -(-tokens // k_pages.shape[1])
    if is_packed(fmt) and 4 * pages * k_pages.shape[1] * k_pages.shape[2] * head_dim <= WORKSPACE_BYTES:
        k_pages, v_pages = (unpacked_pages(one, table, tokens, fmt).view(np.uint8) for one in (k_pages, v_pages))
        table, fmt = import_cupy().arange(pages, dtype=np.int32), F16
    return forward(q, k_pages, v_pages, table, tokens, scale, lists, fmt, lse)


def forward(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    table: Any,
    tokens: int,
    scale: float,
    lists: BlockLists,
    fmt: BlockFormat,
    lse: Any = None,
) -> Any:
    """The attention alone, over lists on the device, by the kernel of the current path."""
    if fmt is F16 and q.shape[2] in (128, 256) and current_path() == "sm_90a":
        from sp.ops.attention.attention_sm90 import prefill

        return prefill(q, k_pages, v_pages, table, tokens, scale, lists, lse=lse)
    from sp.ops.attention.attention_portable import prefill as portable

    return portable(q, k_pages, v_pages, table, tokens, fmt, scale, lists, lse=lse)


def check_finite(q: Any, k_pages: Any, v_pages: Any, table: Any, tokens: int, fmt: BlockFormat) -> None:
    """DeviceError when an input holds NaN or infinity; reads everything and waits for the device."""
    cupy = import_cupy()
    for name, values in (("Q", q), ("K", k_pages), ("V", v_pages)):
        rows = values if name == "Q" else kv_gather(values, table, tokens, fmt)
        wrong = int(rows.size - cupy.count_nonzero(cupy.isfinite(rows)))
        if wrong:
            raise DeviceError(f"sparse attention: {wrong} of {rows.size} values of {name} are NaN or infinite")
