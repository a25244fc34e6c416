"""What the benchmarks of prefill matmuls share: weights, inputs, cuBLAS on the same numbers, times in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from timed import keep

from sp.bench.timing import quartiles
from sp.kernels.path import native_path
from sp.kernels.specs.matmul.epilogue import STORE
from sp.models.synthetic.synthetic import random_blocks
from sp.ops.activations import swiglu
from sp.ops.matmul import gemm_portable, gemm_sm90
from sp.ops.matmul.packed import PackedWeight, pack
from sp.quant import BlockFormat

Run = Callable[[], object]
KERNELS: dict[str, Any] = {"sm_90a": gemm_sm90, "portable": gemm_portable}
SOURCES = {"sm_90a": ("gemm_sm90.cu",), "portable": ("gemm_portable.cu", "expand_scales.cu"), "cublas": ()}
"""Kernels that a record of a path rests on."""
MODES = {"graph": 10, "eager": 20, "burst": 5}
"""Ways to run and the samples of each: a captured call replayed while the device still empties its L2 cache; single
calls on an idle device, what the host does for them in the time; `BURST` calls with no pause, a sample their mean."""
BURST = 50
FLUSH = 256 << 20
"""Bytes written before a replay: four L2 caches."""


def paths() -> tuple[str, ...]:
    """Paths the present GPU can take."""
    return tuple(KERNELS) if native_path() == "sm_90a" else ("portable",)


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


def floats(bf16: Any) -> Any:
    """float32 of bf16 bits."""
    import cupy

    return (bf16.astype(cupy.uint32) << 16).view(cupy.float32)


def as_torch(bits: Any) -> Any:
    """The same memory as torch has bf16."""
    import cupy

    torch = pytest.importorskip("torch")
    return torch.as_tensor(bits.view(cupy.int16), device="cuda").view(torch.bfloat16)


def cublas(x: Any, values: Callable[[], Any], out: Any) -> Run:
    """``out = x Wᵀ`` by cuBLAS, in torch, whose calls can be captured; `values` gives W in bf16 at every call."""
    torch = pytest.importorskip("torch")
    left, into = as_torch(x), as_torch(out)
    return lambda: torch.matmul(left, values().T, out=into)


def in_three(path: str, x: Any, gate: PackedWeight, up: PackedWeight) -> Run:
    """SwiGLU of two products by three kernels: what one that does it all has to beat."""
    import cupy

    g, u = (cupy.empty((len(x), gate.shape[0]), cupy.uint16) for _ in range(2))

    def run() -> None:
        KERNELS[path].gemm(x, gate, g, STORE)
        KERNELS[path].gemm(x, up, u, STORE)
        swiglu(g, u)

    return run


def in_turns(runs: Mapping[str, Run], mode: str) -> dict[str, list[float]]:
    """Milliseconds a call in one of `MODES`, by name: one sample of each, then the next of each, so that the GPU is as
    warm for all. They have run before."""
    import cupy

    scratch = cupy.empty(FLUSH, cupy.uint8)
    runs = {name: _captured(run) for name, run in runs.items()} if mode == "graph" else runs
    calls = BURST if mode == "burst" else 1
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(MODES[mode] + 2):
        for name, run in runs.items():
            cupy.cuda.get_current_stream().synchronize()
            if mode == "graph":
                scratch.data.memset_async(number & 1, FLUSH)
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            for _ in range(calls):
                run()
            end.record()
            end.synchronize()
            if number >= 2:
                samples[name].append(float(cupy.cuda.get_elapsed_time(start, end)) / calls)
    return samples


def _captured(run: Run) -> Run:
    """A replay on the current stream. The call before the capture, on its stream, takes what memory is kept for it."""
    import cupy

    torch = pytest.importorskip("torch")
    side = cupy.cuda.Stream(non_blocking=True)
    with side, torch.cuda.stream(torch.cuda.ExternalStream(side.ptr)):
        run()
        side.synchronize()
        side.begin_capture()
        run()
        graph = side.end_capture()
    return lambda: graph.launch(cupy.cuda.get_current_stream())


def measure(
    benchmark: Any,
    runs: Mapping[str, Run],
    configs: Mapping[str, Mapping[str, Any]],
    sources: Mapping[str, tuple[str, ...]],
) -> None:
    """Time all of `runs` in turns, in every mode, and keep a record of each and mode.

    Parameters
    ----------
    benchmark : fixture
        Where it is off, every run is called once, which shows whether it works.
    runs, configs, sources : mappings by name
        What to call, its configuration but for mode and math, and the kernels it rests on.
    """
    import cupy

    def once() -> None:
        for run in runs.values():
            run()
        cupy.cuda.get_current_stream().synchronize()

    once()
    if not benchmark.enabled:
        return
    for mode in MODES:
        for name, samples in in_turns(runs, mode).items():
            config = {**configs[name], "mode": mode, "math": "bf16"}
            ms = quartiles(samples)
            flops = 2 * config["m"] * config["n"] * config["k"] * config.get("weights", 1)
            metrics = {"tflops": flops / ms.median / 1e9, "ms": ms.median, "ms_low": ms.low, "ms_high": ms.high}
            keep("matmul", config, metrics, samples, sources[name])
            benchmark.extra_info[f"{name} {mode}"] = round(metrics["tflops"], 1)
            print(f"{config} {metrics['tflops']:.1f} TFLOP/s {ms.median:.4f} ms")
    benchmark.pedantic(once, rounds=1)
