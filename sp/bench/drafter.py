"""Speed of a drafter: seconds to score a prompt, by stage, with the sparse density and the peak memory."""

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
}  # stage of a kernel's time; all other kernels count as projections
STAGE_NAMES = ("mean", "score_select", "forward", "importance", "projections")
EACH_SECONDS = 0.2
"""Least mean seconds of the samples on a device; short ones are repeated more often, since the speed of a host may
halve from one short sample to the next."""
LIMIT_TFLOPS = 700.0
"""About the rate of the best bf16 matmuls and attention on an H200; `limit_s` is the work at that rate."""


@dataclass(frozen=True)
class ScoringTrial:
    """One test: scoring a prompt of `tokens` tokens."""

    tokens: int
    options: dict[str, Any]  # of the `tail` scorer; ``{"sparse": "alpha:0.1"}`` for example

    @property
    def scorer_record(self) -> dict[str, Any]:
        """Describe the scorer with the keys of records."""
        return recorded(SCORERS.build("tail", self.options))

    @property
    def attention(self) -> str:
        """The drafter's attention: dense, alpha 0.1, density 0.05, blocks sqrt:64."""
        return attending(self.scorer_record) or "dense"


@dataclass(frozen=True)
class ScoringTiming:
    """Samples of one test. `stages`: milliseconds of kernels in one more run, by `STAGE_NAMES`; empty on the CPU. The
    median of `seconds` exceeds their sum by pauses between kernels, and copies."""

    trial: ScoringTrial
    seconds: tuple[float, ...]  # from token ids to scores, both on the host
    density: float  # share of the causal blocks that attention read, mean over the layers
    stages: dict[str, float]
    peak_bytes: int  # device memory, of which `weight_bytes` are weights; both 0 on the CPU
    weight_bytes: int
    limit_s: float  # the work over `LIMIT_TFLOPS`; 0 on the CPU
    sources: tuple[str, ...] = ()  # kernels launched
    gpus: int = 1  # GPUs that read together; memory is the first one's, and several have no stages
    host: dict[str, float] = field(default_factory=dict)  # of `HostTime`

    def metrics(self) -> dict[str, Any]:
        """Median time, density, memory, limit and stages, with the keys of records."""
        return {
            "score_s": median(self.seconds),
            "density": self.density,
            "peak_bytes": self.peak_bytes,
            "weight_bytes": self.weight_bytes,
            "limit_s": self.limit_s,
            "stages_ms": self.stages,
            **self.host,
        }


def run_scoring(
    model: Model,
    trials: list[ScoringTrial],
    repeats: int,
    progress: Callable[[], None] | None = None,
    text: Ints | None = None,
    gpus: ContextParallel | None = None,
) -> Iterator[ScoringTiming]:
    """Time a drafter; each test is warmed up, then repeated with other tokens, on a GPU short tests more often.

    The tokens are random, or those of `text` repeated from a random place on, because a trained drafter's attention is
    sparse only on real text. With `gpus` these read together; `model` is then the first one's.
    """
    rng, count = np.random.default_rng(0), 1 if gpus is None else gpus.group.size

    def score(scorer: Scorer, tokens: int) -> Importance:
        if text is None:
            ids = rng.integers(0, model.config.vocab, tokens)
        else:
            ids = np.resize(np.roll(text, -rng.integers(len(text))), tokens)
        nothing = np.zeros(tokens, bool)
        return scorer.score(ScoreRequest(model, ids, np.arange(tokens), nothing, nothing, gpus=gpus))

    for trial in trials:
        scorer = SCORERS.build("tail", trial.options)
        free_pool(model)
        reset_launched()
        score(scorer, trial.tokens)  # compiles kernels and fills caches; its memory is freed before the peak is taken
        free_pool(model)
        seconds, host = list[float](), HostTime(model.device, chosen=count > 1)
        importance = Importance(np.zeros(0, np.float32))
        while not enough(seconds, repeats, EACH_SECONDS if model.device == "cuda" else 0.0):
            start = time.perf_counter()
            importance = score(scorer, trial.tokens)
            seconds.append(time.perf_counter() - start)
            host.look()
            if progress is not None and len(seconds) <= repeats:
                progress()
        peak, sources = pool_bytes(model), launched_sources()
        stages = _stages(partial(score, scorer, trial.tokens)) if model.device == "cuda" and count == 1 else {}
        density = mean(importance.densities) if importance.densities else 1.0
        limit, weights = 0.0, 0
        if model.device == "cuda":
            limit, weights = work(model.config, trial.tokens, density) / LIMIT_TFLOPS / 1e12 / count, model.nbytes
        times = tuple(seconds)
        yield ScoringTiming(trial, times, density, stages, peak, weights, limit, sources, count, host.metrics())


def work(config: ModelConfig, tokens: int, density: float) -> float:
    """Count the floating-point operations of scoring: a prefill with attention at a density, without the last
    layer's."""
    cost = prefill_cost(config, tokens)
    attending = max(len(config.attention_layers) - 1, 0) / max(len(config.attention_layers), 1)
    return cost.weights * (config.layers - 1) / config.layers + cost.attention * attending * density + cost.delta


def describe(
    timing: ScoringTiming, model: str, path: str, tokens: str, made_in: Arithmetic | None = None
) -> dict[str, Any]:
    """Build the arguments of `make_record` for a timing; samples are seconds, `tokens` is ``random`` or ``text``."""
    trial = timing.trial
    config = {"model": model, "prompt_tokens": trial.tokens, "tokens": tokens, **running(path, made_in, timing.gpus)}
    return {
        "bench": "drafter",
        "config": config | trial.scorer_record,
        "metrics": timing.metrics(),
        "samples": list(timing.seconds),
        "sources": timing.sources,
    }


def _stages(work: Callable[[], object]) -> dict[str, float]:
    """Measure milliseconds by stage in one more run, each kernel timed by itself."""
    totals = dict.fromkeys(STAGE_NAMES, 0.0)
    for kernel in kernel_times(work, hold_ms=60.0):
        totals[STAGES.get(kernel.entry, "projections")] += kernel.ms
    return totals
