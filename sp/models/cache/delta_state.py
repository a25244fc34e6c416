"""DeltaState: the recurrent state of one Gated DeltaNet layer of a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.arrays import Floats, Ints
from sp.kernels import import_cupy
from sp.models.config import DeltaConfig


@dataclass
class DeltaState:
    """State of one Gated DeltaNet layer: float32 whatever the format of the pages.

    Attributes
    ----------
    conv : float32 (conv_kernel - 1, conv_dim)
        The last inputs of the convolution, oldest first.
    recurrent : float32 (value_heads, head_dim, head_dim)
        The state S, key axis before value axis.
    tokens : int
        Tokens read so far.
    real : int32 (1,), optional
        Number of tokens of a padded run that count, see `padded`; all of them by default.
    """

    conv: Floats
    recurrent: Floats
    tokens: int = 0
    real: Ints | None = None

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


@contextmanager
def padded(states: Sequence[DeltaState], real: Ints) -> Iterator[None]:
    """Within the context, let states take only the first ``real[0]`` tokens of a run: at least as many as `conv` holds.
    `real`, int32 (1,), is where the states are, so that a CUDA graph reads it at every replay."""
    for state in states:
        state.real = real
    try:
        yield
    finally:
        for state in states:
            state.real = None
