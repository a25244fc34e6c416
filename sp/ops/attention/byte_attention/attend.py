"""attend and byte_output: attention of a long run in eight bits, on the host and on the device."""

from __future__ import annotations

from typing import Any

from sp.arrays import Floats
from sp.kernels import is_device
from sp.ops.attention.attention import gate_output
from sp.ops.attention.byte_attention.pages import byte_pages
from sp.ops.attention.byte_attention.prefill import prefill
from sp.ops.attention.byte_attention.twin import byte_attention
from sp.ops.attention.key_blocks import BlockLists
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.hadamard import hadamard


def attend(q: Floats, at: PagedKV, scale: float, lists: BlockLists | None = None) -> Floats:
    """Causal attention of the last ``len(q)`` tokens of `at` in eight bits, over all blocks or those listed. Returns
    float32 (n, heads, 128), on the device bf16, in the basis of the cached values.

    Parameters
    ----------
    q : float32 (n, heads, 128), on the device float16
        In the basis of the cached keys (rotated if those are), not yet scaled.
    at : PagedKV, on the device F16 or Q4_0, and compute capability 9.0
    lists : BlockLists, optional, where `q` is
    """
    if not is_device(q):
        return byte_attention(q, *at.gather(), scale, lists)
    out: Any = prefill(q, byte_pages(at), scale, lists)
    attended: Floats = out
    return attended


def byte_output(q: Floats, at: PagedKV, wide: Floats | None = None) -> Floats:
    """`attend` of queries that are not rotated for the cache yet, over all blocks, then `gate_output` with `wide`."""
    queries = hadamard(q, at.key_block) if at.rotated else q
    return gate_output(attend(queries, at, q.shape[2] ** -0.5), wide, at.rotated)
