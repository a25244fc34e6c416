"""Add up the products with the terms of a split weight."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

TERM_THREADS = 256

SUM_TERMS = KernelSpec(
    source="sum_terms.cu",
    entry="sum_terms",
    args=("const f32* x", "u16*? y", "f32*? wide", "i64 values", "i64 pitch", "i32 n", "i32 stride"),
    threads=TERM_THREADS,
    variants=({"WIDE": 1}, {"WIDE": 0}),
    pdl=True,
)
