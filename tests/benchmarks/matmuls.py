"""What the benchmarks of prefill matmuls share: weights, inputs, the three-step SwiGLU, and the record."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from timed import keep as keep_record
from timed import timed

from sp.bench.timing import spread
from sp.kernels.specs.matmul.epilogue import STORE, Epilogue
from sp.models.synthetic.random_blocks import random_blocks
from sp.ops.activations import swiglu
from sp.ops.matmul.packed import PackedWeight, pack
from sp.quant import BlockFormat

Gemm = Callable[[Any, PackedWeight, Any, Epilogue], None]


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


def in_three(gemm: Gemm, x: Any, gate: PackedWeight, up: PackedWeight) -> Callable[[], None]:
    """SwiGLU of two products by three kernels: what one that does it all has to beat."""
    import cupy

    g, u = (cupy.empty((len(x), gate.shape[0]), cupy.uint16) for _ in range(2))

    def run() -> None:
        gemm(x, gate, g, STORE)
        gemm(x, up, u, STORE)
        swiglu(g, u)

    return run


def measure(benchmark: Any, run: Callable[[], object], config: dict[str, Any], sources: tuple[str, ...]) -> None:
    """Time it and keep the record."""
    if samples := timed(benchmark, run, repeats=15):
        benchmark.extra_info.update(config | keep(config, samples, sources))


def keep(config: dict[str, Any], samples: list[float], sources: tuple[str, ...]) -> dict[str, float]:
    """Append the record of milliseconds; its metrics."""
    ms = spread(samples)
    flops = 2 * config["m"] * config["n"] * config["k"] * config.get("weights", 1)
    metrics = {"tflops": flops / ms.median / 1e9, "ms": ms.median, "ms_low": ms.low, "ms_high": ms.high}
    keep_record("matmul", config, metrics, samples, sources)
    return metrics
