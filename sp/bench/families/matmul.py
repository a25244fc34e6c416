"""Packed weights times bf16 tokens, dequantisation included, and cuBLAS for comparison, which CuPy cannot capture in a
graph; 8-bit products of a prefill, and the rounding of their operands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sp.bench.cases import Case, bf16, family, normal, paths
from sp.kernels import current_path, import_cupy
from sp.kernels.specs.matmul.epilogue import STORE, STORE_F32, SWIGLU, Epilogue
from sp.models.synthetic.synthetic import random_blocks
from sp.ops.byte_rows.loud import SAMPLE, loud_channels
from sp.ops.byte_rows.rows import ByteKind, round_inputs
from sp.ops.matmul import gemm_bytes_portable, gemm_bytes_sm90
from sp.ops.matmul.byte_weights import loud_columns, round_weights
from sp.ops.matmul.packed import pack
from sp.ops.matmul.project import project
from sp.ops.matmul.registry import Product, prefill_kernel
from sp.quant import BF16, Q4_K, Q6_K, BlockFormat

OUT, IN = 17408, 5120
TOKENS = (1, 8, 16, 32, 64, 512, 8192)


@family("project")
def cases() -> Iterator[Case]:
    """Yield the widest product of the 27B shape, from one token to a prefill chunk."""
    cupy = import_cupy()
    for fmt in (Q4_K, Q6_K, BF16):
        weight = random_weight(fmt, OUT, IN)
        for tokens in TOKENS:
            x = bf16(tokens, IN)
            config = {"type": fmt.name, "m": tokens, "n": OUT, "k": IN}
            moved = weight.data.nbytes + tokens * (OUT + IN) * 2
            for path in paths():
                run = partial(project, x, (weight,))
                yield Case(config, path, run, bytes=moved, flops=2 * tokens * OUT * IN, graph=True)
    for tokens in TOKENS:
        a = normal(tokens, IN).astype(np.float16)
        b = normal(IN, OUT).astype(np.float16)
        config = {"type": "F16", "m": tokens, "n": OUT, "k": IN}
        yield Case(config, "cublas", partial(cupy.matmul, a, b), bytes=b.nbytes, flops=2 * tokens * OUT * IN)


def random_weight(fmt: BlockFormat, out: int, width: int) -> Any:
    """Draw a packed weight (out, width) of random blocks on the device; 256 distinct rows, repeated."""
    blocks = random_blocks(np.random.default_rng(0), fmt, 256 * width // fmt.block_size, 0.02)
    rows = import_cupy().asarray(blocks.reshape(256, -1))
    return pack("bench", fmt, (out, width), import_cupy().tile(rows, (out // 256, 1)))


LONG = 8192
SHAPES: tuple[tuple[int, int, Epilogue], ...] = ((OUT, IN, STORE), (OUT, IN, SWIGLU), (IN, OUT, STORE_F32))
"""Outputs, inputs and epilogue of the widest products of the 27B shape; SWIGLU has two weights."""
CHUNK = 16384
NARROW: tuple[tuple[int, int, Epilogue], ...] = (
    (4096, 1024, STORE),
    (3072, 1024, SWIGLU),
    (1024, 2048, STORE_F32),
    (1024, 3072, STORE_F32),
)
"""The same for a 0.6B drafter on a long prompt: queries, keys and values in one product; gate and up; output; down."""


FEW: tuple[tuple[int, int, int, Epilogue], ...] = (
    (512, OUT, IN, SWIGLU),
    (512, IN, OUT, STORE_F32),
    (512, OUT // 4, IN, SWIGLU),
    (512, IN, OUT // 4, STORE_F32),
    (512, IN // 2, IN, STORE),
    (512, IN, 1536, STORE_F32),
    (3328, OUT // 4, IN, SWIGLU),
    (3328, IN, OUT // 4, STORE_F32),
)  # with the tokens first: a short prompt, and chunks of one of four GPUs that share a target


@family("matmul_bytes")
def byte_cases() -> Iterator[Case]:
    """Yield 8-bit products without rounding, and separately the rounding of inputs and weights and the search for
    outlier channels."""
    here = current_path()
    for rows, width, epilogue in SHAPES:
        yield from _products(LONG, rows, width, epilogue, tuple(dict.fromkeys((here, "portable"))))
        if epilogue is not STORE:
            yield from _roundings(LONG, rows, width, 1 + (epilogue is SWIGLU))
    for shape in FEW:
        yield from _products(*shape, (here,))
    for rows, width, epilogue in NARROW if here == "sm_90a" else ():
        yield from _products(CHUNK, rows, width, epilogue, (here,))
        yield from _roundings(CHUNK, rows, width, 1 + (epilogue is SWIGLU))


def _with_outliers(tokens: int, width: int) -> Any:
    """Return inputs of which eight channels are outliers, as in real models: these have a product of their own."""
    x = bf16(tokens, width)
    x[:, 3 : width : width // 8] += 6 << 7  # the exponent: 64 times as large
    return x


def _products(tokens: int, rows: int, width: int, epilogue: Epilogue, paths: tuple[str, ...]) -> Iterator[Case]:
    kinds = {"sm_90a": (gemm_bytes_sm90, tuple(ByteKind)), "portable": (gemm_bytes_portable, (ByteKind.INT8,))}
    weights = tuple(random_weight(Q4_K, rows, width) for _ in range(1 + (epilogue is SWIGLU)))
    x = _with_outliers(tokens, width)
    out = import_cupy().empty((tokens, rows), np.float32 if epilogue is STORE_F32 else np.uint16)
    loud = loud_channels(x)
    shape: dict[str, Any] = {"type": "Q4_K", "m": tokens, "n": rows, "k": width, "epilogue": epilogue.name.lower()}
    flops = 2 * tokens * rows * width * len(weights)
    moved = tokens * (width + rows * out.itemsize) + len(weights) * rows * width
    for path in paths:
        product = Product(x, weights, (out,), STORE if epilogue is STORE_F32 else epilogue)
        plain = partial(prefill_kernel(path).launch, product)
        yield Case(shape | {"math": "bf16"}, path, plain, bytes=moved + tokens * width, flops=flops, graph=True)
        module, these = kinds[path]
        for kind in these:
            inputs = round_inputs(x, kind, loud)
            rounded = replace(round_weights(weights, kind), loud=loud_columns(weights, loud))
            run = partial(module.gemm, inputs, rounded, loud, (out,), epilogue)
            config = shape | {"math": "int8" if kind is ByteKind.INT8 else "fp8"}
            yield Case(config, path, run, bytes=moved, flops=flops, graph=True)


def _roundings(tokens: int, rows: int, width: int, count: int) -> Iterator[Case]:
    weights, x = tuple(random_weight(Q4_K, rows, width) for _ in range(count)), _with_outliers(tokens, width)
    loud = loud_channels(x)
    for name, run, traffic in (
        ("loud channels", partial(loud_channels, x), 2 * min(tokens, SAMPLE) * width),
        ("round inputs", partial(round_inputs, x, ByteKind.INT8, loud), 3 * tokens * width),
        ("round weights", partial(round_weights, weights, ByteKind.INT8), 5.5625 * count * rows * width),
    ):
        sizes = {"m": tokens, "n": rows * count, "k": width}
        yield Case({"op": name, "type": "Q4_K"} | sizes, current_path(), run, bytes=traffic, graph=True)
