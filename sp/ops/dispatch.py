"""Which kernel multiplies by packed weights: the decode kernel up to so many tokens, a prefill matmul above.

The decode kernel reads all weights once for every 8 or so tokens, so its time grows in steps; a matmul's is flat up
to a hundred tokens. The limits are estimates of where the two meet, from the times of 8 and of 16 tokens on an H200 at
the 27B model's shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sp.kernels.path import current_path
from sp.ops.gemm_few import fits
from sp.ops.gemv import ADD, STORE, SWIGLU, held

GEMV_TOKENS = {STORE: 8, SWIGLU: 8, ADD: 8}
"""Most tokens for which the decode kernel is the faster one, by what is done with the products."""
FEW_TOKENS = 64
"""Most tokens for which the kernel for a few of them is faster than a prefill matmul."""
TABLE = Path(__file__).with_name("dispatch_table.json")
SHAPES = {"wide": (17408, 5120), "deep": (5120, 17408)}
"""Outputs and inputs of the products measured."""
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""Rows of x measured."""
HELD_AT_LEAST = 8
"""Where fewer tokens than this fit in a launch, passes do not pay."""


def decodes(tokens: int, k: int, kinds: tuple[int, ...], norm: bool, epilogue: int) -> bool:
    """Whether the decode kernel takes a product of `tokens` rows of `k` inputs with weights of these ggml types."""
    if tokens > GEMV_TOKENS[epilogue]:
        return False
    return held(tokens, k, kinds, norm, epilogue) >= min(tokens, HELD_AT_LEAST)


def takes_few(tokens: int, k: int, kinds: tuple[int, ...]) -> bool:
    """Whether the kernel for a few tokens takes such a product, where the decode kernel does not."""
    return tokens <= FEW_TOKENS and all(fits(k, (kind,)) for kind in kinds)


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
    """The table for people: one row an epilogue and kernel.

    Examples
    --------
    >>> rows()[0]
    {'product': 'store', 'tokens': '1..24', 'kernel': 'gemv'}
    """
    names = {STORE: "store", ADD: "add", SWIGLU: "swiglu"}
    table = []
    for epilogue, limit in GEMV_TOKENS.items():
        name = names[epilogue]
        table.append({"product": name, "tokens": f"1..{limit}", "kernel": "gemv"})
        table.append({"product": name, "tokens": f"{limit + 1}..", "kernel": "gemm_sm90 or gemm_portable"})
    return table
