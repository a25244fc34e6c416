"""Attention straight over pages at the models' shapes: few queries, prefill on mma.sync, and unpacking.

``pytest tests/benchmarks/test_bench_attention_paged.py --benchmark-enable`` appends records ``attention_few``,
``attention``, ``attention_chunk`` and ``kv_unpack`` to ``results/<gpu>/`` (or under the folder named in SP_RESULTS).
Bytes are those of the keys and values attended to, FLOP 4 d for every visible pair of a query and a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from timed import keep, timed

from sp.bench.timing import mode_of, quartiles
from sp.errors import DeviceError
from sp.kernels.device import require_device
from sp.quant import F16, Q4_0, BlockFormat

try:
    DEVICE = bool(require_device())
except DeviceError:
    DEVICE = False
pytestmark = [pytest.mark.skipif(not DEVICE, reason="needs a GPU"), pytest.mark.slow]

HEADS = {128: (16, 8), 256: (24, 4)}
FORMATS = {"f16": F16, "q4_0": Q4_0}
FEW = [(1, 512), (1, 8192), (1, 32768), (1, 131072), *((n, tokens) for n in (16, 23) for tokens in (2048, 8192, 32768))]
PREFILL = [(8192, 8192), (4096, 131072)]


def paged(tokens: int, d: int, fmt: BlockFormat) -> tuple[Any, Any, Any]:
    """Random K pages, V pages and a shuffled table on the device."""
    import cupy

    blocks = -(-tokens // 128)
    random, shape = cupy.random.default_rng(tokens + d), (blocks, 128, HEADS[d][1])
    pages = []
    for _ in range(2):
        if fmt is F16:
            values = random.standard_normal((*shape, d), cupy.float32).astype(cupy.float16)
            pages.append(values.view(cupy.uint8))
        else:
            packed = random.integers(0, 256, (*shape, fmt.row_bytes(d)), dtype=cupy.uint8)
            scales = packed.view(cupy.uint16).reshape(*shape, d // 32, 9)[..., 0]
            scales[...] = 0x2C00 + (scales & 0x3FF)  # 1/16 to 1/8
            pages.append(packed)
    return *pages, cupy.argsort(random.random(blocks)).astype(cupy.int32)


def queries(n: int, d: int) -> Any:
    """Random queries on the device."""
    import cupy

    return cupy.random.default_rng(n).standard_normal((n, HEADS[d][0], d), cupy.float32).astype(cupy.float16)


def measure(benchmark: Any, bench: str, run: Callable[[], object], config: dict[str, Any], sources: tuple[str, ...],
            graph: bool = False, **work: float) -> None:  # fmt: skip
    """Time it and keep the record; `work` is bytes or flops."""
    samples = timed(benchmark, run, repeats=7, graph=graph)
    if not samples:
        return
    ms = quartiles(samples)
    rates = {"bytes": "gb_s", "flops": "tflops"}
    metrics = {"ms": ms.median, "ms_low": ms.low, "ms_high": ms.high}
    metrics |= {rates[kind]: amount / ms.median / (1e6 if kind == "bytes" else 1e9) for kind, amount in work.items()}
    benchmark.extra_info.update(config | metrics)
    keep(bench, config | {"path": "portable", "mode": mode_of(graph)}, metrics, samples, sources)


def configuration(d: int, n: int, tokens: int, kv: str) -> dict[str, Any]:
    heads, kv_heads = HEADS[d]
    return {"head_dim": d, "q_heads": heads, "kv_heads": kv_heads, "queries": n, "tokens": tokens, "kv": kv}


@pytest.mark.parametrize("d", HEADS)
@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize(("n", "tokens"), FEW)
def test_few_queries(benchmark, d, kv, n, tokens):
    """As a graph with the length on the device; outputs rotated back (Q4_0) and gated, as the target's layers are."""
    import cupy

    from sp.ops.attention.attention import attention_output
    from sp.ops.attention.kv_pages import PagedKV

    fmt = FORMATS[kv]
    k, v, table = paged(max(tokens, 8192), d, fmt)
    total = cupy.array([tokens], cupy.int32)
    q, at = queries(n, d), PagedKV(k, v, table, tokens, fmt, fmt is Q4_0, total=total)
    wide = cupy.full((n, HEADS[d][0], 2 * d), 0x3F80, cupy.uint16)
    decoding = n == 1 and kv != "F16"
    sources = ("attention_decode.cu" if decoding else "attention_split.cu", "attention_combine.cu")
    measure(
        benchmark,
        "attention_few",
        lambda: attention_output(q, at, wide),
        configuration(d, n, tokens, kv),
        sources,
        graph=True,
        bytes=2.0 * tokens * HEADS[d][1] * fmt.row_bytes(d),
    )


@pytest.mark.parametrize("d", HEADS)
@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize(("n", "tokens"), PREFILL)
def test_portable_prefill(benchmark, d, kv, n, tokens):
    from sp.ops.attention.attention_portable import prefill
    from sp.ops.attention.kv_pages import PagedKV

    fmt = FORMATS[kv]
    k, v, table = paged(tokens, d, fmt)
    q, at = queries(n, d), PagedKV(k, v, table, tokens, fmt)
    pairs = n * (tokens - n) + n * (n + 1) / 2
    measure(
        benchmark,
        "attention" if n == tokens else "attention_chunk",
        lambda: prefill(q, at, d**-0.5),
        configuration(d, n, tokens, kv),
        ("attention_portable.cu",),
        flops=4.0 * d * HEADS[d][0] * pairs,
    )


@pytest.mark.parametrize("d", HEADS)
def test_unpack(benchmark, d):
    """Q4_0 pages of 128K tokens to float16: bytes read and written."""
    from sp.ops.attention.kv_pages import unpacked_pages

    tokens, kv_heads = 131072, HEADS[d][1]
    k, _, table = paged(tokens, d, Q4_0)
    moved = float(tokens * kv_heads * (Q4_0.row_bytes(d) + 2 * d))
    config = {"head_dim": d, "kv_heads": kv_heads, "tokens": tokens}
    run = lambda: unpacked_pages(k, table, tokens, Q4_0)  # noqa: E731
    measure(benchmark, "kv_unpack", run, config, ("kv_pages.cu",), bytes=moved)
