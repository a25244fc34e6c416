// Self-test of `sp doctor` and the GPU tests on Hopper: tensor copies, mbarriers, bulk copies, wgmma, setmaxnreg.
//
// selftest_hopper: y = a[row:row+64] bᵀ with a (any, 64 tiles) and b (8, 64 tiles) bf16 behind descriptors with boxes of
// 64 x 64 and 64 x 8 and a 128-byte swizzle; y (64, 8) f32. Rows of a outside its descriptor count as zeros. The last tile
// of a is stored through `copy_map` at (0, 0), and 1024 bytes go from `bytes` to `bytes_copy` through shared memory.
// Launch: one block; warpgroup 0 copies, warpgroup 1 multiplies, a ring of 2 stages between them. sm_90a.
#include "hopper.cuh"

constexpr int STAGES = 2, A_BYTES = 64 * 128, B_BYTES = 8 * 128, RAW_BYTES = 1024;

SP_DEVICE void wgmma_m64n8k16(f32 (&d)[4], u64 a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(a), "l"(b));
}

extern "C" __global__ __launch_bounds__(256, 1) void selftest_hopper(const __grid_constant__ TensorMap a_map,
                                                                    const __grid_constant__ TensorMap b_map,
                                                                    const __grid_constant__ TensorMap copy_map,
                                                                    const u8* bytes, u8* bytes_copy, f32* y, i32 row,
                                                                    i32 tiles) {
    extern __shared__ u8 dynamic[];
    u8* shared = dynamic + (-shared_address(dynamic) & 1023u);  // the swizzle counts from 1024-byte boundaries
    __shared__ u64 full[STAGES], empty[STAGES], raw;
    u8 *a_tiles = shared, *b_tiles = shared + STAGES * A_BYTES, *raw_tile = b_tiles + STAGES * B_BYTES;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(&full[stage], 1);
            barrier_init(&empty[stage], 128);
        }
        barrier_init(&raw, 1);
        barrier_init_fence();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_lower<40>();
        if (threadIdx.x == 0) {
            tensor_prefetch(&a_map);
            barrier_expect(&raw, RAW_BYTES);
            bulk_load(raw_tile, bytes, RAW_BYTES, &raw);
            for (int tile = 0; tile < tiles; ++tile) {
                int stage = tile % STAGES;
                barrier_wait(&empty[stage], tile / STAGES & 1 ^ 1);
                barrier_expect(&full[stage], A_BYTES + B_BYTES);
                tensor_load(a_tiles + stage * A_BYTES, &a_map, &full[stage], tile * 64, row);
                tensor_load(b_tiles + stage * B_BYTES, &b_map, &full[stage], tile * 64, 0);
            }
            int last = (tiles - 1) % STAGES;
            barrier_wait(&full[last], (tiles - 1) / STAGES & 1);
            tensor_store(&copy_map, a_tiles + last * A_BYTES, 0, 0);
            barrier_wait(&raw, 0);
            bulk_store(bytes_copy, raw_tile, RAW_BYTES);
            bulk_commit();
            bulk_wait<0>();
        }
    } else {
        registers_raise<232>();
        f32 sum[4] = {};
        for (int tile = 0; tile < tiles; ++tile) {
            int stage = tile % STAGES;
            barrier_wait(&full[stage], tile / STAGES & 1);
            wgmma_fence();
            for (int k = 0; k < 4; ++k)
                wgmma_m64n8k16(sum, wgmma_descriptor(shared_address(a_tiles + stage * A_BYTES) + 32 * k),
                               wgmma_descriptor(shared_address(b_tiles + stage * B_BYTES) + 32 * k));
            wgmma_commit();
            wgmma_wait<0>();
            barrier_arrive(&empty[stage]);
        }
        int lane = threadIdx.x % 32, g = (threadIdx.x - 128) / 32 * 16 + lane / 4, c = lane % 4 * 2;
        y[g * 8 + c] = sum[0];
        y[g * 8 + c + 1] = sum[1];
        y[(g + 8) * 8 + c] = sum[2];
        y[(g + 8) * 8 + c + 1] = sum[3];
    }
}
