"""Products of few hundred tokens in int8 with kept weights beside BF16, by shape of tile, on the GPU.

    python experiments/eight_bit/short_products.py        # half a minute on an H200; --tokens 512 for a few seconds

Products of a layer of the 27B shape (Q4_K), each as a CUDA graph with its inputs out of the L2 cache, in microseconds:

`bf16`    the path's own product
`int8`    with all that comes with it: loud channels, rounded inputs, what is gathered of the kept weights; q, k and v,
          and the projections of a recurrence, in one launch where these are kept
`alone`   the products without that, by tokens of a tile, blocks of a cluster and how many clusters there are at most

The last row of each length is the sum over the layers that are in int8: 46 with a recurrence, 16 with attention.
Where `int8` is less than `bf16` there, kept weights pay; a model multiplies fewer tokens than
`sp.ops.byte_rows.rows.ROUNDED_TOKENS` in BF16.
"""

from __future__ import annotations

import argparse
import ctypes
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sp.bench.families.inputs import bf16
from sp.bench.families.matmul import random_weight
from sp.bench.timing import spread, time_kernel
from sp.kernels import current_path, import_cupy
from sp.kernels.device import current_device
from sp.kernels.pdl import _Attribute, _Config
from sp.kernels.specs.matmul.epilogue import ADD, STORE, SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_bytes import GEMM_BYTES_SM90, INT8, variant
from sp.ops.byte_rows.kept import keep, kept_together
from sp.ops.byte_rows.loud import loud_channels
from sp.ops.byte_rows.rows import ByteKind, round_inputs
from sp.ops.matmul import gemm_bytes_portable, gemm_bytes_sm90
from sp.ops.matmul.byte_products import in_launches
from sp.ops.matmul.registry import Product, kernels, prefill_kernel
from sp.quant import Q4_K, Math

CLUSTER_DIMENSION = 4
"""Of CUlaunchAttributeID."""
TOKENS = (128, 256, 384, 512, 768, 1024, 2048)
PRODUCTS: dict[str, tuple[tuple[int, ...], int, Epilogue, int]] = {
    "recurrence in": ((10240, 6144), 5120, STORE, 46),
    "attention in": ((12288, 1024, 1024), 5120, STORE, 16),
    "mixer out": ((5120,), 6144, ADD, 62),
    "gate and up": ((17408, 17408), 5120, SWIGLU, 62),
    "down": ((5120,), 17408, ADD, 62),
}
"""Outputs of the weights, inputs, epilogue, and layers that have such a product."""
TILES = tuple(
    (tokens, cluster, most) for tokens in (192, 128) for cluster, most in ((2, 66), (4, 33), (4, 32), (4, 30))
)
"""Tokens of a tile, blocks of a cluster, clusters at most: more than a card holds at once would run behind others."""


def fitting(cluster: int) -> int:
    """Clusters of so many blocks that the card holds at once, as the driver counts them."""
    defines = variant(INT8, STORE, 192, cluster)
    function, (threads,), shared = GEMM_BYTES_SM90._function(defines, current_device())
    size = _Attribute(CLUSTER_DIMENSION, 0, (ctypes.c_int * 16)(cluster, 1, 1))
    grid, block = (ctypes.c_uint * 3)(120 * cluster, 1, 1), (ctypes.c_uint * 3)(threads, 1, 1)
    config, found = _Config(grid, block, shared, None, ctypes.pointer(size), 1), ctypes.c_int()
    count = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveClusters
    status = count(ctypes.byref(found), ctypes.c_void_p(function.ptr), ctypes.byref(config))
    return found.value if status == 0 else -status


def us(run: Callable[[], object]) -> float:
    """Median of ten replays."""
    return 1e3 * spread(time_kernel(run, 10, graph=True)).median


def in_bytes(x: Any, weights: list[Any], outs: list[Any], epilogue: Epilogue) -> Callable[[], None]:
    """The products alone."""
    module = gemm_bytes_sm90 if current_path() == "sm_90a" else gemm_bytes_portable
    loud = loud_channels(x)
    given, launches = round_inputs(x, ByteKind.INT8, loud), []
    for some in [slice(None)] if epilogue is SWIGLU else in_launches(weights, outs):
        held, typed = kept_together(weights[some], loud), epilogue.typed(outs[0].dtype.char == "f")
        launches.append(partial(module.gemm, given, held, loud, outs[some], typed))

    def run() -> None:
        for launch in launches:
            launch()

    return run


def timed(tokens: int, rows: tuple[int, ...], width: int, epilogue: Epilogue) -> dict[str, float]:
    """Microseconds of one of PRODUCTS, by what is timed."""
    cupy = import_cupy()
    plain = [random_weight(Q4_K, n, width) for n in rows]
    marked = [replace(w, math=Math.INT8) for w in plain]
    marked = [replace(w, kept=place) for w, place in zip(marked, keep(marked, ByteKind.INT8), strict=True)]
    dtype = np.float32 if epilogue is ADD else np.uint16
    outs = [cupy.zeros((tokens, n), dtype) for n in (rows[:1] if epilogue is SWIGLU else rows)]
    x, path = bf16(tokens, width), current_path()
    kernel = next(one for one in kernels(path) if Math.INT8 in one.maths)
    found = {
        "bf16": us(partial(prefill_kernel(path).launch, Product(x, plain, outs, epilogue))),
        "int8": us(partial(kernel.launch, Product(x, marked, outs, epilogue))),
    }
    if path != "sm_90a":
        return found | {"alone": us(in_bytes(x, marked, outs, epilogue))}
    shapes, processors = gemm_bytes_sm90.SHAPES, gemm_bytes_sm90.multiprocessors_to_fill
    for size, cluster, most in TILES:
        gemm_bytes_sm90.SHAPES = ((size, cluster),)
        gemm_bytes_sm90.multiprocessors_to_fill = lambda device, count=cluster * most: count
        gemm_bytes_sm90.plan_of.cache_clear()
        found[f"{size} x {cluster} / {most}"] = us(in_bytes(x, marked, outs, epilogue))
    gemm_bytes_sm90.SHAPES, gemm_bytes_sm90.multiprocessors_to_fill = shapes, processors
    gemm_bytes_sm90.plan_of.cache_clear()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    options = parser.parse_args()
    if current_path() == "sm_90a":
        print("clusters at once, by blocks of one:", {cluster: fitting(cluster) for cluster in (2, 4)})
    for tokens in options.tokens:
        sums: dict[str, float] = defaultdict(float)
        for name, (rows, width, epilogue, layers) in PRODUCTS.items():
            found = timed(tokens, rows, width, epilogue)
            print(f"{tokens:5} {name:14}", *(f"{way}: {value:.1f} " for way, value in found.items()), flush=True)
            for way, value in found.items():
                sums[way] += layers * value / 1e3
        print(f"{tokens:5} {'a prefill, ms':14}", *(f"{way}: {value:.2f} " for way, value in sums.items()), flush=True)


if __name__ == "__main__":
    main()
