"""paged_attention: attention of the last tokens of a sequence over keys and values that lie in pages."""

from __future__ import annotations

from typing import Any

from sp.arrays import Floats
from sp.kernels import current_path, is_device
from sp.ops.attention.attention import attention
from sp.ops.attention.gate_output import gate_output
from sp.ops.attention.key_blocks import BlockLists
from sp.ops.attention.kv_pages import PAGE_TOKENS, is_packed
from sp.ops.attention.paged_kv import PagedKV
from sp.ops.hadamard import hadamard
from sp.quant import F16

FEW_QUERIES = 64  # most queries that go to the kernels which split the cache and read its length on the device
DECODE_ROWS = 16  # most query rows of a kv head that go to the one of these for decoding
WORKSPACE_BYTES = 1 << 30
"""Most memory for Q4_0 pages unpacked before a prefill; past it the kernel unpacks them itself, which is slower."""


def paged_attention(q: Floats, at: PagedKV) -> Floats:
    """Causal attention of the last ``len(q)`` of the tokens of `at`; see `attention` for the formula. Returns float32
    (n, heads, d), on the device bf16, in the basis of the cached values: rotated if those are.

    Parameters
    ----------
    q : float32 (n, heads, d), on the device float16, not rotated for the cache
    at : PagedKV, the queries' own keys and values among them. At most 64 queries look at its `total`
    """
    if is_device(q) and len(q) <= FEW_QUERIES:
        out: Floats = _few(q, at)
        return out
    q = _rotated(q, at)
    return prefill_attention(q, at, q.shape[2] ** -0.5) if is_device(q) else attention(q, *at.gather())


def attention_output(q: Floats, at: PagedKV, wide: Floats | None = None) -> Floats:
    """`paged_attention`, then `gate_output` with `wide`: (n, heads * d). On the device in one go for few queries."""
    if is_device(q) and len(q) <= FEW_QUERIES:
        out: Floats = _few(q, at, finish=True, wide=wide)
        return out.reshape(len(q), q.shape[1] * q.shape[2])
    return gate_output(paged_attention(q, at), wide, at.rotated)


def prefill_attention(q: Any, at: PagedKV, scale: float, blocks: BlockLists | None = None, *, lse: Any = None) -> Any:
    """Attention of many queries on the device, over all blocks or listed ones, by the kernel of the current path. `q`:
    cupy float16 (n, heads, d), in the basis of the cached keys, not yet scaled; `at`: Q4_0 pages are unpacked first, if
    there is room for them; `scale`, `blocks`, `lse`: see `sp.ops.attention.attention_portable.prefill`. Returns cupy
    uint16 (n, heads, d), bf16, in the basis of the cached values."""
    pages = -(-at.tokens // PAGE_TOKENS)
    if is_packed(at.fmt) and 4 * pages * PAGE_TOKENS * at.kv_heads * at.head_dim <= WORKSPACE_BYTES:
        at = at.unpacked()
    if at.fmt is F16 and current_path() == "sm_90a":
        from sp.ops.attention.attention_sm90 import prefill

        return prefill(q, at, scale, blocks, lse=lse)
    from sp.ops.attention.attention_portable import prefill as portable

    return portable(q, at, scale, blocks, lse=lse)


def _rotated(q: Any, at: PagedKV) -> Any:
    return hadamard(q, at.key_block) if at.rotated else q


def _few(q: Any, at: PagedKV, *, finish: bool = False, wide: Any = None) -> Any:
    if len(q) * q.shape[1] <= DECODE_ROWS * at.kv_heads:
        from sp.ops.attention.attention_decode import decode

        # Over packed pages the kernel rotates queries itself.
        return decode(q if is_packed(at.fmt) else _rotated(q, at), at, finish=finish, wide=wide)
    from sp.ops.attention.attention_split import split

    return split(q, at, finish=finish, wide=wide)
