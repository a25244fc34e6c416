"""gemv: a few tokens times up to four packed weights in one launch; the device half of `project` at decode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sp.kernels import import_cupy
from sp.kernels.declared.gemv import ADD, GEMV, STORE, SWIGLU, bits, variant
from sp.kernels.device import current_device
from sp.ops.packed import PackedWeight

__all__ = ["ADD", "STORE", "SWIGLU", "fits", "gemv"]

HELD = (1, 2, 4, 8, 16)
"""Rows of inputs a variant of the kernel holds."""


def gemv(
    x: Any, weights: Sequence[PackedWeight], outs: Sequence[Any], epilogue: int, norm: tuple[Any, float] | None = None
) -> None:
    """Fill `outs` with the products of `x` and the weights.

    Parameters
    ----------
    x : uint16 (tokens, in) of BF16 bits, or float32 (tokens, in) with `norm`
        At most 16 tokens; `fits` says whether so many fit.
    weights : up to 4 PackedWeights of shape (out_i, in)
    outs : arrays
        STORE: one a weight, uint16 (BF16) or float32 (tokens, out_i). ADD: float32 (tokens, out), added to.
        SWIGLU: uint16 (tokens, out) for the weights (gate, up).
    epilogue : STORE, ADD or SWIGLU
    norm : (float32 (in,), float), optional
        Weight and eps of an RMS norm of `x` before the product.
    """
    tokens, k = x.shape
    device = current_device()
    defines = _variant(tokens, k, tuple(w.format.ggml_type for w in weights), norm is not None, epilogue, device)
    assert defines is not None, f"{tokens} tokens of {k} inputs do not fit"
    units = sum(-(-w.shape[0] // 16) for w in (weights if epilogue == STORE else weights[:1]))
    arguments: list[Any] = []
    for i in range(4):
        w = weights[i] if i < len(weights) else None
        out = outs[i] if i < len(outs) else None
        wide = out is not None and out.dtype.char == "f"
        arguments += [
            None if w is None else w.data,
            0 if w is None else w.format.ggml_type,
            0 if w is None else w.shape[0],
            None if wide else out,
            out if wide else None,
        ]
    weight, eps = norm if norm is not None else (None, 0.0)
    GEMV.launch(
        (min(_processors(device), -(-units // defines["GROUPS"])),),
        x if norm is None else None,
        None if norm is None else x,
        weight,
        eps,
        tokens,
        len(weights),
        *arguments,
        defines=defines,
    )


def fits(tokens: int, k: int, kinds: tuple[int, ...], norm: bool, epilogue: int) -> bool:
    """Whether the device's shared memory holds the inputs and a ring that hides the way to memory."""
    return tokens <= HELD[-1] and _variant(tokens, k, kinds, norm, epilogue, current_device()) is not None


@cache
def _variant(
    tokens: int, k: int, kinds: tuple[int, ...], norm: bool, epilogue: int, device: int
) -> dict[str, int] | None:
    """Defines for a launch, None where nothing fits."""
    held = next(n for n in HELD if n >= tokens)
    capacity = int(import_cupy().cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"])
    for groups in (2, 1):
        defines = variant(k, held, bits(*kinds), norm, epilogue, capacity, groups=groups)
        if defines["STAGES"] >= 3:
            return defines
    return defines if defines["STAGES"] == 2 else None


@cache
def _processors(device: int) -> int:
    return int(import_cupy().cuda.Device(device).attributes["MultiProcessorCount"])
