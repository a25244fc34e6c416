// Two blocks of a cluster at the same head of delta_tree.cu, half of its columns each (PARTS 2): each sends the other the
// sums of squares of its half of o. From compute capability 9.0; with PARTS 1 nothing.
#pragma once
#include "hopper.cuh"

#if __CUDA_ARCH__ >= 900 && PARTS > 1
#define SP_PAIRED __cluster_dims__(PARTS, 1, 1)
#else
#define SP_PAIRED
#endif

// What the other block sends: a number for each of `nodes`.
struct Mail {
    u64 arrived;
    f32 unused[2], squares[NODES];
};

// All warps, before anything is sent.
SP_DEVICE void open_mail(Mail& mail, i32 nodes) {
#if __CUDA_ARCH__ >= 900
    if (PARTS == 1) return;
    if (threadIdx.x == 0) {
        barrier_init(&mail.arrived, 1);
        barrier_init_fence();
        barrier_expect(&mail.arrived, 4 * nodes);
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

// All warps: until the other block's mail is open.
SP_DEVICE void wait_for_open_mail() {
#if __CUDA_ARCH__ >= 900
    if (PARTS > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

SP_DEVICE void send(const Mail& mail, u32 rank, i32 node, f32 value) {
#if __CUDA_ARCH__ >= 900
    if (PARTS == 1) return;
    asm volatile(
        "{\n\t.reg .b32 place, arrived;\n\t"
        "mapa.shared::cluster.u32 place, %0, %2;\n\t"
        "mapa.shared::cluster.u32 arrived, %1, %2;\n\t"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [place], %3, [arrived];\n\t}" ::"r"(
            shared_address(&mail.squares[node])),
        "r"(shared_address(&mail.arrived)), "r"(rank), "r"(__float_as_uint(value))
        : "memory");
#endif
}

// The whole sum, with what the other block sent; waits for all of it.
SP_DEVICE f32 add_other(Mail& mail, i32 node, f32 value) {
#if __CUDA_ARCH__ >= 900
    if (PARTS == 1) return value;
    barrier_wait(&mail.arrived, 0);
    return value + mail.squares[node];
#else
    return value;
#endif
}
