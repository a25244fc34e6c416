"""prequantize: weights of int8 and fp8 products are quantised once and stay on the device, if there is room for
them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sp.kernels import import_cupy
from sp.models.network.weights import ModelWeights, map_leaves
from sp.ops.byte_rows.kept import KeptRows, kept_bytes
from sp.ops.byte_rows.rows import BYTE_KINDS
from sp.ops.matmul.byte_weights import keep
from sp.ops.matmul.packed import PackedWeight
from sp.quant import Math

SHARE = 2
"""Prequantized weights may take 1/SHARE of the memory that is free once the weights are loaded; caches, workspace and
other models need the rest."""


def prequantize(weights: ModelWeights) -> tuple[ModelWeights, int]:
    """Prequantize the matrices that are marked for int8 or fp8, on the current device; return the weights and the
    additional bytes. Either all of them or none: none under a memory budget (the limit of CuPy's pool), and none if
    they would take over half of the free memory. Without it every product quantises them again, with the same result to
    the bit."""
    layers = [_by_width(block) for block in weights.blocks]
    nbytes = sum(kept_bytes(group) for layer in layers for group in layer)
    if not nbytes or not _fits(nbytes):
        return weights, 0
    return replace(weights, blocks=tuple(map(_prequantized, weights.blocks, layers))), nbytes


def drop_prequantized(weights: ModelWeights) -> ModelWeights:
    """Return the weights without their prequantized copies."""
    return map_leaves(weights, lambda leaf: replace(leaf, kept=None) if getattr(leaf, "kept", None) else leaf)


def _by_width(block: Any) -> list[list[PackedWeight]]:
    """Group the marked matrices of a layer by width, because those of one width may have the same inputs."""
    groups: dict[tuple[int, Math], list[PackedWeight]] = {}

    def collect(leaf: Any) -> Any:
        if isinstance(leaf, PackedWeight) and leaf.math is not Math.BF16:
            groups.setdefault((leaf.shape[1], leaf.math), []).append(leaf)
        return leaf

    map_leaves(block, collect)
    return list(groups.values())


def _prequantized(block: Any, groups: list[list[PackedWeight]]) -> Any:
    copies: dict[int, KeptRows] = {}
    for weights in groups:
        copies |= zip(map(id, weights), keep(weights, BYTE_KINDS[weights[0].math]), strict=True)
    return map_leaves(block, lambda leaf: replace(leaf, kept=copies[id(leaf)]) if id(leaf) in copies else leaf)


def _fits(nbytes: int) -> bool:
    cupy = import_cupy()
    pool = cupy.get_default_memory_pool()
    if pool.get_limit():
        return False
    free, _ = cupy.cuda.runtime.memGetInfo()
    return bool(SHARE * nbytes <= free + pool.total_bytes() - pool.used_bytes())
