"""Decoding timed: tokens a second and tokens a pass, plainly and with a draft, in one process and of one prompt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from sp.arrays import Ints
from sp.bench.simulate import SIMULATED, Acceptance, Simulated, Way, deepest
from sp.bench.timing import spread
from sp.decode import DECODERS, DDTree, Decoder, DFlash, Speculative
from sp.decode.speculate import new_cycle
from sp.errors import ConfigError
from sp.kernels import import_cupy
from sp.kernels.launch import launched_sources, reset_launched
from sp.models import Hooks, prefill
from sp.models.drafts.dflash import Draft
from sp.models.drafts.dflash_session import DraftSession
from sp.models.run.tree import LayerFeatures
from sp.session import Loaded, RunOptions
from sp.session.answer import begin
from sp.session.compress import CompressedPrompt
from sp.session.device.cache_pool import CachePool

RESAMPLES = 2000


@dataclass(frozen=True)
class Answered:
    """One answer. `passes`: tokens that each pass of the target gave after the first token; what came after the end is
    not counted."""

    task: str
    tokens: tuple[int, ...]  # the token that ended it included
    passes: tuple[int, ...]
    seconds: tuple[float, ...]  # of each pass, until its tokens were on the host; the draft's part is in it


@dataclass(frozen=True)
class Measured:
    """Answers decoded in one way, beside greedy ones of the same prompts."""

    way: Way
    answers: tuple[Answered, ...]  # answers, greedy: of the same prompts, one for one
    greedy: tuple[Answered, ...]
    acceptance: Acceptance | None = None  # where acceptance was simulated
    sources: tuple[str, ...] = ()  # kernels that were launched

    @property
    def equal(self) -> int | None:
        """Answers that are the greedy ones token for token; None where acceptance was simulated."""
        if self.acceptance is not None:
            return None
        return sum(mine.tokens == plain.tokens for mine, plain in zip(self.answers, self.greedy, strict=True))

    def metrics(self) -> dict[str, Any]:
        """Means with 95 % bootstrap intervals, and the same by task. What is drawn anew are answers; passes where
        acceptance was simulated, for these are what varies. Tasks whose answers all ended with their first token are
        left out."""
        if self.acceptance is not None:
            return self._metrics() | {"origin": self.acceptance.origin}
        tasks = dict.fromkeys(answer.task for answer in self.answers if answer.passes)
        return self._metrics() | {"by_task": {task: self._of(task)._metrics() for task in tasks}}

    def _of(self, task: str) -> Measured:
        pairs = [pair for pair in zip(self.answers, self.greedy, strict=True) if pair[0].task == task]
        return replace(self, answers=tuple(a for a, _ in pairs), greedy=tuple(g for _, g in pairs))

    def _metrics(self) -> dict[str, Any]:
        tokens, seconds, passes = _units(self.answers, self.acceptance is not None)
        plain_tokens, plain_seconds, _ = _units(self.greedy, self.acceptance is not None)
        length, low, high = ratio_interval(tokens, passes)
        rate, slow, fast = ratio_interval(tokens, seconds)
        return {
            "tok_s": rate, "tok_s_low": slow, "tok_s_high": fast,
            "acceptance_length": length, "acceptance_low": low, "acceptance_high": high,
            "greedy_tok_s": (plain := float(plain_tokens.sum() / plain_seconds.sum())), "speedup": rate / plain,
            "pass_ms": 1e3 * median(s for answer in self.answers for s in answer.seconds),
            "passes": int(passes.sum()), "tokens": int(tokens.sum()), "answers": len(self.answers),
            "equal": self.equal,
        }  # fmt: skip


def ratio_interval(parts: Any, wholes: Any, seed: int = 0) -> tuple[float, float, float]:
    """Sum of parts over sum of wholes, and its 95 % bootstrap interval over the units, which are drawn in pairs."""
    parts, wholes = np.asarray(parts, np.float64), np.asarray(wholes, np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(parts), (RESAMPLES, len(parts)))
    low, high = np.quantile(parts[drawn].sum(axis=1) / wholes[drawn].sum(axis=1), (0.025, 0.975))
    return float(parts.sum() / wholes.sum()), float(low), float(high)


def _units(answers: Sequence[Answered], by_pass: bool) -> tuple[Any, Any, Any]:
    """Tokens, seconds and passes of each unit; answers of one token have no pass and are none."""
    if by_pass:
        lengths = np.concatenate([answer.passes for answer in answers])
        return lengths, np.concatenate([answer.seconds for answer in answers]), np.ones(len(lengths))
    sums = [(sum(a.passes), sum(a.seconds), len(a.passes)) for a in answers if a.passes]
    tokens, seconds, passes = np.array(sums, np.float64).T
    return tokens, seconds, passes


SKIPPED = 3  # passes before the clock counts: one launch by launch, one captured, one replayed
GREEDY: Way = ("greedy", 0)
REAL = "real acceptance"


@dataclass(frozen=True)
class Question:
    """A prompt in tokens, the task it belongs to, and the longest answer."""

    task: str
    ids: Ints
    max_new_tokens: int


def decoder_of(way: Way) -> Decoder:
    """The decoder of a way."""
    method, budget = way
    return DECODERS.build(method, {} if way == GREEDY else {"budget": budget})


def ways_of(methods: Sequence[str], budgets: Sequence[int], block_size: int) -> list[Way]:
    """Greedy decoding, then every method with every budget; chains no longer than the block."""
    ways = [GREEDY]
    for method in methods:
        longest = block_size - 1 if method == "dflash" else max(budgets)
        ways += [(method, n) for n in dict.fromkeys(min(b, longest) for b in budgets) if method != "greedy"]
    return ways


def answer(target: Loaded, draft: Draft, question: Question, options: RunOptions, pool: CachePool) -> Answered:
    """Read a prompt and decode, pass by pass on the clock; `pool` as for `begin`."""
    ids = question.ids
    given = CompressedPrompt(ids, np.arange(len(ids)), len(ids))
    options = replace(options, max_new_tokens=question.max_new_tokens)
    begun = begin(target, given, options, None, draft, pool)
    tokens: list[int] = []
    times: list[float] = []
    with closing(begun.tokens()) as stream:
        for token in stream:
            times.append(time.perf_counter())
            tokens.append(token)
            if token in target.tokenizer.eos_ids:
                break
    passes = begun.passes or [1] * (len(tokens) - 1)
    ends = np.concatenate([[0], np.cumsum(passes, dtype=np.int64)])
    seconds = np.diff(np.array(times)[ends])
    return Answered(question.task, tuple(tokens), tuple(passes), tuple(seconds.tolist()))


def measure_pair(
    target: Loaded,
    draft: Draft,
    questions: Sequence[Question],
    ways: Sequence[Way],
    options: RunOptions,
    progress: Callable[[], None] = lambda: None,
) -> list[Measured]:
    """Answer every question in every way, of which the first is `GREEDY`, all ways of a question one after the other,
    after the longest unmeasured; one result a way. ConfigError if every answer ended with its first token."""
    found: dict[Way, list[Answered]] = {way: [] for way in ways}
    pool = {way: CachePool(keep=True) for way in ways}  # each keeps the graphs of its own trees
    longest = max(questions, key=lambda question: len(question.ids) + question.max_new_tokens)
    reset_launched()
    for question in (longest, *questions):
        for way in ways:
            done = answer(target, draft, question, replace(options, decode=decoder_of(way)), pool[way])
            found[way].append(done)
            progress()
    for kept in pool.values():
        kept.drop()
    greedy = tuple(found[GREEDY][1:])
    if not any(done.passes for done in greedy):
        raise ConfigError("every answer ended with its first token, so no pass was timed; ask other --tasks")
    return [Measured(way, tuple(done[1:]), greedy, sources=launched_sources()) for way, done in found.items()]


def measure_simulated(
    target: Loaded,
    draft: Draft,
    ways: Sequence[Way],
    acceptances: Sequence[Acceptance],
    options: RunOptions,
    *,
    context: int,
    tokens: int,
    repeats: int,
    progress: Callable[[], None] = lambda: None,
) -> Iterator[Measured]:
    """Decode random prompts of `context` tokens, greedily and then in every way with every acceptance. `target` has no
    tokens that end an answer; `tokens` count in each greedy repetition, whose first `SKIPPED` passes and last one,
    which the end may cut, do not; the others go on as long."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, target.model.config.vocab, context) for _ in range(repeats)]
    greedy: tuple[Answered, ...] = ()
    for way in ways:
        for acceptance in acceptances[:1] if way == GREEDY else acceptances:
            lengths = (1,) if way == GREEDY else acceptance.of(way, draft.block_size)
            if not lengths:
                continue
            reset_launched()
            decoder = decoder_of(way)
            if isinstance(decoder, Speculative):
                # Shuffled, since a run may be shorter than a trace, whose tasks differ.
                decoder = Simulated(decoder, np.random.default_rng(0).permutation(lengths).tolist())
            most = (SKIPPED + 1) * max(lengths) + 1
            done, pool = [], CachePool(keep=True)
            for ids in prompts:
                question = Question("", ids, tokens + most)
                whole = answer(target, draft, question, replace(options, decode=decoder), pool)
                done.append(replace(whole, passes=whole.passes[SKIPPED:-1], seconds=whole.seconds[SKIPPED:-1]))
                progress()
            pool.drop()
            greedy = greedy or tuple(done)
            yield Measured(way, tuple(done), greedy, None if way == GREEDY else acceptance, launched_sources())


def describe(measured: Measured, target: Loaded, draft: Draft, common: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `make_record`; samples are tokens and milliseconds of the passes of each answer. `common` is what
    all keys of the run share: `model_facts` of the target, and how it ran."""
    method, budget = measured.way
    mode = SIMULATED if measured.acceptance else "greedy" if measured.way == GREEDY else REAL
    config = {**common, "draft": draft.path.name, "method": method, "budget": budget}
    simulated = {"acceptance": measured.acceptance.name} if measured.acceptance else {}
    samples = [
        {"task": a.task, "passes": list(a.passes), "ms": [round(1e3 * s, 4) for s in a.seconds]}
        for a in measured.answers
    ]
    return {
        "bench": "decode",
        "config": {**config, "mode": mode, **simulated},
        "metrics": measured.metrics(),
        "samples": samples,
        "sources": measured.sources,
        "device": target.model.device,
    }


KEPT = 8
PARTS = ("guess", "propose", "verify", "keep", "remember")


@dataclass(frozen=True)
class Round:
    """Rounds with passes of one number of nodes. `ms`: samples by part: ``guess`` (the draft's block), ``propose`` (the
    tree, on the host), ``verify`` (the target's pass with logits), ``keep`` (the path), ``remember`` (its features, by
    the draft)."""

    nodes: int
    kept: int  # of them, each round
    ms: dict[str, tuple[float, ...]]
    decode_ms: float  # of a greedy step after the same context, in the same process
    sources: tuple[str, ...]  # kernels launched

    def metrics(self) -> dict[str, float]:
        """Medians; `ms` is the pass, `draft_ms` the draft's whole step."""
        found = {name: spread(samples).median for name, samples in self.ms.items()}
        parts = {f"{name}_ms": found[name] for name in PARTS if name != "verify"}
        draft = found["guess"] + found["remember"]
        return {
            "ms": found["verify"],
            "ratio_to_decode": found["verify"] / self.decode_ms,
            "decode_ms": self.decode_ms,
            **parts,
            "draft_ms": draft,
        }


def fitting(nodes: Sequence[int], block_size: int) -> list[int]:
    """Sizes of passes that a draft's blocks can fill, in place of those asked for; each once."""
    return list(dict.fromkeys(_decoder(n, block_size).nodes(block_size) for n in nodes))


def time_round(
    target: Loaded, draft: Draft, nodes: int, decode_ms: float, options: RunOptions, *, context: int, repeats: int
) -> Round:
    """Time rounds after a random context: a chain while the draft's block holds it, else a tree, of as many `nodes` as
    `fitting` gives; `repeats` count, after `SKIPPED` that do not."""
    reset_launched()
    decoder, model = _decoder(nodes, draft.block_size), target.model
    rng, kept = np.random.default_rng(0), min(KEPT, nodes, draft.block_size)
    room = context + (repeats + SKIPPED) * kept + nodes
    cache = model.new_cache(room, options.kv, rotate=options.rotate)
    session, read = DraftSession.begin(draft, model, room), 0

    def take(features: Any) -> None:
        nonlocal read
        session.remember(features, np.arange(read, read + len(features)))
        read += len(features)

    ids = rng.integers(0, model.config.vocab, context)
    rows = context if model.config.layers - 1 in draft.layers else 1
    prefill(
        model, ids, np.arange(context), cache, hooks=Hooks(after_layer=LayerFeatures(draft.layers, take)), rows=rows
    )
    cycle = new_cycle(model, session, cache, nodes)
    mark, ended = _marks(model.device)
    marks: list[list[Any]] = []
    try:
        for number in range(repeats + SKIPPED):
            position = context + number * kept
            with cycle.working():
                seen = [mark()]
                guessed = cycle.guess(number, position, draft.block_size - 1)
                seen.append(mark())
                tree = decoder.propose(number, guessed, rng)
                seen.append(mark())
                cycle.verify(tree, position)
                seen.append(mark())
                path = deepest(tree)[:kept]
                cycle.commit(path)
                seen.append(mark())
                cycle.remember(path, position + tree.depths[path])
                marks.append([*seen, mark()])
            assert len(tree.tokens) == nodes, f"a tree of {len(tree.tokens)} nodes"
            assert len(path) == kept, f"a path of {len(path)} nodes"
    finally:
        cycle.end()
    spans = [ended(one) for one in marks[SKIPPED:]]
    samples = {name: tuple(span[i] for span in spans) for i, name in enumerate(PARTS)}
    return Round(nodes, kept, samples, decode_ms, launched_sources())


def _decoder(nodes: int, block_size: int) -> Speculative:
    return DFlash(nodes - 1) if nodes <= block_size else DDTree(nodes - 1)


def _marks(device: str) -> tuple[Callable[[], Any], Callable[[Sequence[Any]], list[float]]]:
    """A way to mark now, by events on the device, and one to tell the milliseconds between marks."""
    if device == "cpu":
        return time.perf_counter, lambda marks: (1e3 * np.diff(marks)).tolist()
    cuda = import_cupy().cuda

    def ended(marks: Sequence[Any]) -> list[float]:
        marks[-1].synchronize()
        return [float(cuda.get_elapsed_time(before, after)) for before, after in pairwise(marks)]

    return lambda: cuda.get_current_stream().record(), ended


def describe_round(found: Round, target: Loaded, draft: Draft, common: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `make_record`; samples are milliseconds of the pass, `common` as for decoding."""
    return {
        "bench": "verify",
        "config": {
            **common,
            "draft": draft.path.name,
            "nodes": found.nodes,
            "kept": found.kept,
            "pass": "chain" if found.nodes <= draft.block_size else "tree",
        },
        "metrics": found.metrics(),
        "samples": list(found.ms["verify"]),
        "sources": found.sources,
        "device": target.model.device,
    }
