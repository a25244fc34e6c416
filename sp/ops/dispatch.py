"""Which kernel multiplies by packed weights: the decode kernel up to so many tokens, a prefill matmul above.

The limits are measured (``results/<gpu>/decode_matmul.jsonl``); where a weight's inputs do not fit the decode kernel's
shared memory, the matmul takes over earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sp.kernels.path import current_path
from sp.ops.gemv import fits

GEMV_TOKENS = {"sm_90a": 16, "portable": 16}
"""Most tokens for which the decode kernel is the faster one, by path."""


def decodes(tokens: int, k: int, kinds: tuple[int, ...], norm: bool, epilogue: int) -> bool:
    """Whether the decode kernel takes a product of `tokens` rows of `k` inputs with weights of these ggml types."""
    return tokens <= GEMV_TOKENS[current_path()] and fits(tokens, k, kinds, norm, epilogue)


def matmul() -> Callable[..., None]:
    """The prefill ``gemm(x, w, out, mode)`` of the current path."""
    if current_path() == "sm_90a":
        from sp.ops.gemm_sm90 import gemm
    else:
        from sp.ops.gemm_portable import gemm
    return gemm


def gated_matmul() -> Callable[..., None]:
    """The prefill ``gated(x, gate, up, out)`` of the current path."""
    if current_path() == "sm_90a":
        from sp.ops.gemm_sm90 import gated
    else:
        from sp.ops.gemm_portable import gated
    return gated


def rows() -> list[dict[str, Any]]:
    """The table as text for ``sp kernels list --dispatch``: one row a path and kernel.

    Examples
    --------
    >>> sorted(rows()[0])
    ['kernel', 'path', 'tokens']
    """
    table: list[dict[str, Any]] = []
    for path, limit in GEMV_TOKENS.items():
        table.append({"path": path, "tokens": f"1..{limit}", "kernel": "gemv"})
        table.append(
            {"path": path, "tokens": f"{limit + 1}..", "kernel": "gemm_sm90" if path == "sm_90a" else "gemm_portable"}
        )
    return table
