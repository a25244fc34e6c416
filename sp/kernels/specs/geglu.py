"""GeGLU: an elementwise kernel between the products of a gated feed-forward."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

GEGLU = KernelSpec(
    source="geglu.cu", entry="geglu", args=("const u16* gate", "const u16* up", "u16* y", "i64 steps"), threads=256
)
