"""Prefill attention at the models' shapes beside PyTorch's FlashAttention-2 and cuDNN, in one run on one GPU.

``pytest tests/benchmarks/test_bench_attention.py --benchmark-enable`` appends records ``attention`` (of whole prompts),
``attention_chunk`` (of their last tokens) and ``attention_lists`` (of some blocks) to ``results/<gpu>/`` (or under the
folder named in SP_RESULTS). FLOP are 4 d for every visible pair of a query and a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from timed import keep, timed

from sp.bench.timing import quartiles
from sp.errors import DeviceError
from sp.kernels.path import native_path

try:
    HOPPER = native_path() == "sm_90a"
except DeviceError:
    HOPPER = False
pytestmark = [pytest.mark.skipif(not HOPPER, reason="needs compute capability 9.0"), pytest.mark.slow]

BLOCK = 128
HEADS = {128: (16, 8), 256: (24, 4)}
DENSE = [(8192, 8192), (8192, 40960), (8192, 73728), (8192, 131072), (32768, 32768), (131072, 131072)]
LISTED = [(32768, 32768, 0.1), (8192, 131072, 0.05), (131072, 131072, 0.05), (131072, 131072, 0.03)]
PEERS = {"flash-attention-2": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
SOURCES = ("attention_sm90.cu",)


def inputs(n: int, tokens: int, d: int) -> tuple[Any, ...]:
    """Random q, K pages, V pages and a shuffled table on the device."""
    import cupy

    heads, kv_heads = HEADS[d]
    pages = -(-tokens // BLOCK)
    random = cupy.random.default_rng(tokens + d)

    def normal(*shape: int) -> Any:
        return random.standard_normal(shape, cupy.float32).astype(cupy.float16)

    q, k, v = normal(n, heads, d), normal(pages, BLOCK, kv_heads, d), normal(pages, BLOCK, kv_heads, d)
    return q, k, v, cupy.argsort(random.random(pages)).astype(cupy.int32)


def paged_inputs(n: int, tokens: int, d: int) -> tuple[Any, Any]:
    """The same as queries and a `PagedKV`."""
    from sp.ops.attention.kv_pages import PagedKV
    from sp.quant import F16

    q, k, v, table = inputs(n, tokens, d)
    return q, PagedKV(k, v, table, tokens, F16)


def measure(
    benchmark: Any, bench: str, run: Callable[[], object], config: dict[str, Any], pairs: int, **metrics: float
) -> None:
    """Time it and keep the record."""
    samples = timed(benchmark, run, repeats=5 if pairs > 1 << 32 else 15)
    if not samples:
        return
    ms = quartiles(samples)
    flops = 4 * config["head_dim"] * config["q_heads"] * pairs
    metrics = {"tflops": flops / ms.median / 1e9, "ms": ms.median, "ms_low": ms.low, "ms_high": ms.high, **metrics}
    benchmark.extra_info.update(config | metrics)
    keep(bench, config, metrics, samples, SOURCES)


def configuration(d: int, n: int, tokens: int, path: str, **more: object) -> dict[str, Any]:
    heads, kv_heads = HEADS[d]
    return {
        "head_dim": d,
        "q_heads": heads,
        "kv_heads": kv_heads,
        "queries": n,
        "tokens": tokens,
        "kv": "f16",
        "path": path,
        "mode": "queued",
        **more,
    }


@pytest.mark.parametrize("d", HEADS)
@pytest.mark.parametrize(("n", "tokens"), DENSE)
def test_dense(benchmark, d, n, tokens):
    import cupy

    from sp.ops.attention.attention_sm90 import prefill

    q, at = paged_inputs(n, tokens, d)
    out = cupy.empty(q.shape, cupy.uint16)
    pairs = n * (tokens - n) + n * (n + 1) // 2
    config = configuration(d, n, tokens, "sm_90a")
    bench = "attention" if n == tokens else "attention_chunk"
    measure(benchmark, bench, lambda: prefill(q, at, d**-0.5, out=out), config, pairs)


@pytest.mark.parametrize("d", HEADS)
@pytest.mark.parametrize(("n", "tokens", "density"), LISTED)
def test_lists(benchmark, d, n, tokens, density):
    """Sink 2, window 4, the last 2 query blocks whole, and blocks at random up to the density."""
    import cupy

    from sp.ops.attention.attention_sm90 import prefill
    from sp.ops.attention.key_blocks import BlockLists

    q, at = paged_inputs(n, tokens, d)
    heads = HEADS[d][0]
    rows, columns = n // BLOCK, tokens // BLOCK
    i, j = cupy.arange(columns - rows, columns)[:, None], cupy.arange(columns)
    causal = j <= i
    forced = causal & ((j < 2) | (i - j < 4) | (i >= columns - 2))
    all_blocks, fixed = int(causal.sum()), int(forced.sum())
    share = max(0.0, (density * all_blocks - fixed) / (all_blocks - fixed))
    chance = cupy.random.default_rng(7).random((heads, rows, columns), cupy.float32)
    chosen = forced | (causal & (chance < share))
    counts = chosen.sum(2, dtype=cupy.int32)
    width = int(counts.max())
    order = cupy.argsort(cupy.where(chosen, j, columns + j).astype(cupy.int32), axis=2)[..., :width]
    blocks = BlockLists(counts, order.astype(cupy.int32), long_blocks=2)
    kept = int(chosen.sum())
    pairs = (kept * BLOCK * BLOCK - heads * rows * BLOCK * (BLOCK - 1) // 2) / heads  # of one head, the diagonal halved
    out = cupy.empty(q.shape, cupy.uint16)
    config = configuration(d, n, tokens, "sm_90a", asked_density=density)
    run = lambda: prefill(q, at, d**-0.5, blocks, out=out)  # noqa: E731
    measure(benchmark, "attention_lists", run, config, pairs, density=kept / (all_blocks * heads))


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("d", HEADS)
@pytest.mark.parametrize("tokens", [n for n, tokens in DENSE if n == tokens])
def test_peers(benchmark, peer, d, tokens):
    """bf16, K and V already repeated over the query heads and contiguous: no gather, no pages."""
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    heads, kv_heads = HEADS[d]
    q, k, v, table = inputs(tokens, tokens, d)

    def whole(pages: Any) -> Any:
        rows = torch.from_dlpack(pages)[torch.from_dlpack(table).long()].reshape(-1, kv_heads, d)
        return rows.bfloat16().transpose(0, 1).repeat_interleave(heads // kv_heads, 0)[None].contiguous()

    query, key, value = torch.from_dlpack(q).bfloat16().transpose(0, 1)[None].contiguous(), whole(k), whole(v)

    def run() -> None:  # PyTorch and CuPy both queue on the default stream
        with sdpa_kernel(getattr(SDPBackend, PEERS[peer])):
            scaled_dot_product_attention(query, key, value, is_causal=True)

    config = configuration(d, tokens, tokens, peer) | {"kv": "bf16"}
    measure(benchmark, "attention", run, config, tokens * (tokens + 1) // 2)
