"""How fast an H200 makes the products of attention in eight bits when nothing else runs: alone, and in turn.

    python experiments/tensor_rates.py            # on a GPU of compute capability 9.0, a few seconds

A block of two groups on every multiprocessor multiplies what lies in its shared memory, by the functions of
`attention_bytes.cu`, again and again:

`scores`   64 x 128 x 128 of signed bytes a group and round
`values`   64 x 136 x 128 of e4m3, the left side in registers
`in turn`  both, one behind the other as a tile of attention has them
`twice`    the scores twice, which is as much work as `in turn` without another type between

Printed are operations a second and clocks of a multiprocessor for a round of both groups.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from sp.kernels import import_cupy, nvrtc
from sp.kernels.device import current_device, multiprocessors
from sp.kernels.flatten import flatten
from sp.kernels.specs.attention.attention_bytes import STAGES, smem

WAYS = {"scores": 0, "values": 1, "in turn": 2, "twice": 3}
WORK = {"scores": 128, "values": 136, "in turn": 264, "twice": 256}
"""Columns that a round multiplies 64 rows of each group by, of 128 bytes each."""
KERNEL = """
SP_DEVICE void more_scores(i32 (&s)[64], u64 queries, u64 keys) {
    wgmma_fence();
    for (int k = 0; k < 4; ++k) wgmma_bytes(s, moved_by(queries, 32 * k), moved_by(keys, 32 * k), 1);
    wgmma_commit();
}

extern "C" __global__ void __launch_bounds__(256, 1) rates(f32* out, i64* clocks, i32 rounds) {
    extern __shared__ __align__(1024) u8 memory[];
    for (u32 i = threadIdx.x; i < (CODE_BYTES + STAGES * STAGE_BYTES) / 4; i += 256)
        reinterpret_cast<u32*>(memory)[i] = 0x01020304u * (i % 29);
    fence_async_proxy();
    __syncthreads();
    const u64 queries = wgmma_descriptor(shared_address(memory) + threadIdx.x / 128 * 8192);
    const u64 tiles = wgmma_descriptor(shared_address(memory + CODE_BYTES));
    i32 s[64] = {};  // added up for ever: products that nobody reads are left out by the compiler
    f32 t[68] = {};
    u32 p[16];
    for (int i = 0; i < 16; ++i) p[i] = 0x30303030u + threadIdx.x % 8;
    const i64 begin = clock64();
    for (i32 round = 0; round < rounds; ++round) {
        const u64 tile = moved_by(tiles, round % STAGES * STAGE_BYTES);
        if (WAY != 1) more_scores(s, queries, tile);
        if (WAY == 3) {
            wgmma_wait<0>();
            sums_ready(s);
            more_scores(s, queries, tile);
        }
        if (WAY == 1 || WAY == 2) values_of(t, p, tile);
        wgmma_wait<0>();
        sums_ready(s), sums_ready(t);
    }
    if (blockIdx.x + threadIdx.x == 0) *clocks = clock64() - begin;
    f32 sum = 0;
    for (int i = 0; i < 64; ++i) sum += t[i] + f32(s[i]);
    out[blockIdx.x * 256 + threadIdx.x] = sum;
}
"""


def source(way: int) -> str:
    """The functions of the kernel, and the loop over them."""
    shipped = flatten("attention_bytes.cu")
    return f"#define WAY {way}\n" + shipped[: shipped.index('extern "C" __global__')] + KERNEL


def timed(way: int, rounds: int, blocks: int) -> tuple[float, int]:
    """Milliseconds of the quickest of five launches, and clocks of a multiprocessor."""
    cupy = import_cupy()
    compiled = nvrtc.compile_cubin(source(way), "rates.cu", nvrtc.compile_options({"STAGES": STAGES}, "90a"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rates.cubin"
        path.write_bytes(compiled.cubin)
        kernel = cupy.RawModule(path=str(path)).get_function("rates")
    shared = smem({"STAGES": STAGES})
    kernel.max_dynamic_shared_size_bytes = shared
    out, clocks, times = cupy.empty(256 * blocks, np.float32), cupy.zeros(1, np.int64), []
    for _ in range(6):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        kernel((blocks,), (256,), (out, clocks, np.int32(rounds)), shared_mem=shared)
        end.record()
        end.synchronize()
        times.append((float(cupy.cuda.get_elapsed_time(begin, end)), int(clocks.item())))
    return min(times[1:])


def main() -> None:
    """Time every way, print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20_000)
    rounds, blocks = parser.parse_args().rounds, multiprocessors(current_device())
    for name, way in WAYS.items():
        ms, clocks = timed(way, rounds, blocks)
        rate = 2.0 * 128 * 128 * WORK[name] * rounds * blocks / ms / 1e9
        print(
            f"{name:8} {rate:7,.0f} TOP/s  {clocks / rounds:6.0f} clocks a round  {clocks / ms / 1e3:6,.0f} MHz",
            flush=True,
        )


if __name__ == "__main__":
    main()
