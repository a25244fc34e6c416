"""Rows of questions and cells: the evidence in each selection, and optionally the target's answers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sp.arrays import Bools, Doubles
from sp.chat import Thinking
from sp.evals.base import WITHOUT
from sp.evals.matches import score_answer
from sp.evals.natural.questions import NaturalQuestion
from sp.evals.run import Key, Row, cell_columns, named, score_again, scoring_of, seeded, thinking_facts, with_thinking
from sp.evals.summary import mean, middle, wilson
from sp.prompt import TokenisedPrompt
from sp.selection import Selection, token_budget
from sp.session import Pipeline, RunOptions, Scored
from sp.session.decision import check_context
from sp.trace import Trace

RANK, CUT, BUDGET, PLACE = "rank", "cut", "budget", "one of several"
"""Reasons for lost evidence. `RANK`: its chunks score too low. `CUT`: a chunk boundary runs through a place, and one
side was left out. `BUDGET`: its chunks score high enough, but neighbours, sink and tail took their part of the budget.
`PLACE`: one place was selected whole, another was not."""
REASONS = (RANK, CUT, BUDGET, PLACE)


@dataclass(frozen=True)
class PlaceVerdict:
    """Result for one place of the evidence.

    Attributes
    ----------
    kept : float
        Share of its tokens that were selected.
    chunks : int
        Number of chunks that it touches.
    rank, lowest_rank : float, optional
        Ranks of its best and worst chunk, 1 for the highest, equal scores sharing the mean; None without a score.
    reason : str, optional
        Reason why it was not selected whole.
    """

    kept: float
    chunks: int
    rank: float | None
    lowest_rank: float | None
    reason: str | None


@dataclass(frozen=True)
class EvidenceVerdict:
    """Result for the evidence of a question.

    Attributes
    ----------
    whole : bool
        True if every token of every place was selected.
    reason : str, optional
        One of `REASONS` if not.
    recall : float
        Share of its tokens that were selected.
    rank : float, optional
        Worst rank of its places.
    scored_chunks : int
        Number of chunks that the selector ranked.
    """

    whole: bool
    reason: str | None
    recall: float
    rank: float | None
    scored_chunks: int
    places: tuple[PlaceVerdict, ...]

    def columns(self) -> dict[str, Any]:
        """Return the fields as values for JSON."""
        return asdict(self) | {"places": [asdict(place) for place in self.places]}


def masks(prompt: TokenisedPrompt, question: NaturalQuestion) -> list[list[Bools]]:
    """Return the tokens (n,) of every place of the evidence and of its alternatives, in the example's prompt."""
    # The prompt has the document without white space at its start, so places are shifted by its bytes.
    lead = len(question.raw) - len(question.raw.decode().lstrip().encode())
    base = prompt.prompt.segments[0].start - lead
    starts, ends = prompt.bytes[:, 0], prompt.bytes[:, 1]

    def mask(start: int, end: int) -> Bools:
        hit = np.zeros(len(prompt), bool)
        hit[bisect_right(ends, base + start) : bisect_left(starts, base + end)] = True  # every token with a byte of it
        return hit

    return [[mask(*place) for place in places] for places in question.evidence]


def judge(selection: Selection, evidence: Sequence[Sequence[Bools]], budget: int) -> EvidenceVerdict:
    """Return the result for the alternative evidence of which most was selected.

    `evidence` are the masks (n,) of places, see `masks`; `budget` is the number of tokens that could be selected.
    """
    return max(
        (_verdict(selection, places, budget) for places in evidence),
        key=lambda verdict: (verdict.whole, verdict.recall),
    )


def _verdict(selection: Selection, masks: Sequence[Bools], budget: int) -> EvidenceVerdict:
    scores = selection.chunk_scores.astype(np.float64)
    ranks = mid_ranks(scores)
    free = budget - int(selection.forced.sum())
    places = tuple(_place(selection, mask, scores, ranks, free) for mask in masks)
    lost = [place for place in places if place.reason]
    reason = None if not lost else PLACE if len(lost) < len(places) else lost[0].reason
    known = [place.rank for place in places if place.rank is not None]
    recall = float(selection.selected[np.logical_or.reduce(masks)].mean())
    rank = max(known) if len(known) == len(places) else None
    return EvidenceVerdict(not lost, reason, recall, rank, int(np.isfinite(scores).sum()), places)


def _place(selection: Selection, mask: Bools, scores: Doubles, ranks: Doubles, free: int) -> PlaceVerdict:
    bounds = selection.bounds
    chunks = np.flatnonzero(np.add.reduceat(mask, bounds[:-1]))
    share = float(selection.selected[mask].mean())
    own = ranks[chunks][np.isfinite(ranks[chunks])]
    best, worst = (float(own.min()), float(own.max())) if len(own) else (None, None)
    reason = None
    if share > 0 and share < 1:
        reason = CUT
    elif share == 0:
        top = np.nanmax(scores[chunks]) if len(own) else np.inf
        sizes = np.diff(bounds)
        as_good = int(sizes[scores >= top].sum())  # tokens of chunks that rank as high; 0 without a scored chunk
        reason = BUDGET if len(own) and as_good <= free else RANK
    return PlaceVerdict(share, len(chunks), best, worst, reason)


def mid_ranks(scores: Doubles) -> Doubles:
    """Return the ranks of scores, 1 for the highest, with mean ranks for ties; NaN where a score is not finite.

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


KEY = ("question", "digest", "answered", "scorer", "selector", "keep_ratio", "positions", "mapping", "kv", "seed")
"""Columns that identify a row among those of the same models."""
OPTIONAL = ("thinking", "reasoning_effort")  # further such columns, which rows may lack
RESULTS = (
    *("whole", "reason", "recall", "rank", "scored_chunks", "places"),
    *("kept_tokens", "forced_tokens", "score_s", "select_s", "answer", "correct", "score"),
)
FULL = -1  # index of the cell of a full prefill


def key_of(row: Mapping[str, Any]) -> Key:
    """Return the values that identify a row."""
    return (*(row[name] for name in KEY), *(row.get(name) for name in OPTIONAL))


@dataclass(frozen=True)
class NaturalRun:
    """A measurement of questions with a pair.

    Attributes
    ----------
    cells : sequence of RunOptions
        Options of the runs; cells of one scorer share its pass over the prompt.
    answers : bool
        Let the target answer in every cell, and once after a full prefill.
    thinking : Thinking
        Thinking of the target.
    """

    pipeline: Pipeline
    cells: Sequence[RunOptions]
    answers: bool = False
    thinking: Thinking = WITHOUT

    def numbered(self) -> list[tuple[int, RunOptions]]:
        """Return cells with their index, in the order of scorings; the full prefill is first if there are answers."""
        order = sorted(range(len(self.cells)), key=lambda index: scoring_of(self.cells[index]))
        full = [(FULL, self.cells[0])] if self.answers else []
        return full + [(index, self.cells[index]) for index in order]

    def keys(self, question: NaturalQuestion) -> list[Key]:
        """Return the keys of all rows of a question."""
        return [key_of(self._known(question, *cell)) for cell in self.numbered()]

    def rows(
        self, question: NaturalQuestion, done: Container[Key] = (), progress: Callable[[int], None] = lambda done: None
    ) -> Iterator[Row]:
        """Yield the rows of a question that are not done.

        Their columns are `KEY`, `OPTIONAL`, those of `cell_columns`, and `RESULTS`. ``status`` is ``ok`` or ``budget``:
        the protected text alone exceeds the budget, which counts as lost evidence.
        """
        missing = [cell_pair for cell_pair in self.numbered() if key_of(self._known(question, *cell_pair)) not in done]
        progress(len(self.numbered()) - len(missing))
        if not missing:
            return
        reading = QuestionRun(self, question)
        for index, cell in missing:
            yield self._known(question, index, cell) | reading.results(index, cell)
            progress(1)

    def _known(self, question: NaturalQuestion, index: int, cell: RunOptions) -> Row:
        return {
            "question": question.id,
            "digest": question.digest,
            "document": question.document,
            "text_kind": question.text_kind,
            "kind": question.kind,
            "overlap": round(question.overlap, 4),
            "hard": question.hard,
            "depth": round(question.depth, 4),
            "needed_places": len(question.evidence[0]),
            "answered": self.answers,
            **cell_columns(index, cell, self.pipeline.target.model.config),
            **thinking_facts(self.thinking),
        }


class QuestionRun:
    """A question with its tokenised prompt and its last scoring.

    PromptError: prompt and answer do not fit the target's context.
    """

    def __init__(self, work: NaturalRun, question: NaturalQuestion) -> None:
        target, self.example = work.pipeline.target, with_thinking(question.example(), work.thinking)
        with named(self.example):
            prompt = work.pipeline.tokenise(self.example.prompt(target.template, work.thinking, target.tokenizer))
            if work.answers:
                check_context(target, len(prompt), self.example.max_new_tokens)
        self.work, self.question, self.prompt, self.evidence = work, question, prompt, masks(prompt, question)
        self._last: tuple[str, Scored] | None = None
        self._drafts: dict[bool, Scored] = {}

    def results(self, index: int, cell: RunOptions) -> Row:
        """Return the results of a cell, and the length of the prompt."""
        options = replace(seeded(cell, self.example.id), max_new_tokens=self.example.max_new_tokens)
        row = dict.fromkeys(RESULTS) | {"prompt_tokens": len(self.prompt), "status": "ok"}
        if index == FULL:
            return row | {"whole": True, "recall": 1.0} | self._answer(np.ones(len(self.prompt), bool), options)
        protected = int(self.prompt.mask("protected").sum())
        budget = token_budget(cell.keep_ratio, len(self.prompt), protected)
        scored, trace = self._score(options), Trace()
        _, selection = self.work.pipeline.select(scored, self.prompt, options, trace)
        row |= judge(selection, self.evidence, budget).columns()
        row |= {
            "kept_tokens": int(selection.selected.sum()),
            "forced_tokens": int(selection.forced.sum()),
            "score_s": scored.trace.seconds,
            "select_s": trace.seconds,
        }
        return row | (self._answer(selection, options) if self.work.answers else {})

    def _score(self, options: RunOptions) -> Scored:
        """Return the scoring for these options, which does not depend on the keep ratio."""
        if self._last is None or self._last[0] != scoring_of(options):
            pipeline, known = self.work.pipeline, self._drafts.get(options.scorer.drafts)
            with named(self.example):
                scored = score_again(pipeline, self.prompt, options, known)
            self._last = scoring_of(options), scored
            self._drafts.setdefault(options.scorer.drafts, scored)
        return self._last[1]

    def _answer(self, selection: Bools | Selection, options: RunOptions) -> Row:
        text = self.work.pipeline.read(self.prompt, selection, options).text
        score = score_answer(text, self.question.answers, self.question.match)
        return {"answer": text, "correct": int(score == 1), "score": score}


Line = dict[str, Any]

CELL = ("cell", "scorer", "selector", "keep_ratio")
HARD, EASY, ALL = "hard", "easy", "all"
OVERLAPS = (HARD, EASY, ALL)


def summarise_questions(rows: Iterable[Row]) -> list[Line]:
    """Summarise rows by keep ratio, scorer and selector, and by overlap of question and evidence.

    Returns the columns `CELL`; ``overlap`` (one of `OVERLAPS`); ``n``; ``whole``, the share of questions whose evidence
    was selected whole, with Wilson's ``low`` and ``high``; ``misses``, the number for each of `REASONS`; ``recall``
    (mean); ``rank`` and ``score_s`` (medians); ``accuracy`` with ``accuracy_low`` and ``accuracy_high`` where the
    target answered.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in CELL), []).append(row)
    lines = []
    for key in sorted(groups, key=lambda key: (-key[CELL.index("keep_ratio")], key[0])):
        for overlap in OVERLAPS:
            group = [row for row in groups[key] if overlap == ALL or row["hard"] == (overlap == HARD)]
            if group:
                lines.append(dict(zip(CELL, key, strict=True)) | {"overlap": overlap} | _measures(group))
    return lines


def _measures(rows: Sequence[Row]) -> Line:
    whole = sum(row["whole"] for row in rows)
    low, high = wilson(whole, len(rows))
    reasons = Counter(row["reason"] for row in rows)
    line: Line = {"n": len(rows), "whole": whole / len(rows), "low": low, "high": high}
    line |= {"misses": {reason: reasons[reason] for reason in REASONS}, "recall": mean(rows, "recall")}
    line |= {"rank": middle(rows, "rank"), "score_s": middle(rows, "score_s")}
    if all(row["correct"] is not None for row in rows):
        right = sum(row["correct"] for row in rows)
        bounds = wilson(right, len(rows))
        line |= {"accuracy": right / len(rows), "accuracy_low": bounds[0], "accuracy_high": bounds[1]}
    return line
