"""DeltaState: what a Gated DeltaNet layer remembers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.arrays import Floats
from sp.kernels import import_cupy
from sp.models.config import DeltaConfig


@dataclass
class DeltaState:
    """Memory of one Gated DeltaNet layer: float32 whatever the format of the pages.

    Attributes
    ----------
    conv : float32 (conv_kernel - 1, conv_dim)
        The last inputs of the convolution, oldest first.
    recurrent : float32 (value_heads, head_dim, head_dim)
        The state S, key axis before value axis.
    tokens : int
        Tokens read so far.
    """

    conv: Floats
    recurrent: Floats
    tokens: int = 0

    @classmethod
    def new(cls, sizes: DeltaConfig, device: Literal["cpu", "cuda"]) -> DeltaState:
        """The state before the first token."""
        zeros = np.zeros if device == "cpu" else import_cupy().zeros
        return cls(
            zeros((sizes.conv_kernel - 1, sizes.conv_dim), np.float32),
            zeros((sizes.value_heads, sizes.head_dim, sizes.head_dim), np.float32),
        )

    def clear(self) -> None:
        """Forget every token, in the same arrays."""
        self.conv.fill(0)
        self.recurrent.fill(0)
        self.tokens = 0

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return int(self.conv.nbytes + self.recurrent.nbytes)
