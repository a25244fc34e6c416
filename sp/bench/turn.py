"""Time to first token of a turn in a long chat, by policy, all of them in one run.

Every turn goes on from the end of the same transcript: what was added by the turn before is forgotten, as where a
client goes back and asks something else. So all turns of a policy are of one length and may be compared, no model
leaves its context however many are timed, and the transcript itself is read once a policy. What such a turn has more
to do than one that goes on from the last answer is to bring recurrent states back, as one must also where the template
drops the thinking of the last answer.
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
class Turn:
    """One timed turn. `peak_bytes`: most device memory in use during the turn, weights included; on the CPU the
    process' most so far."""

    ttft_s: float  # from the messages to the first token on the host
    stages: dict[str, float]  # seconds by stage; `other` is what lies between them
    usage: dict[str, int]  # tokens, see `sp.session.Usage`
    peak_bytes: int = 0
    host_bytes: int = 0  # host memory that snapshots and caches which have left the device take afterwards
    density: float | None = None  # share of the causal blocks that the drafter read, where that is known


@dataclass(frozen=True)
class Asked:
    """What a policy tells of an answer."""

    trace: Trace
    usage: Mapping[str, int]
    density: float | None = None


OnToken = Callable[[int], bool | None]


class Remembering:
    """A conversation: only new text is drafted, compressed and read."""

    def __init__(self, pipeline: Pipeline, options: RunOptions, memory: ConversationOptions) -> None:
        self._talk = Conversation(pipeline, options, memory)

    def answer(self, prompt: Prompt, on_token: OnToken) -> Asked:
        """The answer to a prompt that goes on from what earlier ones began with."""
        found = self._talk.answer(prompt, on_token)
        return Asked(found.trace, found.usage.as_dict(), mean(found.drafted) if found.drafted else None)

    def clear(self) -> None:
        """Let go of what is remembered."""
        self._talk.clear()

    @property
    def nbytes(self) -> int:
        """Bytes that are held between turns where the models are: of both caches."""
        return self._talk.nbytes

    @property
    def host_nbytes(self) -> int:
        """Bytes of host memory that are held: of snapshots, and of caches that have left."""
        return self._talk.host_nbytes


class Cold:
    """Everything drafted and compressed anew."""

    def __init__(self, pipeline: Pipeline, options: RunOptions, memory: ConversationOptions) -> None:
        self._pipeline, self._options = pipeline, options

    def answer(self, prompt: Prompt, on_token: OnToken) -> Asked:
        """See `Remembering`."""
        found = self._pipeline.run(prompt, self._options, full=False, on_token=on_token)
        n, kept = len(found.prompt), found.kept_tokens
        shares = found.importance.densities if found.importance else ()
        usage = {"prompt": n, "cached": 0, "new": n, "kept": kept, "recalled": 0, "read": kept, "held": kept}
        drafted, trace = len(found.drafted) if found.drafted else 0, found.answer.trace
        if found.importance:
            trace.stages = request.apart(trace.stages, found.importance)
        return Asked(trace, usage | {"drafted": drafted}, mean(shares) if shares else None)

    def clear(self) -> None:
        """See `Remembering`."""
        self._pipeline.memory_manager.cache_pool.drop()

    @property
    def nbytes(self) -> int:
        """Of the cache that the next answer takes."""
        idle = self._pipeline.memory_manager.cache_pool.idle
        return idle.nbytes if idle else 0

    @property
    def host_nbytes(self) -> int:
        """None."""
        return 0


class Prefix(Remembering):
    """A plain prefix cache: the target reads all new text and nothing is drafted."""

    def __init__(self, pipeline: Pipeline, options: RunOptions, memory: ConversationOptions) -> None:
        whole = replace(options, keep_ratio=1.0, compress="off")
        super().__init__(pipeline, whole, replace(memory, recall="off"))


Policy = Remembering | Cold
POLICIES: dict[str, type[Remembering] | type[Cold]] = {
    "conversation": Remembering,
    "cold": Cold,
    "prefix": Prefix,
}


def measure_turn(policy: Policy, make: Callable[[], Prompt], besides: int = 0) -> Turn:
    """Have a prompt made and answered, and take the times; `besides` are bytes of the device that others hold."""
    arrivals: list[float] = []
    start = time.perf_counter()
    prompt = make()
    rendered = time.perf_counter() - start
    asked = policy.answer(prompt, lambda _: arrivals.append(time.perf_counter()))
    ttft = (arrivals[0] if arrivals else time.perf_counter()) - start
    spent = until_first_token([Stage("render", seconds=rendered), *asked.trace.stages], ttft)
    held: dict[str, Any] = asked.trace.facts.get("residency", {})
    peak = held["peak_bytes"] - besides if held else peak_bytes()
    return Turn(ttft, spent, dict(asked.usage), peak, policy.host_nbytes, asked.density)


def let_go(policy: Policy) -> None:
    """Clear it, whatever state it failed in."""
    with suppress(Exception):
        policy.clear()


WARM_TURNS = 2  # turns that do not count, after the transcript was read: kernels compile, caches and graphs are made


@dataclass(frozen=True)
class TurnCell:
    """Turns of `new_tokens` tokens behind a transcript of `prompt_tokens`, within `vram` bytes if it is not None."""

    prompt_tokens: int
    new_tokens: int
    policy: str
    options: RunOptions
    memory: ConversationOptions
    vram: int | None = None


@dataclass
class TurnTiming:
    """Turns of one cell."""

    cell: TurnCell
    start: Turn | None = None  # the one that reads the transcript
    turns: list[Turn] = field(default_factory=list)  # those that count
    order: str = "interleaved"  # how turns of other policies stood between them
    error: str | None = None  # why there are no more
    sources: tuple[str, ...] = ()  # kernels that were launched in the run

    def metrics(self) -> dict[str, Any]:
        """Percentiles over the turns, and medians of what they have in common."""
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
        """Median seconds by name."""
        names = dict.fromkeys(name for turn in self.turns for name in turn.stages)
        return {name: median(turn.stages.get(name, 0.0) for turn in self.turns) for name in names}


@dataclass(frozen=True)
class TurnBench:
    """Times turns of one pair."""

    pipeline: Pipeline  # its target best `without_ends`
    maker: TranscriptMaker
    repeats: int = 20  # turns a policy that count
    policies: Sequence[str] = tuple(POLICIES)
    progress: Callable[[], None] = lambda: None  # told of every turn that counts

    def run(
        self,
        lengths: Sequence[int],
        new_tokens: int,
        options: RunOptions,
        memory: ConversationOptions,
        budgets: Sequence[int | None] = (None,),
    ) -> Iterator[TurnTiming]:
        """Time every policy at every length of transcript, within every budget of device memory. Without one the
        policies take turns. Within one they would push each other's caches off the device, which is no part of a turn,
        and come one after the other. A policy that cannot run has an error; ConfigError for options and lengths that
        cannot be."""
        options = replace(options, compress="always")
        if "conversation" in self.policies:
            check_run(options, self.pipeline.drafter)
        for tokens in lengths:
            self.maker.turn(tokens, new_tokens, 0)  # one that cannot be made is found before anything is timed
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
                warm = 1 + WARM_TURNS  # the first one reads the transcript
                messages = self.maker.turn(*sizes, warm + number) if number > -warm else self.maker.first(*sizes)
                make = partial(self.maker.prompt, messages)
                for at in range(len(timings)):  # whoever comes first finds other things in the host's caches
                    timing = timings[(at + number) % len(timings)]
                    if timing.error is None:
                        self._turn(pipeline, timing, policies, number, make)
        finally:
            for policy in policies.values():
                let_go(policy)
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
        """One turn of one policy; those below 0 do not count."""
        cell, name = timing.cell, timing.cell.policy
        first = name not in policies
        try:
            with device_errors():
                if first:
                    policies[name] = POLICIES[name](pipeline, cell.options, cell.memory)
                besides = sum(policy.nbytes for other, policy in policies.items() if other != name)
                turn = measure_turn(policies[name], make, besides)
        except (SpError, MemoryError) as error:
            timing.error = str(error) or "out of memory"
            if name in policies:
                let_go(policies.pop(name))
            return
        if first:
            timing.start = turn
        elif number >= 0:
            timing.turns.append(turn)
            self.progress()


def turn_config(cell: TurnCell, pipeline: Pipeline, path: str) -> dict[str, Any]:
    """What was timed, as records have it."""
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
    """Arguments of `make_record` for a timing; samples are seconds to the first token."""
    return {
        "bench": "turn",
        "config": turn_config(timing.cell, pipeline, path),
        "metrics": timing.metrics(),
        "samples": [turn.ttft_s for turn in timing.turns],
        "sources": timing.sources,
        "device": pipeline.target.model.device,
    }
