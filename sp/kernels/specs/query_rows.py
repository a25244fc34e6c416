"""Rows of queries between the kernel that turns them and attention, in models that ask for it."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

QUERY_THREADS = 128
VALUES = 8  # of a thread

SCALE_QUERIES = KernelSpec(
    source="query_rows.cu",
    entry="scale_queries",
    args=("f16* q", "const i64* positions", "i32 steps", "i64 length", "f32 scale"),
    threads=QUERY_THREADS,
)
