"""Draw tokens by random numbers from the host, and return the probabilities of tokens."""

from __future__ import annotations

from sp.kernels.launch import KernelSpec

DRAW_TOKENS = KernelSpec(
    source="draw_tokens.cu",
    entry="draw_tokens",
    args=(
        "const f32* logits", "const f32*? less", "const u64* numbers", "i32* tokens", "i32 vocab", "f32 temperature",
    ),
    threads=512,
)  # fmt: skip

TOKEN_SHARES = KernelSpec(
    source="draw_tokens.cu",
    entry="token_shares",
    args=("const f32* logits", "const i32* tokens", "u64* shares", "i32 vocab", "f32 temperature"),
    threads=512,
)
