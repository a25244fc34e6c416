"""The inner loops of the decode kernels on the host: copies of a strip, operands, products, scales, of every format.

A warp of 32 lanes is emulated (host_warp.h), so a wrong address, bit or fragment shows without a GPU. Against float64,
with random blocks, rows that end inside a tile and widths of one tile and of whole stages. Bounds on the NMSE: sums in
float32 (1e-12), sums of inputs as two bf16 (1e-8), a token as 16-bit integers and weights rounded to 11 bits (1e-7).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from host_code import aligned, compiled, pointer

from sp.kernels.specs.matmul import gemm_small_m, gemv
from sp.kernels.specs.matmul.epilogue import STORE
from sp.models.synthetic.synthetic import random_blocks
from sp.ops.matmul.fragment_order import pack_numpy, plane_offsets
from sp.quant import BlockFormat, format_bits, format_by_name, kernel_formats

ROWS = 72
START = r"""
struct Job { const u8* data; const u16* x; f32* y; int rows; };
static void put(const Job& job, int token, int row, f32 value) {
    if (token < TOKENS && row < job.rows) job.y[token * job.rows + row] = value;
}
"""
END = r"""
extern "C" void run(const u8* data, const u16* x, f32* y, int rows) {
    Job job = {data, x, y, rows};
    run_warp(multiply, &job);
}
"""
GEMV = r"""
static void multiply(int lane, void* given) {
    using S = Stage<KIND>;
    const Job& job = *static_cast<Job*>(given);
    f32* sums32 = reinterpret_cast<f32*>(shared + ONE_SUMS32_AT);
    f32* sums16 = reinterpret_cast<f32*>(shared + ONE_SUMS16_AT);
    f32* factors = reinterpret_cast<f32*>(shared + ONE_FACTORS_AT);
    if constexpr (ONE)
        for (int super = 0; super < K / 256; ++super) {
            f32 v[2][4];
            const u16* x = job.x + super * 256 + lane * 4;
            for (int i = 0; i < 8; ++i) v[i / 4][i % 4] = f32_from_bf16(x[i / 4 * 128 + i % 4]);
            store_one<ONE32, ONE16>(shared + ONE_AT, sums32, sums16, factors, super, v, lane);
        }
    if constexpr (MANY)
        for (int i = 0; i < TOKENS * CHUNKS; ++i) {
            const int token = i / CHUNKS, k = i % CHUNKS * 128 + lane * 4;
            u32 words[2] = {};
            if (k < K) memcpy(words, job.x + token * K + k, 8);
            store_inputs<TOKENS, PITCH, WITH32, WITH16>(shared + X_AT, shared + SUMS32_AT, shared + SUMS16_AT, token, k,
                                                        k < K, words[0], words[1]);
        }
    __syncwarp();
    OneInputs one = {shared_address(shared + ONE_AT), {}, sums32, sums16, factors};
    one.aim(is_halved(KIND), lane);
    const Inputs in = inputs_of<TOKENS, PITCH>(shared + X_AT, shared + SUMS32_AT, shared + SUMS16_AT, lane);
    for (int strip = 0; strip < (job.rows + 15) / 16; ++strip) {
        const Planes p = strip_of<S>(planes_of<KIND>(job.data, (job.rows + 63) / 64, K / 64), strip, K / 64, lane);
        f32 acc[NT][4] = {}, shares[2] = {};
        for (int index = 0; index < K / 64 / S::tiles; ++index) {
            fetch_stage<S>(0, p, index, lane);
            __syncwarp();
            if constexpr (ONE && WHOLE<KIND>)
                multiply_one<S>(shares, shared, one, index, lane);
            else
                multiply_stage<S, TOKENS, PITCH>(acc, shared, in, index, lane);
            __syncwarp();
        }
        for (int r = 0; r < 2; ++r) {
            shares[r] += __shfl_xor_sync(0xffffffffu, shares[r], 1);
            acc[0][2 * r] += shares[r] + __shfl_xor_sync(0xffffffffu, shares[r], 2);
        }
        for (int nt = 0; nt < NT; ++nt)
            for (int i = 0; i < 4; ++i)
                put(job, nt * 8 + lane % 4 * 2 + i % 2, strip * 16 + lane / 4 + i / 2 * 8, acc[nt][i]);
    }
}
"""
SMALL_M = r"""
static void multiply(int lane, void* given) {
    using S = Stage<KIND>;
    const Job& job = *static_cast<Job*>(given);
    fetch_slice(job.x, WIDTH, WIDTH, TOKENS, 0, lane);
    __syncwarp();
    if constexpr (SUPER) convert_slice(0, lane);
    __syncwarp();
    const u32 inputs = shared_address(shared + X_AT) + lane % 8 * PITCH + lane / 8 * 16;
    for (int item = 0; item < (job.rows + 31) / 32; ++item) {
        const Planes whole = planes_of<KIND>(job.data, (job.rows + 63) / 64, WIDTH / 64);
        Planes p = strip_of<S>(whole, 2 * item, WIDTH / 64, lane);
        Sums acc = {};
        for (int index = 0; index < WIDTH / STAGE_K; ++index) {
            fetch_stage<S>(0, p, 0, lane);
            fetch_stage<S>(S::bytes, second_strip<S>(p, 0, lane), 0, lane);
            advance<S>(p, 1, lane);
            __syncwarp();
            multiply_pair<KIND>(acc, shared, inputs, index, lane);
            __syncwarp();
        }
        for (int m = 0; m < 2; ++m)
            for (int nt = 0; nt < NT; ++nt)
                for (int i = 0; i < 4; ++i)
                    put(job, nt * 8 + lane % 4 * 2 + i % 2, (2 * item + m) * 16 + lane / 4 + i / 2 * 8, acc[m][nt][i]);
    }
}
"""


def cases(*sizes: tuple[int, int]) -> list[tuple[int, int, str]]:
    """Tokens and widths with formats of which rows so wide are whole blocks: each with the first size, which suits all,
    and with one of the others in turn.
    """
    formats, found = [fmt for fmt in kernel_formats() if not fmt.packing.plain], list[tuple[int, int, str]]()
    for at, fmt in enumerate(formats):
        fitting = [size for size in sizes[1:] if size[1] % fmt.packing.span == 0]
        found += [(*size, fmt.name) for size in (sizes[0], fitting[at % len(fitting)] if fitting else None) if size]
    return found


def error(source: str, driver: str, defines: dict[str, int], fmt: BlockFormat, width: int, folder: Path) -> float:
    """NMSE of the product of some tokens with a random weight."""
    rng, tokens = np.random.default_rng(width), int(defines["TOKENS"])
    rows = random_blocks(rng, fmt, ROWS * width // fmt.block_size, 0.05).reshape(ROWS, -1)
    offsets = plane_offsets("w", fmt, (ROWS, width))
    data = aligned(np.zeros(offsets.end, np.uint8))
    for name, plane in pack_numpy(fmt, rows).items():
        at = getattr(offsets, name)
        data[at : at + len(plane)] = plane
    values = rng.standard_normal((tokens, width)).astype(np.float32)
    values[:, 5] *= 50
    x = aligned((values.view(np.uint32) >> 16).astype(np.uint16))
    given = (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    y = np.full((tokens, ROWS), np.nan, np.float32)
    library = compiled(source, START + driver + END, defines | {"KIND": fmt.ggml_type}, folder)
    library.run(pointer(data), pointer(x), pointer(y), ROWS)
    want = given @ fmt.decode(rows).astype(np.float64).T
    return float(((y - want) ** 2).sum() / (want**2).sum())


@pytest.mark.parametrize(("tokens", "width", "name"), cases((1, 768), (8, 512), (1, 320)))
def test_gemv(tokens: int, width: int, name: str, tmp_path: Path) -> None:
    fmt = format_by_name(name)
    defines = gemv.variant(width, tokens, format_bits(fmt.ggml_type), False, STORE, gemv.Layout(1, 1))
    in_integers = tokens == 1 and gemv.whole(fmt.packing, width)
    bound = 1e-7 if in_integers else 1e-8 if fmt.packing.super else 1e-12
    assert error("gemv.cu", GEMV, defines, fmt, width, tmp_path) < bound


@pytest.mark.parametrize(("tokens", "width", "name"), cases((16, 512), (16, 320)))
def test_gemm_small_m(tokens: int, width: int, name: str, tmp_path: Path) -> None:
    fmt = format_by_name(name)
    defines = gemm_small_m.variant(width, tokens, format_bits(fmt.ggml_type), STORE, 1, True)
    bound = 1e-7 if name in ("Q6_K", "IQ4_XS") else 1e-10 if fmt.packing.super else 1e-12
    assert error("gemm_small_m.cu", SMALL_M, defines, fmt, width, tmp_path) < bound
