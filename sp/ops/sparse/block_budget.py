"""Rules for the number of key blocks per query block: a constant, the root of the visible blocks, a share of energy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields
from typing import Literal

import numpy as np

from sp.arrays import Bools, Doubles, Floats, Ints
from sp.errors import ConfigError
from sp.ops.attention.key_blocks import BLOCK, BlockLists
from sp.ops.attention.kv_pages import PagedKV
from sp.ops.sparse.block_lists import candidates, causal, forced
from sp.ops.sparse.flashprefill import Numbers, by_energy, check_forced, check_word, strongest

NO_LIMIT = 2**31 - 1
STEPS = 2.0**32
"""Energies are summed as integers, in this fraction of one, as in the kernel: then the order of adding does not
matter."""


@dataclass(frozen=True, kw_only=True)
class BlockBudget(ABC):
    """Select the forced blocks of each query block, then the strongest others, up to a number set by a subclass.

    With a fixed share of the blocks (`TopDensity`) work grows with the square of the prompt; with these rules it grows
    more slowly.

    Parameters
    ----------
    sink, window, last_n, share, visibility
        As in `sp.ops.sparse.flashprefill.FlashPrefill`. Forced blocks count towards the number.
    """

    sink: int = 2
    window: int = 4
    last_n: int = 2
    share: Literal["head", "group"] = "head"
    visibility: Literal["last", "first"] = "last"

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_forced(name, self.sink, self.window, self.last_n)
        check_word(name, "share", self.share, ("head", "group"))
        check_word(name, "visibility", self.visibility, ("last", "first"))

    def select(self, q: Floats, at: PagedKV, scale: float) -> BlockLists:
        """Return lists for each query head and query block; see `sp.ops.sparse.block_selector.BlockSelector`."""
        return by_energy(self, q, at, scale)

    def mask(self, energy: Floats, n: int, tokens: int) -> Bools:
        """Return the mask of selected blocks, from energies (lists, query_blocks, blocks), in that shape."""
        always, seen = forced(n, tokens, self.sink, self.window, self.last_n), causal(n, tokens)
        ranked = np.where(seen, np.where(always, np.inf, energy), -1)
        there = candidates(n, tokens)
        budget = np.minimum(self.budget(np.where(seen, energy, 0), ranked, there), there)
        return always | strongest(ranked, budget)

    @abstractmethod
    def budget(self, energy: Floats, ranked: Floats, seen: Ints) -> Ints:
        """Return the number of blocks to select: (query_blocks,) or (lists, query_blocks); values above the visible or
        below the forced blocks have no effect. `energy`, `ranked`: float32 (lists, query_blocks, blocks), energies, 0
        where no row sees the block; and the same with +inf where it is forced and -1 where not visible; `seen`: int64
        (query_blocks,), visible blocks."""

    @abstractmethod
    def expected(self, seen: Doubles) -> Doubles:
        """Return the expected number of selected blocks for numbers of visible ones, as far as it is known in
        advance."""

    @abstractmethod
    def numbers(self) -> Numbers:
        """Return the rule as kernel arguments."""


@dataclass(frozen=True)
class ConstantBlocks(BlockBudget):
    """A constant number of blocks: attention grows linearly with the prompt.

    Examples
    --------
    >>> kept = ConstantBlocks(2, sink=1, window=1, last_n=0).mask(np.ones((1, 4, 4)), 512, 512)
    >>> kept.astype(int).tolist()
    [[[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]]
    """

    count: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_whole("ConstantBlocks", "count", self.count, 1)

    def budget(self, energy: Floats, ranked: Floats, seen: Ints) -> Ints:
        """Return `count` for every row."""
        return np.full_like(seen, self.count)

    def expected(self, seen: Doubles) -> Doubles:
        """Return `count`."""
        return np.full_like(seen, self.count)

    def numbers(self) -> Numbers:
        """Return the root rule with a factor of 0, between two equal bounds."""
        return Numbers(rule=1, least=self.count, most=self.count)


@dataclass(frozen=True)
class SqrtBlocks(BlockBudget):
    """A number of blocks that grows with the root of the visible ones: `count` for a row that sees `at` tokens.

    Attention then grows with the prompt to the power of 1.5.

    Examples
    --------
    >>> SqrtBlocks(64).budget(np.empty(0), np.empty(0), np.array([4, 256, 1024, 8192])).tolist()
    [8, 64, 128, 363]
    """

    count: int
    at: int = 32768

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_whole("SqrtBlocks", "count", self.count, 1)
        _check_whole("SqrtBlocks", "at", self.at, BLOCK)

    @property
    def factor(self) -> float:
        """Factor of the root of the number of visible blocks."""
        return float(np.float32(self.count / (self.at / BLOCK) ** 0.5))

    def budget(self, energy: Floats, ranked: Floats, seen: Ints) -> Ints:
        """Compute in float32, as on the device, where a product just above an integer would otherwise yield one
        more."""
        root: Floats = np.ceil(np.float32(self.factor) * np.sqrt(seen.astype(np.float32)))
        return root.astype(np.int64)

    def expected(self, seen: Doubles) -> Doubles:
        """Return the same numbers as `budget`."""
        expected: Doubles = np.ceil(self.factor * np.sqrt(seen))
        return expected

    def numbers(self) -> Numbers:
        """Return the factor, without bounds."""
        return Numbers(rule=1, share=self.factor, most=NO_LIMIT)


@dataclass(frozen=True)
class EnergyBlocks(BlockBudget):
    """The fewest blocks with a share of a row's total energy, within bounds: flat rows select more.

    Parameters
    ----------
    energy : float
        Above 0, at most 1. The energies are those of `sp.ops.sparse.block_energy`; forced blocks come first, then the
        strongest. A strong sink has much of the sum, as it has much of the softmax.
    least, most : int
        Bounds of the number; `most` prevents attention from growing with the square of the prompt if it is flat.

    References
    ----------
    Lai et al., "FlexPrefill", 2025, and Lin et al., "Twilight", 2025, which use a share of estimated softmax weights.

    Examples
    --------
    >>> energy = np.array([[[9.0, 0, 0, 0], [8, 2, 0, 0], [1, 8, 1, 0], [3, 4, 2, 1]]])
    >>> rule = EnergyBlocks(0.7, least=1, most=3, sink=0, window=1, last_n=0)
    >>> rule.mask(energy, 512, 512)[0].astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [1, 1, 0, 1]]
    """

    energy: float
    least: int = 16
    most: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.energy <= 1:  # NaN too
            raise ConfigError(f"EnergyBlocks: energy is {self.energy}; it is a share, above 0 and at most 1")
        _check_whole("EnergyBlocks", "least", self.least, 0)
        _check_whole("EnergyBlocks", "most", self.most, max(self.least, 1))

    def budget(self, energy: Floats, ranked: Floats, seen: Ints) -> Ints:
        """Count blocks by integer energies."""
        order = np.argsort(-ranked, axis=2, kind="stable")
        steps = np.rint(np.take_along_axis(energy, order, axis=2) * STEPS).astype(np.uint64)
        held = np.cumsum(steps, axis=2, dtype=np.uint64)
        total = held[..., -1]
        wanted = np.minimum((total * np.float64(np.float32(self.energy))).astype(np.uint64), total)
        needed = (held < wanted[..., None]).sum(axis=2) + (wanted > 0)
        budget: Ints = np.clip(needed, self.least, self.most).astype(np.int64)
        return budget

    def expected(self, seen: Doubles) -> Doubles:
        """Return `most`, an upper bound: the number depends on the text."""
        return np.full_like(seen, self.most)

    def numbers(self) -> Numbers:
        """Return the share and its bounds."""
        return Numbers(rule=2, share=self.energy, least=self.least, most=self.most)


RULES: dict[str, type[BlockBudget]] = {"constant": ConstantBlocks, "sqrt": SqrtBlocks, "energy": EnergyBlocks}


def read_rule(text: str, option: str) -> BlockBudget:
    """Parse a rule: its name and its numbers, separated by colons. ConfigError names the option and the syntax.

    >>> read_rule("sqrt:64", "blocks") == SqrtBlocks(64), read_rule("energy:0.9:8:128", "blocks").most
    (True, 128)
    """
    name, *numbers = text.split(":")
    rule = RULES.get(name)
    named = [] if rule is None else [f for f in fields(rule) if not f.kw_only]
    needed = sum(f.default is MISSING for f in named)
    if rule is None or not needed <= len(numbers) <= len(named):
        written = "constant:COUNT, sqrt:COUNT[:TOKENS] or energy:SHARE[:LEAST[:MOST]]"
        raise ConfigError(f"{option} takes {written}, as in constant:64, not {text[:40]!r}")
    try:
        given = {f.name: float(n) if f.type == "float" else int(n) for f, n in zip(named, numbers, strict=False)}
    except ValueError:
        raise ConfigError(f"{option} {text[:40]}: behind the name come numbers, as in constant:64") from None
    return rule(**given)  # type: ignore[arg-type]


def _check_whole(name: str, option: str, value: int, least: int) -> None:
    if not least <= value <= NO_LIMIT:
        raise ConfigError(f"{name}: {option} is {value}; it must be at least {least}")
