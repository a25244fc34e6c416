"""with_math: which weights of a model are multiplied in what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sp.kernels.specs.matmul.gemm_bytes import GROUPED
from sp.models.trunk import Trunk, mapped
from sp.ops.matmul.packed import PackedWeight
from sp.quant import Math, Weight

FEWEST_ROWS = 256
"""Narrower matrices (gates of a DeltaNet head) are multiplied in BF16: their results steer all others."""


ROUTER = "ffn_gate_inp.weight"
"""Which experts are chosen hangs on small differences."""


def with_math(trunk: Trunk, math: Math) -> Trunk:
    """The same weights, those of blocks to be multiplied in `math` where a prompt is read.

    Left in BF16: the head, which reads few tokens; experts and their router; matrices of under 256 rows or of a width
    that is no multiple of 256; vectors.
    """

    def marked(leaf: Any) -> Any:
        if isinstance(leaf, (Weight, PackedWeight)) and is_eligible(leaf.name, leaf.shape):
            return replace(leaf, math=math)
        return leaf

    return replace(trunk, blocks=mapped(trunk.blocks, marked))


def is_eligible(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor (out, in) of a file may be multiplied in eight bits.

    Examples
    --------
    >>> is_eligible("blk.0.ffn_up.weight", (17408, 5120)), is_eligible("blk.0.ssm_beta.weight", (48, 5120))
    (True, False)
    """
    wide = len(shape) == 2 and shape[0] >= FEWEST_ROWS and shape[1] % GROUPED == 0
    return wide and not name.endswith(ROUTER)
