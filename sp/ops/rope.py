"""Rotary position embedding on the first values of every head, with its scalings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from sp.arrays import Floats, Ints
from sp.ops.threads import run_parallel, token_slices

Pairing = Literal["halves", "interleaved"]


class Scaling(Protocol):
    """Context extension by other RoPE frequencies. Hashable, as `Rope` is. Its effect on the size of scores is
    `Rope.magnitude`."""

    def scale(self, frequencies: Floats, base: float) -> Floats:
        """Convert frequencies ``base ** (-2 j / dim)`` of the pairs, float64 (dim / 2,), to the scaled ones."""
        ...


@dataclass(frozen=True)
class Rope:
    """Pairs of values that are rotated together, and their frequencies. `pairing`: "halves": pair j is values ``(j, j +
    dim / 2)``, as in GPT-NeoX, or "interleaved": ``(2 j, 2 j + 1)``, as in GPT-J and Llama; `magnitude`: factor of
    cosines and sines, and so of rotated values: YaRN's attention factor.

    >>> Rope(1e4, 4).inverse_frequencies.tolist()
    [1.0, 0.01]
    """

    base: float  # ``rope.freq_base``, e.g. 1e6
    dim: int  # values of a head that are rotated, even; the rest pass through; 0 for a layer without RoPE
    pairing: Pairing = "halves"
    scaling: Scaling | None = None
    magnitude: float = 1.0

    @cached_property
    def inverse_frequencies(self) -> Floats:
        """Angle per position of each pair, float64 (dim / 2,), in radians; fastest first; read-only."""
        # Python's power, not NumPy's: the latter differs in the last bit from one CPU to the next.
        plain = np.array([float(self.base) ** (-2 * pair / self.dim) for pair in range(self.dim // 2)])
        found = plain if self.scaling is None else self.scaling.scale(plain, self.base)
        found.flags.writeable = False
        return found

    def turn_fractions(self) -> Ints:
        """Return the part of a full turn per position of each pair, in units of 2**-64: int64 (dim / 2,). Multiplied by
        a position modulo 2**64 they drop whole turns exactly, which floats do not.

        >>> Rope(1e6, 2).turn_fractions() / 2**64 * 2 * math.pi  # the first pair rotates by one radian per position
        array([1.])
        """
        share = (self.inverse_frequencies / (2 * math.pi)).tolist()
        return np.array([round(one * 2.0**64) % 2**64 for one in share], np.uint64).view(np.int64)

    def undone(self) -> Rope:
        """Return the rotation that, with negated positions, inverts this one: the frequencies are the same.

        >>> Rope(1e4, 4, magnitude=1.25).undone().magnitude
        0.8
        """
        return replace(self, magnitude=1 / self.magnitude)

    def pairs(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the first and second values of all pairs of heads (..., head_dim), as views (..., dim / 2)."""
        half = self.dim // 2
        if self.pairing == "halves":
            return x[..., :half], x[..., half : self.dim]
        return x[..., : self.dim : 2], x[..., 1 : self.dim : 2]


def rope(x: Floats, positions: Ints, rotary: Rope) -> Floats:
    """Rotate each head by its token's position.

    A pair (a, b) of a head, rotated by the angle ``positions[t] * inverse_frequencies[j]``, becomes

    ``(a cos - b sin, a sin + b cos) * magnitude``,

    values from `Rope.dim` on pass through. Angles are float64, so position 1 000 000 is as exact as position 1. Negated
    positions undo the rotation, see `Rope.undone`. Interleaved M-RoPE (Qwen3.5) has the same formula for text.

    Parameters
    ----------
    x : float32 (tokens, heads, head_dim)
    positions : int64 (tokens,)
        Any order, gaps allowed.
    rotary : Rope
        Its `dim` is even and at most head_dim; 0 leaves heads unchanged.

    Returns
    -------
    float32 (tokens, heads, head_dim)

    References
    ----------
    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.

    Examples
    --------
    >>> x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    >>> y = rope(rope(x, np.array([7]), Rope(1e6, 2)), np.array([-7]), Rope(1e6, 2))
    >>> bool(np.abs(x - y).max() < 1e-6)
    True
    """
    assert len(x) == len(positions), f"x {x.shape}, positions {np.shape(positions)}"
    assert rotary.dim in range(0, x.shape[2] + 1, 2), f"rope dim {rotary.dim}, head_dim {x.shape[2]}"
    if not rotary.dim:
        return x.copy()
    y = np.empty_like(x)

    def rotate(tokens: slice) -> None:
        angle = np.asarray(positions[tokens], np.int64)[:, None] * rotary.inverse_frequencies  # (tokens, pairs)
        cos = (np.cos(angle) * rotary.magnitude).astype(x.dtype)[:, None]
        sin = (np.sin(angle) * rotary.magnitude).astype(x.dtype)[:, None]
        a, b = rotary.pairs(x[tokens])
        first, second = rotary.pairs(y[tokens])
        y[tokens, :, rotary.dim :] = x[tokens, :, rotary.dim :]
        np.multiply(a, cos, out=first)
        first -= b * sin
        np.multiply(a, sin, out=second)
        second += b * cos

    run_parallel(rotate, token_slices(len(x)))
    return y


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: every angle is divided by `factor`, so that so many positions take the range of one.
    Source: Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation", 2023,
    https://arxiv.org/abs/2306.15595.

    >>> LinearScaling(4.0).scale(np.array([1.0, 0.01]), 1e4)
    array([0.25  , 0.0025])
    """

    factor: float  # at least 1

    def scale(self, frequencies: Floats, base: float) -> Floats:
        """Divide all frequencies by the factor."""
        return frequencies / self.factor


@dataclass(frozen=True)
class YarnScaling:
    """YaRN: pairs that rotate often within the original context are unchanged, slow ones are interpolated.

    A pair that makes at least `beta_fast` turns there keeps its frequency, for one that makes `beta_slow` or fewer it
    is divided by `factor`, and in between the two are blended linearly from pair to pair, where the paper blends
    linearly in the number of turns: the authors' code, llama.cpp and transformers do the same. The two limits are
    rounded outwards to whole pairs. Source: Peng et al., "YaRN: Efficient Context Window Extension of Large Language
    Models", 2023, https://arxiv.org/abs/2309.00071, sections 3.2 and 3.4.

    >>> plain = 1e4 ** (-np.arange(0, 64, 2) / 64)
    >>> yarn = YarnScaling(4.0, 4096)
    >>> plain[[0, 31]] / yarn.scale(plain, 1e4)[[0, 31]]
    array([1., 4.])
    >>> round(yarn.attention_factor, 4)
    1.1386
    """

    factor: float  # at least 1
    original_context: int  # positions of the original training
    ext_factor: float = 1.0  # weight of the original frequency of fast pairs, in [0, 1]
    beta_fast: float = 32.0  # beta_fast and beta_slow: turns within the original context
    beta_slow: float = 1.0

    @property
    def attention_factor(self) -> float:
        """Factor of cosines and sines: 1 + 0.1 ln(factor), or 1 if fast pairs are interpolated as well."""
        return 1.0 + 0.1 * math.log(self.factor) if self.ext_factor else 1.0

    def scale(self, frequencies: Floats, base: float) -> Floats:
        """Blend the original and the interpolated frequency of each pair."""
        pairs = len(frequencies)
        fast = math.floor(self._pair(self.beta_fast, pairs, base))
        slow = math.ceil(self._pair(self.beta_slow, pairs, base))
        kept = 1.0 - np.clip((np.arange(pairs) - fast) / max(slow - fast, 0.001), 0.0, 1.0)
        kept *= self.ext_factor
        return np.asarray(frequencies / self.factor * (1.0 - kept) + frequencies * kept)

    def _pair(self, turns: float, pairs: int, base: float) -> float:
        """Return the index, as a real number, of the pair that makes so many turns within the original context."""
        at = pairs * math.log(self.original_context / (2 * math.pi * turns)) / math.log(base)
        return min(max(at, 0.0), 2.0 * pairs - 1)
