"""Scale queries before rotation, and interleave queries with gates, for models that need it."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

QUERY_THREADS = 128
VALUES = 8  # values per thread

SCALE_QUERIES = KernelSpec(
    source="query_rows.cu",
    entry="scale_queries",
    args=("f16* q", "const i64* positions", "i32 steps", "i64 length", "f32 scale"),
    threads=QUERY_THREADS,
)

BESIDE_GATE = KernelSpec(
    source="query_rows.cu",
    entry="beside_gate",
    args=("const u16* q", "const u16* gate", "u16* wide", "i64 steps"),
    threads=QUERY_THREADS,
    variants=({"STEPS": 16}, {"STEPS": 8}, {"STEPS": 32}),
)
