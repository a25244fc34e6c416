"""The matrix products of decoding, as the 27B model makes them: 64 layers with weights of their own, in a CUDA graph.

``pytest tests/benchmarks/test_bench_decode_matmul.py --benchmark-enable`` appends records ``decode_matmul`` to
``results/<gpu>/`` (or under the folder named in SP_RESULTS). ``us`` is the time of one launch with all that lies
between launches, ``gb_s`` the weight bytes over it. Parts: qkv (norm, then attn_qkv, attn_gate, alpha and beta of a
recurrent layer), out (adds to the residual), gated (norm, gate and up, SwiGLU), down (adds), step (these four in turn),
head (norm, logits). Half the layers hold attn_qkv and ffn_down in Q6_K, as Q4_K_M files do.
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
from sp.bench.timing import quartiles, time_kernel
from sp.errors import DeviceError
from sp.kernels.device import require_device
from sp.kernels.path import native_path

try:
    require_device()
    DEVICE = True
except DeviceError:
    DEVICE = False
pytestmark = [pytest.mark.skipif(not DEVICE, reason="needs a GPU"), pytest.mark.slow]

HIDDEN, FFN, INNER, CONV, HEADS, VOCAB, LAYERS = 5120, 17408, 6144, 10240, 48, 248320, 64
EPS = 1e-6
SHAPES = {
    "qkv": (CONV, HIDDEN),
    "z": (INNER, HIDDEN),
    "alpha": (HEADS, HIDDEN),
    "beta": (HEADS, HIDDEN),
    "out": (HIDDEN, INNER),
    "gate": (FFN, HIDDEN),
    "up": (FFN, HIDDEN),
    "down": (HIDDEN, FFN),
}
PARTS = {
    "qkv": ("qkv", "z", "alpha", "beta"),
    "out": ("out",),
    "gated": ("gate", "up"),
    "down": ("down",),
    "step": tuple(SHAPES),
}


def random_weight(name: str, six: bool, shape: tuple[int, int]) -> Any:
    """Random codes; scales such that values are near 0.02, as in a trained model."""
    import cupy

    from sp.ops.matmul.packed import allocate
    from sp.quant import Q4_K, Q6_K

    w = allocate(name, Q6_K if six else Q4_K, shape)
    pattern = cupy.random.default_rng(len(name)).integers(0, 256, 1 << 22, np.uint8)
    for start in range(0, w.nbytes, len(pattern)):
        w.data[start : start + len(pattern)] = pattern[: w.nbytes - start]
    if six:
        w.plane("deltas").view(np.float16)[:] = 1e-4
    else:
        scales = w.plane("scales").view(np.float16).reshape(-1, 8)
        scales[:, 0], scales[:, 1] = 1e-3, 8e-3
    return w


@cache
def layers() -> list[dict[str, Any]]:
    return [
        {name: random_weight(name, i % 2 == 1 and name in ("qkv", "down"), shape) for name, shape in SHAPES.items()}
        for i in range(LAYERS)
    ]


@cache
def head() -> Any:
    return random_weight("output", True, (VOCAB, HIDDEN))


def launches(part: str, tokens: int) -> tuple[Callable[[], None], int, int]:
    """What to time, its launches and the bytes of weights it reads."""
    import cupy

    from sp.ops.matmul.project import gated_project, project, project_add

    x = cupy.random.default_rng(0).standard_normal((tokens, HIDDEN), np.float32)
    norm = cupy.ones(HIDDEN, np.float32), EPS
    if part == "head":
        return lambda: project(x, (head(),), norm, f32=(True,)) and None, 1, head().nbytes
    inner = cupy.full((tokens, INNER), 0x3C00, np.uint16)
    wide = cupy.full((tokens, FFN), 0x3C00, np.uint16)
    names = PARTS[part]

    def run() -> None:
        for layer in layers():
            if "qkv" in names:
                mixed = tuple(layer[name] for name in PARTS["qkv"])
                project(x, mixed, norm, f32=(False, False, True, True))
            if "out" in names:
                project_add(x, inner, layer["out"])
            if "gate" in names:
                gated_project(x, layer["gate"], layer["up"], norm)
            if "down" in names:
                project_add(x, wide, layer["down"])

    count = sum(part in (name, "step") for name in ("qkv", "out", "gated", "down")) * LAYERS
    return run, count, sum(layer[name].nbytes for layer in layers() for name in names)


def measure(benchmark: Any, part: str, tokens: int, **more: object) -> None:
    import cupy

    if not benchmark.enabled:
        pytest.skip("17 GB of weights are made for measurements only")
    run, count, nbytes = launches(part, tokens)
    samples = time_kernel(run, repeats=5, graph=True, warmup=1)
    benchmark.pedantic(lambda: (run(), cupy.cuda.get_current_stream().synchronize()), rounds=1)
    ms = quartiles(samples)
    config = {"part": part, "tokens": tokens, "layers": 1 if part == "head" else LAYERS, "path": native_path()}
    config |= {"mode": "graph", **more}
    metrics = {"ms": ms.median, "us": 1e3 * ms.median / count, "gb_s": nbytes / ms.median / 1e6}
    benchmark.extra_info.update(config | metrics)
    print(f"{config} {metrics['us']:.1f} us {metrics['gb_s']:.0f} GB/s")
    record = make_record("decode_matmul", config, metrics, samples)
    append(record, Path(os.environ.get("SP_RESULTS", "results")))


@pytest.mark.parametrize("part", [*PARTS, "head"])
@pytest.mark.parametrize("tokens", [1, 8, 16, 24, 32, 48, 64])
def test_decode_matmul(benchmark: Any, part: str, tokens: int) -> None:
    measure(benchmark, part, tokens)


@pytest.mark.parametrize("part", [*PARTS, "head"])
@pytest.mark.parametrize("layout", [(8, 2), (10, 2), (12, 2)])
def test_layouts(benchmark: Any, part: str, layout: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """One token; a layout that does not fit a part's inputs gives way to the first one."""
    from sp.kernels.specs.matmul.gemv import Layout
    from sp.ops.matmul import gemv

    monkeypatch.setitem(gemv.LAYOUTS, 1, (Layout(*layout), Layout(8, 3)))
    monkeypatch.setattr(gemv, "_first", lambda *product: ())
    gemv._variant.cache_clear()
    try:
        measure(benchmark, part, 1, layout="{} warps x {} groups".format(*layout))
    finally:
        gemv._variant.cache_clear()
