"""Cold layers of a model on the device: which weights wait in host memory, and the ring they come over by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sp.models.layer.block import Block
from sp.models.layer.cold_experts import ColdExperts, StackRing
from sp.models.layer.feed_forward import Experts
from sp.models.network.trunk import Trunk


def stacks_of(trunk: Trunk, layers: Iterable[int]) -> dict[int, tuple[Any, ...]]:
    """The stacks of some layers, which are layers of experts, in the order they are used."""
    found = {}
    for index in layers:
        ffn = _experts(trunk.blocks[index], index)
        found[index] = (*ffn.into, ffn.down_stack)
    return found


def with_cold(trunk: Trunk, layers: Sequence[int]) -> tuple[Trunk, ColdExperts | None]:
    """The same trunk, whose layers know that their stacks are `PinnedWeight`; None where there are no such layers."""
    if not layers:
        return trunk, None
    last = len(trunk.blocks) - 1
    ring = StackRing(stacks_of(trunk, layers), [layer for layer in layers if layer != last])
    ring.open()
    cold = ColdExperts(ring, last + 1, _experts(trunk.blocks[layers[0]], layers[0]).sizes.count)
    blocks = list(trunk.blocks)
    for index in layers:
        blocks[index] = replace(blocks[index], ffn=replace(_experts(blocks[index], index), cold=cold.layer(index)))
    return replace(trunk, blocks=tuple(blocks)), cold


def _experts(block: Block, index: int) -> Experts:
    assert isinstance(block.ffn, Experts), f"layer {index} has no experts"
    return block.ffn
