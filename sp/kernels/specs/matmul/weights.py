"""The packed weights of one launch of a kernel for few tokens, as ``cuda/gemm/weights.cuh`` takes them."""

from __future__ import annotations

MOST_WEIGHTS = 4  # weights of one launch
WEIGHT_ARGS = tuple(
    text
    for i in range(MOST_WEIGHTS)
    for text in (f"const u8*? data{i}", f"i32 kind{i}", f"i32 rows{i}", f"u16*? y{i}", f"f32*? z{i}")
)  # of each weight: its planes, ggml type and outputs, and where results go, as bf16 or float32
