// Two blocks of a cluster at the same strips of gemv.cu, a half of the inputs each: the second posts its sums into the
// shared memory of the first, which adds them to its own. From compute capability 9.0; nothing before.
#pragma once
#include "gemv_layout.cuh"

#if __CUDA_ARCH__ >= 900 && SPLIT > 1
#define SP_PAIRED __cluster_dims__(SPLIT, 1, 1)
#else
#define SP_PAIRED
#endif

// The post of a strip's sums: how many it has carried, how many of them were read.
struct Mail {
    int filled, taken, unused[2];
    f32 sums[16];
};
static_assert(SPLIT == 1 || (SPLIT == 2 && TOKENS == 1 && !NORM && EPILOGUE == EPILOGUE_ADD && !OTHER && sizeof(Mail) == MAIL));

// Both blocks must have emptied their mail before any is posted.
SP_DEVICE void arrive_at_pair() {
#if __CUDA_ARCH__ >= 900
    if constexpr (SPLIT > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

SP_DEVICE void wait_for_pair() {
#if __CUDA_ARCH__ >= 900
    if constexpr (SPLIT > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Mail number `turn` from the second block's warp, a sum a lane; waits until the one before was read.
SP_DEVICE void post(const Mail* mail, f32 sum, int turn, int lane) {
#if __CUDA_ARCH__ >= 900
    u32 to;
    int taken;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(to) : "r"(shared_address(mail)));
    do asm volatile("ld.acquire.cluster.shared::cluster.u32 %0, [%1];" : "=r"(taken) : "r"(to + 4) : "memory");
    while (taken < turn);
    if (lane < 16) asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to + 16 + 4 * lane), "f"(sum) : "memory");
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
    __syncwarp();
    if (lane == 0) asm volatile("st.release.cluster.shared::cluster.u32 [%0], %1;" ::"r"(to), "r"(turn + 1) : "memory");
#endif
}

// The same mail, read by a warp of the first block.
SP_DEVICE f32 take(const Mail* mail, int turn, int lane) {
    f32 sum = 0;
#if __CUDA_ARCH__ >= 900
    const u32 at = shared_address(mail);
    int filled;
    do asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];" : "=r"(filled) : "r"(at) : "memory");
    while (filled <= turn);
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(sum) : "r"(at + 16 + lane % 16 * 4) : "memory");
    __syncwarp();
    if (lane == 0) asm volatile("st.release.cluster.shared::cta.u32 [%0], %1;" ::"r"(at + 4), "r"(turn + 1) : "memory");
#endif
    return sum;
}
