"""What a turn of a long chat may cost: what a conversation reads, all of it anew and compressed, or all that is new."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, Protocol

from sp.bench.request import until_first_token
from sp.prompt import Prompt
from sp.session import Conversation, ConversationOptions, Pipeline, RunOptions, request
from sp.trace import Stage, Trace, peak_bytes


@dataclass(frozen=True)
class Turn:
    """One timed turn.

    Attributes
    ----------
    ttft_s : float
        From the messages to the first token on the host.
    stages : dict of str to float
        Seconds by stage; `other` is what lies between them.
    usage : dict of str to int
        Tokens, see `sp.session.Usage`.
    peak_bytes : int
        Most device memory in use during the turn, weights included; on the CPU the process' most so far.
    host_bytes : int
        Host memory that snapshots and caches which have left the device take afterwards.
    density : float or None
        Share of the causal blocks that the drafter read, where that is known.
    """

    ttft_s: float
    stages: dict[str, float]
    usage: dict[str, int]
    peak_bytes: int = 0
    host_bytes: int = 0
    density: float | None = None


@dataclass(frozen=True)
class Asked:
    """What a policy tells of an answer."""

    trace: Trace
    usage: Mapping[str, int]
    density: float | None = None


OnToken = Callable[[int], bool | None]


class Policy(Protocol):
    """Answers the turns of one chat."""

    def answer(self, prompt: Prompt, on_token: OnToken) -> Asked:
        """The answer to a prompt that goes on from what earlier ones began with."""
        ...

    def clear(self) -> None:
        """Let go of what is remembered."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that are held between turns where the models are."""
        ...

    @property
    def host_nbytes(self) -> int:
        """Bytes of host memory that are held between turns."""
        ...


class Remembering:
    """A conversation: only new text is drafted, compressed and read."""

    def __init__(self, pipeline: Pipeline, options: RunOptions, memory: ConversationOptions) -> None:
        self._talk = Conversation(pipeline, options, memory)

    def answer(self, prompt: Prompt, on_token: OnToken) -> Asked:
        """See `Policy`."""
        found = self._talk.answer(prompt, on_token)
        return Asked(found.trace, found.usage.as_dict(), mean(found.drafted) if found.drafted else None)

    def clear(self) -> None:
        """See `Policy`."""
        self._talk.clear()

    @property
    def nbytes(self) -> int:
        """Of both caches."""
        return self._talk.nbytes

    @property
    def host_nbytes(self) -> int:
        """Of snapshots, and of caches that have left."""
        return self._talk.host_nbytes


class Cold:
    """Everything drafted and compressed anew."""

    def __init__(self, pipeline: Pipeline, options: RunOptions, memory: ConversationOptions) -> None:
        self._pipeline, self._options = pipeline, options

    def answer(self, prompt: Prompt, on_token: OnToken) -> Asked:
        """See `Policy`."""
        found = self._pipeline.run(prompt, self._options, full=False, on_token=on_token)
        n, kept = len(found.prompt), found.kept_tokens
        shares = found.importance.densities if found.importance else ()
        usage = {"prompt": n, "cached": 0, "new": n, "kept": kept, "recalled": 0, "read": kept, "held": kept}
        drafted, trace = len(found.drafted) if found.drafted else 0, found.answer.trace
        if found.importance:
            trace.stages = request.apart(trace.stages, found.importance)
        return Asked(trace, usage | {"drafted": drafted}, mean(shares) if shares else None)

    def clear(self) -> None:
        """See `Policy`."""
        self._pipeline.residency.cache_pool.drop()

    @property
    def nbytes(self) -> int:
        """Of the cache that the next answer takes."""
        idle = self._pipeline.residency.cache_pool.idle
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


POLICIES: dict[str, Callable[[Pipeline, RunOptions, ConversationOptions], Policy]] = {
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
