"""The device path of attention's ops without a device: every launch fits its declaration, whatever heads and pages."""

from __future__ import annotations

from dry_walk import walked

WALK = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device
dry_device.install()
import numpy as np
from dataclasses import replace
from sp.kernels import forced_path
from sp.ops.attention.attention_heads import attention_heads, context_heads
from sp.ops.attention.attention_heads import HeadNorms, head_norm_rope
from sp.ops.attention.importance import importance
from sp.ops.attention.attention import attention_output
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.attention.importance import Reduction
from sp.ops.attention.score_rule import ScoreRule
from sp.ops.attention.tree_attention import tree_attention
from sp.ops.attention.attention_heads import unrotate
from sp.ops.rope import Rope
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity
from sp.ops.sparse.sparse_attention import sparse_attention
from sp.quant import F16, Q4_0
N, HEADS, KV, D = 300, 6, 2, 128
one = lambda *shape, dtype=np.uint16: dry_device.asarray(np.ones(shape, dtype))
count = dry_device.asarray(np.array([N], np.int32))
table = dry_device.asarray(np.arange(4, dtype=np.int32))
selectors = FlashPrefill(0.1), TopDensity(0.5), FlashPrefill(0.1, share="group", mean_correction=True)
for fmt, rotated in ((F16, False), (Q4_0, True)):
    k, v = (one(4, 128, KV, fmt.row_bytes(D), dtype=np.uint8) for _ in range(2))
    at = PagedKV(k, v, table, N, fmt, rotated)
    for pairing in ("halves", "interleaved"):
        for norms in (HeadNorms(one(D, dtype=np.float32), one(D, dtype=np.float32), 1e-6), HeadNorms()):
            rotary, where, x = Rope(1e6, 64, pairing), one(5, dtype=np.int64), one(5, KV, D)
            q = attention_heads(one(5, HEADS, 2 * D), x, x, norms, where, rotary, at)
            assert (q.shape, q.dtype) == ((5, HEADS, D), np.float16)
            context_heads(x, x, norms, where, rotary, replace(at, start=count))
            assert head_norm_rope(one(5, HEADS, 2 * D), D, norms.q, norms.eps, where, rotary).shape == q.shape
            unrotate(q, where, rotary)
    for held in (at, replace(at, start=count, total=count)):
        for n in (1, 5, 64, 65, N):
            out = attention_output(one(n, HEADS, D, dtype=np.float16), held, one(n, HEADS, 2 * D))
            assert out.shape == (n, HEADS * D)
        q = one(9, HEADS, D, dtype=np.float16)
        assert tree_attention(q, held, seen=one(9, dtype=np.uint64), rule=ScoreRule(window=7)).shape == (9, HEADS * D)
    assert importance(q, at, Reduction(), by_head=True).by_head.shape == (HEADS, 10)
    for path in ("sm_90a", "portable"):
        with forced_path(path):
            for selector in selectors:
                out, counts = sparse_attention(one(N, HEADS, D, dtype=np.float16), at, D**-0.5, selector)
                assert (out.shape, counts.shape) == ((N, HEADS, D), (HEADS, 3))
print(*sorted(dry_device.launches))
"""


def test_every_launch_fits_its_declaration() -> None:
    printed = walked(WALK)
    assert {
        "attention_heads", "head_norm_rope", "unrotate", "attention_decode", "attention_split", "attention_combine",
        "attention_sm90", "attention_portable", "block_means", "block_select_sm90", "block_select", "mean_correction",
        "importance_fold",
    } <= set(printed.split())  # fmt: skip
