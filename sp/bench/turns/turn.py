"""Time to first token of a turn in a long chat, by policy, all of them in one run.

Every turn goes on from the end of the same transcript: what was added by the turn before is forgotten, as where a
client goes back and asks something else. So all turns of a policy are of one length and may be compared, no model
leaves its context however many are timed, and the transcript itself is read once a policy. What such a turn has more
to do than one that goes on from the last answer is to bring recurrent states back, as one must also where the template
drops the thinking of the last answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import mean, median
from typing import Any

import numpy as np

from sp.bench.request import pair_config
from sp.bench.turns.policies import POLICIES, Policy, Turn, let_go, measure_turn
from sp.bench.turns.transcripts import Message, TranscriptMaker
from sp.errors import SpError
from sp.kernels.device import device_errors
from sp.kernels.launch import launched_sources, reset_launched
from sp.prompt import Prompt
from sp.session import ConversationOptions, Pipeline, RunOptions
from sp.session.options import check_run

WARM_TURNS = 2
"""Turns that do not count, after the transcript was read: kernels compile, caches and graphs are made."""


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
    """Turns of one cell.

    Attributes
    ----------
    cell : TurnCell
    start : Turn or None
        The one that reads the transcript.
    turns : list of Turn
        Those that count.
    order : {"interleaved", "in blocks"}
        How turns of other policies stood between them.
    error : str or None
        Why there are no more.
    sources : tuple of str
        Kernels that were launched in the run.
    """

    cell: TurnCell
    start: Turn | None = None
    turns: list[Turn] = field(default_factory=list)
    order: str = "interleaved"
    error: str | None = None
    sources: tuple[str, ...] = ()

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
    """Times turns of one pair.

    Parameters
    ----------
    pipeline : Pipeline
        Its target best `without_ends`.
    maker : TranscriptMaker
    repeats : int
        Turns a policy that count.
    policies : sequence of str
    progress : callable
        Told of every turn that counts.
    """

    pipeline: Pipeline
    maker: TranscriptMaker
    repeats: int = 20
    policies: Sequence[str] = tuple(POLICIES)
    progress: Callable[[], None] = lambda: None

    def run(
        self,
        lengths: Sequence[int],
        new_tokens: int,
        options: RunOptions,
        memory: ConversationOptions,
        budgets: Sequence[int | None] = (None,),
    ) -> Iterator[TurnTiming]:
        """Time every policy at every length, within every budget of device memory.

        Without a budget the policies take turns. Within one they would push each other's caches off the device, which
        is no part of a turn, and come one after the other, each alone.

        Parameters
        ----------
        lengths : sequence of int
            Tokens of the transcript.
        new_tokens : int
        options : RunOptions
            Of compressed turns; `compress` is taken as "always".
        memory : ConversationOptions
        budgets : sequence of int or None
            Bytes, see `Pipeline.within`; None for all there is.

        Yields
        ------
        TurnTiming
            Of a policy that cannot run, for want of memory for example, with an error.

        Raises
        ------
        ConfigError
            For options that no conversation can have, and lengths that cannot be.
        """
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
        """All turns of policies that take turns."""
        reset_launched()
        policies: dict[str, Policy] = {}
        try:
            for number in range(-1 - WARM_TURNS, self.repeats):
                make = partial(self.maker.prompt, self._messages(timings[0].cell, number))
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

    def _messages(self, cell: TurnCell, number: int) -> tuple[Message, ...]:
        """The chat of a turn; that of the first one reads the transcript."""
        sizes, warm = (cell.prompt_tokens, cell.new_tokens), 1 + WARM_TURNS
        return self.maker.turn(*sizes, warm + number) if number > -warm else self.maker.first(*sizes)

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
