"""WAYS: how a pair goes through the turns of a transcript, one function a way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.chat import Thinking, split_reply
from sp.decode.base import gather, generate
from sp.errors import ConfigError, PromptError
from sp.evals.base import WITHOUT, Count, Example
from sp.evals.matches import Caught, Evidence
from sp.evals.run import (
    RESULTS,
    Key,
    Reading,
    Row,
    cell_columns,
    evaluate,
    named,
    seeded,
    thinking_facts,
    with_thinking,
)
from sp.evals.run import known_rows as rows_of_file
from sp.evals.summary import mean, middle, paired_difference, wilson
from sp.evals.transcripts.plan import KINDS
from sp.evals.transcripts.turns import Transcript
from sp.models import prefill
from sp.models.cache.session_cache import Checkpoint
from sp.prompt import TokenisedPrompt
from sp.scoring.base import ModelFreeScorer
from sp.session import Answer, Conversation, ConversationOptions, Pipeline, RunOptions
from sp.session.decision import check_context
from sp.session.options import check_run
from sp.session.residency import CachePool
from sp.trace import Trace

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Session:
    """A transcript that is gone through. `examples`: one a turn, in order; `progress`: called with 1 after every
    row."""

    pipeline: Pipeline
    examples: tuple[Example, ...]
    thinking: Thinking = WITHOUT
    progress: Progress = lambda done: None


Run = Callable[[Session, Sequence[RunOptions]], Iterator[Row]]


@dataclass(frozen=True)
class Way:
    """One way. `run` yields a row for every turn and each of some options, as `evaluate` has them, perhaps with
    `TOKENS`; ``cell`` is the place of the options, or -1 where they only say how the target's cache is stored. `check`
    raises ConfigError for options that it cannot have."""

    run: Run
    compresses: bool = True  # whether it is run once for every scorer, selector and keep ratio; else once
    controls: bool = False  # whether it is also run with scorers that read no model, or know the evidence
    check: Callable[[Pipeline, RunOptions], object] = lambda pipeline, options: None


TOKENS = ("cached_tokens", "new_tokens", "read_tokens", "recalled_tokens")
"""Tokens of a turn: that were known from turns before, the others, all that the target read, and what came back."""


def with_prefix_cache(session: Session, cells: Sequence[RunOptions]) -> Iterator[Row]:
    """Rows of full prefills, each of which goes on from the one before; ``cached_tokens`` says how much it found. The
    prompts stay in the cache, the answers do not: those of the transcript may be others."""
    pipeline, thinking, options = session.pipeline, session.thinking, cells[0]
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
    """A target's cache with the prompt it has read last. `tokens`: of the longest prompt and its answer; `options`: say
    how keys and values are stored."""

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
        Recurrent states cannot be cut back: there it is all that was read, or nothing."""
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


def asking(begin: Callable[[Pipeline, RunOptions], Conversation]) -> Run:
    """A way that begins a conversation for every transcript and options, and asks it every question in order. Where a
    turn does not fit a budget of device memory the row has the status ``budget``."""

    def run(session: Session, cells: Sequence[RunOptions]) -> Iterator[Row]:
        examples = [with_thinking(one, session.thinking) for one in session.examples]
        for index, cell in enumerate(cells):
            options = replace(seeded(cell, examples[0].id), compress="always")
            talk = begin(session.pipeline, options)
            for example in examples:
                yield turn_row(session, index, cell, example, talk)
                session.progress(1)

    return run


def turn_row(session: Session, index: int, cell: RunOptions, example: Example, talk: Conversation) -> Row:
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


def anew(session: Session, cells: Sequence[RunOptions], compress: bool) -> Iterator[Row]:
    """The whole transcript is read, or compressed, anew at every turn."""
    pipeline, examples = session.pipeline, session.examples
    given, full = (cells, False) if compress else ([], cells[0])
    return evaluate(pipeline, examples, given, full=full, thinking=session.thinking, progress=session.progress)


def can_talk(pipeline: Pipeline, options: RunOptions) -> None:
    """ConfigError for options that a conversation cannot have."""
    try:
        check_run(options, pipeline.drafter)
    except ConfigError as error:
        others = ",".join(name for name, way in WAYS.items() if way.check is not can_talk)
        raise ConfigError(f"{error}; or leave conversations out with --ways {others}") from None


WAYS = {
    "full": Way(partial(anew, compress=False), compresses=False),
    "prefix": Way(with_prefix_cache, compresses=False),
    "cold": Way(partial(anew, compress=True), controls=True),
    "conversation": Way(asking(partial(Conversation, memory=ConversationOptions(recall="off"))), check=can_talk),
    "recall": Way(asking(Conversation), check=can_talk),
}  # ways by name, in the order in which tables have them


KEY = ("example", "way", "scorer", "selector", "decode", "keep_ratio", "positions", "mapping", "kv", "rotate", "seed")
"""What tells a row from all others of the same models."""
THOUGHT = ("thinking", "reasoning_effort")  # likewise, where rows have it


def key_of(row: Mapping[str, Any]) -> Key:
    """What tells a row from others."""
    return (*(row[name] for name in KEY), *(row.get(name) for name in THOUGHT))


@dataclass(frozen=True)
class Round:
    """A way and the options that it is run with; places of the options among all that were asked for, or -1."""

    way: str
    cells: tuple[tuple[int, RunOptions], ...]


def rounds(ways: Sequence[str], cells: Sequence[RunOptions]) -> list[Round]:
    """Every way with the options that matter to it; controls, which keep nothing between turns, only where they do."""
    found = []
    for name in ways:
        way, numbered = WAYS[name], list(enumerate(cells))
        if not way.compresses:
            numbered = [(-1, cells[0])]
        elif not way.controls:
            numbered = [(place, one) for place, one in numbered if not is_control(one)]
        found.append(Round(name, tuple(numbered)))
    return found


def is_control(options: RunOptions) -> bool:
    """Whether a scorer reads no model, or knows the evidence."""
    return isinstance(options.scorer, ModelFreeScorer) or options.scorer.oracle


@dataclass(frozen=True)
class Work:
    """What is measured. `layout`, one of "chat", "plain": see `Turns`."""

    pipeline: Pipeline
    rounds: list[Round]
    layout: str = "chat"
    thinking: Thinking = WITHOUT

    def total(self, turns: int) -> int:
        """Rows of so many turns."""
        return turns * sum(len(one.cells) for one in self.rounds)

    def rows(
        self, transcript: Transcript, count: Count, done: Mapping[Key, Row], progress: Progress = lambda done: None
    ) -> Iterator[Row]:
        """Rows of a transcript that are not done; options of which any turn is missing go through all turns again."""
        examples = tuple(transcript.example(asked, count, self.layout) for asked in transcript.asked)
        session = Session(self.pipeline, examples, self.thinking, progress)
        for one in self.rounds:
            missing = [
                cell for cell in one.cells if any(key not in done for key in self.keys(one.way, *cell, examples))
            ]
            progress((len(one.cells) - len(missing)) * len(examples))
            if not missing:
                continue
            for row in WAYS[one.way].run(session, [cell for _, cell in missing]):
                made = self.completed(row, one.way, missing)
                if key_of(made) not in done:
                    yield made

    def all_keys(self, transcript: Transcript, count: Count) -> list[Key]:
        """Of all rows of a transcript."""
        examples = [transcript.example(asked, count, self.layout) for asked in transcript.asked]
        return [key for one in self.rounds for cell in one.cells for key in self.keys(one.way, *cell, examples)]

    def keys(self, way: str, place: int, cell: RunOptions, examples: Sequence[Any]) -> list[Key]:
        """Of all rows that a way makes of examples with some options."""
        columns = cell_columns(place, cell) | {"way": way} | thinking_facts(self.thinking)
        return [key_of(columns | {"example": example.id}) for example in examples]

    def completed(self, row: Row, way: str, missing: Sequence[tuple[int, RunOptions]]) -> Row:
        """A row with its way, the place of its options, whether the answer is outdated, and tokens by what became."""
        place, cell = missing[max(row["cell"], 0)]
        known = row["status"] == "ok"
        outdated = known and not row["correct"] and any(one in row["answer"] for one in row["stale"])
        counts = (0, row["prompt_tokens"], row["kept_tokens"], 0) if known else (None,) * len(TOKENS)
        tokens = dict(zip(TOKENS, counts, strict=True))
        ours = {"cell": place, "seed": cell.seed, "outdated": int(outdated) if known else None}
        return {"way": way, **tokens} | row | ours


def known_rows(path: Path, models: Mapping[str, Any]) -> dict[Key, Row]:
    """Rows of turns of a file that are of these models, by key; see `sp.evals.run`."""
    return rows_of_file(path, models, KEY, key_of, THOUGHT)


Line = dict[str, Any]

CELL = ("tokens_asked", "way", "cell", "scorer", "selector", "keep_ratio")
ALL = "all"  # kind of the line that takes all kinds together
COUNTS = ("prompt_tokens", "kept_tokens", *TOKENS)


def summarise_turns(rows: Iterable[Row]) -> list[Line]:
    """Lines by length, way, options and kind of question; all kinds together come first.

    Returns the columns `CELL`; ``kind``; ``words_match``; ``n``, ``not_run`` (a turn that did not fit); ``correct``,
    ``accuracy`` with Wilson's ``low`` and ``high``; ``against_full``, ``against_full_low``, ``against_full_high``, mean
    difference of right answers to the same questions, bootstrapped; ``given_kept`` (share with all tokens of the answer
    in the evidence kept); ``outdated`` (share of answers that had been right before); medians of the columns `COUNTS`;
    ``ttft_s`` and ``ttft_p95_s``, median and 95th percentile; ``speedup``, median of full over it. None or left out
    where nothing was measured.
    """
    given = list(rows)
    full = {(row["tokens_asked"], row["example"]): row for row in given if row["way"] == "full"}
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in given:
        groups.setdefault(tuple(row[name] for name in CELL), []).append(row)
    ways = list(WAYS)

    def order(key: tuple[Any, ...]) -> tuple[Any, ...]:
        tokens, way, cell, *_ = key
        return tokens, ways.index(way) if way in ways else len(ways), cell

    lines = []
    for key in sorted(groups, key=order):
        for kind in (ALL, *KINDS):
            group = [row for row in groups[key] if kind in (ALL, row["fact_kind"])]
            if group:
                lines.append(dict(zip(CELL, key, strict=True)) | {"kind": kind} | line_of(group, full))
    return lines


def line_of(group: Sequence[Row], full: dict[tuple[int, str], Row]) -> Line:
    """What rows of one way, options and kind come to."""
    ran = [row for row in group if row["status"] == "ok"]
    line: Line = {
        "words_match": all(row["words_match"] for row in group),
        "n": len(ran),
        "not_run": len(group) - len(ran),
    }
    if not ran:
        return line
    correct = sum(row["correct"] for row in ran)
    low, high = wilson(correct, len(ran))
    line |= {"correct": correct, "accuracy": correct / len(ran), "low": low, "high": high}
    line |= {"given_kept": mean(ran, "given_kept"), "outdated": mean(ran, "outdated")}
    line |= {name: middle(ran, name) for name in COUNTS} | {"ttft_s": middle(ran, "ttft_s")}
    line["ttft_p95_s"] = float(np.percentile([row["ttft_s"] for row in ran], 95))
    pairs = [(row, full[key]) for row in ran if (key := (row["tokens_asked"], row["example"])) in full]
    pairs = [(row, whole) for row, whole in pairs if whole["status"] == "ok"]
    names = ("against_full", "against_full_low", "against_full_high")
    if pairs:
        found = paired_difference([row["correct"] for row, _ in pairs], [whole["correct"] for _, whole in pairs])
        line |= dict(zip(names, found, strict=True))
        line["speedup"] = median(whole["ttft_s"] / row["ttft_s"] for row, whole in pairs)
    return line
