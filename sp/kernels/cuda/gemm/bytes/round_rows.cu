// Rounds rows of an operand to bytes for a matrix product, with one scale a row, see bytes.cuh. Rows are rotated first, so
// that outliers are spread over up to 1,024 values: both operands are rotated alike, and their products stay as they are.
//
//   x        bf16 (rows, COLS), COLS % 256 == 0, COLS <= 32768
//   loud     bf16 (rows, 64) or null: outlier channels of inputs, as loud_inputs.cu finds them (count, channels, mask), then zeros;
//            they are 0 in x then. Of weights null, which keep theirs. Written where *count > 0
//   rotated  H (signs * x) / sqrt(BLOCK) of each BLOCK inputs; H[i, j] = (-1)^popcount(i & j); BLOCK the largest of 1,024, 512
//            and 256 that divides COLS; signs of rotation_signs.cuh, the same in each 1,024 inputs
//   codes    (rows, COLS): of each 1,024 rotated values (of the last ones: `rest`), value lane + 32 i at byte lane * rest / 32 + i
//   scales   f32 (rows and more), 0 past the last row, as far as the grid goes; they include 1 / sqrt(BLOCK)
// Sums are float32, of neighbours at distance 1, 2, 4 ... in this order, as in the twin `sp.ops.byte_rows.rows.rotated`.
// Grid: a block a row; 32 threads for each 1,024 inputs, 4,096 bytes of dynamic shared memory for each warp: a lane holds 32
// neighbours and sums them, values change lanes in shared memory, and sums over lanes are sums of a lane's values again.
// Defines: COLS, KIND. Arches: 80+, KIND 1 89+. Bound by memory.
// Sources: Ashkboos et al., "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", 2024; outlier channels apart as in
// LLM.int8() (Dettmers et al., 2022).
#include "bytes.cuh"
#include "pdl.cuh"
#include "rotation_signs.cuh"

enum Rotation {
    CHUNK = 1024,  // inputs of a warp
    LOUD = 64,     // most outlier channels
    WARPS = (COLS + CHUNK - 1) / CHUNK,
    REST = COLS - (WARPS - 1) * CHUNK,  // inputs of the last warp
    BLOCK = COLS % 1024 == 0 ? 1024 : COLS % 512 == 0 ? 512 : 256
};

// Sums and differences of values at distances 1, 2, 4 .. below `Count`.
template <int Count>
SP_DEVICE void add_neighbours(f32 (&v)[32]) {
#pragma unroll
    for (int step = 1; step < Count; step *= 2)
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            if (i & step) continue;
            const f32 a = v[i], b = v[i + step];
            v[i] = __fadd_rn(a, b), v[i + step] = __fsub_rn(a, b);
        }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    round_rows(const u16* __restrict__ x, u8* __restrict__ codes, f32* __restrict__ scales, u16* __restrict__ loud,
               const u32* __restrict__ count, const u32* __restrict__ channels, const u32* __restrict__ mask, i32 rows) {
    extern __shared__ __align__(16) u8 shared[];
    __shared__ u32 peaks[WARPS];
    pdl_wait();
    pdl_launch_dependents();
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 row = blockIdx.x;
    if (row >= rows) {
        if (threadIdx.x == 0) scales[row] = 0;
        return;
    }
    const u32 inputs = warp == WARPS - 1 ? REST : CHUNK;
    const i64 first = row * COLS + CHUNK * warp;
    const u32 found = loud ? *count : 0;
    if (found)
        for (u32 i = threadIdx.x; i < LOUD; i += 32 * WARPS) loud[row * LOUD + i] = i < found ? x[row * COLS + channels[i]] : 0;
    f32 v[32];
    if (32 * lane < inputs) {
        const uint4* from = reinterpret_cast<const uint4*>(x + first + 32 * lane);
        const u32 signs = sign_word(lane), apart = found ? mask[CHUNK / 32 * warp + lane] : 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint4 eight = from[i];
            const u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int at = 8 * i + 2 * j;
                const f32 a = __uint_as_float(pairs[j] << 16 ^ (signs << (31 - at) & 0x80000000u));
                const f32 b = __uint_as_float((pairs[j] & 0xffff0000u) ^ (signs << (30 - at) & 0x80000000u));
                v[at] = apart >> at & 1 ? 0.0f : a, v[at + 1] = apart >> (at + 1) & 1 ? 0.0f : b;
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < 32; ++i) v[i] = 0;
    }
    add_neighbours<32>(v);
    f32* own = reinterpret_cast<f32*>(shared) + CHUNK * warp;
#pragma unroll
    for (int i = 0; i < 32; ++i) own[32 * lane + (u32(i) ^ lane)] = v[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 32; ++i) v[i] = own[32 * i + (u32(i) ^ lane)];
    add_neighbours<BLOCK / 32>(v);

    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) largest = max(largest, magnitude(v[i]));
#pragma unroll
    for (int step = 1; step < 32; step *= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    if constexpr (WARPS > 1) {
        if (lane == 0) peaks[warp] = largest;
        __syncthreads();
        for (u32 i = 0; i < WARPS; ++i) largest = max(largest, peaks[i]);
    }
    const Rounding rounding = rounding_of(largest);
    if (threadIdx.x == 0)
        scales[row] = __fmul_rn(rounding.told, BLOCK == 1024 ? 0.03125f : BLOCK == 512 ? 0.044194173824159216f : 0.0625f);
    u8* to = codes + first + lane * (inputs / 32);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        if (256 * i >= inputs) break;
        const u32 low = bytes_of(v[8 * i], v[8 * i + 1], v[8 * i + 2], v[8 * i + 3], rounding.inverse);
        const u32 high = bytes_of(v[8 * i + 4], v[8 * i + 5], v[8 * i + 6], v[8 * i + 7], rounding.inverse);
        reinterpret_cast<uint2*>(to)[i] = make_uint2(low, high);
    }
}
