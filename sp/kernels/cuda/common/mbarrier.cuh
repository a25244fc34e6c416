// mbarriers as sm_80 has them, for rings that cp.async fills: warps wait for a stage, not for each other.
//
// A ring has two barriers a stage. `full`, counted in threads: each copying thread calls mbarrier_arrive_after_copies once it
// has started its copies. `empty`, of WARP_ARRIVALS a warp: mbarrier_arrive_warp when it has read the stage. Parity starts at 0
// and flips with each use of the stage. PTX ISA 9.7.13.15; hopper.cuh has those of sm_90.
#pragma once
#include "mma.cuh"

SP_DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

SP_DEVICE void mbarrier_arrive(u32 barrier) {
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(barrier) : "memory");
}

// Arrivals of a warp. compute-sanitizer's racecheck follows threads, not warps: for it every lane arrives.
#ifdef SP_DEBUG
enum { WARP_ARRIVALS = 32 };
#else
enum { WARP_ARRIVALS = 1 };
#endif

// For a warp, all of whose lanes have read.
SP_DEVICE void mbarrier_arrive_warp(u32 barrier, int lane) {
    __syncwarp();
    if (lane < WARP_ARRIVALS) mbarrier_arrive(barrier);
}

// Arrives when every cp.async this thread has started so far is done; does not wait.
SP_DEVICE void mbarrier_arrive_after_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Returns when the phase of that parity has ended.
SP_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile(
#if __CUDA_ARCH__ >= 900  // may sleep instead of spinning
            "{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
#else
            "{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
#endif
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!done);
}
