"""How right an answer is, and how well a selection caught the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sp.arrays import Bools
from sp.evals.matches import MATCHES, Match
from sp.prompt import TokenisedPrompt
from sp.selection import Selection


def score_answer(text: str, answers: Sequence[str], match: Match) -> float:
    """Score of an answer in [0, 1], in one of the ways of `sp.evals.matches`.

    Examples
    --------
    >>> score_answer("They are 12 and 34.", ["34", "12", "56", "78"], "all")
    0.5
    >>> score_answer("Paris.", ["Paris", "the capital"], "any"), score_answer("34, 12", ["12", "34"], "exact")
    (1.0, 0.0)
    """
    return MATCHES[match](text, answers)


@dataclass(frozen=True)
class Evidence:
    """Where in a prompt its evidence stands.

    `needles`, tuple of boolean arrays (n,): Tokens of each needle; `values`, boolean array (n,): Tokens of the answers
    inside the needles; of whole needles where an answer is in none.
    """

    needles: tuple[Bools, ...]
    values: Bools

    @classmethod
    def of(cls, prompt: TokenisedPrompt, answers: Sequence[str]) -> Evidence:
        """Locate the needles of a prompt and the answers in them, by bytes."""
        raw, starts, ends = prompt.prompt.text.encode(), prompt.bytes[:, 0], prompt.bytes[:, 1]
        needles, values = [], np.zeros(len(prompt), bool)
        for span in prompt.prompt.spans:
            if span.kind != "needle":
                continue
            needles.append((starts < span.end) & (ends > span.start))
            said = raw[span.start : span.end]
            places = [(_last(said, answer.encode()), len(answer.encode())) for answer in answers]
            found = [(span.start + at, size) for at, size in places if at >= 0]
            for at, size in found or [(span.start, span.end - span.start)]:
                values |= (starts < at + size) & (ends > at)
        return cls(tuple(needles), values)


def _last(text: bytes, part: bytes) -> int:
    """As `text.rfind(part)`, which may take their product; `find` is linear (CPython 3.10 and later)."""
    at = text[::-1].find(part[::-1])
    return -1 if at < 0 else len(text) - at - len(part)


@dataclass(frozen=True)
class Caught:
    """What a selection kept of the evidence.

    Parameters
    ----------
    recall : float
        Share of the needles' tokens that were kept.
    complete : bool
        Whether every token of the answers was kept, so that the target can still be right.
    rank : int or None
        Of the chunks by score, the place of the needle's best chunk, 1 for the highest; of several needles, the
        worst. None where no chunk of a needle has a score.
    margin : float or None
        By how much that chunk beats the best chunk of which nothing was kept, as a share of the range of scores;
        negative where such a chunk scored higher. None where nothing was left out.
    """

    recall: float
    complete: bool
    rank: int | None
    margin: float | None


def caught(selection: Selection, evidence: Evidence) -> Caught | None:
    """Compare a selection with the evidence; None where there is no needle.

    Examples
    --------
    >>> kept = np.array([True, True, False, False])
    >>> chosen = Selection(kept, kept, np.array([2.0, 1.0]), np.array([0, 2, 4]))
    >>> caught(chosen, Evidence((np.array([False, True, True, False]),), np.array([False, True, False, False])))
    Caught(recall=0.5, complete=True, rank=1, margin=1.0)
    """
    if not evidence.needles:
        return None
    kept, bounds, scores = selection.kept, selection.bounds, selection.chunk_scores.astype(np.float64)
    known = np.isfinite(scores)
    left_out = known & (np.add.reduceat(kept, bounds[:-1]) == 0)
    touched = [np.add.reduceat(needle, bounds[:-1]) > 0 for needle in evidence.needles]
    worst = min(np.where(known & hit, scores, -np.inf).max() for hit in touched)
    rank = int((scores[known] > worst).sum()) + 1 if np.isfinite(worst) else None
    margin = None
    if rank is not None and left_out.any():
        spread = float(np.ptp(scores[known]))
        margin = float((worst - scores[left_out].max()) / spread) if spread else 0.0
    recall = float(np.mean([kept[needle].mean() for needle in evidence.needles]))
    return Caught(recall, bool(kept[evidence.values].all()), rank, margin)
