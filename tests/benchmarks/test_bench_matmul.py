"""The Hopper prefill matmul at the models' shapes, dequantisation and scale expansion inside the time, beside peers.

Peers in the same run: cuBLAS in bf16, and unpacking the weight to bf16 followed by cuBLAS.
``pytest tests/benchmarks/test_bench_matmul.py --benchmark-enable`` appends records ``matmul`` to ``results/<gpu>/``
(or under the folder named in SP_RESULTS): m tokens, n outputs, k inputs. Samples read inputs that L2 does not hold.
Single calls are shorter than the card's power control; `steady` records time calls back to back for half a second.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sp.bench.record import append, make_record
from sp.bench.timing import spread, time_kernel
from sp.errors import DeviceError
from sp.kernels.path import native_path
from sp.models.random_blocks import random_blocks
from sp.ops.gemm_sm90 import gated, gemm
from sp.ops.packed import PackedWeight, pack, unpack_bf16
from sp.quant import BF16, F16, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0, BlockFormat

try:
    HOPPER = native_path() == "sm_90a"
except DeviceError:
    HOPPER = False
pytestmark = [pytest.mark.skipif(not HOPPER, reason="needs compute capability 9.0"), pytest.mark.slow]

UP, DOWN, WIDE_HEADS, HEADS = (17408, 5120), (5120, 17408), (10240, 5120), (6144, 5120)
CASES = [
    *((Q4_K, m, *UP) for m in (128, 512, 2048, 4096, 8192)),
    *((fmt, 8192, *UP) for fmt in (Q5_K, Q6_K, Q8_0, Q4_0, BF16, F16)),
    *((Q4_K, m, *DOWN) for m in (128, 512, 2048, 4096, 8192)),
    (Q6_K, 8192, *DOWN),
    (Q4_K, 8192, *WIDE_HEADS),
    (Q4_K, 8192, *HEADS),
    *((BF16, m, n, k) for m in (2048, 8192) for n, k in ((2048, 1024), (1024, 1024), (1024, 2048))),
    *((BF16, m, n, k) for m in (2048, 8192) for n, k in ((3072, 1024), (1024, 3072))),
]
CUBLAS = sorted({case[1:] for case in CASES})
STEADY = 0.5
SOURCES = ("gemm_sm90.cu", "expand_scales.cu")


@cache
def weight(fmt: BlockFormat, out: int, width: int, seed: int = 0) -> PackedWeight:
    """Random blocks on the device; 256 distinct rows, repeated."""
    import cupy

    blocks = random_blocks(np.random.default_rng(seed), fmt, 256 * width // fmt.block_size, 0.02).reshape(256, -1)
    return pack("bench", fmt, (out, width), cupy.tile(cupy.asarray(blocks), (out // 256, 1)))


def tokens_of(count: int, width: int) -> Any:
    """Normal values cut to bf16."""
    import cupy

    values = cupy.random.default_rng(count).standard_normal((count, width), cupy.float32)
    return (values.view(cupy.uint32) >> 16).astype(cupy.uint16)


def steady(run: Callable[[], object], ms: float) -> list[float]:
    """Milliseconds a call of calls back to back, in five parts, after as long a warm-up."""
    import cupy

    calls = max(2, int(STEADY / 5 * 1000 / ms))
    marks = [cupy.cuda.Event() for _ in range(6)]
    for _ in range(5 * calls):
        run()
    for mark in marks:
        mark.record()
        for _ in range(calls if mark is not marks[-1] else 0):
            run()
    marks[-1].synchronize()
    return [cupy.cuda.get_elapsed_time(a, b) / calls for a, b in pairwise(marks)]


def measure(
    benchmark: Any, run: Callable[[], object], config: dict[str, Any], sources: tuple[str, ...], long: bool = False
) -> None:
    """Time with events, let pytest-benchmark show the same work, and keep the record."""
    import cupy

    def once() -> None:
        run()
        cupy.cuda.get_current_stream().synchronize()

    once()
    if not benchmark.enabled:
        return
    samples = time_kernel(run, repeats=15)
    if long:
        samples, config = steady(run, spread(samples).median), config | {"steady": True}
    benchmark.pedantic(once, rounds=1)
    ms = spread(samples)
    flops = 2 * config["m"] * config["n"] * config["k"] * config.get("weights", 1)
    metrics = {"tflops": flops / ms.median / 1e9, "ms": ms.median, "ms_low": ms.low, "ms_high": ms.high}
    benchmark.extra_info.update(config | metrics)
    append(make_record("matmul", config, metrics, samples, sources), Path(os.environ.get("SP_RESULTS", "results")))


def torch_products() -> Any:
    """torch, working on CuPy's stream."""
    import cupy

    torch = pytest.importorskip("torch")
    stream = cupy.cuda.get_current_stream()
    if stream.ptr:
        torch.cuda.set_stream(torch.cuda.ExternalStream(stream.ptr))
    return torch


@pytest.mark.parametrize(("fmt", "m", "n", "k"), CASES, ids=lambda v: getattr(v, "name", str(v)))
def test_matmul(benchmark, fmt, m, n, k):
    import cupy

    w, x, out = weight(fmt, n, k), tokens_of(m, k), cupy.empty((m, n), cupy.uint16)
    config = {"type": fmt.name, "m": m, "n": n, "k": k, "path": "sm_90a"}
    measure(benchmark, lambda: gemm(x, w, out, "bf16"), config, SOURCES)


@pytest.mark.parametrize(("fmt", "n", "k"), [(Q4_K, *DOWN), (Q6_K, *DOWN), (BF16, 1024, 3072)])
def test_add(benchmark, fmt, n, k):
    """The down projection into the residual stream."""
    import cupy

    w, x, out = weight(fmt, n, k), tokens_of(8192, k), cupy.zeros((8192, n), cupy.float32)
    config = {"type": fmt.name, "m": 8192, "n": n, "k": k, "path": "sm_90a", "mode": "add"}
    measure(benchmark, lambda: gemm(x, w, out, "add"), config, SOURCES)


@pytest.mark.parametrize(("fmt", "m", "n", "k"), [(Q4_K, 8192, *UP), (Q4_K, 2048, *UP), (BF16, 8192, 3072, 1024)])
@pytest.mark.parametrize("form", ["gated", "gated in three"])
def test_gated(benchmark, fmt, m, n, k, form):
    """Gate and up projection with SwiGLU in one kernel, and by two products and `swiglu`."""
    import cupy

    from sp.ops.activations import swiglu

    gate, up, x = weight(fmt, n, k), weight(fmt, n, k, 1), tokens_of(m, k)
    g, u = cupy.empty((m, n), cupy.uint16), cupy.empty((m, n), cupy.uint16)

    def in_three() -> None:
        gemm(x, gate, g, "bf16")
        gemm(x, up, u, "bf16")
        swiglu(g, u)

    config = {"type": fmt.name, "m": m, "n": n, "k": k, "path": "sm_90a", "mode": form, "weights": 2}
    run = in_three if form == "gated in three" else lambda: gated(x, gate, up, g)
    measure(benchmark, run, config, SOURCES if form == "gated" else (*SOURCES, "swiglu.cu"))


@pytest.mark.parametrize("long", [False, True], ids=["once", "steady"])
@pytest.mark.parametrize(("m", "n", "k"), CUBLAS)
def test_cublas(benchmark, m, n, k, long):
    torch = torch_products()
    if long and (m, n, k) != (8192, *UP):
        pytest.skip("one shape is timed for long")
    x, w = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    out, wt = torch.empty((m, n), device="cuda", dtype=torch.bfloat16), w.T
    config = {"type": "BF16", "m": m, "n": n, "k": k, "path": "cublas"}
    measure(benchmark, lambda: torch.matmul(x, wt, out=out), config, (), long)


def test_steady(benchmark):
    import cupy

    (n, k), m = UP, 8192
    w, x, out = weight(Q4_K, n, k), tokens_of(m, k), cupy.empty((m, n), cupy.uint16)
    config = {"type": "Q4_K", "m": m, "n": n, "k": k, "path": "sm_90a"}
    measure(benchmark, lambda: gemm(x, w, out, "bf16"), config, SOURCES, long=True)


@pytest.mark.parametrize(("fmt", "m", "n", "k"), [(Q4_K, 8192, *UP), (Q4_K, 2048, *UP)])
def test_unpack_and_cublas(benchmark, fmt, m, n, k):
    """What needs no kernel of ours: unpack the weight to bf16, then cuBLAS."""
    import cupy

    torch = torch_products()
    w, x = weight(fmt, n, k), torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    out = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        values = torch.as_tensor(unpack_bf16(w).view(cupy.int16), device="cuda").view(torch.bfloat16)
        torch.matmul(x, values.T, out=out)

    config = {"type": fmt.name, "m": m, "n": n, "k": k, "path": "unpack + cublas"}
    measure(benchmark, run, config, ("unpack.cu", "expand_scales.cu"))
