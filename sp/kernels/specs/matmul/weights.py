"""Arguments of the packed weights of one small_m launch, as declared in ``cuda/gemm/weights.cuh``."""

from __future__ import annotations

MOST_WEIGHTS = 4  # most weights of one launch
WEIGHT_ARGS = tuple(
    text
    for i in range(MOST_WEIGHTS)
    for text in (f"const u8*? data{i}", f"i32 kind{i}", f"i32 rows{i}", f"u16*? y{i}", f"f32*? z{i}")
)  # per weight: planes, ggml type, number of outputs, and the result, as bf16 or float32
