"""attention_rows in NumPy against a float64 softmax over the same cached keys."""

from __future__ import annotations

import numpy as np
import pytest

from sp.ops.attention.importance import attention_rows
from sp.ops.attention.kv_pages import PagedKV, kv_append, kv_gather
from sp.quant import F16, F32, Q4_0, BlockFormat

TOKENS, HEADS, KV_HEADS, D, N = 70, 6, 2, 32, 5


@pytest.mark.parametrize("fmt", [F32, F16, Q4_0], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("causal", [True, False])
def test_weights_and_logits_head_by_head(fmt: BlockFormat, causal: bool) -> None:
    rng = np.random.default_rng(0)
    pages = np.zeros((6, 16, KV_HEADS, fmt.row_bytes(D)), np.uint8)
    table = rng.permutation(6)[:5]
    kv_append(pages, table, 0, rng.standard_normal((TOKENS, KV_HEADS, D)).astype(np.float32), fmt)
    keys = kv_gather(pages, table, TOKENS, fmt).astype(np.float64)
    q = rng.standard_normal((N, HEADS, D)).astype(np.float32)
    at = PagedKV(pages, pages, table, TOKENS, fmt)
    weights = attention_rows(q, at, causal=causal)
    logits = attention_rows(q, at, causal=causal, logits=True)
    assert weights.shape == logits.shape == (HEADS, N, TOKENS)
    for head in range(HEADS):
        for row in range(N):
            seen = TOKENS - N + row + 1 if causal else TOKENS
            want = keys[:seen, head // 3] @ q[row, head].astype(np.float64) / np.sqrt(D)
            np.testing.assert_allclose(logits[head, row, :seen], want, rtol=1e-4, atol=1e-5)
            assert np.isneginf(logits[head, row, seen:]).all()
            np.testing.assert_allclose(weights[head, row, :seen], np.exp(want) / np.exp(want).sum(), rtol=1e-4)
            assert not weights[head, row, seen:].any()
