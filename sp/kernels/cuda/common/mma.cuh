// Warp-level matrix instructions and asynchronous copies of sm_80 and newer (PTX ISA 9.7.15, 9.7.9.25).
//
// Fragments of mma.m16n8k16, with g = lane / 4 and c = lane % 4 (two values to a register, lower index in the low half):
//   a[0] = A[g][2c..], a[1] = A[g + 8][2c..], a[2] = A[g][2c + 8..], a[3] = A[g + 8][2c + 8..]
//   b[0] = B[2c..][g], b[1] = B[2c + 8..][g]
//   d[0..1] = D[g][2c..], d[2..3] = D[g + 8][2c..]
#pragma once
#include "types.cuh"

SP_DEVICE u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

SP_DEVICE void mma_bf16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

SP_DEVICE void mma_f16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8, 16-byte aligned.
SP_DEVICE void ldmatrix_x4(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// Two of them; lanes 0 to 15 give the addresses, the others' must still be valid.
SP_DEVICE void ldmatrix_x2(u32 (&r)[2], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address)
                 : "memory");
}

SP_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// 16 bytes from global to shared memory past the registers and L1; zeros are written where `valid` is false
// (`source` must still be a mapped address).
SP_DEVICE void cp_async_16(u32 target, const void* source, bool valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(valid ? 16 : 0)
                 : "memory");
}

SP_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most `Pending` of this thread's newest groups are unfinished.
template <int Pending>
SP_DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

SP_DEVICE f32 warp_sum(f32 value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

SP_DEVICE f32 warp_max(f32 value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}
