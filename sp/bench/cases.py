"""Families of benchmark cases at the shapes of real models, with random inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sp.bench.record import make_record
from sp.bench.timing import mode_of, quartiles, time_kernel
from sp.config import import_modules
from sp.errors import unknown_name
from sp.kernels import forced_path, import_cupy
from sp.kernels.device import require_device
from sp.kernels.jit import device_arches
from sp.kernels.launch import Defines, KernelSpec, launched_sources, reset_launched
from sp.kernels.path import PATHS, native_path
from sp.kernels.specs.matmul.epilogue import STORE
from sp.kernels.tools.build import build_all
from sp.kernels.tools.check import plan
from sp.models.synthetic.synthetic import random_blocks
from sp.ops.attention.kv_pages import PAGE_TOKENS, PagedKV
from sp.ops.matmul.dispatch import ROWS, SHAPES
from sp.ops.matmul.packed import PackedWeight, pack
from sp.ops.matmul.registry import MatmulKernel, Product, kernels
from sp.quant import F16, BlockFormat, kernel_formats


@dataclass(frozen=True)
class Case:
    """One operation to time. `run` queues it on the current stream; `bytes` and `flops` are the least memory traffic
    and work that it needs. With `graph` it is replayed from a CUDA graph, since the host takes longer to launch a short
    kernel than the kernel runs."""

    config: Mapping[str, Any]
    path: str
    run: Callable[[], object]
    bytes: float = 0
    flops: float = 0
    graph: bool = False


Family = Callable[[], Iterator[Case]]
FAMILIES: dict[str, Family] = {}


def family(name: str) -> Callable[[Family], Family]:
    """Register a function that yields cases on the present GPU, under the name of its records."""

    def register(make: Family) -> Family:
        FAMILIES[name] = make
        return make

    return register


def paths() -> tuple[str, ...]:
    """Return the kernel paths that the present GPU supports."""
    return PATHS if native_path() == "sm_90a" else ("portable",)


def normal(*shape: int) -> Any:
    """Draw normal float32 values; products of zeros or of one sign would draw less power and run faster."""
    return import_cupy().random.standard_normal(shape, np.float32)


def bf16(*shape: int) -> Any:
    """Draw normal values, truncated to bf16."""
    return (normal(*shape).view(np.uint32) >> 16).astype(np.uint16)


def clustered(tokens: int, heads: int, kv_heads: int, head_dim: int) -> tuple[Any, PagedKV]:
    """Draw f16 queries, and keys and values under a shuffled block table, whose attention is not flat. The keys of a
    block of 128 tokens are one of 64 N(0, 1) centres, drawn for each block and KV head, plus N(0, 1) noise; queries
    likewise for each query head. Values are N(0, 1)."""
    cupy, blocks = import_cupy(), tokens // PAGE_TOKENS
    assert tokens == blocks * PAGE_TOKENS, f"{tokens} tokens are no whole number of pages"
    random = cupy.random.default_rng(tokens + head_dim)
    centres = random.standard_normal((64, head_dim), np.float32)

    def rows(count: int, centred: bool) -> Any:
        values = cupy.empty((blocks, PAGE_TOKENS, count, head_dim), np.float16)
        middle = centres[random.integers(0, 64, (blocks, count))] if centred else 0
        for slot in range(PAGE_TOKENS):  # a slice at a time: float32 noise of all rows would take gigabytes
            values[:, slot] = middle + random.standard_normal((blocks, count, head_dim), np.float32)
        return values

    q = rows(heads, True).reshape(tokens, heads, head_dim)
    table = cupy.argsort(random.random(blocks)).astype(np.int32)
    pages = []
    for centred in (True, False):
        scattered = cupy.empty((blocks, PAGE_TOKENS, kv_heads, head_dim), np.float16)
        scattered[table] = rows(kv_heads, centred)
        pages.append(scattered.view(np.uint8))
    return q, PagedKV(pages[0], pages[1], table, tokens, F16)


def run_cases(only: str | None = None, repeats: int = 20) -> Iterator[dict[str, Any]]:
    """Time every case of one family or of all, and yield records; `sp kernels bench` runs this."""
    import_modules("sp.bench.families")
    if only is not None and only not in FAMILIES:
        raise unknown_name("family of benchmarks", only, FAMILIES)
    for name, make in FAMILIES.items():
        if only in (None, name):
            for case in make():
                yield _measure(name, case, repeats)


def _measure(name: str, case: Case, repeats: int) -> dict[str, Any]:
    reset_launched()
    with forced_path(case.path) if case.path in PATHS else nullcontext():
        samples = time_kernel(case.run, repeats, graph=case.graph)
    times = quartiles(samples)
    metrics = {
        "ms": times.median,
        "ms_low": times.low,
        "ms_high": times.high,
        "gb_s": case.bytes / times.median / 1e6,
        "tflops": case.flops / times.median / 1e9,
    }
    config = {**case.config, "path": case.path, "mode": mode_of(case.graph)}
    return make_record(name, config, metrics, samples, launched_sources())


CHAIN_BYTES = 192 << 20  # weights of one chain of launches, more than the L2 cache has room for


def measure(repeats: int = 3, progress: Callable[[int], object] = lambda done: None) -> Iterator[dict[str, Any]]:
    """Time every matrix product kernel over formats, shapes and rows; yield one record per format and shape, with
    microseconds per launch by ``"gemv 16"`` (kernel, rows). The launches form a chain over copies of the weight in a
    CUDA graph. As in a model, each reads its weight from memory, not from L2, and may overlap with the next."""
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
            f"{kernel} {rows}": 1e3 * quartiles(ms).median / config["launches"]
            for (kernel, rows), ms in samples.items()
        }
        yield make_record("dispatch", config, metrics, list(samples.values()))
        progress(1)


def candidates(weights: tuple[PackedWeight, ...], rows: int) -> dict[str, Callable[[], None]]:
    """Return by kernel a function that queues the product with each of `weights`; only kernels worth timing at
    `rows`."""
    out, width = weights[0].shape
    x, y, kind = bf16(rows, width), import_cupy().empty((rows, out), np.uint16), weights[0].format.ggml_type

    def chain(kernel: MatmulKernel) -> Callable[[], None]:
        def run() -> None:
            for w in weights:
                kernel.launch(Product(x, (w,), (y,), STORE))

        return run

    present = dict.fromkeys(kernel for path in paths() for kernel in kernels(path))  # several paths may have one kernel
    return {
        kernel.name: chain(kernel)
        for kernel in present
        if rows in kernel.timed and kind in kernel.formats and kernel.room(rows, width, (kind,), False, STORE)
    }


def copies(fmt: BlockFormat, shape: tuple[int, int]) -> tuple[PackedWeight, ...]:
    """Build a weight of random blocks, 256 distinct rows, and copies of it."""
    blocks = random_blocks(np.random.default_rng(0), fmt, 256 * shape[1] // fmt.block_size, 0.02)
    rows = import_cupy().asarray(blocks.reshape(256, -1))
    first = pack("w", fmt, shape, import_cupy().tile(rows, (shape[0] // 256, 1)))
    count = max(2, -(-CHAIN_BYTES // first.nbytes))
    return (first, *(replace(first, data=first.data.copy()) for _ in range(count - 1)))


def needed(runs: Any) -> dict[KernelSpec, list[Defines]]:
    """Collect the kernel variants that `runs` would launch, without launching them."""
    by_kernel: dict[KernelSpec, dict[tuple[Any, ...], Defines]] = {}
    plain = KernelSpec.launch

    def note(self: KernelSpec, grid: tuple[int, ...], *values: Any, defines: Defines | None = None) -> None:
        chosen = self.variants[0] if defines is None else defines
        by_kernel.setdefault(self, {})[tuple(chosen.items())] = chosen

    KernelSpec.launch = note  # type: ignore[method-assign]
    try:
        for run in runs:
            run()
    finally:
        KernelSpec.launch = plain  # type: ignore[method-assign]
    return {kernel: list(variants.values()) for kernel, variants in by_kernel.items()}


def table(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Build the table that `sp.ops.matmul.dispatch` reads from the records of `measure`."""
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
