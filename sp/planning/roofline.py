"""Estimate how long a model takes on a GPU, by roofline, and the times of a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple

from sp.errors import ConfigError
from sp.kernels.specs.attention.attention_bytes import HEAD_DIMS, KEYS_ONLY
from sp.models.config import ModelConfig
from sp.models.families.base import shard_config
from sp.models.network.arithmetic import (
    AUTO,
    FASTER,
    NARROW_INPUTS,
    AskedPrecision,
    byte_layers,
    gains,
    is_eligible,
)
from sp.models.network.cost import SCORING, prefill_cost
from sp.models.synthetic.shapes import find_shape
from sp.ops.attention.attention import BYTE_QUERIES
from sp.ops.byte_rows.rows import ROUNDED_TOKENS
from sp.planning.gpus import ANSWER, GPUSpec, MemoryMode, best, memory_modes, need, room
from sp.planning.gpus import Path as KernelPath
from sp.planning.memory import kv_bytes, layer_matrices, state_bytes, streamed_bytes, widest
from sp.planning.plan import ModelPlan
from sp.quant import Math

ERROR = 0.3  # stated relative error of predictions
EFFICIENCY = {
    "product": 0.70,
    "product int8": 0.65,
    "attention": 0.60,
    "attention int8": 0.50,
    "memory": 0.75,
    "exchange": 0.80,
}
"""Share of the peak, the bandwidth or the link that a kind of work reaches: round numbers, chosen from records of H200
and H100. Recurrent layers count as products, the selection of key blocks as attention in BF16."""
BYTE_ATTENTION = dict.fromkeys(HEAD_DIMS, 1.0) | {KEYS_ONLY: 0.5}
"""Share of attention's products in 8 bits by head size, with `int8`: with the larger heads those with keys."""
LAUNCH_S, LAUNCHES = 20e-6, 12
"""Seconds of a launch on the host, or of the latency of an exchange between GPUs; and launches per layer that delay the
GPU (twice as many if a drafter's inputs are quantised). Those of later chunks are queued in time."""
STREAM_BYTES = 28
"""Bytes of traffic per layer and value of the residual stream: two norms read float32 and write bf16, two sums read and
write float32."""
TOKEN_S = 2.6e-7  # host seconds per prompt token for tokenising


@dataclass(frozen=True)
class TimedModel:
    """Properties of a model that decide its time; for several GPUs, those of the shard of one of them."""

    config: ModelConfig
    nbytes: int  # bytes of the weights that a pass reads, see `streamed_bytes`
    int8: float = 0.0  # share of a prefill's products in int8
    int8_attention: float = 0.0  # share of attention's products in int8

    @classmethod
    def of_shape(cls, name: str, file_type: str) -> TimedModel:
        """Describe a named shape in a file type; ConfigError if either is unknown."""
        shape = find_shape(name)
        formats = {tensor: fmt for tensor, _, fmt in shape.plan(file_type)}
        return cls(shape.config, streamed_bytes(shape.config, formats))

    def multiplied_in(
        self, precision: AskedPrecision, gpu: GPUSpec, path: KernelPath | None = None, *, answers: bool = False
    ) -> TimedModel:
        """Return the model with products in `precision` by the kernels of a path; ``auto`` is estimated without
        weights. `answers`: True for a target, whose attention stays in BF16 with ``auto``."""
        if precision == Math.BF16:
            return self
        path, auto = path or gpu.path, precision == AUTO
        narrow = NARROW_INPUTS.get(path, ())
        sizes = {True: 0, False: 0}
        for tensor in layer_matrices(self.config):
            gained = not auto or gains(tensor.name, tensor.shape[-1], narrow)
            sizes[gained and is_eligible(tensor.name, tensor.shape)] += tensor.size
        share = sizes[True] / sum(sizes.values()) if not auto or (path, gpu.capability) in FASTER else 0.0
        shares = [BYTE_ATTENTION[self.config.heads_of(layer).head_dim] for layer in byte_layers(self.config)]
        attends = path == "sm_90a" and not (auto and answers)
        attention = sum(shares) / len(self.config.attention_layers) if attends and shares else 0.0
        return replace(self, int8=share, int8_attention=attention)

    def shared_by(self, gpus: int) -> TimedModel:
        """Return the shard of one of several GPUs; ConfigError if they cannot share the model."""
        if gpus == 1:
            return self
        return replace(self, config=shard_config(self.config, gpus), nbytes=self.nbytes // gpus)


class CompressedTimes(NamedTuple):
    """Seconds of a compressed request: scoring, the target's prefill of the selected tokens, and time to first
    token."""

    score_s: float
    prefill_s: float
    ttft_s: float


@dataclass(frozen=True)
class Roofline:
    """Predicts times of one GPU, or of several linked ones of a kind. `gpus`: GPUs that read a prompt together for the
    drafter; `target_gpus`: GPUs that share the target, whose `TimedModel` is then the shard of one."""

    gpu: GPUSpec
    gpus: int = 1
    target_gpus: int = 1
    forced: KernelPath | None = None  # kernel path in place of the GPU's own

    @property
    def alone(self) -> bool:
        """True if one GPU does all the work, so that weights may be offloaded to host memory."""
        return self.gpus == self.target_gpus == 1

    def prefill_s(self, model: TimedModel, tokens: int) -> float:
        """Predict the seconds of a target's prefill of `tokens` tokens."""
        launches = LAUNCHES * model.config.layers
        return self._work_s(model, tokens) + LAUNCH_S * launches + self._sums_s(model, tokens)

    def score_s(self, drafter: TimedModel, tokens: int, density: float | None = None) -> float:
        """Predict the seconds of scoring a prompt with attention that reads a share `density` of the causal blocks; all
        for None. The host queues the launches of the GPUs one after the other, and they gather all keys and values."""
        c, rounds = drafter.config, bool(drafter.int8 or drafter.int8_attention)
        launches = LAUNCHES * (1 + rounds) * c.layers * self.gpus
        gathered = 4 * tokens * widest(c)[1] * (self.gpus - 1) / self.gpus
        exchanged = self._exchange_s(len(c.attention_layers), gathered) if self.gpus > 1 else 0.0
        return self._work_s(drafter, tokens, density) / self.gpus + LAUNCH_S * launches + exchanged

    def step_s(self, model: TimedModel, context: int, kv: str = "f16") -> float:
        """Return the seconds of one decoded token after `context` others; a CUDA graph leaves no host time in it."""
        nbytes_read = model.nbytes + kv_bytes(model.config, context, kv) + 2 * state_bytes(model.config)
        return self._memory_s(nbytes_read) + self._sums_s(model, 1)

    def full_s(self, target: TimedModel, tokens: int) -> float:
        """Return the seconds to the first token of a prompt that the target reads whole."""
        return self.prefill_s(target, tokens) + TOKEN_S * tokens

    def compressed(
        self,
        target: TimedModel,
        drafter: TimedModel,
        tokens: int,
        keep_ratio: float,
        density: float | None = None,
        moved: int = 0,
    ) -> CompressedTimes:
        """Return the times of a request whose prompt is scored and of which the target reads `keep_ratio`. `moved`:
        bytes of the target that are onloaded from the host meanwhile."""
        score = self.score_s(drafter, tokens, density)
        target_s = max(
            self.prefill_s(target, ceil(keep_ratio * tokens)), moved / (self.gpu.pcie * EFFICIENCY["exchange"])
        )
        return CompressedTimes(score, target_s, score + target_s + TOKEN_S * tokens)

    def _work_s(self, model: TimedModel, tokens: int, density: float | None = None) -> float:
        """Return the seconds of all layers on one GPU."""
        cost, int8 = prefill_cost(model.config, tokens), model.int8 if tokens >= ROUNDED_TOKENS else 0.0
        products = self._flops_s("product", cost.weights * (1 - int8) + cost.delta)
        products += self._flops_s("product int8", cost.weights * int8)
        read = cost.attention * (1 if density is None else density)
        listed = density is not None and model.config.head_dim == KEYS_ONLY  # chosen blocks are read in 16 bits there
        share = model.int8_attention if tokens >= BYTE_QUERIES and not listed else 0.0
        attention = self._flops_s("attention int8", read * share) + self._flops_s("attention", read * (1 - share))
        chosen = 0.0 if density is None else self._flops_s("attention", cost.attention * SCORING)
        stream = self._memory_s(STREAM_BYTES * tokens * model.config.layers * model.config.hidden)
        return max(products, self._memory_s(model.nbytes)) + attention + chosen + stream

    def _sums_s(self, model: TimedModel, tokens: int) -> float:
        """Return the seconds of the ring all-reduces of a pass, two per layer."""
        n = self.target_gpus
        received = 4 * tokens * model.config.hidden * 2 * (n - 1) / n
        return self._exchange_s(2 * model.config.layers, received) if n > 1 else 0.0

    def _flops_s(self, kind: str, flops: float) -> float:
        path = self.forced or self.gpu.path
        return flops / (self.gpu.peak(path, kind.endswith("int8")) * EFFICIENCY[kind])

    def _memory_s(self, nbytes: float) -> float:
        return nbytes / (self.gpu.bandwidth * EFFICIENCY["memory"])

    def _exchange_s(self, times: int, nbytes: float) -> float:
        return times * (LAUNCH_S + nbytes / (self.gpu.link * EFFICIENCY["exchange"]))


Density = Callable[[int], float | None]
"""Function from prompt tokens to the expected share of causal blocks that a drafter reads; None for all."""


def predicted_times(
    plan: ModelPlan,
    gpu: GPUSpec,
    density: Density,
    precision: AskedPrecision = Math.BF16,
    drafter_precision: AskedPrecision = Math.BF16,
    gpus: int = 1,
) -> list[dict[str, Any]]:
    """Predict the times of a plan's requests, one dict per length.

    ``tokens``: length of prompt and answer; ``full_s``: seconds to the first token of a full prefill; ``score_s``,
    ``prefill_s``, ``ttft_s``: seconds of a compressed request; ``decode_tok_s``: tokens per second of decoding. Values
    are None if the GPU has no room. The list is empty for mixtures of experts, models that no GPU runs, and several
    GPUs without links. `gpus` read together for the drafter; ConfigError if they cannot."""
    if plan.sizes is None or plan.target.streamed is None or plan.verdict.role == "drafter":
        return []
    if max(gpus, plan.target.gpus) > 1 and not gpu.link:
        return []
    (config, weights), drafter = plan.sizes, plan.drafter
    if config.experts or (drafter is not None and drafter.config.experts):
        return []
    if gpus > 1 and drafter is not None and drafter.config.delta is not None:
        raise ConfigError(f"{drafter.name} has recurrent layers, which several GPUs cannot read together")
    roofline = Roofline(gpu, gpus, plan.target.gpus)
    target = TimedModel(config, plan.target.streamed).multiplied_in(precision, gpu, answers=True)
    made_in = Math.INT8 if target.int8 else Math.BF16

    def mode(tokens: int, compressed: bool) -> MemoryMode | None:
        scorer = drafter if compressed else None
        alone = roofline.alone
        modes = memory_modes(config, weights, scorer, tokens, plan.keep, precision=made_in, alone=alone)
        return best(list(modes), gpu.gib)

    def full(tokens: int) -> dict[str, float | None]:
        if (fits := mode(tokens, False)) is None:
            return {"full_s": None, "decode_tok_s": None}
        prompt = tokens - ANSWER
        return {"full_s": roofline.full_s(target, prompt), "decode_tok_s": 1 / roofline.step_s(target, prompt, fits.kv)}

    def compressed(tokens: int) -> dict[str, float | None]:
        if drafter is None:
            return {}
        if (fits := mode(tokens, True)) is None:
            return dict.fromkeys(("score_s", "prefill_s", "ttft_s", "decode_tok_s"))
        prompt, scoring_model = tokens - ANSWER, TimedModel(drafter.config, drafter.weights)
        moved = 0
        if fits.by_turns:  # weights offloaded while the drafter works are onloaded again
            together = need(config, weights, drafter, prompt, fits.kv, plan.keep, precision=made_in).together
            moved = max(0, together - room(gpu.gib))
        times = roofline.compressed(
            target, scoring_model.multiplied_in(drafter_precision, gpu), prompt, plan.keep, density(prompt), moved
        )
        step = roofline.step_s(target, max(1, int(plan.keep * prompt)), fits.kv)
        return {**times._asdict(), "decode_tok_s": 1 / step}

    return [{"tokens": tokens} | full(tokens) | compressed(tokens) for tokens in plan.lengths]
