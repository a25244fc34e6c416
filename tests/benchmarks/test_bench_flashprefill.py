"""One FlashPrefill layer at the models' shapes: mean keys, scores and lists, attention, and all three.

``pytest tests/benchmarks/test_bench_flashprefill.py --benchmark-enable`` appends records ``flashprefill_layer`` to
``results/<gpu>/`` (or under the folder named in SP_RESULTS). Keys of a block are one of 64 N(0, 1) centres, drawn for
each block and KV head, plus N(0, 1); queries likewise for each query head.
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sp.bench.cases import clustered
from sp.bench.families.attention import live_flops, score_flops
from sp.bench.record import append, make_record
from sp.bench.timing import quartiles, time_kernel
from sp.errors import DeviceError
from sp.kernels.path import PATHS, forced_path, native_path
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity

try:
    NATIVE = native_path()
except DeviceError:
    NATIVE = ""
pytestmark = [pytest.mark.skipif(not NATIVE, reason="needs a GPU"), pytest.mark.slow]

HEADS = {128: (16, 8), 256: (24, 4)}
V2 = FlashPrefill(0.1, share="group", visibility="first")
CASES = [
    (128, 2048, FlashPrefill(0.1)),
    (128, 8192, FlashPrefill(0.1)),
    (128, 32768, FlashPrefill(0.1)),
    (128, 131072, FlashPrefill(0.1)),
    (128, 131072, FlashPrefill(0.85)),
    (128, 131072, V2),
    (128, 131072, replace(V2, mean_correction=True)),
    (128, 131072, TopDensity(0.05)),
    (256, 131072, FlashPrefill(0.1)),
]
SOURCES = {"sm_90a": "attention_sm90.cu", "portable": "attention_portable.cu"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("d", "tokens", "selector"), CASES, ids=lambda value: str(value))
def test_layer(benchmark, d, tokens, selector, path):
    if path == "sm_90a" and path != NATIVE:
        pytest.skip("needs compute capability 9.0")
    with forced_path(path):
        measure(benchmark, d, tokens, selector, path)


def measure(benchmark: Any, d: int, tokens: int, selector: FlashPrefill | TopDensity, path: str) -> None:
    """Time the stages and the whole with events, and keep the record."""
    import cupy

    from sp.ops.attention.attention import prefill_attention
    from sp.ops.sparse.block_lists import density
    from sp.ops.sparse.block_means import block_means
    from sp.ops.sparse.flashprefill import select_on_device
    from sp.ops.sparse.sparse_attention import sparse_attention

    heads, kv_heads = HEADS[d]
    q, at = clustered(tokens, heads, kv_heads, d)
    scale, repeats = d**-0.5, 9
    means = block_means(at.k, at.table, tokens, at.fmt)
    lists = select_on_device(selector, q, means, tokens, scale)
    counts = lists.counts.get().astype(np.int64)
    stages = {
        "ms": lambda: sparse_attention(q, at, scale, selector),
        "ms_means": lambda: block_means(at.k, at.table, tokens, at.fmt),
        "ms_score": lambda: select_on_device(selector, q, means, tokens, scale),
        "ms_forward": lambda: prefill_attention(q, at, scale, lists),
    }

    def once() -> None:
        stages["ms"]()
        cupy.cuda.get_current_stream().synchronize()

    once()
    if not benchmark.enabled:
        return
    samples = {name: time_kernel(run, repeats) for name, run in stages.items()}
    benchmark.pedantic(once, rounds=1)
    metrics: dict[str, float] = {name: quartiles(times).median for name, times in samples.items()}
    whole = quartiles(samples["ms"])
    metrics |= {
        "ms_low": whole.low,
        "ms_high": whole.high,
        "ms_select": 0.0,  # the launch that scores lists too
        "density": density(counts),
        "tflops_live": live_flops(counts, d) / metrics["ms_forward"] / 1e9,
        "tflops_score": score_flops(tokens, heads, d) / metrics["ms_score"] / 1e9,
    }
    shape = {"head_dim": d, "q_heads": heads, "kv_heads": kv_heads, "tokens": tokens, "kv": "f16", "path": path}
    config = shape | {"mode": "queued", "variant": type(selector).__name__, "alpha": None, **asdict(selector)}
    benchmark.extra_info.update(config | metrics)
    print(f"{path} d {d} {tokens} {selector}: " + ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
    sources = ["block_means.cu", "block_select_sm90.cu" if path == "sm_90a" else "block_select.cu", SOURCES[path]]
    if config.get("mean_correction"):
        sources.append("mean_correction.cu")
    record = make_record("flashprefill_layer", config, metrics, samples["ms"], sources)
    append(record, Path(os.environ.get("SP_RESULTS", "results")))
