"""One timed request: from the text to the first token, by stage, and the rate of the tokens after it."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from sp.pipeline import Loaded, Pipeline, RunOptions
from sp.prompt import Prompt

SKIPPED = 3  # decoded tokens before the rate is taken: one launch by launch, one captured, one replayed


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes
    ----------
    ttft_s : float
        From the text to the first token on the host.
    stages : dict of str to float
        Seconds by stage; `other` is what lies between them.
    prompt_tokens, kept_tokens : int
    density : float or None
        Share of the causal blocks the drafter read; None where nothing was skipped.
    decode_tok_s : float or None
        Tokens a second after the first few; None if there were too few.
    peak_bytes : int
        Most device memory in use during the request, weights included; on the CPU the process' most so far.
    timeline : tuple of (seconds, bytes)
        Device memory in use since the request began.
    moves : tuple of dict
        Models, or parts of them, that left the device and came back, as the trace has them.
    """

    ttft_s: float
    stages: dict[str, float]
    prompt_tokens: int
    kept_tokens: int
    density: float | None
    decode_tok_s: float | None
    peak_bytes: int = 0
    timeline: tuple[tuple[float, int], ...] = ()
    moves: tuple[dict[str, Any], ...] = ()


def measure(pipeline: Pipeline, prompt: Prompt, options: RunOptions) -> Request:
    """Run one request and take its times."""
    arrivals: list[float] = []
    start = time.perf_counter()
    result = pipeline.run(prompt, options, full=False, on_token=lambda _: arrivals.append(time.perf_counter()))
    ttft = (arrivals[0] if arrivals else time.perf_counter()) - start
    stages: dict[str, float] = {}
    for stage in result.answer.trace.stages:
        if stage.name == "decode":
            break
        stages[stage.name] = stages.get(stage.name, 0.0) + stage.seconds
    stages["other"] = max(0.0, ttft - sum(stages.values()))
    counted = arrivals[SKIPPED:]
    rate = (len(counted) - 1) / (counted[-1] - counted[0]) if len(counted) > 1 else None
    densities = result.importance.densities if result.importance else ()
    density = mean(densities) if densities else None
    memory = result.answer.trace.facts.get("residency", {})
    timeline = tuple((at, used) for at, used in memory.get("memory", ()))
    peak, moves = memory.get("peak_bytes", result.peak_bytes), tuple(memory.get("transitions", ()))
    tokens, kept = len(result.prompt), result.kept_tokens
    return Request(ttft, stages, tokens, kept, density, rate, peak, timeline, moves)


def without_ends(loaded: Loaded) -> Loaded:
    """The same model with no token that ends an answer, whose length then does not depend on the weights."""
    tokenizer = copy.copy(loaded.tokenizer)
    tokenizer.eos_ids = frozenset()
    return replace(loaded, tokenizer=tokenizer)
