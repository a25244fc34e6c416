"""Importance of cached keys to a prompt's last queries: read every key once, and reduce to a number a token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from sp.bench.cases import Case, family
from sp.bench.families.attention import SHAPES, pages
from sp.bench.families.inputs import normal
from sp.kernels import import_cupy
from sp.ops.attention.importance import importance
from sp.ops.attention.reduction import Reduction

QUERIES = 8


@family("importance")
def cases() -> Iterator[Case]:
    """Eight queries over 2K, 32K and 128K keys, folded into the result of another layer. Bytes: the keys, once."""
    for head_dim, heads, kv_heads in SHAPES:
        for tokens in (2048, 32768, 131072):
            at = pages(tokens, kv_heads, head_dim)
            q = normal(QUERIES, heads, head_dim).astype(np.float16)
            running = import_cupy().zeros((QUERIES, tokens), np.float32)
            run = partial(importance, q, at, Reduction(), running)
            config = {"head_dim": head_dim, "q_heads": heads, "kv_heads": kv_heads, "kv": "f16", "queries": QUERIES}
            flops = 2.0 * QUERIES * heads * head_dim * tokens
            yield Case({**config, "tokens": tokens}, "portable", run, bytes=at.k.nbytes, flops=flops)
