"""Decoding timed: tokens a second and tokens a pass, plainly and with a draft, in one process and of one prompt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sp.arrays import Ints
from sp.bench.decode_metrics import Answered, Measured
from sp.bench.simulate import SIMULATED, Acceptance, Simulated, Way
from sp.decode import DECODERS, Decoder, Speculative
from sp.errors import ConfigError
from sp.kernels.launch import launched_sources, reset_launched
from sp.models.drafts.dflash import Draft
from sp.session import Loaded, RunOptions
from sp.session.answer import begin
from sp.session.compress import Compressed
from sp.session.residency import CachePool

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
    """The decoder of a way.

    Examples
    --------
    >>> decoder_of(("ddtree", 4)).budget
    4
    """
    method, budget = way
    return DECODERS.build(method, {} if way == GREEDY else {"budget": budget})


def ways_of(methods: Sequence[str], budgets: Sequence[int], block_size: int) -> list[Way]:
    """Greedy decoding, then every method with every budget; chains no longer than the block.

    Examples
    --------
    >>> ways_of(["greedy", "dflash", "ddtree"], [4, 22], 16)
    [('greedy', 0), ('dflash', 4), ('dflash', 15), ('ddtree', 4), ('ddtree', 22)]
    """
    ways = [GREEDY]
    for method in methods:
        longest = block_size - 1 if method == "dflash" else max(budgets)
        ways += [(method, n) for n in dict.fromkeys(min(b, longest) for b in budgets) if method != "greedy"]
    return ways


def answer(target: Loaded, draft: Draft, question: Question, options: RunOptions, pool: CachePool) -> Answered:
    """Read a prompt and decode, pass by pass on the clock; `pool` as for `begin`."""
    ids = question.ids
    given = Compressed(ids, np.arange(len(ids)), len(ids))
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
    """Answer every question in every way, all ways of a question one after the other, after the longest unmeasured.

    Parameters
    ----------
    ways : sequence of Way
        The first is `GREEDY`.
    options : RunOptions
        Of the caches.

    Returns
    -------
    list of Measured
        One a way, in order.

    Raises
    ------
    ConfigError
        Every answer ended with its first token: there is nothing to time.
    """
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
    """Decode random prompts of `context` tokens, greedily and then in every way with every acceptance.

    Of every repetition the first `SKIPPED` passes and the last one, which the end may cut, do not count.

    Parameters
    ----------
    target : Loaded
        Without tokens that end an answer.
    ways : sequence of Way
        The first is `GREEDY`.
    tokens : int
        That count in each greedy repetition; the others go on as long.
    """
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
    """Arguments of `make_record`; samples are tokens and milliseconds of the passes of each answer.

    `common` is what all keys of the run share: `model_facts` of the target, and how it ran.
    """
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
