"""Time from a GGUF file in the page cache to a model on the GPU, ready to run.

Writes a file of a named shape whose blocks repeat (drawing new ones for 16 GB would take a minute), loads it several
times, and records seconds and the most device memory taken on the way:

    python experiments/load_time.py --shape qwen3.6-27b --folder /dev/shm --record results
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from sp.arrays import Bytes
from sp.bench.record import append, make_record
from sp.gguf import GGUFFile, GGUFWriter
from sp.kernels import import_cupy
from sp.kernels.device import require_device
from sp.models import load_model
from sp.models.file.file_type import file_type_id
from sp.models.synthetic.shapes import find_shape, tensor_plan
from sp.models.synthetic.synthetic import random_blocks, random_vector
from sp.quant import F32, BlockFormat

POOL = 16 << 20  # bytes of distinct blocks for each format and width


def write(path: Path, shape: str, file_type: str) -> None:
    """A model file without a tokenizer, its matrices cut from pools of random blocks."""
    rng, pools = np.random.default_rng(0), {}

    def matrix(fmt: BlockFormat, width: int, nbytes: int) -> Iterator[Bytes]:
        if (fmt.name, width) not in pools:
            blocks = random_blocks(rng, fmt, POOL // fmt.block_bytes, width**-0.5)
            pools[fmt.name, width] = blocks.reshape(-1)
        pool = pools[fmt.name, width]
        for start in range(0, nbytes, len(pool)):
            yield pool[: min(len(pool), nbytes - start)]

    def vector(name: str, size: int) -> list[Bytes]:
        return [F32.encode(random_vector(name, size, rng))]

    writer = GGUFWriter(path, find_shape(shape).metadata() | {"general.file_type": file_type_id(file_type)})
    for name, size, fmt in tensor_plan(shape, file_type):
        data = partial(vector, name, size[0]) if len(size) == 1 else partial(matrix, fmt, size[-1], fmt.nbytes(size))
        writer.add(name, size, fmt, data)
    writer.write()


def load(path: Path) -> tuple[float, int]:
    """Seconds of one load, opening included, and the most device memory taken meanwhile."""
    cupy = import_cupy()
    cupy.get_default_memory_pool().free_all_blocks()
    before = lowest = cupy.cuda.runtime.memGetInfo()[0]

    def watch(nbytes: int) -> None:
        nonlocal lowest
        lowest = min(lowest, cupy.cuda.runtime.memGetInfo()[0])

    start = time.perf_counter()
    model = load_model(GGUFFile.open(path), device="cuda", progress=watch)
    cupy.cuda.get_current_stream().synchronize()
    seconds = time.perf_counter() - start
    print(f"{seconds:.3f} s, {model.nbytes / 1e9:.2f} GB held, {(before - lowest) / 1e9:.2f} GB at most")
    return seconds, before - lowest


def main() -> None:
    """Write, load, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3.6-27b")
    parser.add_argument("--type", default="q4_k_m")
    parser.add_argument(
        "--folder", type=Path, default=Path("/dev/shm"), help="where the file is put, and deleted again"
    )
    parser.add_argument("-r", "--repeats", type=int, default=5)
    parser.add_argument("--record", type=Path, help="append the result below this folder")
    options = parser.parse_args()
    require_device()
    path = options.folder / f"{options.shape}-load.gguf"
    try:
        write(path, options.shape, options.type)
        size = path.stat().st_size
        load(path)  # compiles and makes the pinned buffers
        samples, peaks = zip(*[load(path) for _ in range(options.repeats)], strict=True)
    finally:
        path.unlink(missing_ok=True)
    seconds = median(samples)
    print(f"{size / 1e9:.2f} GB in {seconds:.3f} s: {size / seconds / 1e9:.1f} GB/s")
    config = {"model": f"{options.shape} {options.type} (random)", "file_bytes": size, "mode": "repeated"}
    metrics = {"seconds": seconds, "gb_s": size / seconds / 1e9, "peak_bytes": max(peaks)}
    if options.record:
        append(make_record("load", config, metrics, samples), options.record)


if __name__ == "__main__":
    main()
