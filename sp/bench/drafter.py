"""Speed of a drafter: seconds to score a prompt, what they are spent on, what was read, and the memory it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from statistics import mean, median
from typing import Any

import numpy as np

from sp.arrays import Ints
from sp.bench.record import running
from sp.bench.timing import HostTime, enough, free_pool, kernel_times, pool_bytes
from sp.kernels.launch import launched_sources, reset_launched
from sp.models import Arithmetic, ContextParallel, Model, ModelConfig, prefill_cost
from sp.scoring import SCORERS, Importance, Scorer, ScoreRequest
from sp.scoring.base import attending, recorded

STAGES = {
    "block_means": "mean",
    "block_select": "score_select",
    "block_select_sm90": "score_select",
    "attention_sm90": "forward",
    "attention_portable": "forward",
    "attention_bytes": "forward",
    "kv_bytes": "forward",
    "value_peaks": "forward",
    "importance_scores": "importance",
    "importance_norms": "importance",
    "importance_heat": "importance",
    "importance_fold": "importance",
}  # stage that a kernel's time counts for; the others are projections and what surrounds them
STAGE_NAMES = ("mean", "score_select", "forward", "importance", "projections")
EACH_SECONDS = 0.2
"""Samples on a device are together at least so long for each that is asked for: a host may be half as fast from one
short sample to the next."""
LIMIT_TFLOPS = 700.0
"""About what the best bf16 matmuls and attention reach on an H200; a limit is the work at that rate and no more."""


@dataclass(frozen=True)
class Draft:
    """One test: scoring a prompt of random tokens."""

    tokens: int
    options: dict[str, Any]  # of the `tail` scorer; ``{"sparse": "alpha:0.1"}`` for example

    @property
    def read(self) -> dict[str, Any]:
        """How, as records have it."""
        return recorded(SCORERS.build("tail", self.options))

    @property
    def attention(self) -> str:
        """How the drafter attends: dense, alpha 0.1, density 0.05, blocks sqrt:64."""
        return attending(self.read) or "dense"


@dataclass(frozen=True)
class DraftTiming:
    """Samples of one test. `stages`: milliseconds of kernels in one more run, by `STAGE_NAMES`; empty on the CPU. What
    the median of `seconds` has beyond their sum are pauses between kernels, and copies."""

    draft: Draft
    seconds: tuple[float, ...]  # from token ids to scores, both on the host
    density: float  # share of the causal blocks that attention read, mean over the layers
    stages: dict[str, float]
    peak_bytes: int  # peak_bytes, weight_bytes: most device memory held, and the weights' part of it; 0 on the CPU
    weight_bytes: int
    limit_s: float  # the work over `LIMIT_TFLOPS`; 0 on the CPU
    sources: tuple[str, ...] = ()  # kernels that were launched
    gpus: int = 1  # how many read together; memory is that of the first, and there are no stages of more than one
    host: dict[str, float] = field(default_factory=dict)  # of `HostTime`

    def metrics(self) -> dict[str, Any]:
        """Median time, density, memory, limit and stages."""
        return {
            "score_s": median(self.seconds),
            "density": self.density,
            "peak_bytes": self.peak_bytes,
            "weight_bytes": self.weight_bytes,
            "limit_s": self.limit_s,
            "stages_ms": self.stages,
            **self.host,
        }


def run_drafts(
    model: Model,
    drafts: list[Draft],
    repeats: int,
    progress: Callable[[], None] | None = None,
    text: Ints | None = None,
    gpus: ContextParallel | None = None,
) -> Iterator[DraftTiming]:
    """Time a drafter; each test is warmed up, then repeated with other tokens, on a device short ones more often:
    random ones or, since a trained drafter's attention is sparse on it, a `text` over and over, begun at a random
    place. With `gpus` these read together; `model` is then the first of theirs."""
    rng, count = np.random.default_rng(0), 1 if gpus is None else gpus.group.size

    def score(scorer: Scorer, tokens: int) -> Importance:
        if text is None:
            ids = rng.integers(0, model.config.vocab, tokens)
        else:
            ids = np.resize(np.roll(text, -rng.integers(len(text))), tokens)
        nothing = np.zeros(tokens, bool)
        return scorer.score(ScoreRequest(model, ids, np.arange(tokens), nothing, nothing, gpus=gpus))

    for draft in drafts:
        scorer = SCORERS.build("tail", draft.options)
        free_pool(model)
        reset_launched()
        score(scorer, draft.tokens)
        free_pool(model)
        seconds, host = list[float](), HostTime(model.device, chosen=count > 1)
        found = Importance(np.zeros(0, np.float32))
        while not enough(seconds, repeats, EACH_SECONDS if model.device == "cuda" else 0.0):
            start = time.perf_counter()
            found = score(scorer, draft.tokens)
            seconds.append(time.perf_counter() - start)
            host.look()
            if progress is not None and len(seconds) <= repeats:
                progress()
        peak, sources = pool_bytes(model), launched_sources()
        stages = _stages(partial(score, scorer, draft.tokens)) if model.device == "cuda" and count == 1 else {}
        density = mean(found.densities) if found.densities else 1.0
        limit, weights = 0.0, 0
        if model.device == "cuda":
            limit, weights = work(model.config, draft.tokens, density) / LIMIT_TFLOPS / 1e12 / count, model.nbytes
        times = tuple(seconds)
        yield DraftTiming(draft, times, density, stages, peak, weights, limit, sources, count, host.metrics())


def work(config: ModelConfig, tokens: int, density: float) -> float:
    """Floating-point operations of scoring: a prefill, its attention at a density; the last layer's is not computed."""
    cost = prefill_cost(config, tokens)
    attending = max(len(config.attention_layers) - 1, 0) / max(len(config.attention_layers), 1)
    return cost.weights * (config.layers - 1) / config.layers + cost.attention * attending * density + cost.delta


def describe(
    timing: DraftTiming, model: str, path: str, tokens: str, made_in: Arithmetic | None = None
) -> dict[str, Any]:
    """Arguments of `make_record` for a timing; samples are seconds, `tokens` what was read: random or text."""
    draft = timing.draft
    config = {"model": model, "prompt_tokens": draft.tokens, "tokens": tokens, **running(path, made_in, timing.gpus)}
    return {
        "bench": "drafter",
        "config": config | draft.read,
        "metrics": timing.metrics(),
        "samples": list(timing.seconds),
        "sources": timing.sources,
    }


def _stages(work: Callable[[], object]) -> dict[str, float]:
    """Milliseconds by stage of one more run, each kernel timed by itself."""
    found = dict.fromkeys(STAGE_NAMES, 0.0)
    for item in kernel_times(work, hold_ms=60.0):
        found[STAGES.get(item.entry, "projections")] += item.ms
    return found
