"""Attention in eight bits at shapes of a drafter: rounding keys and values, and products beside those in float16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from sp.bench.cases import Case, family, paths
from sp.bench.families.flashprefill import TOKENS, live_flops
from sp.bench.families.inputs import clustered
from sp.kernels.specs.attention.attention_bytes import HEAD_DIM
from sp.ops.attention.attention_sm90 import prefill as in_float16
from sp.ops.attention.byte_attention.pages import byte_pages
from sp.ops.attention.byte_attention.prefill import prefill
from sp.ops.sparse.block_lists import density
from sp.ops.sparse.block_means import block_means
from sp.ops.sparse.flashprefill import TopDensity, select_on_device

HEADS, KV_HEADS = 16, 8
DENSITIES = (0.05, 0.24)
SHORT = 8192


@family("byte_attention")
def cases() -> Iterator[Case]:
    """8K and 128K tokens, blocks as `clustered` inputs have them chosen; FLOP as in `flashprefill`.

    Nothing on other cards.
    """
    for tokens in (SHORT, TOKENS) if "sm_90a" in paths() else ():
        q, at = clustered(tokens, HEADS, KV_HEADS, HEAD_DIM)
        scale, means = HEAD_DIM**-0.5, block_means(at.k, at.table, tokens, at.fmt)
        shape = {"head_dim": HEAD_DIM, "q_heads": HEADS, "kv_heads": KV_HEADS, "tokens": tokens}
        rounded, stored = byte_pages(at), at.k.nbytes + at.v.nbytes
        yield Case({**shape, "stage": "round"}, "sm_90a", partial(byte_pages, at), bytes=stored * 2, flops=0.0)
        for share in DENSITIES:
            selector = TopDensity(share)
            lists = select_on_device(selector, q, means, tokens, scale)
            counts = lists.counts.get().astype(np.int64)
            config: dict[str, Any] = {**shape, **asdict(selector), "read": round(density(counts), 4), "stage": "attend"}
            flops = live_flops(counts, HEAD_DIM)
            eight, sixteen = partial(prefill, q, rounded, scale, lists), partial(in_float16, q, at, scale, lists)
            yield Case({**config, "math": "int8"}, "sm_90a", eight, bytes=2 * q.nbytes + stored // 2, flops=flops)
            yield Case({**config, "math": "f16"}, "sm_90a", sixteen, bytes=2 * q.nbytes + stored, flops=flops)
