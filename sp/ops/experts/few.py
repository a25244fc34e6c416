"""Experts for few tokens (small_m): each slot separately, in two launches and without sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp.kernels import import_cupy
from sp.kernels.device import current_device, shared_bytes_per_block
from sp.kernels.launch import KernelSpec
from sp.kernels.specs.experts import EXPERT_DOWN, EXPERT_GATED, strip_variant
from sp.ops.experts.routing import Routing
from sp.ops.experts.stack import Stack
from sp.quant import Packing
from sp.quant.packing import TILE

MOST_SLOTS = 384
"""Most slots for which weights read once per slot cost less than weights read once per expert, in tiles of many
tokens."""
STAGE = 256  # inputs per K-chunk of a warp, fewer at the end of rows in blocks of 32


def takes(gate: Stack, up: Stack, down: Stack, routing: Routing) -> bool:
    """Return True if these kernels support so many slots and the experts' formats and shapes."""
    if routing.experts.size > MOST_SLOTS or gate.weight.format != up.weight.format:
        return False
    return all(staged(s.weight.packing) for s in (gate, down)) and all(
        n % TILE == 0 for s in (gate, up, down) for n in (s.rows, s.pitch, s.first, s.weight.shape[1])
    )


def staged(packing: Packing) -> bool:
    """Return True if weights in this format can be read in K-chunks of 256."""
    return packing.super or packing.group == 32


def add_few(
    x: Any,
    h: Any,
    gate: Stack,
    up: Stack,
    down: Stack,
    routing: Routing,
    shared: tuple[Any, Any] | None,
    clamped: bool = False,
) -> None:
    """`sp.ops.experts.expert_mlp.add_experts` on the device, for operands that `takes` accepts."""
    tokens, used = routing.experts.shape
    hidden, width = gate.weight.shape[1], down.weight.shape[1]
    stages, back = -(-hidden // STAGE), -(-width // STAGE)
    mid = import_cupy().empty((tokens * used, width), np.uint16)  # bf16, one row per slot
    EXPERT_GATED.launch(
        (width // 16, tokens * used),
        h,
        routing.experts,
        gate.weight.data,
        up.weight.data,
        mid,
        used,
        stages,
        gate.weight.row_tiles,
        gate.pitch // TILE,
        gate.first // TILE,
        up.first // TILE,
        _tail(hidden),
        gate.bias,
        up.bias,
        defines=_variant(EXPERT_GATED, gate, stages) | ({"CLAMPED": 1} if clamped else {}),
    )
    mix, common = (None, None) if shared is None else shared
    EXPERT_DOWN.launch(
        (x.shape[1] // 16, tokens),
        mid,
        routing.experts,
        routing.weights,
        down.weight.data,
        None if shared is None else h,
        mix,
        common,
        x,
        used,
        back,
        down.weight.row_tiles,
        down.pitch // TILE,
        hidden // 8,
        _tail(width),
        down.bias,
        defines=_variant(EXPERT_DOWN, down, used * back),
    )


def _tail(width: int) -> int:
    """Return the tiles of the last K-chunk of a row."""
    return (width - 1) % STAGE // TILE + 1


def _variant(kernel: KernelSpec, stack: Stack, stages: int) -> dict[str, int]:
    """Return the defines with a ring as deep as the K-chunks and shared memory allow."""
    defines = strip_variant(stack.weight.format.ggml_type, stages, tail=stack.weight.shape[1] % STAGE > 0)
    if kernel.shared_bytes(defines) > shared_bytes_per_block(current_device()):
        defines["DEPTH"] = 1
    return defines
