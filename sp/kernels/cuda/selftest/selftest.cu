// Self-test of `sp doctor` and the GPU tests: arguments are passed correctly, and the helpers of mma.cuh work.
//
// selftest_scalars: out[i] = the i-th scalar as a u64 (signed ones sign-extended, f32 as bits), out[5] = 1 if `null` is null.
//   One thread.
// selftest_product: y = a bᵀ for one tile. a (16, 16) 16-bit, row-major, or its transpose with TRANS; b (8, 16); y (16, 8)
//   f32. Rows of a from `rows` on count as zeros (not with TRANS). F16 1: f16, 0: bf16. One warp.
// Alignment: 16 bytes. sm_80 and newer.
#include "mma.cuh"

extern "C" __global__ void selftest_scalars(u64* out, i32 a, i64 b, u32 c, u64 d, f32 e, const u8* null) {
    out[0] = u64(i64(a));
    out[1] = u64(b);
    out[2] = c;
    out[3] = d;
    out[4] = __float_as_uint(e);
    out[5] = null == nullptr;
}

#ifdef F16
extern "C" __global__ void selftest_product(const u16* a, const u16* b, f32* y, i32 rows) {
    __shared__ alignas(16) u16 a_tile[16][16];
    __shared__ alignas(16) u16 b_tile[8][16];
    int lane = threadIdx.x, row = lane / 2, half = lane % 2 * 8;
    cp_async_16(shared_address(&a_tile[row][half]), a + row * 16 + half, row < rows);
    if (lane < 16) cp_async_16(shared_address(&b_tile[row][half]), b + row * 16 + half);
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();

    u32 fragment[4];
    if (TRANS)
        ldmatrix_x4_trans(fragment, shared_address(&a_tile[lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]));
    else
        ldmatrix_x4(fragment, shared_address(&a_tile[lane % 16][lane / 16 * 8]));
    int g = lane / 4, c = lane % 4 * 2;
    u32 b0 = *reinterpret_cast<u32*>(&b_tile[g][c]), b1 = *reinterpret_cast<u32*>(&b_tile[g][c + 8]);
    f32 sum[4] = {};
    if (F16)
        mma_f16(sum, fragment, b0, b1);
    else
        mma_bf16(sum, fragment, b0, b1);
    y[g * 8 + c] = sum[0];
    y[g * 8 + c + 1] = sum[1];
    y[(g + 8) * 8 + c] = sum[2];
    y[(g + 8) * 8 + c + 1] = sum[3];
}
#endif
