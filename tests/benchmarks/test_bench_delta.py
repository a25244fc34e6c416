"""What lies between the matrices of a recurrent layer, at the 27B sizes, and the choice of a token.

``pytest tests/benchmarks/test_bench_delta.py --benchmark-enable`` appends records ``delta_mixer`` (a prompt on both
paths; a decoding step as one of 48 layers with states of their own, in a CUDA graph), ``elementwise`` and ``sample``
to ``results/<gpu>/`` (or under the folder named in SP_RESULTS). ``floor_us`` is each input read and each output written
once at 4.2 TB/s, what a copy reaches on an H200. Each sample reads inputs that L2 does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from timed import keep, timed

from sp.bench.timing import mode_of, quartiles
from sp.errors import DeviceError
from sp.kernels import forced_path
from sp.kernels.device import require_device
from sp.kernels.path import PATHS, native_path
from sp.ops.activations import swiglu
from sp.ops.delta.delta_mixer import DeltaParams, delta_mixer
from sp.ops.norms import rms_norm
from sp.ops.sampling.sample import Sampling, argmax, sample

try:
    require_device()
    PROBLEM = ""
except DeviceError as error:
    PROBLEM = str(error)
pytestmark = [pytest.mark.skipif(bool(PROBLEM), reason=PROBLEM), pytest.mark.slow]

KEY_HEADS, VALUE_HEADS, HEAD_DIM, LAYERS = 16, 48, 128, 48
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * HEAD_DIM
INNER = VALUE_HEADS * HEAD_DIM
SIZES = {"key_heads": KEY_HEADS, "value_heads": VALUE_HEADS, "head_dim": HEAD_DIM}
COPY = 4.2e12
DRAWS = {"argmax": None, "all": Sampling(), "top_p": Sampling(0.7, 0, 0.9), "top_k": Sampling(0.7, 20, 0.9)}


def normal(*shape: int, bf16: bool = False) -> Any:
    import cupy

    values = cupy.random.default_rng(len(shape) + shape[0]).standard_normal(shape, cupy.float32)
    return (values.view(cupy.uint32) >> 16).astype(cupy.uint16) if bf16 else values


def layer(tokens: int) -> Callable[[], Any]:
    """A layer with its own inputs and memory, ready to run."""
    qkv, z = normal(tokens, CHANNELS, bf16=True), normal(tokens, INNER, bf16=True)
    alpha, beta = normal(tokens, VALUE_HEADS), normal(tokens, VALUE_HEADS)
    small = normal(CHANNELS, 4), -abs(normal(VALUE_HEADS)), normal(VALUE_HEADS), normal(HEAD_DIM)
    params = DeltaParams(*small, 1e-6, KEY_HEADS, VALUE_HEADS, HEAD_DIM)
    memory = SimpleNamespace(conv=normal(3, CHANNELS), recurrent=normal(VALUE_HEADS, HEAD_DIM, HEAD_DIM))
    return lambda: delta_mixer(qkv, z, alpha, beta, params, memory, tokens)


def measure(
    benchmark: Any,
    bench: str,
    run: Callable[[], object],
    config: dict[str, Any],
    sources: tuple[str, ...],
    *,
    graph: bool = False,
    parts: int = 1,
    moved: int = 0,
) -> None:
    """Time it and keep the record."""
    samples = [1000 * ms / parts for ms in timed(benchmark, run, repeats=15, graph=graph)]
    if not samples:
        return
    us = quartiles(samples)
    metrics = {"us": us.median, "us_low": us.low, "us_high": us.high}
    if moved:
        metrics |= {"floor_us": 1e6 * moved / COPY, "gb_s": moved / us.median / 1000}
    benchmark.extra_info.update(config | metrics)
    keep(bench, {"path": "portable", **config, "mode": mode_of(graph)}, metrics, samples, sources)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("tokens", [64, 1024, 8192])
def test_prompt(benchmark, tokens, path):
    if path == "sm_90a" and native_path() != path:
        pytest.skip("needs compute capability 9.0")
    scan = "delta_scan_sm90.cu" if path == "sm_90a" else "delta_scan.cu"
    config = SIZES | {"tokens": tokens, "path": path, "part": "prompt"}
    moved = 2 * tokens * (CHANNELS + 2 * INNER) + 8 * VALUE_HEADS * HEAD_DIM**2
    with forced_path(path):
        sources = ("causal_conv1d.cu", "delta_chunk.cu", scan, "gated_norm.cu")
        measure(benchmark, "delta_mixer", layer(tokens), config, sources, moved=moved)


@pytest.mark.parametrize("tokens", [1, 4, 16])
def test_decode(benchmark, tokens):
    layers = [layer(tokens) for _ in range(LAYERS)]
    config = SIZES | {"tokens": tokens, "layers": LAYERS, "part": "decode"}

    def run() -> list[Any]:
        return [one() for one in layers]

    moved = 8 * VALUE_HEADS * HEAD_DIM**2
    measure(benchmark, "delta_mixer", run, config, ("delta_recurrent.cu",), graph=True, parts=LAYERS, moved=moved)


def test_rms_norm(benchmark):
    x, weight = normal(8192, 5120), normal(5120)
    config = {"op": "rms_norm", "shape": [8192, 5120]}
    measure(benchmark, "elementwise", lambda: rms_norm(x, weight, 1e-6), config, ("rms_norm.cu",), moved=6 * x.size)


def test_swiglu(benchmark):
    gate, up = normal(8192, 17408, bf16=True), normal(8192, 17408, bf16=True)
    config = {"op": "swiglu", "shape": [8192, 17408]}
    measure(benchmark, "elementwise", lambda: swiglu(gate, up), config, ("swiglu.cu",), moved=6 * gate.size)


@pytest.mark.parametrize("draw", DRAWS)
def test_sample(benchmark, draw):
    """Logits N(0, 3): about 500 tokens hold nine tenths of the weight at temperature 0.7."""
    import cupy

    logits = 3 * normal(1, 248320)
    seed, step = cupy.zeros(1, np.int64), cupy.zeros(1, np.int64)
    options = DRAWS[draw]

    def run() -> Any:
        return argmax(logits) if options is None else sample(logits, options, seed, step)

    measure(benchmark, "sample", run, {"draw": draw, "vocab": logits.size}, ("sample.cu",), graph=True)
