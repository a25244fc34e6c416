// What sm_90 adds: mbarriers, bulk and tensor (TMA) copies, stmatrix; and of sm_90a: wgmma fences, setmaxnreg.
//
// A pipeline in short: one thread calls barrier_init for every barrier, barrier_init_fence, then __syncthreads. The producer
// thread calls barrier_expect(full, bytes) and starts copies that complete on `full`; consumers barrier_wait(full, phase),
// read, and barrier_arrive_warp(empty). `phase` starts at 0 and flips each time a ring of stages wraps; a producer's first wait on
// an empty barrier uses phase 1, which passes at once.
// Ordinary shared-memory writes that TMA or wgmma reads next need fence_async_proxy in each writing thread, then a barrier.
// PTX ISA 9.7.9.25 (bulk copies), 9.7.13.15 (mbarrier), 9.7.16 (wgmma).
#pragma once
#include "mma.cuh"

// ---- mbarrier: a u64 in shared memory, 8-byte aligned

SP_DEVICE void barrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes the inits visible to the copy engine and to other blocks of the cluster.
SP_DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

SP_DEVICE void barrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// How often barrier_arrive_warp counts. compute-sanitizer's racecheck follows threads, not warps: for it every lane arrives.
#ifdef SP_DEBUG
enum { WARP_ARRIVALS = 32 };
#else
enum { WARP_ARRIVALS = 1 };
#endif

// Arrive for a warp, all of whose lanes have read.
SP_DEVICE void barrier_arrive_warp(u64* barrier, u32 lane) {
    __syncwarp();
    if (lane < WARP_ARRIVALS) barrier_arrive(barrier);
}

// Arrive once and announce `bytes` that copies will deliver before the phase can end.
SP_DEVICE void barrier_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

SP_DEVICE bool barrier_try_wait(u64* barrier, u32 phase) {
    u32 done;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(phase)
        : "memory");
    return done != 0;
}

// Returns when the phase of that parity has ended.
SP_DEVICE void barrier_wait(u64* barrier, u32 phase) {
    while (!barrier_try_wait(barrier, phase)) {
    }
}

SP_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// One barrier of `threads` threads among the 16 named ones; 0 is __syncthreads' own.
SP_DEVICE void named_barrier(u32 index, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(index), "r"(threads) : "memory");
}

// ---- bulk copies of contiguous bytes: both addresses 16-byte aligned, `bytes` a multiple of 16

SP_DEVICE void bulk_load(void* target, const void* source, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(target)),
                 "l"(source), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

SP_DEVICE void bulk_store(void* target, const void* source, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target),
                 "r"(shared_address(source)), "r"(bytes)
                 : "memory");
}

// Stores (bulk and tensor) of this thread are grouped by bulk_commit.
SP_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Wait until at most `Pending` groups may still read their shared memory (it can then be overwritten).
template <int Pending>
SP_DEVICE void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

// Wait until at most `Pending` groups are unfinished, writes included.
template <int Pending>
SP_DEVICE void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
}

// ---- tensor copies of one box; coordinates in elements, fastest axis first; shared side 128-byte aligned (1024 if swizzled)

SP_DEVICE void tensor_prefetch(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

SP_DEVICE void tensor_load(void* target, const TensorMap* map, u64* barrier, i32 x, i32 y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            shared_address(target)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
        : "memory");
}

SP_DEVICE void tensor_load(void* target, const TensorMap* map, u64* barrier, i32 x, i32 y, i32 z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
            "r"(shared_address(target)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
        : "memory");
}

SP_DEVICE void tensor_load(void* target, const TensorMap* map, u64* barrier, i32 x, i32 y, i32 z, i32 w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];" ::"r"(shared_address(target)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}

SP_DEVICE void tensor_store(const TensorMap* map, const void* source, i32 x, i32 y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(shared_address(source)), "r"(x), "r"(y)
                 : "memory");
}

SP_DEVICE void tensor_store(const TensorMap* map, const void* source, i32 x, i32 y, i32 z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(shared_address(source)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

SP_DEVICE void tensor_store(const TensorMap* map, const void* source, i32 x, i32 y, i32 z, i32 w) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(shared_address(source)), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

// Adds the box to the float32 tensor instead of replacing it.
SP_DEVICE void tensor_add(const TensorMap* map, const void* source, i32 x, i32 y) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(shared_address(source)), "r"(x), "r"(y)
                 : "memory");
}

// Byte offset inside a box of 128-byte rows -> where the 128-byte swizzle puts it (box 1024-byte aligned).
SP_DEVICE u32 swizzle_128(u32 offset) { return offset ^ ((offset >> 3) & 0x70u); }

// ---- clusters: a kernel marked __cluster_dims__(n, 1, 1)

SP_DEVICE u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Every thread of every block of the cluster.
SP_DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// Arrive on the barrier at the same place of another block of the cluster. What it orders is reading: the slot may be overwritten.
// (A release at cluster scope would order writes too, and cost a full memory barrier.)
SP_DEVICE void barrier_arrive_at(u64* barrier, u32 rank) {
    asm volatile(
        "{\n\t.reg .b32 remote;\n\t"
        "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n\t}" ::"r"(shared_address(barrier)),
        "r"(rank)
        : "memory");
}

// One box to the same place of every block in `blocks` (bit i: rank i), counted on each block's own barrier.
SP_DEVICE void tensor_load_multicast(void* target, const TensorMap* map, u64* barrier, u16 blocks, i32 x, i32 y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%4, %5}], [%2], %3;" ::"r"(shared_address(target)),
        "l"(map), "r"(shared_address(barrier)), "h"(blocks), "r"(x), "r"(y)
        : "memory");
}

// ---- stmatrix: as ldmatrix_x4, the other way, transposed

SP_DEVICE void stmatrix_x4_trans(u32 address, const u32 (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

// ---- sm_90a only

// Before the first wgmma and whenever ordinary code has touched accumulator or A registers.
SP_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
SP_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int Pending>
SP_DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Shared-memory matrix descriptor of a tile whose rows are 128 bytes, 128-byte swizzled, 1024-byte aligned at its start.
// `stride` is the distance in bytes between groups of 8 rows (1024 when dense); `leading` matters for MN-major tiles only.
// Stepping 16 k values along a K-major row adds 32 bytes to `address`.
SP_DEVICE u64 wgmma_descriptor(u32 address, u32 stride = 1024, u32 leading = 16) {
    return u64((address & 0x3ffffu) >> 4) | u64((leading & 0x3ffffu) >> 4) << 16 | u64((stride & 0x3ffffu) >> 4) << 32 |
           u64(1) << 62;
}

template <int Registers>
SP_DEVICE void registers_raise() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
SP_DEVICE void registers_lower() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
