"""Ways that ask an object which keeps what it has read: one a transcript, asked turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from sp.errors import PromptError
from sp.evals.base import Example
from sp.evals.metrics import Evidence, score_answer
from sp.evals.run import RESULTS, STAGES, Reading, Row, named, seeded, with_thinking
from sp.evals.turns.ways import Session
from sp.pipeline import Pipeline, RunOptions
from sp.trace import Trace


class Usage(Protocol):
    """Tokens of a turn: found as they were, read for the first time, read by the target, and brought back."""

    cached: int
    new: int
    kept: int
    recalled: int


class TurnResult(Protocol):
    """What `Asks.ask` returns; the times to first token are those of the trace's stages but the last, `decode`."""

    @property
    def answer(self) -> str:
        """Text."""

    @property
    def usage(self) -> Usage:
        """Tokens."""

    @property
    def trace(self) -> Trace:
        """Stages of this turn."""


class Asks(Protocol):
    """A conversation."""

    def ask(self, messages: list[dict[str, Any]], tools: Any = None) -> TurnResult:
        """Answer what the last message asks."""


Makes = Callable[[Pipeline, RunOptions], Asks]


def asking(make: Makes) -> Callable[[Session, Sequence[RunOptions]], Iterator[Row]]:
    """A way that makes an object for every transcript and options, and asks it every question in order.

    Parameters
    ----------
    make : callable
        Of a pipeline and options, whose `max_new_tokens` has room for every answer of the transcript.
    """

    def run(session: Session, cells: Sequence[RunOptions]) -> Iterator[Row]:
        examples = [with_thinking(one, session.thinking) for one in session.examples]
        for index, cell in enumerate(cells):
            room = max(one.max_new_tokens for one in examples)
            options = replace(seeded(cell, examples[0].id), max_new_tokens=room, compress="always")
            asked = make(session.pipeline, options)
            for example, messages in zip(examples, session.messages, strict=True):
                yield _row(session, index, cell, example, messages, asked)
                session.progress(1)

    return run


def _row(
    session: Session, index: int, cell: RunOptions, example: Example, messages: list[dict[str, str]], asked: Asks
) -> Row:
    target = session.pipeline.target
    with named(example):
        prompt = session.pipeline.tokenise(example.prompt(target.template, session.thinking, target.tokenizer))
    reading = Reading(session.pipeline, example, prompt, Evidence.of(prompt, example.answers), Trace())
    row = reading.row(index, cell) | dict.fromkeys(RESULTS)
    try:
        result = asked.ask(messages)
    except PromptError:  # the protected text alone exceeds the budget
        return row | {"status": "budget"}
    score = score_answer(result.answer, example.answers, example.match)
    seconds = {stage.name: stage.seconds for stage in result.trace.stages}
    return row | {
        "answer": result.answer,
        "correct": int(score == 1),
        "score": score,
        "kept_tokens": result.usage.kept,
        "realised_keep": result.usage.kept / len(prompt),
        "ttft_s": sum(value for name, value in seconds.items() if name != STAGES["decode_s"]),
        **{column: seconds.get(name) for column, name in STAGES.items()},
        "cached_tokens": result.usage.cached,
        "new_tokens": result.usage.new,
        "recalled_tokens": result.usage.recalled,
    }
