"""Keep the best chunks of consecutive tokens, each with its neighbours, until the budget is spent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sp.arrays import Ints
from sp.errors import ConfigError
from sp.scoring.base import chunk_means
from sp.selection.base import Selection, SelectionRequest, Selector, register_selector
from sp.selection.constraints import forced_tokens


@register_selector("top_chunks")
@dataclass(frozen=True)
class TopChunks(Selector):
    """Chunks in order of their mean score; all constraints count inside the budget.

    Chunks are taken whole, best first, a chunk's neighbours right after it. The first chunk that no longer
    fits ends the selection, so a smaller keep ratio always keeps a subset of what a larger one keeps
    (as far as the constraints stay the same).

    Parameters
    ----------
    chunk_size : int
        Tokens in a chunk (SpecPrefill, arXiv 2502.02789, uses 32).
    neighbours : int
        Chunks kept on either side of a chosen one; an answer often stands just behind the key it is asked by.
    sink, tail : int
        Tokens kept at the start and at the end of the prompt.
    """

    chunk_size: int = 32
    neighbours: int = 1
    sink: int = 32
    tail: int = 32

    def __post_init__(self) -> None:
        if self.chunk_size < 1:
            raise ConfigError(f"chunk_size must be at least 1, not {self.chunk_size}")
        for name in ("neighbours", "sink", "tail"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")

    def select(self, request: SelectionRequest) -> Selection:
        """Fill the budget: constraints, then chunks by rank."""
        n, budget = len(request.scores), request.budget
        forced = forced_tokens(request.protected, budget, self.sink, self.tail)
        scores = chunk_means(request.scores, self.chunk_size)
        kept = np.ones(n, bool) if budget >= n else forced.copy()
        left = budget - int(kept.sum())
        for chunk in self.ranked(np.argsort(-scores, kind="stable")):
            part = kept[chunk * self.chunk_size : (chunk + 1) * self.chunk_size]
            new = len(part) - int(part.sum())
            if new > left:
                break
            part[:] = True
            left -= new
        return Selection(kept, forced, scores, self.chunk_size)

    def ranked(self, order: Ints) -> Iterator[int]:
        """Chunks best first, each followed by its neighbours from near to far."""
        for chunk in order:
            yield int(chunk)
            for distance in range(1, self.neighbours + 1):
                for near in (int(chunk) + distance, int(chunk) - distance):
                    if 0 <= near < len(order):
                        yield near
