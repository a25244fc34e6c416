"""The portable prefill matmul at the 27B shapes, dequantisation inside the time, beside cuBLAS in bf16.

``pytest tests/benchmarks/test_bench_matmul_portable.py --benchmark-enable`` appends records ``matmul`` to
``results/<gpu>/`` (or under the folder named in SP_RESULTS). Each sample reads inputs that L2 does not hold.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sp.bench.record import append, make_record
from sp.bench.timing import spread, time_kernel
from sp.errors import DeviceError
from sp.kernels.device import require_device
from sp.models.random_blocks import random_blocks
from sp.ops.gemm_portable import gated, gemm
from sp.ops.packed import PackedWeight, pack
from sp.quant import BF16, F16, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0, BlockFormat

try:
    require_device()
    PROBLEM = ""
except DeviceError as error:
    PROBLEM = str(error)
pytestmark = [pytest.mark.skipif(bool(PROBLEM), reason=PROBLEM), pytest.mark.slow]

WIDE, NARROW = (17408, 5120), (5120, 17408)
CASES = [(fmt, 8192, *WIDE) for fmt in (Q4_K, Q5_K, Q6_K, Q8_0, Q4_0, BF16, F16)] + [
    (Q4_K, 8192, *NARROW),
    (Q4_K, 8192, 5120, 5120),
    (Q4_K, 2048, *WIDE),
    (Q4_K, 512, *WIDE),
    (Q4_K, 512, *NARROW),
    (Q4_K, 128, *WIDE),
    (Q4_K, 64, *WIDE),
    (Q4_K, 64, *NARROW),
    (Q4_K, 32, *NARROW),
]
SOURCES = ("gemm_portable.cu", "expand_scales.cu")


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


def measure(benchmark: Any, run: Callable[[], object], config: dict[str, Any], sources: tuple[str, ...]) -> None:
    """Time with events, let pytest-benchmark show the same work, and keep the record."""
    import cupy

    def once() -> None:
        run()
        cupy.cuda.get_current_stream().synchronize()

    once()
    if not benchmark.enabled:
        return
    samples = time_kernel(run, repeats=15)
    benchmark.pedantic(once, rounds=1)
    ms = spread(samples)
    flops = 2 * config["m"] * config["n"] * config["k"] * config.get("weights", 1)
    metrics = {"tflops": flops / ms.median / 1e9, "ms": ms.median, "ms_low": ms.low, "ms_high": ms.high}
    benchmark.extra_info.update(config | metrics)
    append(make_record("matmul", config, metrics, samples, sources), Path(os.environ.get("SP_RESULTS", "results")))


@pytest.mark.parametrize(("fmt", "m", "n", "k"), CASES, ids=lambda v: getattr(v, "name", str(v)))
def test_matmul(benchmark, fmt, m, n, k):
    import cupy

    w, x, out = weight(fmt, n, k), tokens_of(m, k), cupy.empty((m, n), cupy.uint16)
    config = {"type": fmt.name, "m": m, "n": n, "k": k, "path": "portable"}
    measure(benchmark, lambda: gemm(x, w, out, "bf16"), config, SOURCES)


def test_add(benchmark):
    """The down projection into the residual stream."""
    import cupy

    (n, k), m = NARROW, 8192
    w, x, out = weight(Q4_K, n, k), tokens_of(m, k), cupy.zeros((m, n), cupy.float32)
    config = {"type": "Q4_K", "m": m, "n": n, "k": k, "path": "portable", "mode": "add"}
    measure(benchmark, lambda: gemm(x, w, out, "add"), config, SOURCES)


def test_gated(benchmark):
    import cupy

    (n, k), m = WIDE, 8192
    gate, up, x = weight(Q4_K, n, k), weight(Q4_K, n, k, 1), tokens_of(m, k)
    out = cupy.empty((m, n), cupy.uint16)
    config = {"type": "Q4_K", "m": m, "n": n, "k": k, "path": "portable", "mode": "gated", "weights": 2}
    measure(benchmark, lambda: gated(x, gate, up, out), config, SOURCES)


def test_gated_in_three(benchmark):
    """The same by two products and `swiglu`: what `gated` has to beat."""
    import cupy

    from sp.ops.activations import swiglu

    (n, k), m = WIDE, 8192
    gate, up, x = weight(Q4_K, n, k), weight(Q4_K, n, k, 1), tokens_of(m, k)
    g, u = cupy.empty((m, n), cupy.uint16), cupy.empty((m, n), cupy.uint16)

    def run() -> None:
        gemm(x, gate, g, "bf16")
        gemm(x, up, u, "bf16")
        swiglu(g, u)

    config = {"type": "Q4_K", "m": m, "n": n, "k": k, "path": "portable", "mode": "gated in three", "weights": 2}
    measure(benchmark, run, config, (*SOURCES, "swiglu.cu"))


@pytest.mark.parametrize(("m", "n", "k"), [(8192, *WIDE), (8192, *NARROW), (512, *WIDE)])
def test_cublas(benchmark, m, n, k):
    import cupy

    torch = pytest.importorskip("torch")
    x, w = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    config = {"type": "BF16", "m": m, "n": n, "k": k, "path": "cublas"}
    with cupy.cuda.Stream(non_blocking=True) as stream, torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        measure(benchmark, lambda: torch.matmul(x, w.T), config, ())
