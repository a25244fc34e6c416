"""The matmul in eight bits on the host: rounding of inputs, scales, operands, stages and results, against the twin.

A warp of 32 lanes is emulated (host_warp.h), so a wrong address, byte or fragment shows without a GPU.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from host_code import aligned, compiled, pointer

from sp.kernels import nvrtc
from sp.kernels.flatten import flatten
from sp.kernels.specs.matmul import gemm_int8 as declared
from sp.kernels.specs.matmul.epilogue import STORE, STORE_F32, SWIGLU
from sp.models.synthetic.random_blocks import random_blocks
from sp.ops.eight_bit.inputs import quantise, tiled
from sp.ops.eight_bit.integer_form import integer_form, scale_words
from sp.ops.eight_bit.product import product
from sp.ops.matmul.fragment_order import pack_numpy
from sp.quant import FORMATS, BlockFormat, Weight, format_by_name

NATIVE = [FORMATS[kind] for kind in declared.KINDS]
QUANTISE = r"""
struct Job { const f32* x; i8* codes; f32* pairs; int tokens, held; };
static void round_all(int lane, void* given) {
    const Job& job = *static_cast<Job*>(given);
    for (int token = 0; token < job.tokens; ++token)
        for (int at = lane; at < (VECTORS + 31) / 32 * 32; at += 32) {
            float4 v = {};
            if (at < VECTORS) memcpy(&v, job.x + token * COLS + 4 * at, 16);
            store_codes(job.codes, job.pairs, token, job.held, at, at < VECTORS, v);
        }
}
extern "C" void run(const f32* x, i8* codes, f32* pairs, int tokens, int held) {
    Job job = {x, codes, pairs, tokens, held};
    run_warp(round_all, &job);
}
"""
SCALES = r"""
extern "C" void run(int format, const u8* scales, const u8* deltas, float4* words, int tiles) {
#define SP_DO(F)                                                                                    \
    if (format == F)                                                                                \
        for (int i = 0; i < tiles * 64; ++i) words[i] = integer_words<F>(scales, deltas, i / 64, i % 64);
    FORMATS_HERE
#undef SP_DO
}
"""
OPERANDS = r"""
// Signed bytes of a tile, over UNIT, to their rows and inputs.
extern "C" void operands(int format, const u8* low, const u8* high, int* codes) {
#define SP_DO(F)                                                                                    \
    if (format == F)                                                                                \
        for (int t = 0; t < TILE_THREADS; ++t) {                                                    \
            Quants<F> q;                                                                            \
            load_quants<F>(q, low, high, t);                                                        \
            for (int i = 0; i < 32; ++i) {                                                          \
                const int s = i / 8, r = i / 4 % 2, byte = i % 4;                                   \
                const int row = 16 * (t / 32) + t / 4 % 8 + 8 * r;                                  \
                const int value = i8(signed_bytes<F>(q, s, r) >> 8 * byte);                         \
                codes[row * 64 + 16 * s + 2 * (t % 4) + 8 * (byte % 2) + byte / 2] =                \
                    value % UNIT<F> ? 9999 : value / UNIT<F>;                                       \
            }                                                                                       \
        }
    FORMATS_HERE
#undef SP_DO
}
"""
GEMM = r"""
struct Job { const i8* codes; const f32* pairs; Source weights[SOURCES]; Out* y; int tokens, held, rows, k, add; };
static void multiply(int lane, void* given) {
    const Job& job = *static_cast<Job*>(given);
    const int row_tiles = (job.rows + 63) / 64, k_tiles = job.k / 64;
    for (int row0 = 0; row0 < job.rows; row0 += BLOCK_ROWS)
        for (int token0 = 0; token0 < job.tokens; token0 += BLOCK_TOKENS) {
            const int first = row0 / 64;
            const i64 skip = i64(first) * k_tiles;
            Source of[SOURCES];
            for (int i = 0; i < SOURCES; ++i) {
                const Source& w = job.weights[i];
                of[i] = {w.low + skip * Format::low_bytes, w.high + skip * Format::high_bytes, w.scales + skip * 256};
            }
            for (int warp = 0; warp < WARPS; ++warp) {
                f32 sum[COLUMNS][SLICES][4] = {};
                for (int tile = 0; tile < k_tiles; ++tile) {
                    for (int thread = lane; thread < THREADS; thread += 32)
                        copy_stage(0, job.codes, job.pairs, of, tile, k_tiles, token0, job.held, row_tiles - first,
                                   thread);
                    __syncwarp();
                    for (int group = 0; group < 2; ++group) {
                        WarpWeights w;
                        w.load(shared, group, warp, lane);
                        multiply_columns(sum, w, shared, group, lane);
                    }
                    __syncwarp();
                }
                store_results(sum, job.y, token0, job.tokens, row0 + warp * WARP_ROWS, job.rows, job.add, warp, lane);
            }
        }
}
extern "C" void run(const i8* codes, const f32* pairs, const u8* low, const u8* high, const f32* scales, const u8* low2,
                    const u8* high2, const f32* scales2, Out* y, int tokens, int held, int rows, int k, int add) {
    Job job = {codes, pairs, {{low, high, scales}}, y, tokens, held, rows, k, add};
    if (SOURCES > 1) job.weights[SOURCES - 1] = {low2, high2, scales2};
    run_warp(multiply, &job);
}
"""
WHOLE = r"""
struct Job {
    const i8* codes;
    const f32* pairs;
    const u8 *low, *high;
    const f32* scales;
    f32* y;
    int tokens, held, rows, k;
};
static void block(int lane, void* given) {
    const Job& job = *static_cast<Job*>(given);
    threadIdx.x = lane;
    ENTRY(job.codes, job.pairs, job.low, job.high, job.scales, job.y, job.tokens, job.held, job.rows, job.k, 0);
}
extern "C" void run(const i8* codes, const f32* pairs, const u8* low, const u8* high, const f32* scales, f32* y,
                    int tokens, int held, int rows, int k, int blocks) {
    Job job = {codes, pairs, low, high, scales, y, tokens, held, rows, k};
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        std::fill(shared, shared + STAGES * STAGE_BYTES, 0xff);
        run_warp(block, &job);
    }
}
"""


def weight(fmt: BlockFormat, rows: int, width: int, seed: int = 0) -> Weight:
    blocks = random_blocks(np.random.default_rng([seed, rows, width]), fmt, rows * width // fmt.block_size, 0.05)
    return Weight(fmt.name, fmt, (rows, width), blocks.reshape(rows, -1))


def inputs(tokens: int, width: int) -> np.ndarray:
    x = np.random.default_rng(tokens).standard_normal((tokens, width)).astype(np.float32)
    x[:, 5] *= 100
    return x


def arguments(w: Weight) -> list[np.ndarray]:
    """Planes and scales of a weight, aligned."""
    planes = pack_numpy(w.format, w.data)
    return [aligned(planes["low"]), aligned(planes.get("high", np.zeros(16, np.uint8))), aligned(scale_words(w))]


@cache
def of_every_format(source: str, driver: str) -> object:
    """One library for all formats, which templates name."""
    from tempfile import mkdtemp

    every = " ".join(f"SP_DO({fmt.name})" for fmt in NATIVE)
    return compiled(source, driver.replace("FORMATS_HERE", every), {"FORMAT": NATIVE[0].ggml_type}, Path(mkdtemp()))


@pytest.mark.parametrize("width", [64, 320])
def test_inputs_are_rounded_as_the_twin_rounds_them(width: int, tmp_path: Path) -> None:
    x = aligned(inputs(7, width))
    x[1, 3], x[2, 40], x[4], x[5, :32] = np.nan, -np.inf, 0, 2.0**-101
    want = tiled(quantise(x))
    codes, pairs = np.full_like(want.codes, 77), np.full_like(want.pairs, 77)
    library = compiled("quantise_inputs.cu", QUANTISE, {"COLS": width, "WIDE": 1, "NORM": 0}, tmp_path)
    library.run(pointer(x), pointer(codes), pointer(pairs), 7, codes.shape[1])
    np.testing.assert_array_equal(codes[:, :7], want.codes[:, :7])
    np.testing.assert_array_equal(pairs[:, :7], want.pairs[:, :7])
    assert (codes[:, 7:] == 77).all()
    assert (pairs[:, 7:] == 77).all()


@pytest.mark.parametrize("fmt", NATIVE, ids=lambda fmt: fmt.name)
def test_scales_are_those_of_the_twin(fmt: BlockFormat) -> None:
    w = weight(fmt, 128, 512)
    planes = {name: aligned(plane) for name, plane in pack_numpy(fmt, w.data).items()}
    words = aligned(np.full((2, 8, 64, 4), np.nan, np.float32))
    deltas = planes.get("deltas", planes["scales"])
    of_every_format("integer_scales.cu", SCALES).run(
        fmt.ggml_type, pointer(planes["scales"]), pointer(deltas), pointer(words), 16
    )
    np.testing.assert_array_equal(words, scale_words(w))


@pytest.mark.parametrize("fmt", NATIVE, ids=lambda fmt: fmt.name)
def test_operands_are_the_codes_of_the_integer_form(fmt: BlockFormat) -> None:
    w = weight(fmt, 64, fmt.packing.span)
    low, high, _ = arguments(w)
    codes = np.full((64, 64), -9999, np.int32)
    of_every_format("integer_scales.cu", SCALES + OPERANDS).operands(
        fmt.ggml_type, pointer(low), pointer(high), pointer(codes)
    )
    np.testing.assert_array_equal(codes, integer_form(w).codes[:, :64])


@pytest.mark.parametrize(
    ("name", "shape"),
    [("Q4_K", declared.WIDE), ("Q6_K", declared.WIDE), *((fmt.name, declared.SMALL) for fmt in NATIVE)],
    ids=lambda each: each if isinstance(each, str) else f"{each['WARPS']} warps",
)
def test_products(name: str, shape: dict[str, int], tmp_path: Path) -> None:
    fmt, tokens, rows = format_by_name(name), 70, 136
    width = 256 if fmt.packing.super else 192
    w, x = weight(fmt, rows, width), quantise(inputs(tokens, width))
    t = tiled(x)
    y = aligned(np.ones((tokens, rows), np.float32))
    library = compiled("gemm_int8.cu", GEMM, declared.variant(fmt.ggml_type, STORE_F32, shape), tmp_path)
    given = [aligned(t.codes), aligned(t.pairs), *arguments(w)]
    library.run(*map(pointer, given), None, None, None, pointer(y), tokens, t.codes.shape[1], rows, width, 1)
    want = product(x, w)
    np.testing.assert_allclose(y - 1, want, atol=2e-6 * np.abs(want).max())


@pytest.mark.parametrize(("tokens", "width", "stages"), [(70, 1024, 3), (530, 64, 2), (5, 128, 4)])
def test_a_whole_kernel_whose_blocks_are_one_warp(tokens: int, width: int, stages: int, tmp_path: Path) -> None:
    """A ring of fewer stages than tiles and of more, and a band of token tiles with a narrower last one."""
    fmt, rows = format_by_name("Q8_0"), 136
    w, x = weight(fmt, rows, width), quantise(inputs(tokens, width))
    t, y = tiled(x), aligned(np.full((tokens, rows), np.nan, np.float32))
    shape = {"SLICES": 4, "COLUMNS": 4, "WARPS": 1, "BLOCKS": 1, "STAGES": stages}
    defines = declared.variant(fmt.ggml_type, STORE_F32, declared.SMALL) | shape
    library = compiled("gemm_int8.cu", WHOLE, defines, tmp_path, whole=True)
    block_rows, block_tokens = declared.tile(defines)
    blocks = -(-rows // block_rows) * -(-tokens // block_tokens)
    given = [aligned(t.codes), aligned(t.pairs), *arguments(w)]
    library.run(*map(pointer, given), pointer(y), tokens, t.codes.shape[1], rows, width, blocks)
    want = product(x, w)
    np.testing.assert_allclose(y, want, atol=2e-6 * np.abs(want).max())


def test_a_gated_unit(tmp_path: Path) -> None:
    fmt, tokens, rows, width = format_by_name("Q4_K"), 20, 72, 256
    gate, up = weight(fmt, rows, width), weight(fmt, rows, width, 1)
    x = quantise(inputs(tokens, width) / 10)
    t, y = tiled(x), np.full((tokens, rows), 0x7FC1, np.uint16)
    library = compiled("gemm_int8.cu", GEMM, declared.variant(fmt.ggml_type, SWIGLU, declared.SMALL), tmp_path)
    given = [aligned(t.codes), aligned(t.pairs), *arguments(gate), *arguments(up)]
    library.run(*map(pointer, given), pointer(y), tokens, t.codes.shape[1], rows, width, 0)
    opened = product(x, gate).astype(np.float64)
    want = opened / (1 + np.exp(-opened)) * product(x, up)
    got = (y.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(got, want, rtol=2.0**-8, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("epilogue", [STORE, SWIGLU], ids=lambda epilogue: epilogue.name)
@pytest.mark.parametrize("shape", declared.SHAPES, ids=["wide", "small"])
def test_shared_memory_is_counted_as_it_is_laid_out(shape: dict[str, int], epilogue: int) -> None:
    pytest.importorskip("cupy")
    for name in ("Q6_K", "Q8_0"):
        defines = declared.variant(format_by_name(name).ggml_type, epilogue, shape)
        text = flatten("gemm_int8.cu") + f"\nstatic_assert(STAGES * STAGE_BYTES == {declared.smem(defines)});\n"
        rows, tokens = declared.tile(defines)
        text += f"static_assert(BLOCK_ROWS == {rows} && BLOCK_TOKENS == {tokens});\n"
        nvrtc.compile_cubin(text, "gemm_int8.cu", nvrtc.compile_options(defines, "80"))


@pytest.mark.parametrize("fmt", NATIVE, ids=lambda fmt: fmt.name)
def test_a_ring_fits_a_multiprocessor_of_sm_86(fmt: BlockFormat) -> None:
    for shape in declared.SHAPES:
        blocks = int(shape["BLOCKS"])
        assert blocks * (declared.smem(declared.variant(fmt.ggml_type, STORE, shape)) + 1024) <= 100 << 10
