"""Ways that ask an object which keeps what it has read: one a transcript, asked turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from sp.arrays import Bools
from sp.errors import PromptError
from sp.evals.base import Example
from sp.evals.metrics import Caught, Evidence
from sp.evals.run import RESULTS, Reading, Row, named, seeded, with_thinking
from sp.evals.turns.session import Session
from sp.prompt import Prompt
from sp.session import Answer, Pipeline, RunOptions
from sp.session.decide import check_context
from sp.trace import Trace


class Usage(Protocol):
    """Tokens of a turn, see `sp.evals.turns.session.TOKENS`."""

    @property
    def cached(self) -> int:
        """Known from turns before."""

    @property
    def new(self) -> int:
        """The others."""

    @property
    def read(self) -> int:
        """That the target read."""

    @property
    def recalled(self) -> int:
        """Left out before, and brought back."""


class Told(Protocol):
    """What comes of a turn; `present` says what of the prompt the target had before it, shape (n,)."""

    @property
    def answer(self) -> Answer:
        """With its trace and time to first token."""

    @property
    def usage(self) -> Usage:
        """Tokens."""

    @property
    def present(self) -> Bools:
        """By token of the prompt in the target's vocabulary."""


class Talks(Protocol):
    """A conversation."""

    def answer(self, prompt: Prompt, *, max_new_tokens: int | None = None) -> Told:
        """Answer a prompt that begins as the one before did."""


def asking(begin: Callable[[Pipeline, RunOptions], Talks]) -> Callable[[Session, Sequence[RunOptions]], Iterator[Row]]:
    """A way that begins a conversation for every transcript and options, and asks it every question in order.

    Where a turn does not fit a budget of device memory the row has the status ``budget``.
    """

    def run(session: Session, cells: Sequence[RunOptions]) -> Iterator[Row]:
        examples = [with_thinking(one, session.thinking) for one in session.examples]
        for index, cell in enumerate(cells):
            options = replace(seeded(cell, examples[0].id), compress="always")
            talk = begin(session.pipeline, options)
            for example in examples:
                yield turn_row(session, index, cell, example, talk)
                session.progress(1)

    return run


def turn_row(session: Session, index: int, cell: RunOptions, example: Example, talk: Talks) -> Row:
    """The row of one question."""
    target = session.pipeline.target
    with named(example):
        prompt = example.prompt(target.template, session.thinking, target.tokenizer)
        tokenised = session.pipeline.tokenise(prompt)
        check_context(target, len(tokenised), example.max_new_tokens)
    reading = Reading(session.pipeline, example, tokenised, Evidence.of(tokenised, example.answers), Trace())
    row = reading.row(index, cell)
    try:
        told = talk.answer(prompt, max_new_tokens=example.max_new_tokens)
    except PromptError:
        return row | {"status": "budget"} | dict.fromkeys(RESULTS)
    here, needles = told.present, reading.evidence.needles
    shares = [float(here[needle].mean()) for needle in needles]
    found = Caught(sum(shares) / len(shares), bool(here[reading.evidence.values].all()), None, None) if shares else None
    used = told.usage
    return (
        row
        | reading.results(told.answer, int(here.sum()), 0, found, None)
        | {
            "cached_tokens": used.cached,
            "new_tokens": used.new,
            "read_tokens": used.read,
            "recalled_tokens": used.recalled,
        }
    )
