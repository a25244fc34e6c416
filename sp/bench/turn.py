"""Time to first token of a turn in a long chat, by policy, all of them in one run.

Every turn continues from the end of the same transcript. What the turn before added is dropped, as when a client edits
its last message. So all turns of a policy have the same length and can be compared, no model exceeds its context
however many are timed, and each policy reads the transcript once. Compared with a turn that continues from the last
answer, such a turn also restores recurrent states. The same happens when the template drops the thinking of the last
answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import mean, median
from typing import Any

import numpy as np

from sp.bench.prompts import TranscriptMaker
from sp.bench.ttft import pair_config, until_first_token
from sp.errors import SpError
from sp.kernels.device import device_errors
from sp.kernels.launch import launched_sources, reset_launched
from sp.prompt import Prompt
from sp.session import Conversation, ConversationOptions, Pipeline, RunOptions, request
from sp.session.options import check_run
from sp.trace import Stage, Trace, peak_bytes


@dataclass(frozen=True)
class TimedTurn:
    """One timed turn. `peak_bytes`: peak device memory during the turn, weights included; on the CPU the peak of the
    process so far."""

    ttft_s: float  # from the messages to the first token on the host
    stages: dict[str, float]  # seconds by stage; `other` is the time between stages
    usage: dict[str, int]  # tokens, see `sp.session.Usage`
    peak_bytes: int = 0
    host_bytes: int = 0  # host memory of snapshots and offloaded caches after the turn
    density: float | None = None  # share of the causal blocks that the drafter read, where it is known


@dataclass(frozen=True)
class PolicyAnswer:
    """Trace, token counts and sparse density of an answer by a policy."""

    trace: Trace
    usage: Mapping[str, int]
    density: float | None = None


OnToken = Callable[[int], bool | None]


class ConversationPolicy:
    """A conversation: only new text is scored, compressed and prefilled."""

    def __init__(self, pipeline: Pipeline, options: RunOptions, memory: ConversationOptions) -> None:
        self._talk = Conversation(pipeline, options, memory)

    def answer(self, prompt: Prompt, on_token: OnToken) -> PolicyAnswer:
        """Answer a prompt that continues the transcript of earlier ones."""
        result = self._talk.answer(prompt, on_token)
        return PolicyAnswer(result.trace, result.usage.as_dict(), mean(result.drafted) if result.drafted else None)

    def clear(self) -> None:
        """Drop the conversation and its caches."""
        self._talk.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of both caches between turns, on the models' device."""
        return self._talk.nbytes

    @property
    def host_nbytes(self) -> int:
        """Bytes of host memory of snapshots and offloaded caches."""
        return self._talk.host_nbytes


class ColdPolicy:
    """No conversation: every turn scores and compresses the whole transcript again."""

    def __init__(self, pipeline: Pipeline, options: RunOptions, memory: ConversationOptions) -> None:
        self._pipeline, self._options = pipeline, options

    def answer(self, prompt: Prompt, on_token: OnToken) -> PolicyAnswer:
        """Answer a prompt as if it were the first."""
        result = self._pipeline.run(prompt, self._options, full=False, on_token=on_token)
        n, tokens = len(result.prompt), result.kept_tokens
        densities = result.importance.densities if result.importance else ()
        usage = {"prompt": n, "cached": 0, "new": n, "kept": tokens, "recalled": 0, "read": tokens, "held": tokens}
        drafted, trace = len(result.drafted) if result.drafted else 0, result.answer.trace
        if result.importance:
            trace.stages = request.apart(trace.stages, result.importance)
        return PolicyAnswer(trace, usage | {"drafted": drafted}, mean(densities) if densities else None)

    def clear(self) -> None:
        """Drop the cache that the next answer would use again."""
        self._pipeline.memory_manager.cache_pool.drop()

    @property
    def nbytes(self) -> int:
        """Bytes of the cache that the next answer uses."""
        idle = self._pipeline.memory_manager.cache_pool.idle
        return idle.nbytes if idle else 0

    @property
    def host_nbytes(self) -> int:
        """Bytes of host memory: always 0, since nothing is stored between turns."""
        return 0


class PrefixPolicy(ConversationPolicy):
    """A plain prefix cache: the target prefills all new text, and nothing is scored."""

    def __init__(self, pipeline: Pipeline, options: RunOptions, memory: ConversationOptions) -> None:
        whole = replace(options, keep_ratio=1.0, compress="off")
        super().__init__(pipeline, whole, replace(memory, recall="off"))


Policy = ConversationPolicy | ColdPolicy
POLICIES: dict[str, type[ConversationPolicy] | type[ColdPolicy]] = {
    "conversation": ConversationPolicy,
    "cold": ColdPolicy,
    "prefix": PrefixPolicy,
}


def measure_turn(policy: Policy, make: Callable[[], Prompt], other_bytes: int = 0) -> TimedTurn:
    """Time the making of a prompt and its answer. `other_bytes`: device memory of other policies' caches."""
    arrivals: list[float] = []
    start = time.perf_counter()
    prompt = make()
    rendered = time.perf_counter() - start
    answer = policy.answer(prompt, lambda _: arrivals.append(time.perf_counter()))
    ttft = (arrivals[0] if arrivals else time.perf_counter()) - start
    spent = until_first_token([Stage("render", seconds=rendered), *answer.trace.stages], ttft)
    memory: dict[str, Any] = answer.trace.facts.get("residency", {})
    peak = memory["peak_bytes"] - other_bytes if memory else peak_bytes()
    return TimedTurn(ttft, spent, dict(answer.usage), peak, policy.host_nbytes, answer.density)


def clear_quietly(policy: Policy) -> None:
    """Clear a policy, in whatever state it failed."""
    with suppress(Exception):
        policy.clear()


WARM_TURNS = 2  # uncounted turns after the transcript was read: kernels compile, caches and graphs are created


@dataclass(frozen=True)
class TurnCell:
    """Configuration of turns: `new_tokens` tokens after a transcript of `prompt_tokens`, within `vram` bytes if
    given."""

    prompt_tokens: int
    new_tokens: int
    policy: str
    options: RunOptions
    memory: ConversationOptions
    vram: int | None = None


@dataclass
class TurnTiming:
    """Measured turns of one cell."""

    cell: TurnCell
    start: TimedTurn | None = None  # reads the transcript
    turns: list[TimedTurn] = field(default_factory=list)  # counted ones
    order: str = "interleaved"  # how turns of several policies alternated
    error: str | None = None  # why no more turns ran
    sources: tuple[str, ...] = ()  # kernels launched in the run

    def metrics(self) -> dict[str, Any]:
        """Percentiles of the time to first token, and medians or maxima of the rest."""
        done, known = self.turns, {"order": self.order, "error": self.error, "turns": len(self.turns)}
        if not done:
            return known | {"ttft_p50_s": None, "ttft_p95_s": None, "stages": {}}
        seconds = [turn.ttft_s for turn in done]
        densities = [turn.density for turn in done if turn.density is not None]
        return known | {
            "ttft_p50_s": median(seconds),
            "ttft_p95_s": float(np.percentile(seconds, 95)),
            "ttft_max_s": max(seconds),
            "start_ttft_s": self.start.ttft_s if self.start else None,
            "stages": self.stages(),
            "usage": {name: int(median(turn.usage[name] for turn in done)) for name in done[0].usage},
            "density": mean(densities) if densities else None,
            "peak_bytes": max(turn.peak_bytes for turn in done),
            "start_peak_bytes": self.start.peak_bytes if self.start else None,
            "host_bytes": max(turn.host_bytes for turn in done),
        }

    def stages(self) -> dict[str, float]:
        """Median seconds by stage."""
        names = dict.fromkeys(name for turn in self.turns for name in turn.stages)
        return {name: median(turn.stages.get(name, 0.0) for turn in self.turns) for name in names}


@dataclass(frozen=True)
class TurnBench:
    """Times turns of one pair."""

    pipeline: Pipeline  # its target should be `without_ends`
    maker: TranscriptMaker
    repeats: int = 20  # counted turns per policy
    policies: Sequence[str] = tuple(POLICIES)
    progress: Callable[[], None] = lambda: None  # called after every counted turn

    def run(
        self,
        lengths: Sequence[int],
        new_tokens: int,
        options: RunOptions,
        memory: ConversationOptions,
        budgets: Sequence[int | None] = (None,),
    ) -> Iterator[TurnTiming]:
        """Time every policy at every length of transcript, within every budget of device memory.

        Without a budget the policies alternate. Within one they run one after the other, since they would otherwise
        evict each other's caches, which is no part of a turn. The timing of a policy that cannot run has an error.

        Raises
        ------
        ConfigError
            The options or lengths are impossible.
        """
        options = replace(options, compress="always")
        if "conversation" in self.policies:
            check_run(options, self.pipeline.drafter)
        for tokens in lengths:
            self.maker.turn(tokens, new_tokens, 0)  # fails before anything is timed if it is impossible
        for vram in budgets:
            pipeline = self.pipeline.within(vram)
            for tokens in lengths:
                cells = [TurnCell(tokens, new_tokens, name, options, memory, vram) for name in self.policies]
                for group in [cells] if vram is None else [[cell] for cell in cells]:
                    order = "interleaved" if len(group) > 1 else "in blocks"
                    yield from self._timed(pipeline, [TurnTiming(cell, order=order) for cell in group])

    def _timed(self, pipeline: Pipeline, timings: list[TurnTiming]) -> list[TurnTiming]:
        reset_launched()
        policies: dict[str, Policy] = {}
        sizes = timings[0].cell.prompt_tokens, timings[0].cell.new_tokens
        try:
            for number in range(-1 - WARM_TURNS, self.repeats):
                warm = 1 + WARM_TURNS  # turn -warm reads the transcript
                messages = self.maker.turn(*sizes, warm + number) if number > -warm else self.maker.first(*sizes)
                make = partial(self.maker.prompt, messages)
                for index in range(len(timings)):  # rotated: the first policy finds the host's caches cold
                    timing = timings[(index + number) % len(timings)]
                    if timing.error is None:
                        self._turn(pipeline, timing, policies, number, make)
        finally:
            for policy in policies.values():
                clear_quietly(policy)
        for timing in timings:
            timing.sources = launched_sources()
        return timings

    def _turn(
        self,
        pipeline: Pipeline,
        timing: TurnTiming,
        policies: dict[str, Policy],
        number: int,
        make: Callable[[], Prompt],
    ) -> None:
        """Run one turn of one policy; turns with negative numbers are not counted."""
        cell, name = timing.cell, timing.cell.policy
        first = name not in policies
        try:
            with device_errors():
                if first:
                    policies[name] = POLICIES[name](pipeline, cell.options, cell.memory)
                other_bytes = sum(policy.nbytes for other, policy in policies.items() if other != name)
                turn = measure_turn(policies[name], make, other_bytes)
        except (SpError, MemoryError) as error:
            timing.error = str(error) or "out of memory"
            if name in policies:
                clear_quietly(policies.pop(name))
            return
        if first:
            timing.start = turn
        elif number >= 0:
            timing.turns.append(turn)
            self.progress()


def turn_config(cell: TurnCell, pipeline: Pipeline, path: str) -> dict[str, Any]:
    """Describe the timed configuration with the keys of records."""
    whole, talks = cell.policy == "prefix", cell.policy == "conversation"
    return {
        **pair_config(pipeline, cell.options, cell.vram, path, not whole),
        "prompt_tokens": cell.prompt_tokens,
        "new_tokens": cell.new_tokens,
        "keep_ratio": 1.0 if whole else cell.options.keep_ratio,
        "policy": cell.policy,
        "recall": cell.memory.recall if talks else "off",
        "keys": cell.memory.keys if talks else None,
        "answer_tokens": cell.options.max_new_tokens,
    }


def describe_turn(timing: TurnTiming, pipeline: Pipeline, path: str) -> dict[str, Any]:
    """Build the arguments of `make_record` for a timing; samples are seconds to the first token."""
    return {
        "bench": "turn",
        "config": turn_config(timing.cell, pipeline, path),
        "metrics": timing.metrics(),
        "samples": [turn.ttft_s for turn in timing.turns],
        "sources": timing.sources,
        "device": pipeline.target.model.device,
    }
