"""Rows of questions and cells: what each selection kept of the evidence, and if asked for the target's answers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sp.arrays import Bools
from sp.chat import Thinking
from sp.evals.base import WITHOUT
from sp.evals.known_rows import Key
from sp.evals.metrics import score_answer
from sp.evals.natural.questions import Question
from sp.evals.natural.verdict import judge, masks
from sp.evals.run import Row, cell_columns, named, score_again, scoring_of, seeded, with_thinking
from sp.prompt import TokenisedPrompt
from sp.selection import Selection, token_budget
from sp.session import Pipeline, RunOptions, Scored
from sp.session.decision import check_context
from sp.trace import Trace

KEY = ("question", "digest", "answered", "scorer", "selector", "keep_ratio", "positions", "mapping", "kv", "seed")
"""What tells a row from all others of the same models."""
OPTIONAL = ("thinking", "reasoning_effort")
"""Likewise, where rows have it."""
RESULTS = (
    *("whole", "reason", "recall", "rank", "scored_chunks", "places"),
    *("kept_tokens", "forced_tokens", "score_s", "select_s", "answer", "correct", "score"),
)
FULL = -1
"""Index of the cell of a full prefill."""


def key_of(row: Mapping[str, Any]) -> Key:
    """What tells a row from others."""
    return (*(row[name] for name in KEY), *(row.get(name) for name in OPTIONAL))


@dataclass(frozen=True)
class Work:
    """What is measured.

    `cells`: cells of one scorer share its pass over the prompt, whatever they keep; `answers`: let the target answer in
    every cell, and once in full; `thinking`: what the target is asked of thinking.
    """

    pipeline: Pipeline
    cells: Sequence[RunOptions]
    answers: bool = False
    thinking: Thinking = WITHOUT

    def numbered(self) -> list[tuple[int, RunOptions]]:
        """Cells with their index, by scoring; the full prefill, if answers are asked for, stands first."""
        order = sorted(range(len(self.cells)), key=lambda index: scoring_of(self.cells[index]))
        full = [(FULL, self.cells[0])] if self.answers else []
        return full + [(index, self.cells[index]) for index in order]

    def keys(self, question: Question) -> list[Key]:
        """Of all rows of a question."""
        return [key_of(self._known(question, *one)) for one in self.numbered()]

    def rows(
        self, question: Question, done: Container[Key] = (), progress: Callable[[int], None] = lambda done: None
    ) -> Iterator[Row]:
        """Rows of a question that are not done: `KEY`, `OPTIONAL`, what `cell_columns` has, and `RESULTS`.

        ``status`` is ``ok`` or ``budget``: the protected text alone exceeds the budget, which counts as lost evidence.
        """
        wanted = [one for one in self.numbered() if key_of(self._known(question, *one)) not in done]
        progress(len(self.numbered()) - len(wanted))
        if not wanted:
            return
        reading = Reading.of(self, question)
        for index, cell in wanted:
            yield self._known(question, index, cell) | reading.results(index, cell)
            progress(1)

    def _known(self, question: Question, index: int, cell: RunOptions) -> Row:
        """What is known of a row before anything is read."""
        thought: Row = {} if self.thinking.mode == "off" else {"thinking": self.thinking.mode}
        thought |= {} if self.thinking.effort is None else {"reasoning_effort": self.thinking.effort}
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
            **cell_columns(index, cell),
            **thought,
        }


class Reading:
    """One question as the pair sees it; of the scorings that cells asked for, the last is kept.

    Parameters
    ----------
    prompt : TokenisedPrompt
        Of the question's example.
    """

    @classmethod
    def of(cls, work: Work, question: Question) -> Reading:
        """Tokenise the prompt; PromptError where it and its answer do not fit the target's context."""
        target, example = work.pipeline.target, with_thinking(question.example(), work.thinking)
        with named(example):
            prompt = work.pipeline.tokenise(example.prompt(target.template, work.thinking, target.tokenizer))
            if work.answers:
                check_context(target, len(prompt), example.max_new_tokens)
        return cls(work, question, prompt)

    def __init__(self, work: Work, question: Question, prompt: TokenisedPrompt) -> None:
        self.work, self.question, self.prompt = work, question, prompt
        self.example = with_thinking(question.example(), work.thinking)
        self.evidence = masks(prompt, question)
        self._last: tuple[str, Scored] | None = None
        self._drafts: dict[bool, Scored] = {}

    def results(self, index: int, cell: RunOptions) -> Row:
        """Results of a cell, and the length of the prompt."""
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
            "kept_tokens": int(selection.kept.sum()),
            "forced_tokens": int(selection.forced.sum()),
            "score_s": scored.trace.seconds,
            "select_s": trace.seconds,
        }
        return row | (self._answer(selection, options) if self.work.answers else {})

    def _score(self, options: RunOptions) -> Scored:
        """The scoring of these options; another ratio's serves as well."""
        if self._last is None or self._last[0] != scoring_of(options):
            pipeline, known = self.work.pipeline, self._drafts.get(options.scorer.drafts)
            with named(self.example):
                scored = score_again(pipeline, self.prompt, options, known)
            self._last = scoring_of(options), scored
            self._drafts.setdefault(options.scorer.drafts, scored)
        return self._last[1]

    def _answer(self, kept: Bools | Selection, options: RunOptions) -> Row:
        text = self.work.pipeline.read(self.prompt, kept, options).text
        score = score_answer(text, self.question.answers, self.question.match)
        return {"answer": text, "correct": int(score == 1), "score": score}
