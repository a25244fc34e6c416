"""LinearScaling and YarnScaling: the frequencies of a model that reads further than it was trained to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sp.arrays import Floats


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: every angle is divided by one factor, so that `factor` positions stand where one did.
    Source: Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation", 2023,
    https://arxiv.org/abs/2306.15595.

    >>> LinearScaling(4.0).scale(np.array([1.0, 0.01]), 1e4)
    array([0.25  , 0.0025])
    """

    factor: float  # at least 1

    def scale(self, frequencies: Floats, base: float) -> Floats:
        """See `sp.ops.rope.Scaling`."""
        return frequencies / self.factor


@dataclass(frozen=True)
class YarnScaling:
    """YaRN: pairs that turn often within the original context stay as they are, slow ones are interpolated.

    A pair that makes at least `beta_fast` turns there keeps its frequency, one that makes `beta_slow` or fewer has it
    divided by `factor`, and between them the share of either falls linearly from pair to pair, where the paper has it
    linear in the number of turns: as the authors' code does it, and llama.cpp and transformers after it. Which pairs
    the two are is rounded outwards. Source: Peng et al., "YaRN: Efficient Context Window Extension of Large Language
    Models", 2023, https://arxiv.org/abs/2309.00071, sections 3.2 and 3.4.

    >>> plain = 1e4 ** (-np.arange(0, 64, 2) / 64)
    >>> yarn = YarnScaling(4.0, 4096)
    >>> plain[[0, 31]] / yarn.scale(plain, 1e4)[[0, 31]]
    array([1., 4.])
    >>> round(yarn.attention_factor, 4)
    1.1386
    """

    factor: float  # at least 1
    original_context: int  # positions that the model was trained to before
    ext_factor: float = 1.0  # share of the fast pairs' own frequency that they keep, in [0, 1]
    beta_fast: float = 32.0  # beta_fast and beta_slow: turns within the original context
    beta_slow: float = 1.0

    @property
    def attention_factor(self) -> float:
        """What cosines and sines are multiplied by: 1 + 0.1 ln(factor), or 1 where nothing is kept of fast pairs."""
        return 1.0 + 0.1 * math.log(self.factor) if self.ext_factor else 1.0

    def scale(self, frequencies: Floats, base: float) -> Floats:
        """See `sp.ops.rope.Scaling`."""
        pairs = len(frequencies)
        fast = math.floor(self._pair(self.beta_fast, pairs, base))
        slow = math.ceil(self._pair(self.beta_slow, pairs, base))
        kept = 1.0 - np.clip((np.arange(pairs) - fast) / max(slow - fast, 0.001), 0.0, 1.0)
        kept *= self.ext_factor
        return np.asarray(frequencies / self.factor * (1.0 - kept) + frequencies * kept)

    def _pair(self, turns: float, pairs: int, base: float) -> float:
        """The pair that makes so many turns within the original context, as a real number within the head."""
        at = pairs * math.log(self.original_context / (2 * math.pi * turns)) / math.log(base)
        return min(max(at, 0.0), 2.0 * pairs - 1)
