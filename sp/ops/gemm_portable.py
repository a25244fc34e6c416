"""The matrix products of prefill on any card from compute capability 8.0."""

from __future__ import annotations

from typing import Any

from sp.errors import DeviceError
from sp.kernels.declared import gemm_portable as declared
from sp.ops.packed import PackedWeight, expand_scales

MODES = ("bf16", "f32", "add")


def gemm(x: Any, w: PackedWeight, out: Any, mode: str) -> None:
    """``out = x Wᵀ``, or ``out += x Wᵀ``.

    Parameters
    ----------
    x : bf16 as uint16 (tokens, in)
    w : PackedWeight of shape (out, in); out a multiple of 8
    out : (tokens, out)
        bf16 as uint16 for mode ``"bf16"``, float32 for ``"f32"`` and ``"add"``.
    mode : {"bf16", "f32", "add"}
        Store as bf16 or float32, or add to what `out` holds.
    """
    tokens = _checked(x, w, out)
    if mode == "bf16":
        defines = declared.variant(w.format.ggml_type, "bf16")
        declared.BF16.launch(_grid(defines, tokens, w), x, *_planes(w), out, tokens, *w.shape, defines=defines)
    elif mode in MODES:
        defines = declared.variant(w.format.ggml_type, "f32")
        grid, add = _grid(defines, tokens, w), int(mode == "add")
        declared.F32.launch(grid, x, *_planes(w), out, tokens, *w.shape, add, defines=defines)
    else:
        raise DeviceError(f"gemm {w.name}: mode must be one of {', '.join(MODES)}, not {mode!r}")


def gated(x: Any, gate: PackedWeight, up: PackedWeight, out: Any) -> None:
    """``out = silu(x Gᵀ) * (x Uᵀ)``, both products in one kernel.

    Parameters
    ----------
    x : bf16 as uint16 (tokens, in)
    gate, up : PackedWeights of one format and shape (ffn, in); ffn a multiple of 8
    out : bf16 as uint16 (tokens, ffn)
    """
    tokens = _checked(x, gate, out)
    if (gate.format, gate.shape) != (up.format, up.shape):
        raise DeviceError(
            f"{gate.name} is {gate.format.name} {gate.shape}, {up.name} is {up.format.name} {up.shape}: "
            "one kernel multiplies by both only when they are alike"
        )
    defines = declared.variant(gate.format.ggml_type, "gated")
    grid = _grid(defines, tokens, gate)
    declared.GATED.launch(grid, x, *_planes(gate), *_planes(up), out, tokens, *gate.shape, defines=defines)


def _checked(x: Any, w: PackedWeight, out: Any) -> int:
    rows, width = w.shape
    if x.ndim != 2 or x.shape[1] != width or out.shape != (len(x), rows):
        raise DeviceError(f"gemm {w.name} {w.shape}: x {x.shape} and out {out.shape} do not fit")
    if rows % 8:
        raise DeviceError(f"gemm {w.name}: {rows} outputs are not a multiple of 8")
    return len(x)


def _planes(w: PackedWeight) -> tuple[Any, Any, Any]:
    return w.plane("low"), w.plane("high"), expand_scales(w)


def _grid(defines: dict[str, int], tokens: int, w: PackedWeight) -> tuple[int]:
    block_rows, block_tokens = declared.tile(defines)
    return (-(-w.shape[0] // block_rows) * -(-tokens // block_tokens),)
