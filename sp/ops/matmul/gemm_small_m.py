"""The small_m GEMM of all GPUs: 9 to 32 tokens times up to four packed weights in one split-K launch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.device import (
    current_device,
    multiprocessors,
    shared_bytes_per_block,
    shared_bytes_per_multiprocessor,
)
from sp.kernels.kept import cache
from sp.kernels.launch import Defines
from sp.kernels.specs.matmul import gemm_small_m as declared
from sp.kernels.specs.matmul.epilogue import STORE, SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_small_m import GEMM_SMALL_M, HELD
from sp.kernels.specs.matmul.weights import MOST_WEIGHTS
from sp.ops.matmul.packed import PackedWeight, weight_arguments
from sp.ops.matmul.registry import MatmulKernel, Product, register_matmul
from sp.quant import format_bits, packing_of

WARPS = (12, 8, 4)
MOST_SLICES = 64  # most slices of the inputs, in split-K
LEAST_AHEAD = 32 * 1024
"""Bytes that a block should have in flight while it multiplies; with fewer the memory is not kept busy."""
READING, PASSING_ON, MEETING = 3, 4, 64 << 10
"""Costs in bytes of weights that could be loaded meanwhile, on an H200: to load a byte of inputs, to pass on a byte of
sums, and of each further slice."""
PACE = 17.0  # bytes of weights per cycle that an H200's multiprocessor can load
ITEM_COUNTERS = 1 << 14


class Plan(NamedTuple):
    """The division of a product: split-K in `slices` of the inputs, `blocks` for each of them."""

    defines: Defines
    blocks: int
    slices: int
    cost: float


def gemm_small_m(x: Any, weights: Sequence[PackedWeight], outs: Sequence[Any], epilogue: Epilogue) -> None:
    """Fill `outs` with the products of `x` and the weights.

    Parameters
    ----------
    x : uint16 (tokens, in) of BF16 bits
    weights : up to 4 PackedWeights of shape (out_i, in)
        All of super-blocks or none; for SWIGLU gate and up of one format and shape.
    outs : arrays
        STORE: one per weight, uint16 (BF16) or float32 (tokens, out_i). ADD: float32 (tokens, out), added to.
        SWIGLU: uint16 (tokens, out) for the weights (gate, up).
    epilogue : STORE, ADD or SWIGLU
    """
    start = 0
    for tokens in passes(len(x)):
        part = slice(start, start + tokens)
        _launch(x[part], weights, [out[part] for out in outs], epilogue)
        start += tokens


def passes(tokens: int) -> list[int]:
    """Return the tokens of each launch: as few launches as possible, of similar size.

    >>> passes(23), passes(40), passes(64)
    ([23], [24, 16], [32, 32])
    """
    count = -(-tokens // HELD[-1])
    size = -(-tokens // (8 * count)) * 8
    return [min(size, tokens - start) for start in range(0, tokens, size)]


def fits(k: int, kinds: tuple[int, ...]) -> bool:
    """Return True if a block of the current GPU has enough shared memory for 32 tokens."""
    return _plan(HELD[-1], k, kinds, (64,), STORE, current_device()) is not None


def _launch(x: Any, weights: Sequence[PackedWeight], outs: Sequence[Any], epilogue: Epilogue) -> None:
    tokens, k = x.shape
    if epilogue == SWIGLU and (weights[0].format, weights[0].shape) != (weights[1].format, weights[1].shape):
        raise DeviceError(f"{weights[0].name} and {weights[1].name}: one launch multiplies by both only when alike")
    device = current_device()
    held = next(n for n in HELD if n >= tokens)
    rows = tuple(w.shape[0] for w in (weights if epilogue == STORE else weights[:1]))
    plan = _plan(held, k, tuple(w.format.ggml_type for w in weights), rows, epilogue, device)
    if plan is None:
        raise DeviceError(f"{tokens} tokens of {k} inputs do not fit in the shared memory of a block")
    cupy, piece, defines = import_cupy(), declared.piece_bytes(held) // 4, plan.defines
    blocks, items = plan.blocks * plan.slices, _items(rows, epilogue)
    heads = None if defines["HEADS"] else cupy.empty(blocks * int(defines["WARPS"]) * piece, cupy.float32)
    partials, arrived = None, None
    if plan.slices > 1:
        partials, arrived = cupy.empty(plan.slices * items * piece, cupy.float32), _counters(device)
    GEMM_SMALL_M.launch(
        (plan.blocks, plan.slices),
        x,
        tokens,
        k,
        len(weights),
        heads,
        partials,
        arrived,
        *weight_arguments(weights, outs),
        defines=defines,
    )


def plan_of(
    held: int, k: int, kinds: tuple[int, ...], rows: tuple[int, ...], epilogue: Epilogue, processors: int, capacity: int
) -> Plan | None:
    """Return the division whose busiest multiprocessor moves the fewest bytes, of weights, inputs and partial sums.
    `held`: capacity of the variant in tokens; `k`: inputs; `kinds`: ggml types of the weights; `rows`: outputs of every
    weight; of gate only for SWIGLU; `epilogue`: STORE, ADD or SWIGLU; `processors`, `capacity`: multiprocessors of the
    GPU, and shared memory of a block in bytes. Returns Plan or None, None if shared memory is too small.

    >>> plan = plan_of(16, 5120, (12, 12), (17408,), SWIGLU, 132, 227 * 1024)
    >>> plan.blocks, plan.slices, plan.defines["STAGES"]
    (66, 2, 2)
    """
    stage, formats, items = packing_of(kinds[0]).span, format_bits(*kinds), _items(rows, epilogue)
    stages = k // stage
    unit = 2 * declared.slot_bytes(formats)
    best: Plan | None = None
    for warps in WARPS:
        if warps > 8 and held > 24:  # too many registers
            continue
        for slices in range(1, min(stages, MOST_SLICES) + 1):
            if slices > 1 and items > ITEM_COUNTERS:
                continue
            longest = -(-stages // slices)
            blocks = min(max(1, processors // slices), items)
            mine, rounds = -(-items // blocks), -(-blocks * slices // processors)
            for heads in (True, False):
                defines = declared.variant(longest * stage, held, formats, epilogue, warps, heads, capacity)
                if defines["STAGES"] < 2:
                    continue
                ahead = (defines["STAGES"] - 1) * warps * unit
                partial = 0 if slices == 1 else mine * declared.piece_bytes(held) * PASSING_ON + slices * MEETING
                pieces = 0 if heads else 2 * warps * declared.piece_bytes(held)
                weights = mine * longest * max(unit, PACE * _cycles(held, warps) * stage / 256)
                moved = weights + longest * stage * held * 2 * READING + partial + pieces
                cost = rounds * moved * max(1.0, LEAST_AHEAD / ahead)
                if best is None or cost < best.cost:
                    best = Plan(defines, blocks, slices, cost)
    return best


def _cycles(held: int, warps: int) -> float:
    """Return roughly the cycles that a multiprocessor needs for 32 rows of 256 inputs: the latency of a single warp,
    shared by all warps, or the instructions of all of them."""
    return max((1400 + 50 * held) / warps, (550 + 9 * held) / 0.8 / 4)


@lru_cache(4096)
def _plan(
    held: int, k: int, kinds: tuple[int, ...], rows: tuple[int, ...], epilogue: Epilogue, device: int
) -> Plan | None:
    shared = shared_bytes_per_multiprocessor(device) - 1024  # a block's reserve
    capacity = min(shared, shared_bytes_per_block(device))
    return plan_of(held, k, kinds, rows, epilogue, multiprocessors(device), capacity)


def _items(rows: Sequence[int], epilogue: Epilogue) -> int:
    """Return the number of work tiles: pairs of row tiles of 16 rows, of one weight or of gate and up."""
    return sum(-(-count // (16 if epilogue == SWIGLU else 32)) for count in rows)


@cache
def _counters(device: int) -> Any:
    """Return counters of slices that have arrived at each work tile, zero between launches."""
    return import_cupy().zeros(ITEM_COUNTERS, "uint32")


def _run(p: Product) -> None:
    gemm_small_m(p.x, p.weights, p.outs, p.epilogue)


def _room(tokens: int, width: int, kinds: tuple[int, ...], norm: bool, epilogue: Epilogue) -> int:
    return HELD[-1] if all(fits(width, (kind,)) for kind in kinds) else 0


FEW = register_matmul(
    MatmulKernel(
        name="gemm_small_m",
        run=_run,
        max_weights=MOST_WEIGHTS,
        alike=lambda kind: packing_of(kind).span,
        room=_room,
        timed=range(2, 129),
    )
)
