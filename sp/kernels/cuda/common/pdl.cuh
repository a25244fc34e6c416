// Programmatic dependent launch, from compute capability 9.0; see sp/kernels/pdl.py. Elsewhere, and in kernels
// launched the plain way, both calls do nothing.
#pragma once
#include "types.cuh"

// The next kernel may start where there is room for its blocks.
SP_DEVICE void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Until all earlier work is done. Before it only what no kernel writes may be read; memory that one does may be brought
// to the L2 cache, which all multiprocessors share.
SP_DEVICE void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

SP_DEVICE void prefetch_l2(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }
