"""The small_m GEMM of Hopper: up to 64 tokens times up to four weights in super-block formats per launch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sp.errors import DeviceError
from sp.kernels import import_cupy
from sp.kernels.device import current_device, multiprocessors
from sp.kernels.kept import cache
from sp.kernels.launch import Defines
from sp.kernels.specs.matmul.epilogue import STORE, SWIGLU, Epilogue
from sp.kernels.specs.matmul.gemm_small_m_sm90 import (
    GEMM_SMALL_M_SM90,
    GROUPS,
    HELD,
    depth,
    streamed,
    strip_tasks,
    variant,
)
from sp.kernels.specs.matmul.weights import MOST_WEIGHTS
from sp.ops.input_tiles import InputTiles, empty_tiles
from sp.ops.matmul.gemm_small_m import FEW
from sp.ops.matmul.packed import PackedWeight, weight_arguments
from sp.ops.matmul.registry import Fusion, MatmulKernel, Product, register_matmul
from sp.ops.norms import Norm, Ready
from sp.quant import format_bits, packing_of
from sp.quant.packing import TILE

SUPER = 256  # inputs of a super-block
MOST_SLICES = 32  # one per lane of a warp
STREAM_SLOTS = (3, 2)  # K-chunks of streamed inputs in a block's ring, in the order of preference
LEAST_DEPTH = 2
MOST_DEPTH = 12
LEAST_PARTIALS = 8
"""The workspace of sums is 8 to this power in bytes, or to a higher one: all products of a layer share one, which
therefore stays in the L2 cache."""


class Plan(NamedTuple):
    """The division of a product: split-K in `slices` of the inputs, `blocks` for each, whose warpgroups share its tiles
    as in stream-K. A block holds `width` inputs. `depth`: slots of a ring; `ahead`: how many of them are filled before
    the inputs are loaded; `places`: entries for the tasks of a block; `power`: the workspace of sums is 8 to this power
    in bytes."""

    defines: Defines
    blocks: int
    slices: int
    width: int
    depth: int
    ahead: int
    places: int
    power: int


def held_for(tokens: int) -> int:
    """Return the capacity of the smallest variant for `tokens` (at most 64).

    >>> held_for(9), held_for(23), held_for(33)
    (16, 24, 40)
    """
    return next(n for n in HELD if n >= tokens)


def gemm_small_m_sm90(
    x: Any,
    weights: Sequence[PackedWeight],
    outs: Sequence[Any],
    epilogue: Epilogue,
    norm: Norm | None = None,
    then: Ready | None = None,
    before: Ready | None = None,
) -> None:
    """Fill `outs` with the products of `x` and the weights.

    Parameters
    ----------
    x : InputTiles (tokens, in) of an earlier product; uint16 (tokens, in) of BF16 bits; with `norm` float32
    weights : up to 4 PackedWeights of shape (out_i, in), of super-blocks
        For SWIGLU gate and up of one format and shape.
    outs : arrays
        STORE: one per weight, uint16 (BF16) or float32 (tokens, out_i). ADD: float32 (tokens, out), added to. SWIGLU:
        for the weights (gate, up) uint16 (tokens, out) or InputTiles of the next product, then with out a multiple of
        256.
    epilogue : STORE, ADD or SWIGLU
    norm : (float32 (in,), float), optional, weight and eps of an RMS norm that comes first, see `sp.ops.rms_norm`
    then : Ready, optional, with ADD, out a multiple of 256: receives the deferred norm of the next product
    before : Ready, optional
        With `then`: the deferred norm of the old residual stream. It gives the magnitude of each token, so that tiles
        represent small and large ones equally well; without it magnitudes of about 1 are assumed.
    """
    if epilogue == SWIGLU and (weights[0].format, weights[0].shape) != (weights[1].format, weights[1].shape):
        raise DeviceError(f"{weights[0].name} and {weights[1].name}: one launch multiplies by both only when alike")
    device = current_device()
    rows = tuple(w.shape[0] for w in (weights if epilogue == STORE else weights[:1]))
    # Inputs that are no tiles yet become tiles in the kernel's prologue, in this workspace.
    given = x if isinstance(x, InputTiles) else empty_tiles(len(x), x.shape[1], held_for(len(x)))
    plain, wide = None if given is x or norm else x, x if norm else None
    weight, eps = norm or (None, given.eps)
    plan = _plan(given.held, given.width, tuple(w.format.ggml_type for w in weights), rows, epilogue, device)
    tiles = outs[0] if isinstance(outs[0], InputTiles) else None
    next_tiles = tiles if then is None else then.tiles
    GEMM_SMALL_M_SM90.launch(
        (plan.blocks, plan.slices),
        given.data,
        plain,
        wide,
        weight,
        eps,
        _ready(device),
        given.tokens,
        given.width,
        plan.width,
        plan.depth,
        plan.ahead,
        plan.places,
        len(weights),
        _partials(device, plan.power),
        None if next_tiles is None else next_tiles.data,
        given.squares,
        None if then is None else then.norm[0],
        None if then is None else then.tiles.squares,
        None if then is None or before is None else before.tiles.squares,
        *weight_arguments(weights, () if tiles is not None else outs),
        defines=plan.defines,
    )


def plan_of(
    held: int, k: int, kinds: tuple[int, ...], rows: tuple[int, ...], epilogue: Epilogue, processors: int
) -> Plan:
    """Return the division into the fewest slices whose inputs leave room for a ring: each further slice costs a
    synchronisation. Streamed inputs have one slice. `held`: capacity of the variant in tokens; `k`: inputs; `kinds`:
    ggml types of the weights; `rows`: outputs of every weight; of gate only for SWIGLU; `epilogue`: STORE, ADD or
    SWIGLU; `processors`: multiprocessors of the GPU.

    >>> plan = plan_of(16, 5120, (12, 12), (17408,), SWIGLU, 132)
    >>> plan.blocks, plan.slices, plan.width, plan.depth
    (66, 2, 2560, 4)
    >>> plan = plan_of(64, 5120, (12, 12), (17408,), SWIGLU, 132)
    >>> plan.blocks, plan.slices, plan.width, plan.depth
    (132, 1, 768, 3)
    """
    supers, formats = k // SUPER, format_bits(*kinds)
    if streamed(held):
        tiles_each, workers_each, ways = GROUPS, 1, [(1, slots) for slots in STREAM_SLOTS]
    else:
        tiles_each, workers_each = 1, GROUPS
        ways = [(slices, -(-supers // slices)) for slices in range(1, min(supers, MOST_SLICES) + 1)]
    items = [-(-n // (TILE * tiles_each)) for n in rows]
    costs = [packing_of(kind).unit_bytes // 1024 for kind in kinds]  # in the kernel's units
    column = sum(count * cost for count, cost in zip(items, costs, strict=False))
    tile_sums = 4 * TILE * held * (2 if epilogue == SWIGLU else 1)
    for slices, resident in ways:
        stages, least = -(-supers // slices), supers // slices
        # Every worker of a larger product must have a K-chunk: others would wait for its partial sums.
        blocks = max(1, min(processors // slices, column * least // (max(costs) * workers_each)))
        pieces = column * stages // (blocks * workers_each * min(costs) * least) + 2  # at most, of a worker
        if streamed(held) and epilogue == STORE:
            pieces = min(pieces, 2)  # the pieces in between are whole work tiles, which are stored without a task
        places = 4 * GROUPS * strip_tasks(held, epilogue) * -(-pieces // slices)
        ring = min(depth(SUPER * resident, held, formats, places), MOST_DEPTH)
        if ring < LEAST_DEPTH:
            continue
        if column * stages * blocks * workers_each >> 32:
            raise DeviceError(f"a product of {sum(rows)} outputs of {k} inputs is too large for one launch")
        sums = slices * (sum(items) + blocks * workers_each) * tiles_each * tile_sums
        power = max(LEAST_PARTIALS, -(-(sums - 1).bit_length() // 3))
        return Plan(variant(held, formats, epilogue), blocks, slices, SUPER * resident, ring, ring, places, power)
    raise DeviceError(f"{held} tokens of {k} inputs do not fit in the shared memory of a block")


@lru_cache(4096)
def _plan(held: int, k: int, kinds: tuple[int, ...], rows: tuple[int, ...], epilogue: Epilogue, device: int) -> Plan:
    return plan_of(held, k, kinds, rows, epilogue, multiprocessors(device))


@cache
def _partials(device: int, power: int) -> Any:
    """Return a workspace of 8^`power` bytes for partial sums between workers, zero between launches."""
    return import_cupy().zeros(8**power // 4, np.float32)


@cache
def _ready(device: int) -> Any:
    """Return the counts of blocks that have stored their part of the inputs, and of those that have seen it, zero
    between launches."""
    return import_cupy().zeros(2, "uint32")


def _run(p: Product) -> None:
    norm: Any = p.norm  # a deferred norm has become InputTiles in `_prepared`
    gemm_small_m_sm90(p.x, p.weights, p.outs, p.epilogue, norm, p.then, p.before)


register_matmul(
    MatmulKernel(
        name="gemm_small_m_sm90",
        run=_run,
        reads=lambda kind: packing_of(kind).super,
        paths=("sm_90a",),
        fusions=frozenset({Fusion.NORM, Fusion.TILES, Fusion.READY}),
        max_tokens=HELD[-1],
        max_weights=MOST_WEIGHTS,
        timed=range(2, HELD[-1] + 1),
        # It is the fastest there, or nearly so, and it passes its results on in the form that the next product takes,
        # which the table does not measure.
        preferred=range(2, HELD[-1] + 1),
        otherwise=FEW,
        tile_rows=held_for,
    )
)
