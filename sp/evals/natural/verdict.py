"""Whether a selection kept the evidence of a question whole, and if not, why."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sp.arrays import Bools, Doubles
from sp.evals.natural.questions import Places, Question
from sp.prompt import TokenisedPrompt
from sp.selection import Selection

RANK, CUT, BUDGET, PLACE = "rank", "cut", "budget", "one of several"
"""Why evidence is lost. `RANK`: its chunks score too low. `CUT`: a border of chunks runs through a place, and one side
was left out. `BUDGET`: its chunks score high enough, but neighbours, sink and tail took their room. `PLACE`:
one place was kept whole, another was not."""
REASONS = (RANK, CUT, BUDGET, PLACE)


@dataclass(frozen=True)
class Place:
    """What became of one place.

    `kept`: share of its tokens. `chunks`: over which it is spread. `rank`: of its best chunk among all, 1 for the
    highest; those of equal scores share the mean of their ranks. None where no chunk of it has a score. `lowest_rank`:
    likewise of its worst chunk. `reason`: why it is not whole.
    """

    kept: float
    chunks: int
    rank: float | None
    lowest_rank: float | None
    reason: str | None


@dataclass(frozen=True)
class Verdict:
    """What became of the evidence.

    `whole`: whether every token of every place was kept; `reason`: one of `REASONS` if it is not; `recall`: share of
    its tokens that were kept; `rank`: worst of the ranks of its places; `scored_chunks`: chunks that the selector
    ranked.
    """

    whole: bool
    reason: str | None
    recall: float
    rank: float | None
    scored_chunks: int
    places: tuple[Place, ...]

    def columns(self) -> dict[str, Any]:
        """As values that go into JSON."""
        return asdict(self) | {"places": [asdict(place) for place in self.places]}


def masks(prompt: TokenisedPrompt, question: Question) -> list[list[Bools]]:
    """Tokens (n,) of every place of the evidence and of its alternatives, in a prompt of the question's example."""
    lead = len(question.raw) - len(question.raw.decode().lstrip().encode())
    base = prompt.prompt.segments[0].start - lead
    return [[_mask(prompt, base, places, number) for number in range(len(places))] for places in question.evidence]


def _mask(prompt: TokenisedPrompt, base: int, places: Places, number: int) -> Bools:
    start, end = places[number]
    starts, ends = prompt.bytes[:, 0], prompt.bytes[:, 1]
    hit = np.zeros(len(prompt), bool)
    hit[bisect_right(ends, base + start) : bisect_left(starts, base + end)] = True
    return hit


def judge(selection: Selection, evidence: Sequence[Sequence[Bools]], budget: int) -> Verdict:
    """What became of that evidence of several of which most was kept.

    `evidence`, sequence of sequences of bool (n,): Tokens of each place, see `masks`; `budget`: Tokens that could be
    kept in all.

    Examples
    --------
    >>> kept = np.array([True, True, False, False])
    >>> chosen = Selection(kept, ~kept & kept, np.array([2.0, 1.0]), np.array([0, 2, 4]))
    >>> judge(chosen, [[np.array([False, True, True, False])]], 2)  # doctest: +ELLIPSIS
    Verdict(whole=False, reason='cut', recall=0.5, rank=1.0, scored_chunks=2, places=(Place(kept=0.5, chunks=2, ...
    """
    return max((_verdict(selection, places, budget) for places in evidence), key=lambda one: (one.whole, one.recall))


def _verdict(selection: Selection, masks: Sequence[Bools], budget: int) -> Verdict:
    scores = selection.chunk_scores.astype(np.float64)
    ranks = mid_ranks(scores)
    free = budget - int(selection.forced.sum())
    places = tuple(_place(selection, mask, scores, ranks, free) for mask in masks)
    lost = [place for place in places if place.reason]
    reason = None
    if lost:
        some_whole = len(lost) < len(places)
        reason = PLACE if some_whole else lost[0].reason
    known = [place.rank for place in places if place.rank is not None]
    recall = float(selection.kept[np.logical_or.reduce(masks)].mean())
    rank = max(known) if len(known) == len(places) else None
    return Verdict(not lost, reason, recall, rank, int(np.isfinite(scores).sum()), places)


def _place(selection: Selection, mask: Bools, scores: Doubles, ranks: Doubles, free: int) -> Place:
    bounds = selection.bounds
    chunks = np.flatnonzero(np.add.reduceat(mask, bounds[:-1]))
    kept = float(selection.kept[mask].mean())
    own = ranks[chunks][np.isfinite(ranks[chunks])]
    best, worst = (float(own.min()), float(own.max())) if len(own) else (None, None)
    reason = None
    if kept > 0 and kept < 1:
        reason = CUT
    elif kept == 0:
        top = np.nanmax(scores[chunks]) if len(own) else np.inf
        sizes = np.diff(bounds)
        as_good = int(sizes[scores >= top].sum())  # nothing where no chunk is known
        reason = BUDGET if len(own) and as_good <= free else RANK
    return Place(kept, len(chunks), best, worst, reason)


def mid_ranks(scores: Doubles) -> Doubles:
    """Ranks of scores, 1 for the highest, equal ones sharing the mean of theirs; NaN where a score is not finite.

    Examples
    --------
    >>> mid_ranks(np.array([5.0, 1.0, np.nan, 5.0])).tolist()
    [1.5, 3.0, nan, 1.5]
    """
    known = np.isfinite(scores)
    ranks = np.full(len(scores), np.nan)
    values, place, count = np.unique(-scores[known], return_inverse=True, return_counts=True)
    if len(values):
        before = np.cumsum(count) - count
        ranks[known] = (before + (count + 1) / 2)[place]
    return ranks
