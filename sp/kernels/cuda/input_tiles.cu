// Tokens in bf16 -> the tiles that gemm_few_sm90.cu multiplies (input_tiles.cuh).
//
// x bf16 (tokens, k); tiles u8, as `input_tiles` of sp/ops/input_tiles.py sizes them. k a multiple of 256.
// Grid (k / 1024 rounded up, tokens), 256 threads with 4 inputs each. sm_80+. Bound by latency.
#include "early.cuh"
#include "input_tiles.cuh"

extern "C" __global__ void __launch_bounds__(256) input_tiles(const u16* x, u8* tiles, i64 k, i32 held) {
    let_next_start();
    wait_for_earlier();
    const i32 at = (blockIdx.x * 256 + threadIdx.x) * 4, token = blockIdx.y;
    const bool valid = at < k;
    const uint2 v = valid ? *reinterpret_cast<const uint2*>(x + token * k + at) : make_uint2(0, 0);
    store_tile_inputs(tiles, k, held, token, at, valid, make_float4(low_bf16(v.x), high_bf16(v.x), low_bf16(v.y), high_bf16(v.y)));
}
