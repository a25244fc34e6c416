"""keep_rounded: weights that are multiplied in int8 or fp8 stay rounded on the device, where there is room for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sp.kernels import import_cupy
from sp.models.network.trunk import Trunk, mapped
from sp.ops.byte_rows.kept import KeptRows, keep, kept_bytes
from sp.ops.byte_rows.rows import BYTE_KINDS
from sp.ops.matmul.packed import PackedWeight
from sp.quant import Math

SHARE = 2
"""They may take one part in so many of what is free once the weights are loaded; caches, work and other models have
the rest."""


def keep_rounded(trunk: Trunk) -> tuple[Trunk, int]:
    """A trunk on the current device whose matrices marked for int8 or fp8 are kept rounded, and their bytes. All
    of them or none: none under a budget of memory, which is the limit of CuPy's pool, and none where they would take
    over half of what is free. Then every product rounds them anew, with the same result to the bit."""
    layers = [_by_width(block) for block in trunk.blocks]
    nbytes = sum(kept_bytes(some) for layer in layers for some in layer)
    if not nbytes or not _is_room(nbytes):
        return trunk, 0
    return replace(trunk, blocks=tuple(map(_kept, trunk.blocks, layers))), nbytes


def let_go(trunk: Trunk) -> Trunk:
    """The same without what was kept."""
    return mapped(trunk, lambda leaf: replace(leaf, kept=None) if getattr(leaf, "kept", None) else leaf)


def _by_width(block: Any) -> list[list[PackedWeight]]:
    """The marked matrices of a layer: those of one width together, for some of them meet the same inputs."""
    found: dict[tuple[int, Math], list[PackedWeight]] = {}

    def look(leaf: Any) -> Any:
        if isinstance(leaf, PackedWeight) and leaf.math is not Math.BF16:
            found.setdefault((leaf.shape[1], leaf.math), []).append(leaf)
        return leaf

    mapped(block, look)
    return list(found.values())


def _kept(block: Any, groups: list[list[PackedWeight]]) -> Any:
    places: dict[int, KeptRows] = {}
    for weights in groups:
        places |= zip(map(id, weights), keep(weights, BYTE_KINDS[weights[0].math]), strict=True)
    return mapped(block, lambda leaf: replace(leaf, kept=places[id(leaf)]) if id(leaf) in places else leaf)


def _is_room(nbytes: int) -> bool:
    cupy = import_cupy()
    pool = cupy.get_default_memory_pool()
    if pool.get_limit():
        return False
    free, _ = cupy.cuda.runtime.memGetInfo()
    return bool(SHARE * nbytes <= free + pool.total_bytes() - pool.used_bytes())
