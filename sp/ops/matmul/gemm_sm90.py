"""The matrix products of prefill on Hopper (compute capability 9.0)."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.device import current_device
from sp.kernels.launch import Defines
from sp.kernels.specs.matmul.gemm_sm90 import GEMM_SM90, WIDE, variant
from sp.kernels.tensor_map import tensor_map
from sp.ops.matmul.packed import PackedWeight


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
    device = current_device()
    plan = plan_of(w.format.ggml_type, mode, len(x), w.row_tiles, w.k_tiles, _processors(device))
    GEMM_SM90.launch(
        plan.grid,
        tensor_map(x, (width, len(x)), (2 * width,), plan.x_box),
        tensor_map(out, (rows, len(x)), (rows * out.itemsize,), (128 // out.itemsize, 64)),
        w.data,
        weights[1].data if len(weights) > 1 else None,
        plan.token_blocks,
        plan.out_blocks,
        w.row_tiles,
        w.k_tiles,
        plan.streamed,
        *(_workspace(device) if plan.streamed else (None, None)),
        defines=plan.defines,
    )


class Plan(NamedTuple):
    """How one product is divided."""

    defines: Defines
    token_blocks: int
    out_blocks: int
    clusters: int
    streamed: int
    cost: float
    grid: tuple[int]
    x_box: tuple[int, int]
    """Inputs and tokens that one copy brings."""


STEP = {128: 0.42, 256: 0.64}
"""Microseconds of a k-step by tokens of a tile."""
MEND = {128: 8.0, 256: 14.0}
"""Microseconds that passing on partial sums costs. Both only choose between forms; measured on an H200."""
GAIN = 1.05
"""What sharing must promise: in long runs power is short, and blocks that wait leave theirs to the others."""


@cache
def plan_of(kind: int, mode: str, tokens: int, row_tiles: int, k_tiles: int, processors: int) -> Plan:
    """The fastest way by a rough model: tiles of 128 or 256 tokens, and whether blocks share the last ones' k-steps.

    Examples
    --------
    >>> plan = plan_of(12, "bf16", 8192, 272, 80, 132)
    >>> plan.defines["TOKENS"], plan.clusters, plan.streamed
    (256, 66, 0)
    >>> plan = plan_of(12, "bf16", 100, 80, 80, 132)
    >>> plan.defines["TOKENS"], plan.clusters, plan.streamed
    (128, 132, 40)
    """
    return min((_plan(kind, mode, size, tokens, row_tiles, k_tiles, processors) for size in STEP), key=lambda p: p.cost)


def _plan(kind: int, mode: str, size: int, tokens: int, row_tiles: int, k_tiles: int, processors: int) -> Plan:
    defines = variant(kind, mode, size)
    cluster = defines["CLUSTER"]
    blocks, outs = -(-tokens // size), -(-row_tiles // (cluster * (1 if mode == "gated" else 2)))
    tiles, most = blocks * outs, processors // cluster
    rounds, rest = divmod(tiles, most)
    whole = (rounds + (rest > 0)) * k_tiles * STEP[size]
    shared = tiles / most * k_tiles * STEP[size] + MEND[size]
    if whole <= GAIN * shared:
        streamed, clusters, cost = 0, min(tiles, most), whole
    else:
        streamed = rest + (most if rounds else 0)
        defines, clusters, cost = defines | {"STREAM": 1}, min(most, streamed * k_tiles), shared
    return Plan(defines, blocks, outs, clusters, streamed, cost, (clusters * cluster,), (64, size // cluster))


@cache
def _processors(device: int) -> int:
    return int(import_cupy().cuda.Device(device).attributes["MultiProcessorCount"])


@cache
def _workspace(device: int) -> tuple[Any, Any]:
    """Partial sums and flags, kept: a captured graph may go on using them."""
    cupy, blocks = import_cupy(), _processors(device)
    return cupy.empty((blocks, 128, 256), "float32"), cupy.zeros((blocks, 2), "uint32")
