"""The matrix products of prefill on Hopper (compute capability 9.0)."""

from __future__ import annotations

from functools import cache
from typing import Any

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.declared.gemm_sm90 import GEMM_SM90, MODES, WIDE, variant
from sp.kernels.device import current_device
from sp.kernels.launch import Defines
from sp.kernels.tensor_map import tensor_map
from sp.ops.packed import PackedWeight, expand_scales


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
    if mode not in ("bf16", *WIDE):
        raise DeviceError(f"gemm {w.name}: mode must be bf16, f32 or add, not {mode!r}")
    _launch(x, (w,), out, mode)


def gated(x: Any, gate: PackedWeight, up: PackedWeight, out: Any) -> None:
    """``out = silu(x Gᵀ) * (x Uᵀ)``, both products rounded to bf16 first, in one kernel.

    Parameters
    ----------
    x : bf16 as uint16 (tokens, in)
    gate, up : PackedWeights of one format and shape (ffn, in); ffn a multiple of 8
    out : bf16 as uint16 (tokens, ffn)
    """
    if (gate.format, gate.shape) != (up.format, up.shape):
        raise DeviceError(
            f"{gate.name} is {gate.format.name} {gate.shape}, {up.name} is {up.format.name} {up.shape}: "
            "one kernel multiplies by both only when they are alike"
        )
    _launch(x, (gate, up), out, "gated")


def _launch(x: Any, weights: tuple[PackedWeight, ...], out: Any, mode: str) -> None:
    w = weights[0]
    rows, width = w.shape
    wanted = "float32" if mode in WIDE else "uint16"
    if x.ndim != 2 or x.shape[1] != width or out.shape != (len(x), rows) or (x.dtype, out.dtype) != ("uint16", wanted):
        raise DeviceError(
            f"gemm {w.name} {w.shape}: x {x.dtype} {x.shape} and out {out.dtype} {out.shape} do not fit mode {mode}"
        )
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        raise DeviceError(f"gemm {w.name}: x and out must be C-contiguous")
    if rows % 8:
        raise DeviceError(f"gemm {w.name}: {rows} outputs are not a multiple of 8")
    if len(x) == 0:
        return
    defines = _defines(w.format.ggml_type, mode, len(x), w.row_tiles, _processors(current_device()))
    tokens, cluster = int(defines["TOKENS"]), int(defines["CLUSTER"])
    blocks, outs = _blocks(defines, len(x), w.row_tiles)
    planes = [plane for v in weights for plane in (v.plane("low"), v.plane("high"), expand_scales(v))]
    GEMM_SM90.launch(
        (min(blocks * outs, _processors(current_device()) // cluster) * cluster,),
        tensor_map(x, (width, len(x)), (2 * width,), (64, tokens // cluster)),
        tensor_map(out, (rows, len(x)), (rows * out.itemsize,), (128 // out.itemsize, 64)),
        *planes,
        *[None] * (6 - len(planes)),
        blocks,
        outs,
        w.row_tiles,
        w.k_tiles,
        defines=defines,
    )


def _blocks(defines: Defines, tokens: int, row_tiles: int) -> tuple[int, int]:
    """Tiles of a cluster along tokens and outputs."""
    tall = int(defines["CLUSTER"]) * (1 if defines["MODE"] == MODES["gated"] else 2)
    return -(-tokens // int(defines["TOKENS"])), -(-row_tiles // tall)


@cache
def _processors(device: int) -> int:
    return int(import_cupy().cuda.Device(device).attributes["MultiProcessorCount"])


@cache
def _defines(kind: int, mode: str, tokens: int, row_tiles: int, processors: int) -> Defines:
    return variant(kind, mode, 128 if tokens <= 128 else 256)
