"""Kernels that test the runtime and the device helpers."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

SCALARS = KernelSpec(
    source="selftest.cu",
    entry="selftest_scalars",
    args=("u64* out", "i32 a", "i64 b", "u32 c", "u64 d", "f32 e", "const u8*? null"),
    threads=1,
)

PRODUCT = KernelSpec(
    source="selftest.cu",
    entry="selftest_product",
    args=("const u16* a", "const u16* b", "f32* y", "i32 rows"),
    threads=32,
    variants=({"F16": 0, "TRANS": 0}, {"F16": 1, "TRANS": 1}),
)

HOPPER = KernelSpec(
    source="selftest_sm90.cu",
    entry="selftest_hopper",
    args=(
        "map a_map", "map b_map", "map copy_map", "const u8* bytes", "u8* bytes_copy", "f32* y", "i32 row", "i32 tiles",
    ),
    threads=256,
    arches="90a",
    smem=2 * (64 + 8) * 128 + 1024 + 1024,
)  # fmt: skip
