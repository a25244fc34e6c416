"""The selector interface: a frozen dataclass with one pure method from importances to the tokens to keep.

The keep ratio is a share of the unprotected tokens, and a ceiling for every selector: besides what is protected, no
more than that share of the other tokens is kept, constraints included. Rules that set a threshold may keep less, so
the realised ratio is part of every result. A keep ratio of 1 asks for the whole prompt and every selector then keeps
it; between ratios, a larger one keeps all that a smaller one keeps.
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
    """Importances of a prompt's tokens, and the tokens that are kept whatever the importances are.

    Parameters
    ----------
    scores : array (n,)
        Importance of each token.
    protected : boolean array (n,)
        Tokens that are always kept, whatever the keep ratio is; widened to whole characters, so that none is split.
    keep_ratio : float
        Share of the other tokens to keep at most, in (0, 1].
    text : bytes
        The prompt in UTF-8, for selectors that look at the text.
    spans : array (n, 2), optional
        Byte range of each token in `text`.
    segments : tuple of Segment
        The parts of the text that may be left out, for selectors that look at its structure; without any, all of it.
    fineness : int
        Tokens of a chunk where a selector has no chunk size of its own; see `sp.scoring.Importance.fineness`.
    prepared : object, optional
        The result of `Selector.prepare` for the same text, if it was computed before the scores were known.

    Attributes
    ----------
    budget : int
        Tokens that may be kept in all, including the protected ones.
    """

    scores: Floats
    protected: Bools
    keep_ratio: float
    text: bytes = b""
    spans: Ints | None = None
    segments: tuple[Segment, ...] = ()
    fineness: int = 32
    prepared: object = None
    budget: int = field(init=False)

    def __post_init__(self) -> None:
        check_keep_ratio(self.keep_ratio)
        if self.characters is not None:
            object.__setattr__(self, "protected", with_characters(self.protected, self.characters))  # frozen
        budget = token_budget(self.keep_ratio, len(self.scores), int(self.protected.sum()))
        object.__setattr__(self, "budget", budget)

    @cached_property
    def characters(self) -> Ints | None:
        """First of the tokens that share a character, for each token (n,); None if no token splits a character."""
        return None if self.spans is None or self.text.isascii() else character_starts(self.text, self.spans)


ByteRanges = Mapping[int, tuple[tuple[int, int], ...]]  # ranges [start, end) of the text by token


@dataclass(frozen=True)
class Selection:
    """The tokens a selector keeps, and why.

    Parameters
    ----------
    selected : boolean array (n,)
        Tokens to keep.
    forced : boolean array (n,)
        The part of `selected` that constraints asked for, whatever the scores.
    chunk_scores : array (chunks,)
        Score of each chunk (or token, or sentence) the rule compared; NaN where it compared none.
    bounds : array (chunks + 1,)
        Chunk i is the tokens `[bounds[i], bounds[i + 1])`.
    notes : tuple of str
        Remarks for the report, a line each.
    byte_ranges : dict of int to ranges
        Selected tokens that are kept in part: only these bytes `[start, end)` of the text are read of them.
    """

    selected: Bools
    forced: Bools
    chunk_scores: Floats
    bounds: Ints
    notes: tuple[str, ...] = ()
    byte_ranges: ByteRanges = field(default_factory=dict)

    def __repr__(self) -> str:
        count, forced = int(self.selected.sum()), int(self.forced.sum())
        return f"Selection({count:,} of {len(self.selected):,} tokens, {forced:,} of them by constraint)"

    @property
    def indices(self) -> Ints:
        """Positions of the selected tokens, ascending."""
        return self.selected.nonzero()[0]

    @property
    def keep_ratio(self) -> float:
        """Realised share of selected tokens, in [0, 1]."""
        return float(self.selected.mean())


class Selector(ABC):
    """Base of all selectors; subclasses are frozen dataclasses, registered under a name.

    Attributes
    ----------
    whole : bool
        True if the selector never splits a line, a value, a sentence or a word; its pieces may be joined directly.
    """

    whole: ClassVar[bool] = False

    def prepare(self, request: SelectionRequest) -> object:
        """Precompute what depends on the text alone, while a model scores; the request's scores are placeholders."""
        return None

    @abstractmethod
    def select(self, request: SelectionRequest) -> Selection:
        """Select tokens within the budget, all protected ones included."""

    def __call__(self, request: SelectionRequest) -> Selection:
        """Return the result of `select` without characters that it selects only in part."""
        selection, starts = self.select(request), request.characters
        if starts is None:
            return selection
        # A token is split if another token of the same character is left out; half a character decodes to U+FFFD.
        split = with_characters(~selection.selected, starts) & selection.selected
        if not split.any():
            return selection
        ranges = {token: parts for token, parts in selection.byte_ranges.items() if not split[token]}
        whole, forced = selection.selected & ~split, selection.forced & ~split
        return replace(selection, selected=whole, forced=forced, byte_ranges=ranges)


SELECTORS: Registry[Selector] = Registry("selector", "sp.selection")
register_selector = SELECTORS.register


def token_budget(keep_ratio: float, tokens: int, protected: int = 0) -> int:
    """Return how many tokens of a prompt may be kept: all protected ones, and ceil(keep_ratio * the others).

    Protected text does not reduce what a document may keep, however long a system message or a question is.

    Examples
    --------
    >>> token_budget(0.1, 1000), token_budget(0.1, 1000, protected=300)
    (100, 370)
    """
    # Rounded first: 0.1 * 1000 may exceed 100 by the last bit, and ceil would then give 101.
    return protected + ceil(round(keep_ratio * (tokens - protected), 6))


def check_keep_ratio(keep_ratio: float) -> None:
    """Raise ConfigError unless 0 < keep_ratio <= 1."""
    if not 0 < keep_ratio <= 1:
        raise ConfigError(f"keep_ratio must be above 0 and at most 1, not {keep_ratio:g}")
