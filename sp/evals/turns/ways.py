"""WAYS: how a pair goes through the turns of a transcript, one function a way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.chat import Thinking, split_reply
from sp.decode.base import gather, generate
from sp.errors import ConfigError, PromptError
from sp.evals.base import WITHOUT, Example
from sp.evals.metrics import Caught, Evidence
from sp.evals.run import RESULTS, Reading, Row, evaluate, named, seeded, with_thinking
from sp.models import prefill
from sp.models.cache.checkpoint import Checkpoint
from sp.prompt import Prompt, TokenisedPrompt
from sp.session import Answer, Conversation, ConversationOptions, Pipeline, RunOptions
from sp.session.decision import check_context
from sp.session.options import check_run
from sp.session.residency import CachePool
from sp.trace import Trace

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Session:
    """A transcript that is gone through.

    `examples`: one a turn, in order; `progress`: called with 1 after every row.
    """

    pipeline: Pipeline
    examples: tuple[Example, ...]
    thinking: Thinking = WITHOUT
    progress: Progress = lambda done: None


@dataclass(frozen=True)
class Way:
    """One way.

    Parameters
    ----------
    run : callable
        Yields a row for every turn and each of some options, as `evaluate` has them; ``cell`` is the place of the
        options, or -1 where they only say how the target's cache is stored. It may add `TOKENS`.
    compresses : bool
        Whether it is run once for every scorer, selector and keep ratio; else once.
    controls : bool
        Whether it is also run with scorers that read no model, or know the evidence.
    check : callable
        Raises ConfigError for options that it cannot have, before anything runs.
    """

    run: Callable[[Session, Sequence[RunOptions]], Iterator[Row]]
    compresses: bool = True
    controls: bool = False
    check: Callable[[Pipeline, RunOptions], object] = lambda pipeline, options: None


TOKENS = ("cached_tokens", "new_tokens", "read_tokens", "recalled_tokens")
"""Tokens of a turn: that were known from turns before, the others, all that the target read, and what came back."""


def with_prefix_cache(session: Session, options: RunOptions) -> Iterator[Row]:
    """Rows of full prefills, each of which goes on from the one before; ``cached_tokens`` says how much it found.

    The prompts stay in the cache, the answers do not: those of the transcript may be others.
    """
    pipeline, thinking = session.pipeline, session.thinking
    target, asked = pipeline.target, [with_thinking(one, thinking) for one in session.examples]
    longest = max(asked, key=lambda one: sum(len(turn.content) for turn in one.turns) + len(one.document))
    size = len(pipeline.tokenise(longest.prompt(target.template, thinking, target.tokenizer)))
    held = HeldPrompt(pipeline, size + max(one.max_new_tokens for one in asked), options)
    try:
        for example in asked:
            trace = Trace()
            with named(example), trace.stage("tokenise") as stage:
                prompt = pipeline.tokenise(example.prompt(target.template, thinking, target.tokenizer))
                stage.tokens = len(prompt)
            with named(example):
                check_context(target, len(prompt), example.max_new_tokens)
            reading = Reading(pipeline, example, prompt, Evidence.of(prompt, example.answers), trace)
            answer, cached = held.answer(prompt, example.max_new_tokens, trace)
            everything = Caught(1.0, True, None, None) if reading.evidence.needles else None
            row = reading.row(-1, options) | reading.results(answer, len(prompt), 0, everything, None)
            yield row | {
                "cached_tokens": cached,
                "new_tokens": len(prompt) - cached,
                "read_tokens": len(prompt) - cached,
            }
            session.progress(1)
    finally:
        held.end()


class HeldPrompt:
    """A target's cache with the prompt it has read last.

    `tokens`: of the longest prompt and its answer; `options`: say how keys and values are stored.
    """

    def __init__(self, pipeline: Pipeline, tokens: int, options: RunOptions) -> None:
        self.target, self.residency = pipeline.target, pipeline.residency
        self.pooled = CachePool(keep=False).take(self.target.model, tokens, options.kv, options.rotate)
        self.ids: Ints = np.zeros(0, np.int64)

    def answer(self, prompt: TokenisedPrompt, most: int, trace: Trace) -> tuple[Answer, int]:
        """Read what of a prompt is new and answer greedily in at most `most` tokens; and how many were not new."""
        model, cache, tokenizer = self.target.model, self.pooled.cache, self.target.tokenizer
        known, begun = self.keep(prompt.ids), False

        def read() -> Floats:
            nonlocal known, begun
            if begun:  # and memory ran out on the way
                cache.reset()
                known = 0
            begun = True
            return prefill(model, prompt.ids[known:], np.arange(known, len(prompt), dtype=np.int64), cache)

        with ExitStack() as stack:
            with trace.stage("target prefill", len(prompt) - known):
                logits = self.residency.attempt(stack, "target", len(prompt) - known, read)
            self.ids, ttft = np.asarray(prompt.ids), trace.seconds
            before = Checkpoint.of(cache)
            with trace.stage("decode") as stage:
                stream = generate(model, logits, len(prompt), cache, limit=most, decoder=self.pooled.greedy())
                tokens = gather(stream, tokenizer.eos_ids)
                stage.tokens = len(tokens)
            before.restore(cache)
        said = split_reply(tokenizer.decode(tokens), prompt.prompt.thinks)
        return Answer(said.content, tuple(tokens), ttft, trace, reasoning=said.reasoning), known

    def keep(self, ids: Ints) -> int:
        """Forget all but the longest prefix of these tokens, and leave at least one of them to be read; its length.

        Recurrent states cannot be cut back: there it is all that was read, or nothing.
        """
        cache, most = self.pooled.cache, min(len(self.ids), len(ids))
        differ = np.flatnonzero(self.ids[:most] != ids[:most])
        common = min(int(differ[0]) if len(differ) else most, max(len(ids) - 1, 0))
        if common < len(self.ids):
            if cache.config.delta_layers or not common:
                cache.reset()
                common = 0
            else:
                Checkpoint(common, {}).restore(cache)
        self.ids = self.ids[:common]
        return common

    def end(self) -> None:
        """Let go of everything."""
        self.pooled.end()


class Usage(Protocol):
    """Tokens of a turn, see `sp.evals.turns.ways.TOKENS`."""

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


def full(session: Session, cells: Sequence[RunOptions]) -> Iterator[Row]:
    """The whole transcript is read anew at every turn."""
    how = {"thinking": session.thinking, "progress": session.progress}
    return evaluate(session.pipeline, session.examples, [], full=cells[0], **how)  # type: ignore[arg-type]


def cold(session: Session, cells: Sequence[RunOptions]) -> Iterator[Row]:
    """The whole transcript is compressed anew at every turn."""
    how = {"thinking": session.thinking, "progress": session.progress}
    return evaluate(session.pipeline, session.examples, cells, full=False, **how)  # type: ignore[arg-type]


def prefix(session: Session, cells: Sequence[RunOptions]) -> Iterator[Row]:
    """Nothing is left out, and what the last turn had read is not read again."""
    return with_prefix_cache(session, cells[0])


def can_talk(pipeline: Pipeline, options: RunOptions) -> None:
    """ConfigError for options that a conversation cannot have."""
    try:
        check_run(options, pipeline.drafter)
    except ConfigError as error:
        others = ",".join(name for name, way in WAYS.items() if way.check is not can_talk)
        raise ConfigError(f"{error}; or leave conversations out with --ways {others}") from None


WAYS = {
    "full": Way(full, compresses=False),
    "prefix": Way(prefix, compresses=False),
    "cold": Way(cold, controls=True),
    "conversation": Way(asking(partial(Conversation, memory=ConversationOptions(recall="off"))), check=can_talk),
    "recall": Way(asking(Conversation), check=can_talk),
}
"""Ways by name, in the order in which tables have them."""
