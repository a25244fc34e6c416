"""From ranked units to selected tokens, and the selectors that take the best units within a budget.

Every unit gets a *step*, the moment at which it is taken; neither the steps nor what is taken in a step depend on
the budget, which only says after how many steps to stop. So a larger budget keeps all that a smaller one keeps. Tokens
that are kept whatever the scores are, and those that accompany a choice, are set by the fields of `Constrained`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.arrays import Bools, Doubles, Floats, Ints
from sp.config import Tokens, check_fields
from sp.errors import ConfigError
from sp.prompt.spans import chunk_bounds, with_characters
from sp.prompt.spans import sentence_bounds as bounds_of_sentences
from sp.selection.base import Selection, SelectionRequest, Selector, register_selector

RADII = ((32768, 64), (65536, 128))
"""(prompts shorter than, tokens on either side) of `neighbours="by_length"`; longer prompts take `WIDEST`."""
WIDEST = 256


def forced_tokens(
    protected: Bools, budget: int, sink: int, tail: int, characters: Ints | None = None
) -> tuple[Bools, int]:
    """Return the tokens that must be kept: all protected ones, and sink and tail in at most half of the rest.

    Attention sinks sit on the first tokens (StreamingLLM, arXiv 2309.17453) and losing the end of the prompt
    breaks the answer, so both are kept. They take at most half of the budget that protected text leaves; otherwise the
    scores would have no effect at small keep ratios.

    Parameters
    ----------
    protected : boolean array (n,)
    budget : int
        Tokens that may be kept in all, including the protected ones.
    sink, tail : int
        Tokens wanted from the start and from the end of the prompt.
    characters : array (n,), optional
        As in `SelectionRequest`; a character for whose last token there is no room is left out.

    Returns
    -------
    forced : boolean array (n,)
    split : int
        Tokens of the budget that were reserved for a character left out. Choices may not use them: a larger budget, in
        which that character is kept, would leave less to the choices.
    """
    n, needed = len(protected), int(protected.sum())
    free = (budget - needed) // 2  # room of sink and tail
    # Both ends grow inward in step, so that a larger budget keeps all that a smaller one keeps.
    order = end_order(n, sink, tail)
    if characters is not None:
        order = together(order, characters)
    order[protected] = np.inf  # kept already
    forced = protected.copy()
    candidates = np.flatnonzero(np.isfinite(order))
    forced[candidates[np.argsort(order[candidates], kind="stable")[:free]]] = True
    whole = forced if characters is None else ~with_characters(~forced, characters)  # without incomplete characters
    return whole, int(forced.sum() - whole.sum())


def end_order(n: int, sink: int, tail: int) -> Doubles:
    """Return the distance of each of n tokens from its end of the prompt, as a share of `sink` or `tail`; inf beyond.

    >>> end_order(6, 2, 1).tolist()
    [0.0, 0.5, inf, inf, inf, 0.0]
    """
    order = np.full(n, np.inf)
    order[n - min(tail, n) :] = np.arange(min(tail, n))[::-1] / max(tail, 1)
    order[: min(sink, n)] = np.minimum(order[: min(sink, n)], np.arange(min(sink, n)) / max(sink, 1))
    return order


@dataclass(frozen=True)
class Constrained(Selector):
    """The constraints of every selector; all of them count towards the budget.

    Units that a rule chose are taken best first, each followed by its neighbours. The first that no longer fits ends
    the selection, so a smaller keep ratio always keeps a subset of what a larger one keeps.

    Parameters
    ----------
    neighbours : int or "by_length"
        Units (chunks, tokens or sentences) kept on either side of a chosen one; an answer often follows directly
        after the key it is asked by. `by_length` takes as many as hold 64, 128 or 256 tokens in prompts of
        fewer than 32,768, fewer than 65,536 and more tokens, because keys are further from values in longer texts.
    min_run : int
        Chosen units of fewer tokens are widened to this many, so that no choice is a scrap of text.
    backbone : float
        Share of the choices that are spaced evenly over the prompt whatever the scores, in [0, 1).
    sink, tail : int
        Tokens kept at the start and at the end of the prompt.
    """

    neighbours: int | Literal["by_length"] = 1
    min_run: int = 1
    backbone: float = 0.0
    sink: int = 32
    tail: int = 32

    def __post_init__(self) -> None:
        check_fields(self, "selector")
        check_least(self, 0, "sink", "tail")
        check_least(self, 1, "min_run")
        if self.neighbours != "by_length":
            check_least(self, 0, "neighbours")
        if not 0 <= self.backbone < 1:
            raise ConfigError(f"backbone must be at least 0 and below 1, not {self.backbone:g}")

    def choosable(self, request: SelectionRequest) -> Bools:
        """Return the tokens that no constraint forces, shape (n,).

        Rules that compare scores with a threshold look at these only: an attention sink would otherwise set the
        maximum of the prompt, or be most of its mass, and is kept in any case.
        """
        n = len(request.scores)
        free = ~request.protected
        free[: self.sink] = False
        free[max(0, n - self.tail) :] = False
        return free

    def steps(self, chosen: Ints, units: int, n: int) -> tuple[Doubles, Doubles]:
        """Return the step at which each unit is taken, and the step at which each choice is taken for its own sake.

        The former is infinite for units that are never taken. Neighbours are taken right after a chosen unit: +1, -1,
        +2, -2 ...; the units of `backbone` follow `spread_order`.

        Parameters
        ----------
        chosen : array
            Units a rule chose, best first.
        units : int
            Units that the prompt is divided into.
        n : int
            Tokens of the prompt.

        Examples
        --------
        >>> Constrained.steps(TopTokens(neighbours=1), np.array([2, 0]), 4, 4)
        (array([3., 2., 0., 1.]), array([0., 3.]))
        """
        if self.neighbours == "by_length":
            tokens = next((reach for below, reach in RADII if n < below), WIDEST)
            radius = max(1, round(tokens * units / n))
        else:
            radius = self.neighbours
        radius = min(radius, units - 1)
        turns = np.arange(int(len(chosen) / (1 - self.backbone)) + 2)  # an upper bound of the turns needed
        is_backbone = np.floor((turns + 1) * self.backbone) > np.floor(turns * self.backbone)
        when = turns[~is_backbone][: len(chosen)]
        # A turn has `width` steps, one for each offset. A unit's step follows from the earliest choice within `radius`
        # and its distance. The sliding minimum over `width` turns is built by doubling: from windows of 1, 2, 4 ...
        # turns, and at last from two overlapping windows.
        width, span = 2 * radius + 1, 1
        never = int(when[-1]) + 1 if len(when) else 0
        earliest = np.full(units + 2 * radius, never)
        earliest[radius + chosen] = when
        while 2 * span <= width:
            earliest = np.minimum(earliest[:-span], earliest[span:])
            span *= 2
        earliest = np.minimum(earliest[:units], earliest[width - span :])
        unit_of = np.zeros(never + 1, np.int64)
        unit_of[when] = chosen
        distance = np.arange(units) - unit_of[earliest]
        # The "+distance" neighbour, behind the choice, comes one step before the "-distance" one.
        steps: Doubles = (earliest * width + 2 * np.abs(distance) - (distance > 0)).astype(np.float64)
        steps[earliest == never] = np.inf
        if self.backbone and len(chosen):
            even = spread_order(units)
            early = turns[is_backbone & (turns < when[-1])][: len(even)]
            even = even[: len(early)]
            steps[even] = np.minimum(steps[even], early * width)
        return steps, np.asarray(when * width, np.float64)

    def take(
        self, request: SelectionRequest, bounds: Ints, scores: Floats, chosen: Ints, most: int | None = None
    ) -> Selection:
        """Select the forced tokens and, as far as the budget goes, the chosen units.

        Parameters
        ----------
        request : SelectionRequest
        bounds : array (units + 1,)
            Unit i is the tokens `[bounds[i], bounds[i + 1])`.
        scores : array (units,)
            For the report.
        chosen : array
            Units the rule chose, best first.
        most : int, optional
            Limit of selected tokens besides the protected ones, where it is below what the request allows.
        """
        budget = request.budget
        if most is not None and request.keep_ratio < 1:
            budget = min(int(request.protected.sum()) + most, budget)
        starts = request.characters
        forced, split = forced_tokens(request.protected, budget, self.sink, self.tail, starts)
        if request.keep_ratio == 1:
            return Selection(np.ones(len(forced), bool), forced, scores, bounds)
        units = len(bounds) - 1
        steps, _ = self.steps(chosen, units, int(bounds[-1]))
        selected = fill(forced, token_steps(steps, bounds, self.min_run), budget - split, starts)
        return Selection(selected, forced, scores, bounds)


def check_least(selector: Selector, least: int, *names: str) -> None:
    """Raise ConfigError if one of these fields is below `least`."""
    for name in names:
        value = getattr(selector, name)
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, not {value}")


def check_share(selector: Selector, *names: str) -> None:
    """Raise ConfigError unless each of these fields is above 0 and at most 1."""
    for name in names:
        value = getattr(selector, name)
        if not 0 < value <= 1:
            raise ConfigError(f"{name} must be above 0 and at most 1, not {value:g}")


def spread_order(units: int) -> Ints:
    """Return all units in bit-reversed order (van der Corput), so that any first few are evenly spaced."""
    bits = max(units - 1, 0).bit_length()
    numbers = np.arange(1 << bits)
    order = np.zeros_like(numbers)
    for bit in range(bits):
        order |= ((numbers >> bit) & 1) << (bits - 1 - bit)
    return order[order < units]


def token_steps(steps: Doubles, bounds: Ints, min_run: int) -> Doubles:
    """Return the step at which each token is taken when units shorter than `min_run` are widened on both sides."""
    n, lengths = int(bounds[-1]), np.diff(bounds)
    if lengths.min() >= min(min_run, n):
        return np.repeat(steps, lengths)
    wide = np.minimum(np.maximum(lengths, min_run), n)  # tokens of each widened unit
    starts = np.clip(bounds[:-1] - (wide - lengths) // 2, 0, n - wide)
    return _least_over(starts, wide, steps, n)


def _least_over(starts: Ints, lengths: Ints, values: Doubles, n: int) -> Doubles:
    """Return the least value of all ranges that cover each place, shape (n,).

    Each range is covered by two overlapping ranges of a power-of-two length (a sparse table). Going down from the
    longest length, each table entry passes its value on to its two halves.
    """
    levels = np.frexp(lengths)[1] - 1  # floor(log2(length))
    least = np.full(n, np.inf)
    for level in range(int(levels.max()), -1, -1):
        if level < levels.max():
            half = 1 << level
            wider = least
            least = wider.copy()
            least[half:] = np.minimum(least[half:], wider[:-half])
        at_level = levels == level
        first, last = starts[at_level], starts[at_level] + lengths[at_level] - (1 << level)
        np.minimum.at(least, first, values[at_level])
        np.minimum.at(least, last, values[at_level])
    return least


def fill(forced: Bools, first: Doubles, budget: int, characters: Ints | None = None) -> Bools:
    """Select the forced tokens, then whole steps in order until one no longer fits.

    Tokens that share a character are taken together, at the earliest of their steps.

    Parameters
    ----------
    forced : boolean array (n,)
        Tokens of whole characters.
    first : array (n,)
        Step of each token; infinite ones are never taken.
    budget : int
        Tokens that may be kept, including the forced ones.
    characters : array (n,), optional
        As in `SelectionRequest`.
    """
    if characters is not None:
        first = together(first, characters)
    steps = first[~forced & np.isfinite(first)]
    room = budget - int(forced.sum())  # tokens beyond the forced ones
    if len(steps) <= room:
        return forced | np.isfinite(first)
    # The step of the first token without room is the first that does not fit as a whole.
    selected: Bools = forced | (first < np.partition(steps, room)[room])
    return selected


def together(steps: Doubles, characters: Ints) -> Doubles:
    """Return, for each token (n,), the least step of the tokens that share a character with it."""
    least = np.full(len(steps), np.inf)
    np.minimum.at(least, characters, steps)
    return np.asarray(least[characters], np.float64)


def sentence_bounds(request: SelectionRequest, longest: int) -> Ints:
    """Return bounds of sentences in tokens, see `sp.prompt.spans`; ConfigError if the request has no text."""
    if request.spans is None:
        raise ConfigError("selector sentence needs the text of the prompt; pass text and spans to SelectionRequest")
    return bounds_of_sentences(request.text, request.spans, longest)


def unit_means(scores: Floats, bounds: Ints, counted: Bools | None = None) -> Floats:
    """Return the mean score of each unit over its `counted` tokens (all, if omitted); NaN where none counts.

    >>> unit_means(np.array([1, 3, 5], np.float32), np.array([0, 2, 3])).tolist()
    [2.0, 5.0]
    """
    if counted is None:
        counted = np.ones(len(scores), bool)
    sums = np.add.reduceat(np.where(counted, scores, np.float32(0)), bounds[:-1])
    counts = np.add.reduceat(counted.astype(np.int64), bounds[:-1])
    means = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return np.asarray(means, np.float32)


def best_first(scores: Floats) -> Ints:
    """Return the units with a score, by falling score; among equals the earlier ones first."""
    order = np.argsort(-scores, kind="stable")
    return order[~np.isnan(scores[order])]


@register_selector("top_chunks")
@dataclass(frozen=True)
class TopChunks(Constrained):
    """Chunks in order of their mean score.

    This is the rule of SpecPrefill (arXiv 2502.02789), which has no constraints: `neighbours=0 sink=0 tail=0`.

    Parameters
    ----------
    chunk_size : int, optional
        Tokens in a chunk; the resolution of the scorer if omitted, see `Importance.fineness` (for most 32,
        as in SpecPrefill).
    """

    chunk_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_size is not None:
            check_least(self, 1, "chunk_size")

    def select(self, request: SelectionRequest) -> Selection:
        """Select chunks by rank; see `Constrained` for the tokens kept besides."""
        bounds = chunk_bounds(len(request.scores), self.chunk_size or request.fineness)
        scores = unit_means(request.scores, bounds)
        return self.take(request, bounds, scores, best_first(scores))


@register_selector("token_budget")
@dataclass(frozen=True)
class TokenBudget(TopChunks):
    """Chunks in order of their mean score, up to `tokens` tokens.

    The amount of text that a question needs does not grow with the text, so results at different lengths compare better
    at equal tokens than at equal ratios (SpecPC, arXiv 2506.08373, reports 1,024 to 3,072). Protected tokens are not
    counted. The keep ratio stays a ceiling: raise it where it is the smaller of the two.

    Parameters
    ----------
    tokens : int
        Tokens to keep of those that may be left out, sink and tail among them.
    """

    tokens: Tokens = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "tokens")

    def take(
        self, request: SelectionRequest, bounds: Ints, scores: Floats, chosen: Ints, most: int | None = None
    ) -> Selection:
        """Select at most `tokens` tokens besides the protected ones."""
        return super().take(request, bounds, scores, chosen, self.tokens)


@register_selector("top_tokens")
@dataclass(frozen=True)
class TopTokens(Constrained):
    """Tokens in order of their own score: SpecPrefill without chunks (arXiv 2502.02789), GemFilter (arXiv 2409.17422).

    Single tokens carry little text, so this rule needs scores that were pooled along the prompt, neighbours (SpecPC,
    arXiv 2506.08373, takes 64) or a minimum run.
    """

    neighbours: int | Literal["by_length"] = 0

    def select(self, request: SelectionRequest) -> Selection:
        """Select tokens by rank; see `Constrained` for the tokens kept besides."""
        bounds = chunk_bounds(len(request.scores), 1)
        return self.take(request, bounds, request.scores, best_first(request.scores))


@register_selector("sentence")
@dataclass(frozen=True)
class TopSentences(Constrained):
    """Sentences in order of their mean score, so that kept text is cut where a reader would cut it.

    Compression by phrases is due to Selective Context (arXiv 2304.12102), there by self-information.

    Parameters
    ----------
    longest : int
        Sentences of more tokens are cut into equal parts; text without sentences consists of such parts.
    """

    longest: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "longest")

    def select(self, request: SelectionRequest) -> Selection:
        """Select sentences by rank; see `Constrained` for the tokens kept besides."""
        bounds = sentence_bounds(request, self.longest)
        scores = unit_means(request.scores, bounds)
        return self.take(request, bounds, scores, best_first(scores))
