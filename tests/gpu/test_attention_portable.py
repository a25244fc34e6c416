"""Prefill attention on mma.sync against float64: lengths, prefixes, groups, formats, key block lists, reruns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare import nmse, to_bf16, to_float64
from paged import MIXED, PLAIN, SHAPES, PagedCase, names

cp = pytest.importorskip("cupy")

from sp.kernels import forced_path  # noqa: E402
from sp.ops.attention.attention import attention_output, paged_attention  # noqa: E402
from sp.ops.attention.attention_portable import prefill  # noqa: E402
from sp.ops.attention.key_blocks import BlockLists  # noqa: E402
from sp.quant import F16  # noqa: E402

BOUND = 4e-6  # half of it is the rounding of the result to bf16


@pytest.fixture(autouse=True)
def _guarded_outputs(guarded, monkeypatch):
    """What the op allocates starts as NaN between guard bands."""
    monkeypatch.setattr(cp, "empty", lambda shape, dtype=float: guarded(shape, dtype))


def queries(rng, n, heads, d):
    return rng.standard_normal((n, heads, d)).astype(np.float16)


@pytest.mark.parametrize(("heads", "kv_heads", "d"), SHAPES)
@pytest.mark.parametrize(
    ("n", "prefix"),
    [(1, 0), (2, 129), (31, 1), (33, 1000), (64, 64), (127, 0), (128, 0), (129, 7), (1000, 0), (65, 1023)],
)
def test_against_float64(d, heads, kv_heads, n, prefix):
    rng = np.random.default_rng(n + prefix)
    case = PagedCase.make(rng, prefix + n, kv_heads, d, F16)
    q = queries(rng, n, heads, d)
    got = prefill(cp.asarray(q), case.device(), d**-0.5)
    assert nmse(got, case.want(q)) < BOUND
    again = prefill(cp.asarray(q), case.device(), d**-0.5)
    np.testing.assert_array_equal(got.get(), again.get())


@pytest.mark.parametrize("d", [64, 128, 256])
def test_tokens_are_counted_where_a_graph_can_read_them(d):
    rng = np.random.default_rng(d)
    case = PagedCase.make(rng, 300, 2, d, F16)
    q = cp.asarray(queries(rng, 100, 4, d))
    want = prefill(q, case.device(), d**-0.5)
    at = replace(case.device(cp.full(1, 300, np.int32)), tokens=384)  # what the host counts is not looked at
    np.testing.assert_array_equal(prefill(q, at, d**-0.5).get(), want.get())


def listed(rng, heads, n, tokens):
    """Random ascending lists, every other one without the diagonal block, and one empty list."""
    query_blocks, width = -(-n // 128), -(-tokens // 128)
    counts, indices = (
        np.zeros((heads, query_blocks), np.int32),
        np.full((heads, query_blocks, width), 1 << 30, np.int32),
    )
    for head in range(heads):
        for block in range(query_blocks):
            last = (tokens - n + min(128 * block + 127, n - 1)) // 128
            kept = np.sort(rng.permutation(last + 1)[: rng.integers(1, last + 2)])
            kept = kept if (head + block) % 2 else np.union1d(kept, [last])
            counts[head, block] = len(kept)
            indices[head, block, : len(kept)] = kept
    counts[0, 0] = 0
    return counts, indices


@pytest.mark.parametrize("d", [128, 256])
@pytest.mark.parametrize(("n", "prefix"), [(129, 0), (300, 701), (1000, 24)])
def test_lists_of_key_blocks(d, n, prefix, guarded):
    rng = np.random.default_rng(n)
    heads, kv_heads, tokens = 4, 2, n + prefix
    case = PagedCase.make(rng, tokens, kv_heads, d, F16)
    q, (counts, indices) = queries(rng, n, heads, d), listed(rng, heads, n, tokens)
    lse = guarded((heads, n), np.float32)
    lists = BlockLists(cp.asarray(counts), cp.asarray(indices))
    got = prefill(cp.asarray(q), case.device(), d**-0.5, lists, lse=lse)
    k, v = case.stored()
    seen = np.arange(tokens) <= prefix + np.arange(n)[:, None]
    want, want_lse = np.zeros((n, heads, d)), np.zeros((heads, n))
    for head in range(heads):
        mask = seen.copy()
        for block in range(len(counts[0])):
            kept = indices[head, block, : counts[head, block]]
            mask[128 * block : 128 * block + 128] &= np.isin(np.arange(tokens) // 128, kept)
        with np.errstate(divide="ignore"):
            weight = np.exp(q[:, head].astype(np.float64) @ k[:, head // 2].T * d**-0.5) * mask
            want_lse[head] = np.log(weight.sum(axis=1))
        want[:, head] = weight @ v[:, head // 2] / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
    assert nmse(got, want) < BOUND
    np.testing.assert_allclose(lse.get(), want_lse, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("fmt", "rotate"), PLAIN + MIXED, ids=names)
@pytest.mark.parametrize(("heads", "kv_heads", "d"), [(24, 4, 256), (4, 2, 128), (2, 1, 64)])
@pytest.mark.parametrize(("n", "prefix"), [(65, 0), (130, 1000)])
def test_the_op_takes_either_path(path, fmt, rotate, heads, kv_heads, d, n, prefix):
    rng = np.random.default_rng(n)
    case = PagedCase.make(rng, prefix + n, kv_heads, d, fmt, rotate)
    q, wide = queries(rng, n, heads, d), to_bf16(rng.standard_normal((n, heads, 2 * d)))
    with forced_path(path):
        got = paged_attention(cp.asarray(q), case.device())
        done = attention_output(cp.asarray(q), case.device(), cp.asarray(wide))
    assert nmse(got, case.want(q)) < 2 * BOUND
    assert nmse(done.reshape(n, heads, d), case.want_finished(q, to_float64(wide))) < 3 * BOUND
