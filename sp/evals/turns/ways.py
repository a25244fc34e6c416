"""Methods to answer the questions of a transcript with a pair, by name in `WAYS`: one function for each."""

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
from sp.evals.matches import Evidence, EvidenceRecall
from sp.evals.run import (
    RESULTS,
    ExampleRun,
    Key,
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
from sp.session.device.cache_pool import CachePool
from sp.session.options import check_run
from sp.trace import Trace

Progress = Callable[[int], None]


@dataclass(frozen=True)
class TranscriptRun:
    """A run through a transcript.

    `examples` are the questions of all turns, in order; `progress` is called with 1 after every row.
    """

    pipeline: Pipeline
    examples: tuple[Example, ...]
    thinking: Thinking = WITHOUT
    progress: Progress = lambda done: None


Run = Callable[[TranscriptRun, Sequence[RunOptions]], Iterator[Row]]


@dataclass(frozen=True)
class TurnMethod:
    """A method to answer the questions of a transcript.

    Attributes
    ----------
    run : callable
        Yields a row for every turn and each of some options, with the columns of `evaluate`, and perhaps `TOKENS`;
        ``cell`` is the index of the options, or -1 where only the format of the target's cache matters.
    compresses : bool
        True if it runs for every scorer, selector and keep ratio; otherwise it runs once.
    controls : bool
        True if it also runs with scorers that run no model, or know the evidence.
    check : callable
        Raises ConfigError for options that the method does not support.
    """

    run: Run
    compresses: bool = True
    controls: bool = False
    check: Callable[[Pipeline, RunOptions], object] = lambda pipeline, options: None


TOKENS = ("cached_tokens", "new_tokens", "read_tokens", "recalled_tokens")
"""Tokens of a turn: cached from earlier turns, new ones, all that the target processed, and those recalled."""


def with_prefix_cache(session: TranscriptRun, cells: Sequence[RunOptions]) -> Iterator[Row]:
    """Yield rows of full prefills, each of which continues from the cache of the one before.

    ``cached_tokens`` is the length of the cached prefix. Prompts stay in the cache, but answers do not, because those
    of the transcript may differ.
    """
    pipeline, thinking, options = session.pipeline, session.thinking, cells[0]
    target, examples = pipeline.target, [with_thinking(example, thinking) for example in session.examples]
    longest = max(
        examples, key=lambda example: sum(len(turn.content) for turn in example.turns) + len(example.document)
    )
    size = len(pipeline.tokenise(longest.prompt(target.template, thinking, target.tokenizer)))
    cached_prompt = CachedPrompt(pipeline, size + max(example.max_new_tokens for example in examples), options)
    try:
        for example in examples:
            trace = Trace()
            with named(example), trace.stage("tokenise") as stage:
                prompt = pipeline.tokenise(example.prompt(target.template, thinking, target.tokenizer))
                stage.tokens = len(prompt)
            with named(example):
                check_context(target, len(prompt), example.max_new_tokens)
            reading = ExampleRun(pipeline, example, prompt, Evidence.of(prompt, example.answers), trace)
            answer, cached = cached_prompt.answer(prompt, example.max_new_tokens, trace)
            everything = EvidenceRecall(1.0, True, None, None) if reading.evidence.needles else None
            row = reading.row(-1, options) | reading.results(answer, len(prompt), 0, everything, None)
            yield row | {
                "cached_tokens": cached,
                "new_tokens": len(prompt) - cached,
                "read_tokens": len(prompt) - cached,
            }
            session.progress(1)
    finally:
        cached_prompt.end()


class CachedPrompt:
    """A target's cache with its last prompt.

    `tokens` is the length of the longest prompt with its answer; `options` have the format of keys and values.
    """

    def __init__(self, pipeline: Pipeline, tokens: int, options: RunOptions) -> None:
        self.target, self.memory_manager = pipeline.target, pipeline.memory_manager
        self.pooled = CachePool(keep=False).take(self.target.model, tokens, options.kv, options.rotate)
        self.ids: Ints = np.zeros(0, np.int64)

    def answer(self, prompt: TokenisedPrompt, most: int, trace: Trace) -> tuple[Answer, int]:
        """Prefill the new part of a prompt and answer greedily; return the answer and the number of cached tokens."""
        model, cache, tokenizer = self.target.model, self.pooled.cache, self.target.tokenizer
        known, started = self.keep(prompt.ids), False

        def run_prefill() -> Floats:
            nonlocal known, started
            if started:  # a second attempt, after the first ran out of memory
                cache.reset()
                known = 0
            started = True
            return prefill(model, prompt.ids[known:], np.arange(known, len(prompt), dtype=np.int64), cache)

        with ExitStack() as stack:
            with trace.stage("target prefill", len(prompt) - known):
                logits = self.memory_manager.attempt(stack, "target", len(prompt) - known, run_prefill)
            self.ids, ttft = np.asarray(prompt.ids), trace.seconds
            before = Checkpoint.of(cache)
            with trace.stage("decode") as stage:
                stream = generate(model, logits, len(prompt), cache, limit=most, decoder=self.pooled.greedy())
                tokens = gather(stream, tokenizer.eos_ids)
                stage.tokens = len(tokens)
            before.restore(cache)  # removes the answer
        reply = split_reply(tokenizer.decode(tokens), prompt.prompt.thinks)
        return Answer(reply.content, tuple(tokens), ttft, trace, reasoning=reply.reasoning), known

    def keep(self, ids: Ints) -> int:
        """Truncate the cache to the longest common prefix with these tokens, and return its length.

        At least one token is left to be prefilled. Recurrent states cannot be truncated: with them, either the whole
        cached prompt is a prefix, or nothing is kept.
        """
        cache, most = self.pooled.cache, min(len(self.ids), len(ids))
        differ = np.flatnonzero(self.ids[:most] != ids[:most])
        common = min(int(differ[0]) if len(differ) else most, max(len(ids) - 1, 0))
        if common < len(self.ids):
            if cache.config.delta_layers or not common:
                cache.reset()
                common = 0
            else:
                Checkpoint(common, {}).restore(cache)  # without recurrent states this only truncates the cache
        self.ids = self.ids[:common]
        return common

    def end(self) -> None:
        """Release the cache."""
        self.pooled.end()


def asking(begin: Callable[[Pipeline, RunOptions], Conversation]) -> Run:
    """Return a method that begins a conversation for a transcript and options, and asks all questions in order.

    Where a turn does not fit the budget of device memory, the row has the status ``budget``.
    """

    def run(session: TranscriptRun, cells: Sequence[RunOptions]) -> Iterator[Row]:
        examples = [with_thinking(example, session.thinking) for example in session.examples]
        for index, cell in enumerate(cells):
            options = replace(seeded(cell, examples[0].id), compress="always")
            talk = begin(session.pipeline, options)
            for example in examples:
                yield turn_row(session, index, cell, example, talk)
                session.progress(1)

    return run


def turn_row(session: TranscriptRun, index: int, cell: RunOptions, example: Example, talk: Conversation) -> Row:
    """Return the row of one question."""
    target = session.pipeline.target
    with named(example):
        prompt = example.prompt(target.template, session.thinking, target.tokenizer)
        tokenised = session.pipeline.tokenise(prompt)
        check_context(target, len(tokenised), example.max_new_tokens)
    reading = ExampleRun(session.pipeline, example, tokenised, Evidence.of(tokenised, example.answers), Trace())
    row = reading.row(index, cell)
    try:
        turn = talk.answer(prompt, max_new_tokens=example.max_new_tokens)
    except PromptError:
        return row | {"status": "budget"} | dict.fromkeys(RESULTS)
    here, needles = turn.present, reading.evidence.needles
    shares = [float(here[needle].mean()) for needle in needles]
    recall = (
        EvidenceRecall(sum(shares) / len(shares), bool(here[reading.evidence.values].all()), None, None)
        if shares
        else None
    )
    used = turn.usage
    return (
        row
        | reading.results(turn.answer, int(here.sum()), 0, recall, None)
        | {
            "cached_tokens": used.cached,
            "new_tokens": used.new,
            "read_tokens": used.read,
            "recalled_tokens": used.recalled,
        }
    )


def from_scratch(session: TranscriptRun, cells: Sequence[RunOptions], compress: bool) -> Iterator[Row]:
    """Process the whole transcript at every turn, compressed or in full."""
    pipeline, examples = session.pipeline, session.examples
    evaluated, full = (cells, False) if compress else ([], cells[0])
    return evaluate(pipeline, examples, evaluated, full=full, thinking=session.thinking, progress=session.progress)


def can_talk(pipeline: Pipeline, options: RunOptions) -> None:
    """Raise ConfigError for options that a conversation does not support."""
    try:
        check_run(options, pipeline.drafter)
    except ConfigError as error:
        others = ",".join(name for name, way in WAYS.items() if way.check is not can_talk)
        raise ConfigError(f"{error}; or omit conversations with --ways {others}") from None


WAYS = {
    "full": TurnMethod(partial(from_scratch, compress=False), compresses=False),
    "prefix": TurnMethod(with_prefix_cache, compresses=False),
    "cold": TurnMethod(partial(from_scratch, compress=True), controls=True),
    "conversation": TurnMethod(asking(partial(Conversation, memory=ConversationOptions(recall="off"))), check=can_talk),
    "recall": TurnMethod(asking(Conversation), check=can_talk),
}  # methods by name, in the order of tables


KEY = ("example", "way", "scorer", "selector", "decode", "keep_ratio", "positions", "mapping", "kv", "rotate", "seed")
"""Columns that identify a row among those of the same models."""
THOUGHT = ("thinking", "reasoning_effort")  # further such columns, which rows may lack


def key_of(row: Mapping[str, Any]) -> Key:
    """Return the values that identify a row."""
    return (*(row[name] for name in KEY), *(row.get(name) for name in THOUGHT))


@dataclass(frozen=True)
class MethodCells:
    """A method and the options it runs with, each with its index among all requested options, or -1."""

    way: str
    cells: tuple[tuple[int, RunOptions], ...]


def rounds(ways: Sequence[str], cells: Sequence[RunOptions]) -> list[MethodCells]:
    """Return each method with the options that apply to it; controls only for methods that run with them."""
    result = []
    for name in ways:
        way, numbered = WAYS[name], list(enumerate(cells))
        if not way.compresses:
            numbered = [(-1, cells[0])]
        elif not way.controls:
            numbered = [(place, options) for place, options in numbered if not is_control(options)]
        result.append(MethodCells(name, tuple(numbered)))
    return result


def is_control(options: RunOptions) -> bool:
    """Return True if the scorer runs no model, or knows the evidence."""
    return isinstance(options.scorer, ModelFreeScorer) or options.scorer.oracle


@dataclass(frozen=True)
class TurnsRun:
    """A measurement of transcripts with a pair; `layout` is "chat" or "plain", see `Turns`."""

    pipeline: Pipeline
    rounds: list[MethodCells]
    layout: str = "chat"
    thinking: Thinking = WITHOUT

    def total(self, turns: int) -> int:
        """Return the number of rows of a number of turns."""
        return turns * sum(len(method.cells) for method in self.rounds)

    def rows(
        self, transcript: Transcript, count: Count, done: Mapping[Key, Row], progress: Progress = lambda done: None
    ) -> Iterator[Row]:
        """Yield the rows of a transcript that are not done; options with a missing turn run through all turns."""
        examples = tuple(transcript.example(question, count, self.layout) for question in transcript.questions)
        session = TranscriptRun(self.pipeline, examples, self.thinking, progress)
        for method in self.rounds:
            missing = [
                cell for cell in method.cells if any(key not in done for key in self.keys(method.way, *cell, examples))
            ]
            progress((len(method.cells) - len(missing)) * len(examples))
            if not missing:
                continue
            for row in WAYS[method.way].run(session, [cell for _, cell in missing]):
                complete = self.completed(row, method.way, missing)
                if key_of(complete) not in done:
                    yield complete

    def all_keys(self, transcript: Transcript, count: Count) -> list[Key]:
        """Return the keys of all rows of a transcript."""
        examples = [transcript.example(question, count, self.layout) for question in transcript.questions]
        return [
            key for method in self.rounds for cell in method.cells for key in self.keys(method.way, *cell, examples)
        ]

    def keys(self, way: str, place: int, cell: RunOptions, examples: Sequence[Any]) -> list[Key]:
        """Return the keys of the rows of one method with one cell of options."""
        columns = cell_columns(place, cell, self.pipeline.target.model.config)
        columns |= {"way": way} | thinking_facts(self.thinking)
        return [key_of(columns | {"example": example.id}) for example in examples]

    def completed(self, row: Row, way: str, missing: Sequence[tuple[int, RunOptions]]) -> Row:
        """Add to a row its method, the index of its options, whether the answer is outdated, and counts of tokens."""
        place, cell = missing[max(row["cell"], 0)]
        known = row["status"] == "ok"
        outdated = known and not row["correct"] and any(answer in row["answer"] for answer in row["stale"])
        counts = (0, row["prompt_tokens"], row["kept_tokens"], 0) if known else (None,) * len(TOKENS)
        tokens = dict(zip(TOKENS, counts, strict=True))
        ours = {"cell": place, "seed": cell.seed, "outdated": int(outdated) if known else None}
        return {"way": way, **tokens} | row | ours


def known_rows(path: Path, models: Mapping[str, Any]) -> dict[Key, Row]:
    """Return the rows of a file with these models, by key; see `sp.evals.run.known_rows`."""
    return rows_of_file(path, models, KEY, key_of, THOUGHT)


Line = dict[str, Any]

CELL = ("tokens_asked", "way", "cell", "scorer", "selector", "keep_ratio")
ALL = "all"  # kind of the line for all kinds of questions together
COUNTS = ("prompt_tokens", "kept_tokens", *TOKENS)


def summarise_turns(rows: Iterable[Row]) -> list[Line]:
    """Summarise rows by length, method, options and kind of question; all kinds together come first.

    Returns the columns `CELL`; ``kind``; ``words_match``; ``n``, ``not_run`` (a turn that did not fit); ``correct``,
    ``accuracy`` with Wilson's ``low`` and ``high``; ``against_full``, ``against_full_low``, ``against_full_high``, mean
    difference of right answers to the same questions, bootstrapped; ``given_kept`` (share with all tokens of the answer
    in the evidence kept); ``outdated`` (share of answers that had been right before); medians of the columns `COUNTS`;
    ``ttft_s`` and ``ttft_p95_s``, median and 95th percentile; ``speedup``, median of full over it. None or left out
    where nothing was measured.
    """
    all_rows = list(rows)
    full = {(row["tokens_asked"], row["example"]): row for row in all_rows if row["way"] == "full"}
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in all_rows:
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
    """Summarise the rows of one method, options and kind of question."""
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
        difference = paired_difference([row["correct"] for row, _ in pairs], [whole["correct"] for _, whole in pairs])
        line |= dict(zip(names, difference, strict=True))
        line["speedup"] = median(whole["ttft_s"] / row["ttft_s"] for row, whole in pairs)
    return line
