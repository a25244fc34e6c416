"""What a scorer is: a frozen dataclass with one pure method from a prompt to an importance per token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.config import Registry
from sp.models import Model


@dataclass(frozen=True)
class ScoreRequest:
    """A tokenised prompt and the drafter that reads it.

    Parameters
    ----------
    model : Model
        The drafter.
    ids, positions : arrays (n,)
        Prompt tokens in the drafter's vocabulary and their positions.
    question, needle : boolean arrays (n,)
        Tokens of the question (any scorer may use it) and of the needle (only the oracle control does).
    eos_ids : frozenset of int
        Tokens that end a generation, for scorers that look ahead.
    seed : int
        For scorers that draw random numbers.
    progress : callable, optional
        Called with the number of token-layers done since the last call.
    """

    model: Model
    ids: Ints
    positions: Ints
    question: Bools
    needle: Bools
    eos_ids: frozenset[int] = frozenset()
    seed: int = 0
    progress: Callable[[int], None] | None = None


@dataclass(frozen=True)
class Importance:
    """What a scorer found.

    Parameters
    ----------
    scores : array (n,)
        Importance of each prompt token; only the order matters to selection.
    by_layer : array (layers, chunks), optional
        Pooled importance of each attention layer over 32-token chunks, for heatmaps.
    generated : tuple of int
        Tokens the scorer generated to look ahead.
    """

    scores: Floats
    by_layer: Floats | None = None
    generated: tuple[int, ...] = ()


class Scorer(ABC):
    """Base of all scorers; subclasses are frozen dataclasses, registered under a name."""

    @abstractmethod
    def score(self, request: ScoreRequest) -> Importance:
        """Importance of every prompt token."""


SCORERS: Registry[Scorer] = Registry("scorer")
register_scorer = SCORERS.register

HEATMAP_CHUNK = 32


def chunk_means(values: Floats, size: int) -> Floats:
    """Mean over chunks of `size` along the last axis; a short last chunk uses its own length.

    Examples
    --------
    >>> chunk_means(np.array([1, 3, 5], np.float32), 2).tolist()
    [2.0, 5.0]
    """
    starts = np.arange(0, values.shape[-1], size)
    counts = np.diff(np.append(starts, values.shape[-1]))
    return np.asarray(np.add.reduceat(values, starts, axis=-1) / counts, np.float32)
