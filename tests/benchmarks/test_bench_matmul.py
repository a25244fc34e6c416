"""The prefill matmuls at the models' shapes, dequantisation inside the time, in turns with cuBLAS on the same numbers.

``pytest tests/benchmarks/test_bench_matmul.py --benchmark-enable`` appends records ``matmul`` to ``results/<gpu>/``
(or under the folder named in SP_RESULTS): m tokens, n outputs, k inputs, `type` of the weight. cuBLAS multiplies the
same tokens by the weight's values in bf16, so that a record of it carries that weight's type. All paths that the GPU
can take and cuBLAS take turns in one process, in each mode (graph replay, single eager calls, bursts of 50; see
`matmuls.MODES`). Products that do more than store bf16 say so in `epilogue`.
"""

from __future__ import annotations

import pytest
from matmuls import KERNELS, SOURCES, as_torch, cublas, floats, in_three, measure, paths, tokens_of, weight

from sp.errors import DeviceError
from sp.kernels.device import require_device
from sp.kernels.specs.matmul.epilogue import ADD, STORE
from sp.ops.matmul.packed import unpack_bf16
from sp.quant import BF16, Q4_K, Q6_K, format_by_name, kernel_formats

try:
    require_device()
    PROBLEM = ""
except DeviceError as error:
    PROBLEM = str(error)
pytestmark = [pytest.mark.skipif(bool(PROBLEM), reason=PROBLEM), pytest.mark.slow]

UP, DOWN, WIDE_HEADS, HEADS = (17408, 5120), (5120, 17408), (10240, 5120), (6144, 5120)
IQ4_XS = format_by_name("IQ4_XS")
DRAFTER = ((2048, 1024), (1024, 1024), (1024, 2048), (3072, 1024), (1024, 3072))
CASES = [
    *((Q4_K, m, *UP) for m in (64, 128, 512, 2048, 4096)),
    *((fmt, m, *UP) for fmt in kernel_formats() for m in (512, 8192) if m > 512 or fmt is not Q4_K),
    *((Q4_K, m, *DOWN) for m in (32, 64, 512)),
    *((fmt, 8192, *DOWN) for fmt in (Q4_K, Q6_K)),
    *((Q4_K, 8192, *shape) for shape in (WIDE_HEADS, HEADS)),
    *((BF16, 8192, *shape) for shape in DRAFTER),
]
"""Format, tokens, outputs, inputs."""
ROUNDED_TWICE = 1e-5
"""NMSE of two results in bf16 of sums in other orders: each rounding costs about 3e-6."""


@pytest.mark.parametrize(("fmt", "m", "n", "k"), CASES, ids=lambda v: getattr(v, "name", str(v)))
def test_matmul(benchmark, fmt, m, n, k):
    import cupy

    w, x = weight(fmt, n, k), tokens_of(m, k)
    outs = {path: cupy.zeros((m, n), cupy.uint16) for path in (*paths(), "cublas")}
    runs = {path: lambda path=path: KERNELS[path].gemm(x, w, outs[path], STORE) for path in paths()}
    values = as_torch(unpack_bf16(w))
    runs["cublas"] = cublas(x, lambda: values, outs["cublas"])
    configs = {path: {"type": fmt.name, "m": m, "n": n, "k": k, "path": path} for path in runs}
    measure(benchmark, runs, configs, SOURCES)
    want = floats(outs["cublas"])
    for path in paths():
        apart = floats(outs[path]) - want
        assert float((apart * apart).mean() / (want * want).mean()) < ROUNDED_TWICE, path


@pytest.mark.parametrize("fmt", [Q4_K, Q6_K, IQ4_XS], ids=lambda fmt: fmt.name)
def test_add(benchmark, fmt):
    """The down projection into the residual stream."""
    import cupy

    (n, k), m = DOWN, 8192
    w, x, out = weight(fmt, n, k), tokens_of(m, k), cupy.zeros((m, n), cupy.float32)
    runs = {path: lambda path=path: KERNELS[path].gemm(x, w, out, ADD) for path in paths()}
    shape = {"type": fmt.name, "m": m, "n": n, "k": k, "epilogue": "add"}
    measure(benchmark, runs, {path: {**shape, "path": path} for path in runs}, SOURCES)


@pytest.mark.parametrize(
    ("fmt", "n", "k"), [(Q4_K, *UP), (IQ4_XS, *UP), (BF16, 3072, 1024)], ids=lambda v: getattr(v, "name", str(v))
)
def test_gated(benchmark, fmt, n, k):
    """Gate and up projection with SwiGLU in one kernel, and by two products and `swiglu`."""
    import cupy

    m = 8192
    gate, up, x = weight(fmt, n, k), weight(fmt, n, k, 1), tokens_of(m, k)
    out = cupy.empty((m, n), cupy.uint16)
    shape = {"type": fmt.name, "m": m, "n": n, "k": k, "weights": 2}
    runs, configs, sources = {}, {}, {}
    for path in paths():
        one, three = f"{path}, gated", f"{path}, gated in three"
        runs[one] = lambda path=path: KERNELS[path].gated(x, gate, up, out)
        runs[three] = in_three(path, x, gate, up)
        configs[one] = {**shape, "path": path, "epilogue": "gated"}
        configs[three] = {**shape, "path": path, "epilogue": "gated in three"}
        sources |= {one: SOURCES[path], three: (*SOURCES[path], "swiglu.cu")}
    measure(benchmark, runs, configs, sources)


def test_unpack_and_cublas(benchmark):
    """What needs no kernel of ours: unpack the weight to bf16, then cuBLAS."""
    import cupy

    (n, k), m = UP, 8192
    w, x, out = weight(Q4_K, n, k), tokens_of(m, k), cupy.empty((m, n), cupy.uint16)
    path = "unpack + cublas"
    config = {"type": "Q4_K", "m": m, "n": n, "k": k, "path": path}
    runs = {path: cublas(x, lambda: as_torch(unpack_bf16(w)), out)}
    measure(benchmark, runs, {path: config}, {path: ("unpack.cu", "expand_scales.cu")})
