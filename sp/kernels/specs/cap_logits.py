"""Scale and softly cap the logits of the head."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

CAP_THREADS = 256
EACH = 4  # values per thread

CAP_LOGITS = KernelSpec(
    source="cap_logits.cu",
    entry="cap_logits",
    args=("f32* logits", "i64 count", "f32 cap", "f32 scale"),
    threads=CAP_THREADS,
)
