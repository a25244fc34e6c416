"""What is kept whatever the scores say, and what comes along with a choice: the fields every selector shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.arrays import Bools, Doubles, Floats, Ints
from sp.config import check_fields
from sp.errors import ConfigError
from sp.prompt.spans import with_characters
from sp.selection.base import Selection, SelectionRequest, Selector
from sp.selection.ranking import fill, together, token_steps, unit_steps

RADII = ((32768, 64), (65536, 128))
"""(prompts shorter than, tokens on either side) of `neighbours="by_length"`; longer prompts take `WIDEST`."""
WIDEST = 256


def forced_tokens(
    protected: Bools, budget: int, sink: int, tail: int, characters: Ints | None = None
) -> tuple[Bools, int]:
    """Tokens that must be kept: all protected ones, and sink and tail as far as they leave half of the rest.

    Attention sinks sit on the first tokens (StreamingLLM, arXiv 2309.17453) and losing the end of the prompt
    breaks the answer, so both are kept. They may take at most half of what protected text leaves, or the
    scores would never be asked at small keep ratios.

    Parameters
    ----------
    protected : boolean array (n,)
    budget : int
        Tokens that may be kept in all, the protected ones among them.
    sink, tail : int
        Tokens wanted from the start and from the end of the prompt.
    characters : array (n,), optional
        As in `SelectionRequest`; one of which there is no room for the last token is left out.

    Returns
    -------
    forced : boolean array (n,)
    torn : int
        Tokens of the budget that a character left out had a claim to. No choice may have them, or a larger budget, in
        which that character is kept, would leave less to the choices.

    Examples
    --------
    >>> forced, _ = forced_tokens(np.zeros(10, bool), budget=4, sink=8, tail=1)
    >>> forced.nonzero()[0].tolist()
    [0, 9]
    """
    n, needed = len(protected), int(protected.sum())
    free = (budget - needed) // 2
    # Both ends grow inward in step, so that a larger budget keeps all that a smaller one keeps.
    order = together(end_order(n, sink, tail), characters)
    order[protected] = np.inf
    forced = protected.copy()
    wanted = np.flatnonzero(np.isfinite(order))
    forced[wanted[np.argsort(order[wanted], kind="stable")[:free]]] = True
    whole = forced if characters is None else ~with_characters(~forced, characters)
    return whole, int(forced.sum() - whole.sum())


def end_order(n: int, sink: int, tail: int) -> Doubles:
    """How far each of n tokens lies from its end of the prompt, as a share of `sink` or `tail`; infinite beyond.

    Examples
    --------
    >>> end_order(6, 2, 1).tolist()
    [0.0, 0.5, inf, inf, inf, 0.0]
    """
    order = np.full(n, np.inf)
    order[n - min(tail, n) :] = np.arange(min(tail, n))[::-1] / max(tail, 1)
    order[: min(sink, n)] = np.minimum(order[: min(sink, n)], np.arange(min(sink, n)) / max(sink, 1))
    return order


@dataclass(frozen=True)
class Constrained(Selector):
    """The constraints of every selector; all of them count inside the budget.

    What a rule chose is taken best first, each choice followed by its neighbours. The first of them that no
    longer fits ends the selection, so a smaller keep ratio always keeps a subset of what a larger one keeps.

    Parameters
    ----------
    neighbours : int or "by_length"
        Units (chunks, tokens or sentences) kept on either side of a chosen one; an answer often stands just
        behind the key it is asked by. `by_length` takes as many as hold 64, 128 or 256 tokens in prompts of
        fewer than 32,768, fewer than 65,536 and more tokens, for keys lie further from values in longer texts.
    min_run : int
        Chosen units of fewer tokens are widened to this many, so that no choice is a scrap of text.
    backbone : float
        Share of the choices that are spread evenly over the prompt whatever the scores, in [0, 1).
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
        """Tokens no constraint asks for, shape (n,).

        Rules that compare scores with a threshold look at these only: an attention sink would otherwise set the
        maximum of the prompt, or be most of its mass, and is kept in any case.
        """
        n = len(request.scores)
        free = ~request.protected
        free[: self.sink] = False
        free[max(0, n - self.tail) :] = False
        return free

    def radius(self, units: int, n: int) -> int:
        """Neighbours in units, for a prompt of n tokens that is divided into so many."""
        if self.neighbours != "by_length":
            return self.neighbours
        tokens = next((reach for below, reach in RADII if n < below), WIDEST)
        return max(1, round(tokens * units / n))

    def take(
        self, request: SelectionRequest, bounds: Ints, scores: Floats, chosen: Ints, most: int | None = None
    ) -> Selection:
        """Keep what must be kept and, as far as the budget goes, what was chosen.

        Parameters
        ----------
        request : SelectionRequest
        bounds : array (units + 1,)
        scores : array (units,)
            For the report.
        chosen : array
            Units the rule chose, best first.
        most : int, optional
            Tokens to keep besides the protected ones at most, where that is less than what the request allows.
        """
        budget = request.budget
        if most is not None and request.keep_ratio < 1:
            budget = min(int(request.protected.sum()) + most, budget)
        starts = request.characters
        forced, torn = forced_tokens(request.protected, budget, self.sink, self.tail, starts)
        if request.keep_ratio == 1:
            return Selection(np.ones(len(forced), bool), forced, scores, bounds)
        units = len(bounds) - 1
        steps = unit_steps(chosen, units, self.radius(units, int(bounds[-1])), self.backbone)
        kept = fill(forced, token_steps(steps, bounds, self.min_run), budget - torn, starts)
        return Selection(kept, forced, scores, bounds)


def check_least(selector: Selector, least: int, *names: str) -> None:
    """ConfigError if one of these fields is below `least`."""
    for name in names:
        value = getattr(selector, name)
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, not {value}")


def check_share(selector: Selector, *names: str) -> None:
    """ConfigError unless each of these fields is above 0 and at most 1."""
    for name in names:
        value = getattr(selector, name)
        if not 0 < value <= 1:
            raise ConfigError(f"{name} must be above 0 and at most 1, not {value:g}")
