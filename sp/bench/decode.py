"""Timing of decoding: tokens per second and per pass, greedy and with a draft model, for one prompt in one process."""

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
from sp.bench.simulate import SIMULATED, Acceptance, DecodeSetting, Simulated, deepest
from sp.bench.timing import quartiles
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
class TimedAnswer:
    """One timed answer. `passes`: tokens of each pass of the target, after the first token; tokens past the end of the
    answer do not count."""

    task: str
    tokens: tuple[int, ...]  # including the token that ended it
    passes: tuple[int, ...]
    seconds: tuple[float, ...]  # per pass, until its tokens are on the host; includes the draft model


@dataclass(frozen=True)
class DecodeTiming:
    """Answers decoded with one setting, next to greedy ones of the same prompts."""

    setting: DecodeSetting
    answers: tuple[TimedAnswer, ...]  # `answers` and `greedy` have the same prompts, in the same order
    greedy: tuple[TimedAnswer, ...]
    acceptance: Acceptance | None = None  # None for real acceptance
    sources: tuple[str, ...] = ()  # kernels launched

    @property
    def equal(self) -> int | None:
        """Number of answers equal to the greedy ones token for token; None for simulated acceptance."""
        if self.acceptance is not None:
            return None
        return sum(answer.tokens == greedy.tokens for answer, greedy in zip(self.answers, self.greedy, strict=True))

    def metrics(self) -> dict[str, Any]:
        """Means with 95 % bootstrap intervals, in total and by task. Answers are resampled; with simulated acceptance,
        whose answers do not vary, passes are. Tasks whose answers all ended with their first token are omitted."""
        if self.acceptance is not None:
            return self._metrics() | {"origin": self.acceptance.origin}
        tasks = dict.fromkeys(answer.task for answer in self.answers if answer.passes)
        return self._metrics() | {"by_task": {task: self._of(task)._metrics() for task in tasks}}

    def _of(self, task: str) -> DecodeTiming:
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
    """Divide the sum of parts by the sum of wholes; its 95 % bootstrap interval resamples (part, whole) pairs."""
    parts, wholes = np.asarray(parts, np.float64), np.asarray(wholes, np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(parts), (RESAMPLES, len(parts)))
    low, high = np.quantile(parts[drawn].sum(axis=1) / wholes[drawn].sum(axis=1), (0.025, 0.975))
    return float(parts.sum() / wholes.sum()), float(low), float(high)


def _units(answers: Sequence[TimedAnswer], by_pass: bool) -> tuple[Any, Any, Any]:
    """Return tokens, seconds and passes by answer or by pass; answers of one token have no pass and are omitted."""
    if by_pass:
        lengths = np.concatenate([answer.passes for answer in answers])
        return lengths, np.concatenate([answer.seconds for answer in answers]), np.ones(len(lengths))
    sums = [(sum(a.passes), sum(a.seconds), len(a.passes)) for a in answers if a.passes]
    tokens, seconds, passes = np.array(sums, np.float64).T
    return tokens, seconds, passes


SKIPPED = 3  # untimed passes: one launched eagerly, one captured, one replayed
GREEDY: DecodeSetting = ("greedy", 0)
REAL = "real acceptance"


@dataclass(frozen=True)
class DecodePrompt:
    """Token ids of a prompt, the name of its task, and the most tokens of its answer."""

    task: str
    ids: Ints
    max_new_tokens: int


def decoder_of(setting: DecodeSetting) -> Decoder:
    """Build the decoder of a setting."""
    method, budget = setting
    return DECODERS.build(method, {} if setting == GREEDY else {"budget": budget})


def settings_of(methods: Sequence[str], budgets: Sequence[int], block_size: int) -> list[DecodeSetting]:
    """List greedy decoding, then every method with every budget; a chain is no longer than the draft's block."""
    settings = [GREEDY]
    for method in methods:
        longest = block_size - 1 if method == "dflash" else max(budgets)
        settings += [(method, n) for n in dict.fromkeys(min(b, longest) for b in budgets) if method != "greedy"]
    return settings


def answer(target: Loaded, draft: Draft, task: DecodePrompt, options: RunOptions, pool: CachePool) -> TimedAnswer:
    """Prefill a prompt and decode, timing every pass; `pool` as for `begin`."""
    ids = task.ids
    prompt = CompressedPrompt(ids, np.arange(len(ids)), len(ids))
    options = replace(options, max_new_tokens=task.max_new_tokens)
    started = begin(target, prompt, options, None, draft, pool)
    tokens: list[int] = []
    times: list[float] = []
    with closing(started.tokens()) as stream:
        for token in stream:
            times.append(time.perf_counter())
            tokens.append(token)
            if token in target.tokenizer.eos_ids:
                break
    passes = started.passes or [1] * (len(tokens) - 1)
    ends = np.concatenate([[0], np.cumsum(passes, dtype=np.int64)])
    seconds = np.diff(np.array(times)[ends])
    return TimedAnswer(task.task, tuple(tokens), tuple(passes), tuple(seconds.tolist()))


def measure_pair(
    target: Loaded,
    draft: Draft,
    prompts: Sequence[DecodePrompt],
    settings: Sequence[DecodeSetting],
    options: RunOptions,
    progress: Callable[[], None] = lambda: None,
) -> list[DecodeTiming]:
    """Answer every prompt with every setting, the first of which is `GREEDY`; return one timing per setting. All
    settings of a prompt run in turn, after an untimed run of the longest prompt. ConfigError if every answer ended with
    its first token."""
    answers: dict[DecodeSetting, list[TimedAnswer]] = {setting: [] for setting in settings}
    # A pool per setting, so that the graphs captured for its trees are there again for the next prompt.
    pool = {setting: CachePool(keep=True) for setting in settings}
    longest = max(prompts, key=lambda prompt: len(prompt.ids) + prompt.max_new_tokens)
    reset_launched()
    for prompt in (longest, *prompts):
        for setting in settings:
            timed = answer(target, draft, prompt, replace(options, decode=decoder_of(setting)), pool[setting])
            answers[setting].append(timed)
            progress()
    for caches in pool.values():
        caches.drop()
    greedy = tuple(answers[GREEDY][1:])
    if not any(timed.passes for timed in greedy):
        raise ConfigError("every answer ended with its first token, so no pass was timed; choose other --tasks")
    sources = launched_sources()
    return [DecodeTiming(setting, tuple(timed[1:]), greedy, sources=sources) for setting, timed in answers.items()]


def measure_simulated(
    target: Loaded,
    draft: Draft,
    settings: Sequence[DecodeSetting],
    acceptances: Sequence[Acceptance],
    options: RunOptions,
    *,
    context: int,
    tokens: int,
    repeats: int,
    progress: Callable[[], None] = lambda: None,
) -> Iterator[DecodeTiming]:
    """Decode random prompts of `context` tokens, greedily and then with every setting and acceptance.

    `target` must have no tokens that end an answer. Of each answer the first `SKIPPED` passes and the last one, which
    the end may truncate, are not counted; about `tokens` tokens are.
    """
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, target.model.config.vocab, context) for _ in range(repeats)]
    greedy: tuple[TimedAnswer, ...] = ()
    for setting in settings:
        for acceptance in acceptances[:1] if setting == GREEDY else acceptances:
            lengths = (1,) if setting == GREEDY else acceptance.of(setting, draft.block_size)
            if not lengths:
                continue
            reset_launched()
            decoder = decoder_of(setting)
            if isinstance(decoder, Speculative):
                # Shuffled: a run may be shorter than the trace, whose lengths are ordered by task.
                decoder = Simulated(decoder, np.random.default_rng(0).permutation(lengths).tolist())
            most = (SKIPPED + 1) * max(lengths) + 1
            done, pool = [], CachePool(keep=True)
            for ids in prompts:
                prompt = DecodePrompt("", ids, tokens + most)
                whole = answer(target, draft, prompt, replace(options, decode=decoder), pool)
                done.append(replace(whole, passes=whole.passes[SKIPPED:-1], seconds=whole.seconds[SKIPPED:-1]))
                progress()
            pool.drop()
            greedy = greedy or tuple(done)
            simulated = None if setting == GREEDY else acceptance
            yield DecodeTiming(setting, tuple(done), greedy, simulated, launched_sources())


def describe(measured: DecodeTiming, target: Loaded, draft: Draft, common: Mapping[str, Any]) -> dict[str, Any]:
    """Build the arguments of `make_record`; samples are tokens and milliseconds of the passes of each answer. `common`:
    keys that all records of the run share, namely `model_facts` of the target and `running`."""
    method, budget = measured.setting
    mode = SIMULATED if measured.acceptance else "greedy" if measured.setting == GREEDY else REAL
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


PATH_NODES = 8  # at most so many nodes of each timed tree are committed
PARTS = ("guess", "propose", "verify", "keep", "remember")


@dataclass(frozen=True)
class RoundTiming:
    """Timed rounds with trees of one size. `ms`: samples by part. ``guess``: the draft model's block; ``propose``: the
    tree, on the host; ``verify``: the target's pass with logits; ``keep``: committing the path; ``remember``: the
    path's features, by the draft model."""

    nodes: int
    path_nodes: int  # nodes committed per round
    ms: dict[str, tuple[float, ...]]
    decode_ms: float  # greedy step after the same context, in the same process
    sources: tuple[str, ...]  # kernels launched

    def metrics(self) -> dict[str, float]:
        """Medians by part; `ms` is the target's pass, `draft_ms` both parts of the draft model."""
        medians = {name: quartiles(samples).median for name, samples in self.ms.items()}
        parts = {f"{name}_ms": medians[name] for name in PARTS if name != "verify"}
        draft = medians["guess"] + medians["remember"]
        return {
            "ms": medians["verify"],
            "ratio_to_decode": medians["verify"] / self.decode_ms,
            "decode_ms": self.decode_ms,
            **parts,
            "draft_ms": draft,
        }


def fitting(nodes: Sequence[int], block_size: int) -> list[int]:
    """Replace tree sizes by those that the draft's blocks can fill, without duplicates."""
    return list(dict.fromkeys(_decoder(n, block_size).nodes(block_size) for n in nodes))


def time_round(
    target: Loaded, draft: Draft, nodes: int, decode_ms: float, options: RunOptions, *, context: int, repeats: int
) -> RoundTiming:
    """Time `repeats` rounds after a random context, after `SKIPPED` untimed ones. `nodes`: size of the tree as
    `fitting` returns it; a chain if the draft's block is as long, else a tree."""
    reset_launched()
    decoder, model = _decoder(nodes, draft.block_size), target.model
    rng, path_nodes = np.random.default_rng(0), min(PATH_NODES, nodes, draft.block_size)
    room = context + (repeats + SKIPPED) * path_nodes + nodes
    cache = model.new_cache(room, options.kv, rotate=options.rotate)
    session, features_seen = DraftSession.begin(draft, model, room), 0

    def take(features: Any) -> None:
        nonlocal features_seen
        session.remember(features, np.arange(features_seen, features_seen + len(features)))
        features_seen += len(features)

    ids = rng.integers(0, model.config.vocab, context)
    # A draft that reads features of the last layer needs its rows for all tokens, not the last one alone.
    rows = context if model.config.layers - 1 in draft.layers else 1
    prefill(
        model, ids, np.arange(context), cache, hooks=Hooks(after_layer=LayerFeatures(draft.layers, take)), rows=rows
    )
    cycle = new_cycle(model, session, cache, nodes)
    mark, ended = _marks(model.device)
    marks: list[list[Any]] = []
    try:
        for number in range(repeats + SKIPPED):
            position = context + number * path_nodes
            with cycle.working():
                round_marks = [mark()]
                guessed = cycle.guess(number, position, draft.block_size - 1)
                round_marks.append(mark())
                tree = decoder.propose(number, guessed, rng)
                round_marks.append(mark())
                cycle.verify(tree, position)
                round_marks.append(mark())
                path = deepest(tree)[:path_nodes]
                cycle.commit(path)
                round_marks.append(mark())
                cycle.remember(path, position + tree.depths[path])
                marks.append([*round_marks, mark()])
            # Sizes must be equal in all rounds, or the times would be those of different graphs.
            assert len(tree.tokens) == nodes, f"a tree of {len(tree.tokens)} nodes"
            assert len(path) == path_nodes, f"a path of {len(path)} nodes"
    finally:
        cycle.end()
    spans = [ended(round_marks) for round_marks in marks[SKIPPED:]]
    samples = {name: tuple(span[i] for span in spans) for i, name in enumerate(PARTS)}
    return RoundTiming(nodes, path_nodes, samples, decode_ms, launched_sources())


def _decoder(nodes: int, block_size: int) -> Speculative:
    return DFlash(nodes - 1) if nodes <= block_size else DDTree(nodes - 1)


def _marks(device: str) -> tuple[Callable[[], Any], Callable[[Sequence[Any]], list[float]]]:
    """Return a function that marks the present time, on GPUs by an event, and one for the milliseconds between
    marks."""
    if device == "cpu":
        return time.perf_counter, lambda marks: (1e3 * np.diff(marks)).tolist()
    cuda = import_cupy().cuda

    def ended(marks: Sequence[Any]) -> list[float]:
        marks[-1].synchronize()
        return [float(cuda.get_elapsed_time(before, after)) for before, after in pairwise(marks)]

    return lambda: cuda.get_current_stream().record(), ended


def describe_round(timing: RoundTiming, target: Loaded, draft: Draft, common: dict[str, Any]) -> dict[str, Any]:
    """Build the arguments of `make_record`; samples are milliseconds of the target's pass, `common` as for
    `describe`."""
    return {
        "bench": "verify",
        "config": {
            **common,
            "draft": draft.path.name,
            "nodes": timing.nodes,
            "kept": timing.path_nodes,
            "pass": "chain" if timing.nodes <= draft.block_size else "tree",
        },
        "metrics": timing.metrics(),
        "samples": list(timing.ms["verify"]),
        "sources": timing.sources,
        "device": target.model.device,
    }
