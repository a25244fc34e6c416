"""The Hopper prefill matmul at the models' shapes, dequantisation and scale expansion inside the time, beside peers.

Peers in the same run: cuBLAS in bf16, and unpacking the weight to bf16 followed by cuBLAS.
``pytest tests/benchmarks/test_bench_matmul.py --benchmark-enable`` appends records ``matmul`` to ``results/<gpu>/``
(or under the folder named in SP_RESULTS): m tokens, n outputs, k inputs. Samples read inputs that L2 does not hold.
Single calls are shorter than the card's power control; records with ``steady`` are of calls back to back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from matmuls import in_three, keep, measure, tokens_of, weight

from sp.errors import DeviceError
from sp.kernels.path import native_path
from sp.kernels.specs.matmul.epilogue import ADD, STORE
from sp.ops.matmul.gemm_sm90 import gated, gemm
from sp.ops.matmul.packed import unpack_bf16
from sp.quant import BF16, Q4_K, Q5_K, Q6_K, Q8_0, BlockFormat

try:
    HOPPER = native_path() == "sm_90a"
except DeviceError:
    HOPPER = False
pytestmark = [pytest.mark.skipif(not HOPPER, reason="needs compute capability 9.0"), pytest.mark.slow]

UP, DOWN, WIDE_HEADS, HEADS = (17408, 5120), (5120, 17408), (10240, 5120), (6144, 5120)
DRAFTER = ((2048, 1024), (1024, 1024), (1024, 2048), (3072, 1024), (1024, 3072))
CUBLAS = None
CASES = [
    *((fmt, m, *UP) for m in (128, 512, 2048, 4096) for fmt in (Q4_K, CUBLAS)),
    *((fmt, 8192, *UP) for fmt in (Q4_K, CUBLAS, Q5_K, Q6_K, Q8_0, BF16)),
    *((fmt, 512, *DOWN) for fmt in (Q4_K, CUBLAS)),
    *((fmt, 8192, *DOWN) for fmt in (Q4_K, CUBLAS, Q6_K)),
    *((fmt, 8192, *shape) for shape in (WIDE_HEADS, HEADS) for fmt in (Q4_K, CUBLAS)),
    *((fmt, 8192, *shape) for shape in DRAFTER for fmt in (BF16, CUBLAS)),
]
"""A format or cuBLAS, tokens, outputs, inputs; peers follow at once, so that the card is as warm for both."""
ROUNDS, ROUND_MS = 5, 100.0
SOURCES = ("gemm_sm90.cu", "expand_scales.cu")


def back_to_back(run: Callable[[], object], calls: int) -> float:
    """Milliseconds a call."""
    import cupy

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / calls


def cublas(m: int, n: int, k: int) -> Callable[[], object]:
    """The product of random bf16 matrices, in torch."""
    torch = torch_products()
    x, w = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    out, wt = torch.empty((m, n), device="cuda", dtype=torch.bfloat16), w.T
    return lambda: torch.matmul(x, wt, out=out)


def ours(fmt: BlockFormat, m: int, n: int, k: int) -> Callable[[], object]:
    import cupy

    w, x, out = weight(fmt, n, k), tokens_of(m, k), cupy.empty((m, n), cupy.uint16)
    return lambda: gemm(x, w, out, STORE)


def torch_products() -> Any:
    """torch, working on CuPy's stream."""
    import cupy

    torch = pytest.importorskip("torch")
    stream = cupy.cuda.get_current_stream()
    if stream.ptr:
        torch.cuda.set_stream(torch.cuda.ExternalStream(stream.ptr))
    return torch


@pytest.mark.parametrize(
    ("fmt", "m", "n", "k"), CASES, ids=lambda v: "cublas" if v is CUBLAS else getattr(v, "name", str(v))
)
def test_matmul(benchmark, fmt, m, n, k):
    if fmt is CUBLAS:
        measure(benchmark, cublas(m, n, k), {"type": "BF16", "m": m, "n": n, "k": k, "path": "cublas"}, ())
    else:
        config = {"type": fmt.name, "m": m, "n": n, "k": k, "path": "sm_90a"}
        measure(benchmark, ours(fmt, m, n, k), config, SOURCES)


def test_steady(benchmark):
    """In turns with cuBLAS, a tenth of a second each, once the card is warm."""
    (n, k), m = UP, 8192
    shape = {"m": m, "n": n, "k": k, "steady": True}
    runs = {"sm_90a": ours(Q4_K, m, n, k), "cublas": cublas(m, n, k)}
    if not benchmark.enabled:
        return
    calls = {path: max(1, int(ROUND_MS / back_to_back(run, 3))) for path, run in runs.items()}
    samples: dict[str, list[float]] = {path: [] for path in runs}
    for number in range(ROUNDS + 2):
        for path, run in runs.items():
            ms = back_to_back(run, calls[path])
            if number >= 2:
                samples[path].append(ms)
    keep({"type": "Q4_K", "path": "sm_90a", **shape}, samples["sm_90a"], SOURCES)
    keep({"type": "BF16", "path": "cublas", **shape}, samples["cublas"], ())
    benchmark.pedantic(runs["sm_90a"], rounds=1)


@pytest.mark.parametrize(("fmt", "n", "k"), [(Q4_K, *DOWN), (Q6_K, *DOWN)])
def test_add(benchmark, fmt, n, k):
    """The down projection into the residual stream."""
    import cupy

    w, x, out = weight(fmt, n, k), tokens_of(8192, k), cupy.zeros((8192, n), cupy.float32)
    config = {"type": fmt.name, "m": 8192, "n": n, "k": k, "path": "sm_90a", "mode": "add"}
    measure(benchmark, lambda: gemm(x, w, out, ADD), config, SOURCES)


@pytest.mark.parametrize(("fmt", "m", "n", "k"), [(Q4_K, 8192, *UP), (BF16, 8192, 3072, 1024)])
@pytest.mark.parametrize("form", ["gated", "gated in three"])
def test_gated(benchmark, fmt, m, n, k, form):
    """Gate and up projection with SwiGLU in one kernel, and by two products and `swiglu`."""
    import cupy

    gate, up, x = weight(fmt, n, k), weight(fmt, n, k, 1), tokens_of(m, k)
    out = cupy.empty((m, n), cupy.uint16)
    config = {"type": fmt.name, "m": m, "n": n, "k": k, "path": "sm_90a", "mode": form, "weights": 2}
    run = in_three(gemm, x, gate, up) if form == "gated in three" else lambda: gated(x, gate, up, out)
    measure(benchmark, run, config, SOURCES if form == "gated" else (*SOURCES, "swiglu.cu"))


def test_unpack_and_cublas(benchmark):
    """What needs no kernel of ours: unpack the weight to bf16, then cuBLAS."""
    import cupy

    torch = torch_products()
    (n, k), m, fmt = UP, 8192, Q4_K
    w, x = weight(fmt, n, k), torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    out = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        values = torch.as_tensor(unpack_bf16(w).view(cupy.int16), device="cuda").view(torch.bfloat16)
        torch.matmul(x, values.T, out=out)

    config = {"type": fmt.name, "m": m, "n": n, "k": k, "path": "unpack + cublas"}
    measure(benchmark, run, config, ("unpack.cu", "expand_scales.cu"))
