"""The portable prefill matmul at the 27B shapes, dequantisation inside the time, beside cuBLAS in bf16.

``pytest tests/benchmarks/test_bench_matmul_portable.py --benchmark-enable`` appends records ``matmul`` to
``results/<gpu>/`` (or under the folder named in SP_RESULTS). Each sample reads inputs that L2 does not hold.
"""

from __future__ import annotations

import pytest
from matmuls import in_three, measure, tokens_of, weight

from sp.errors import DeviceError
from sp.kernels.device import require_device
from sp.kernels.specs.matmul.epilogue import ADD, STORE
from sp.ops.matmul.gemm_portable import gated, gemm
from sp.quant import BF16, F16, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0

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


@pytest.mark.parametrize(("fmt", "m", "n", "k"), CASES, ids=lambda v: getattr(v, "name", str(v)))
def test_matmul(benchmark, fmt, m, n, k):
    import cupy

    w, x, out = weight(fmt, n, k), tokens_of(m, k), cupy.empty((m, n), cupy.uint16)
    config = {"type": fmt.name, "m": m, "n": n, "k": k, "path": "portable"}
    measure(benchmark, lambda: gemm(x, w, out, STORE), config, SOURCES)


def test_add(benchmark):
    """The down projection into the residual stream."""
    import cupy

    (n, k), m = NARROW, 8192
    w, x, out = weight(Q4_K, n, k), tokens_of(m, k), cupy.zeros((m, n), cupy.float32)
    config = {"type": "Q4_K", "m": m, "n": n, "k": k, "path": "portable", "mode": "add"}
    measure(benchmark, lambda: gemm(x, w, out, ADD), config, SOURCES)


def test_gated(benchmark):
    import cupy

    (n, k), m = WIDE, 8192
    gate, up, x = weight(Q4_K, n, k), weight(Q4_K, n, k, 1), tokens_of(m, k)
    out = cupy.empty((m, n), cupy.uint16)
    config = {"type": "Q4_K", "m": m, "n": n, "k": k, "path": "portable", "mode": "gated", "weights": 2}
    measure(benchmark, lambda: gated(x, gate, up, out), config, SOURCES)


def test_gated_in_three(benchmark):
    """The same by two products and `swiglu`: what `gated` has to beat."""
    (n, k), m = WIDE, 8192
    run = in_three(gemm, tokens_of(m, k), weight(Q4_K, n, k), weight(Q4_K, n, k, 1))
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
