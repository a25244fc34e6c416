"""The persistent prefill GEMM on Hopper (compute capability 9.0), with stream-K for its last tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.device import current_device, multiprocessors, multiprocessors_to_fill
from sp.kernels.kept import cache
from sp.kernels.launch import Defines, KernelSpec
from sp.kernels.specs.matmul.epilogue import STORE, STORE_F32, SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_sm90 import COMMON, GEMM_SM90, GEMM_SM90_BESIDE, WIDE, variant
from sp.kernels.tensor_map import tensor_map
from sp.ops.matmul.packed import PackedWeight
from sp.ops.matmul.registry import MatmulKernel, Product, register_matmul


def gemm(x: Any, w: PackedWeight, out: Any, epilogue: Epilogue) -> None:
    """``out = x Wᵀ``, or ``out += x Wᵀ``. `x`: bf16 as uint16 (tokens, in); `w`: PackedWeight of shape (out, in); out a
    multiple of 8; `out`: (tokens, out), bf16 as uint16 for STORE, float32 for STORE_F32 and ADD; `epilogue`: STORE,
    STORE_F32 or ADD."""
    if epilogue not in (STORE, *WIDE):
        raise DeviceError(f"gemm {w.name}: epilogue must be STORE, STORE_F32 or ADD, not {epilogue!r}")
    _launch(x, (w,), out, epilogue)


def gated(x: Any, gate: PackedWeight, up: PackedWeight, out: Any) -> None:
    """``out = silu(x Gᵀ) * (x Uᵀ)``, both products rounded to bf16 first, in one kernel. `x`: bf16 as uint16
    (tokens, in); `gate`, `up`: PackedWeights of one format and shape (ffn, in); ffn a multiple of 8; `out`: bf16 as
    uint16 (tokens, ffn)."""
    if (gate.format, gate.shape) != (up.format, up.shape):
        raise DeviceError(
            f"{gate.name} is {gate.format.name} {gate.shape}, {up.name} is {up.format.name} {up.shape}: "
            "one kernel multiplies by both only when they are alike"
        )
    _launch(x, (gate, up), out, SWIGLU)


def beside(x: Any, weights: tuple[PackedWeight, PackedWeight], outs: Sequence[Any], epilogue: Epilogue) -> None:
    """``out = x Wᵀ`` for two weights of up to 64 rows, in one kernel. `x`: bf16 as uint16 (tokens, in); `weights`: two
    PackedWeights of one format, of `COMMON`; up to 64 rows, multiples of 8; `outs`: two arrays (tokens, rows), bf16 as
    uint16 for STORE, float32 for STORE_F32; `epilogue`: STORE or STORE_F32."""
    first, second = weights
    if not are_narrow(weights) or epilogue not in (STORE, STORE_F32):
        raise DeviceError(
            f"gemm: {first.name} {first.shape} and {second.name} {second.shape} are no two narrow weights"
        )
    plan = _checked(x, first, outs[0], epilogue)
    if _checked(x, second, outs[1], epilogue) is None or plan is None:
        return
    _run_plan(plan, x, weights, outs, GEMM_SM90_BESIDE, {"BESIDE": 1})


def are_narrow(weights: Sequence[PackedWeight]) -> bool:
    """Return True if two weights can share a launch of `beside`."""
    alike = len(weights) == 2 and weights[0].format is weights[1].format
    return alike and weights[0].format in COMMON and all(w.row_tiles == 1 for w in weights)


def _launch(x: Any, weights: tuple[PackedWeight, ...], out: Any, epilogue: Epilogue) -> None:
    plan = _checked(x, weights[0], out, epilogue)
    if plan is not None:
        _run_plan(plan, x, weights, (out,), GEMM_SM90, {})


def _checked(x: Any, w: PackedWeight, out: Any, epilogue: Epilogue) -> Plan | None:
    """Return the plan of a product; None if there are no tokens, DeviceError if operands do not match."""
    rows, width = w.shape
    wanted = "float32" if epilogue in WIDE else "uint16"
    if x.ndim != 2 or x.shape[1] != width or out.shape != (len(x), rows) or (x.dtype, out.dtype) != ("uint16", wanted):
        raise DeviceError(
            f"gemm {w.name} {w.shape}: x {x.dtype} {x.shape} and out {out.dtype} {out.shape} do not fit {epilogue.name}"
        )
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        raise DeviceError(f"gemm {w.name}: x and out must be C-contiguous")
    if rows % 8:
        raise DeviceError(f"gemm {w.name}: {rows} outputs are not a multiple of 8")
    if len(x) == 0:
        return None
    processors = multiprocessors_to_fill(current_device())
    return plan_of(w.format.ggml_type, epilogue, len(x), w.row_tiles, w.k_tiles, processors)


def _run_plan(
    plan: Plan,
    x: Any,
    weights: tuple[PackedWeight, ...],
    outs: Sequence[Any],
    kernel: KernelSpec,
    defines: Defines,
) -> None:
    w, maps = weights[0], [tensor_map(y, y.shape[::-1], (y.strides[0],), (128 // y.itemsize, 64)) for y in outs]
    kernel.launch(
        plan.grid,
        tensor_map(x, (w.shape[1], len(x)), (2 * w.shape[1],), plan.x_box),
        maps[0],
        w.data,
        weights[1].data if len(weights) > 1 else None,
        plan.token_blocks,
        plan.out_blocks,
        w.row_tiles,
        w.k_tiles,
        plan.streamed,
        *(_workspace(current_device()) if plan.streamed else (None, None)),
        *maps[1:],
        defines={**plan.defines, **defines},
    )


class Plan(NamedTuple):
    """The division of a product; all clusters share the K-chunks of the first `streamed` tiles (stream-K)."""

    defines: Defines
    token_blocks: int
    out_blocks: int
    clusters: int
    streamed: int
    cost: float
    grid: tuple[int]
    x_box: tuple[int, int]  # inputs and tokens of one TMA copy


STEP = {128: 0.42, 256: 0.64}  # microseconds per K-chunk, by tokens of a tile
FIXUP = {128: 8.0, 256: 14.0}
"""Microseconds to pass on partial sums. Both constants only choose between plans; measured on an H200."""
PASS = {128: 1.0, 256: 2.0}
"""Microseconds to add the sums of each further block of a tile: they are added one after the other."""
GAIN = 1.05  # least predicted gain of stream-K: long runs are power-limited, and idle blocks leave power to the others


PAIRED = 1.08
"""Gain of blocks in pairs, which share X tiles. If row tiles are no multiple of four, pairs waste more: of 9 row tiles
three in 12. An H200 multiplied 65,536 tokens by SmolLM2's query and down matrices in 90 and 252 us with pairs, and in
78 and 225 without."""


@cache
def plan_of(kind: int, epilogue: Epilogue, tokens: int, row_tiles: int, k_tiles: int, processors: int) -> Plan:
    """Return the fastest plan by a rough model: tiles of 128 or 256 tokens, and stream-K for the last tiles or not.

    >>> plan = plan_of(12, STORE, 8192, 272, 80, 132)
    >>> plan.defines["TOKENS"], plan.clusters, plan.streamed
    (256, 66, 0)
    >>> plan = plan_of(12, STORE, 100, 80, 80, 132)
    >>> plan.defines["TOKENS"], plan.clusters, plan.streamed
    (128, 132, 40)
    >>> plan_of(12, STORE, 512, 1, 80, 132).clusters  # four narrow tiles, six blocks for each
    24
    >>> [plan_of(3, STORE, 65536, tiles, 9, 132).defines["CLUSTER"] for tiles in (9, 24)]
    [1, 2]
    """
    plans, shape = list[Plan](), (tokens, row_tiles, k_tiles, processors)
    for size in STEP:
        plans.append(_plan(usual := variant(kind, epilogue, size), *shape))
        if usual["CLUSTER"] > 1:
            alone = _plan(variant(kind, epilogue, size, cluster=1), *shape)
            plans.append(alone._replace(cost=PAIRED * alone.cost))
    return min(plans, key=lambda plan: plan.cost)


def _plan(defines: dict[str, int], tokens: int, row_tiles: int, k_tiles: int, processors: int) -> Plan:
    size, cluster = defines["TOKENS"], defines["CLUSTER"]
    blocks, outs = -(-tokens // size), -(-row_tiles // (cluster * (1 if defines["EPILOGUE"] == SWIGLU else 2)))
    tiles, most = blocks * outs, processors // cluster
    rounds, rest = divmod(tiles, most)
    whole = (rounds + (rest > 0)) * k_tiles * STEP[size]
    shared = tiles / most * k_tiles * STEP[size] + FIXUP[size]
    if whole <= GAIN * shared:
        streamed, clusters, cost = 0, min(tiles, most), whole
    else:
        streamed = rest + (most if rounds else 0)
        sharers = math.sqrt(k_tiles * STEP[size] / PASS[size])  # blocks per tile that minimise its time
        clusters = min(most, streamed * k_tiles, math.ceil(streamed * sharers))
        defines, cost = defines | {"STREAM": 1}, shared
    return Plan(defines, blocks, outs, clusters, streamed, cost, (clusters * cluster,), (64, size // cluster))


@cache
def _workspace(device: int) -> tuple[Any, Any]:
    """Return partial sums and flags; persistent, because a captured graph may go on using them."""
    cupy, blocks = import_cupy(), multiprocessors(device)
    return cupy.empty((blocks, 128, 256), "float32"), cupy.zeros((blocks, 2), "uint32")


def _run(p: Product) -> None:
    if p.epilogue is SWIGLU:
        gate, up = p.weights
        gated(p.x, gate, up, p.outs[0])
        return
    kinds = [p.epilogue.typed(out.dtype.char == "f") for out in p.outs]
    if are_narrow(p.weights) and kinds[0] is kinds[1]:
        beside(p.x, tuple(p.weights), p.outs, kinds[0])
        return
    for w, out, kind in zip(p.weights, p.outs, kinds, strict=True):
        gemm(p.x, w, out, kind)


register_matmul(
    MatmulKernel(
        name="gemm_sm90",
        run=_run,
        paths=("sm_90a",),
        max_weights=2,
        alike=lambda kind: kind,
        multiple=8,
        prefill=True,
        timed=range(16, 129),
    )
)
