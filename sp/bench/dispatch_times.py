"""dispatch_times: how long every kernel takes for a product of so many rows, which decides who gets it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sp.bench.cases import paths
from sp.bench.families.inputs import bf16
from sp.bench.record import make_record
from sp.bench.timing import spread, time_kernel
from sp.kernels import import_cupy
from sp.kernels.device import require_device
from sp.kernels.jit import device_arches
from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.matmul.epilogue import STORE
from sp.kernels.tools.build import build_all
from sp.kernels.tools.check import plan
from sp.models.synthetic.random_blocks import random_blocks
from sp.ops.matmul.dispatch import ROWS, SHAPES
from sp.ops.matmul.packed import PackedWeight, pack
from sp.ops.matmul.registry import MatmulKernel, Product, kernels
from sp.quant import BlockFormat, kernel_formats

CHAIN_BYTES = 192 << 20
"""Weights of one chain of launches: more than the L2 cache holds."""


def timed_kernels() -> tuple[MatmulKernel, ...]:
    """Those that the present card can run, on any path."""
    return tuple(dict.fromkeys(kernel for path in paths() for kernel in kernels(path)))


def measure(repeats: int = 3, progress: Callable[[int], object] = lambda done: None) -> Iterator[dict[str, Any]]:
    """Time every kernel over formats, shapes and rows; yields one record a format and shape.

    A launch is one of a chain over several copies of the weight, in a CUDA graph, as in a model: it finds its weight in
    memory, and the next may start before it has ended. Metrics are microseconds a launch, ``"kernel rows"`` by
    ``"gemv 16"``.
    """
    work: dict[tuple[tuple[str, Any], ...], dict[tuple[str, int], Callable[[], None]]] = {}
    for fmt in kernel_formats():
        for name, shape in SHAPES.items():
            weights = copies(fmt, shape)
            facts = {"type": fmt.name, "shape": name, "n": shape[0], "k": shape[1], "launches": len(weights)}
            for rows in ROWS:
                for kernel, run in candidates(weights, rows).items():
                    work.setdefault(tuple(facts.items()), {})[kernel, rows] = run
    every = [run for runs in work.values() for run in runs.values()]
    arches = device_arches(require_device())
    build_all(plan([replace(kernel, variants=tuple(v)) for kernel, v in needed(every).items()], arches))
    for key, runs in work.items():
        config: dict[str, Any] = dict(key)
        samples = {which: time_kernel(run, repeats, warmup=1, graph=True) for which, run in runs.items()}
        metrics = {
            f"{kernel} {rows}": 1e3 * spread(ms).median / config["launches"] for (kernel, rows), ms in samples.items()
        }
        yield make_record("dispatch", config, metrics, list(samples.values()))
        progress(1)


def candidates(weights: tuple[PackedWeight, ...], rows: int) -> dict[str, Callable[[], None]]:
    """By kernel for which so many rows are worth timing, a function that queues the product with each of `weights`."""
    out, width = weights[0].shape
    x, y, kind = bf16(rows, width), import_cupy().empty((rows, out), np.uint16), weights[0].format.ggml_type

    def chain(kernel: MatmulKernel) -> Callable[[], None]:
        def run() -> None:
            for w in weights:
                kernel.launch(Product(x, (w,), (y,), STORE))

        return run

    return {
        kernel.name: chain(kernel)
        for kernel in timed_kernels()
        if rows in kernel.timed and kind in kernel.formats and kernel.room(rows, width, (kind,), False, STORE)
    }


def copies(fmt: BlockFormat, shape: tuple[int, int]) -> tuple[PackedWeight, ...]:
    """A weight of random blocks, 256 distinct rows, and copies of it."""
    blocks = random_blocks(np.random.default_rng(0), fmt, 256 * shape[1] // fmt.block_size, 0.02)
    rows = import_cupy().asarray(blocks.reshape(256, -1))
    first = pack("w", fmt, shape, import_cupy().tile(rows, (shape[0] // 256, 1)))
    count = max(2, -(-CHAIN_BYTES // first.nbytes))
    return (first, *(replace(first, data=first.data.copy()) for _ in range(count - 1)))


def needed(runs: Any) -> dict[KernelSpec, list[Defines]]:
    """Variants that some work launches, without launching them."""
    found: dict[KernelSpec, dict[tuple[Any, ...], Defines]] = {}
    plain = KernelSpec.launch

    def note(self: KernelSpec, grid: tuple[int, ...], *values: Any, defines: Defines | None = None) -> None:
        chosen = self.variants[0] if defines is None else defines
        found.setdefault(self, {})[tuple(chosen.items())] = chosen

    KernelSpec.launch = note  # type: ignore[method-assign]
    try:
        for run in runs:
            run()
    finally:
        KernelSpec.launch = plain  # type: ignore[method-assign]
    return {kernel: list(variants.values()) for kernel, variants in found.items()}


def table(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `sp.ops.matmul.dispatch` reads, from the records of `measure`."""
    return {
        "gpu": records[0]["gpu"],
        "date": records[-1]["date"],
        "kernel_hash": records[0]["kernel_hash"],
        "us": {
            f"{record['config']['type']} {record['config']['shape']}": {
                name: round(us, 2) for name, us in record["metrics"].items()
            }
            for record in records
        },
    }
