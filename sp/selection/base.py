"""What a selector is: a frozen dataclass with one pure method from importances to the tokens to keep.

The keep ratio is a share of what may be left out, and a ceiling for every selector: besides what is protected, no more
than that share of the other tokens is kept, constraints included. Rules that set a threshold may keep less, so the
realised ratio is part of every result. A keep ratio of 1 asks for the whole prompt and every selector then keeps it;
between ratios, a larger one keeps all that a smaller one keeps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import ClassVar

from sp.arrays import Bools, Floats, Ints
from sp.chat import Segment
from sp.config import Registry
from sp.errors import ConfigError
from sp.prompt.spans import character_starts, with_characters


@dataclass(frozen=True)
class SelectionRequest:
    """Importances of a prompt's tokens and what must be kept whatever they say.

    Parameters
    ----------
    scores : array (n,)
    protected : boolean array (n,)
        Tokens that are always kept, whatever the keep ratio is; made whole, so that they hold no part of a character.
    keep_ratio : float
        Share of the other tokens to keep at most, in (0, 1].
    text : bytes
        The prompt in UTF-8, for selectors that look at the text.
    spans : array (n, 2), optional
        Byte range of each token in `text`.
    segments : tuple of Segment
        What of the text may be left out, for selectors that look at its structure; without any, all of it.
    fineness : int
        Tokens of a chunk, where a selector is not told; see `sp.scoring.Importance.fineness`.
    prepared : object, optional
        What `Selector.prepare` made of the same text, if that was done before the scores were known.
    """

    scores: Floats
    protected: Bools
    keep_ratio: float
    text: bytes = b""
    spans: Ints | None = None
    segments: tuple[Segment, ...] = ()
    fineness: int = 32
    prepared: object = None

    def __post_init__(self) -> None:
        check_keep_ratio(self.keep_ratio)
        if self.characters is not None:
            object.__setattr__(self, "protected", with_characters(self.protected, self.characters))

    @cached_property
    def characters(self) -> Ints | None:
        """The first of the tokens that hold parts of the same characters, (n,); None where none is known to."""
        return None if self.spans is None or self.text.isascii() else character_starts(self.text, self.spans)

    @property
    def budget(self) -> int:
        """Tokens that may be kept in all, protected ones among them."""
        return token_budget(self.keep_ratio, len(self.scores), int(self.protected.sum()))


Reading = Mapping[int, tuple[tuple[int, int], ...]]  # ranges of bytes by token


@dataclass(frozen=True)
class Selection:
    """The tokens kept, and why.

    Parameters
    ----------
    kept : boolean array (n,)
    forced : boolean array (n,)
        The part of `kept` that constraints asked for, whatever the scores.
    chunk_scores : array (chunks,)
        Score of each chunk (or token, or sentence) the rule compared; NaN where it compared none.
    bounds : array (chunks + 1,)
        Chunk i is the tokens `[bounds[i], bounds[i + 1])`.
    told : tuple of str
        What else there is to say, a line each.
    read : dict of int to ranges
        Kept tokens of which only these bytes `[start, end)` of the text are to be read, as the others are left out.
    """

    kept: Bools
    forced: Bools
    chunk_scores: Floats
    bounds: Ints
    told: tuple[str, ...] = ()
    read: Reading = field(default_factory=dict)

    def __repr__(self) -> str:
        forced = int(self.forced.sum())
        return f"Selection({int(self.kept.sum()):,} of {len(self.kept):,} tokens, {forced:,} of them by constraint)"

    @property
    def indices(self) -> Ints:
        """Kept positions, ascending."""
        return self.kept.nonzero()[0]

    @property
    def keep_ratio(self) -> float:
        """Share of tokens really kept."""
        return float(self.kept.mean())


class Selector(ABC):
    """Base of all selectors; subclasses are frozen dataclasses, registered under a name.

    Attributes
    ----------
    whole : bool
        It never cuts a line, a value, a sentence or a word; what it keeps may be joined as it stands.
    """

    whole: ClassVar[bool] = False

    def prepare(self, request: SelectionRequest) -> object:
        """What follows from the text alone, to be made while a model scores; the scores of the request say nothing."""
        return None

    @abstractmethod
    def select(self, request: SelectionRequest) -> Selection:
        """Tokens to keep; sorted, unique, within the budget, protected ones among them."""

    def __call__(self, request: SelectionRequest) -> Selection:
        """What `select` keeps, without characters of which it keeps but a part."""
        found, starts = self.select(request), request.characters
        if starts is None or not (torn := with_characters(~found.kept, starts) & found.kept).any():
            return found
        read = {token: parts for token, parts in found.read.items() if not torn[token]}
        return replace(found, kept=found.kept & ~torn, forced=found.forced & ~torn, read=read)


SELECTORS: Registry[Selector] = Registry("selector", "sp.selection")
register_selector = SELECTORS.register


def token_budget(keep_ratio: float, tokens: int, protected: int = 0) -> int:
    """Tokens of a prompt that may be kept: all protected ones, and ceil(keep_ratio * the others).

    Fixed text takes nothing from what a document may keep, however long a system message or a question is.

    Examples
    --------
    >>> token_budget(0.1, 1000), token_budget(0.1, 1000, protected=300)
    (100, 370)
    """
    return protected + ceil(round(keep_ratio * (tokens - protected), 6))


def check_keep_ratio(keep_ratio: float) -> None:
    """ConfigError unless 0 < keep_ratio <= 1."""
    if not 0 < keep_ratio <= 1:
        raise ConfigError(f"keep_ratio must be above 0 and at most 1, not {keep_ratio:g}")
