"""gpt-oss: OpenAI's open mixtures (20B, 120B): every other layer attends in a window, and every head has a sink.

No norms of heads; biases on all projections, routers and experts; experts with a clamped SwiGLU. A token passes four
experts, weighted by the softmax of their own logits, which equals the softmax over all logits divided by its sum over
the four. YaRN's edges are not rounded to whole pairs, as the model was trained and as in transformers (``truncate:
false``); llama.cpp rounds those of every family. Source: OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", arXiv
2508.10925; keys: llama.cpp, ``src/models/openai-moe.cpp``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np

from sp.arrays import Floats
from sp.gguf import Value
from sp.models.config import ExpertConfig, ModelConfig
from sp.models.families.base import Architecture, register_architecture
from sp.models.families.shared import read_experts, shared_config, shared_metadata
from sp.models.file.metadata_keys import Keys
from sp.models.file.weights import TensorFile
from sp.models.layer.spec import LayerSpec
from sp.ops.rope import Rope, YarnScaling

EVERY, BASE = 2, 15e4
WINDOW, WINDOWED, LOCAL = "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"


@dataclass(frozen=True)
class ExactYarn(YarnScaling):
    """YaRN whose edges may be between two pairs.

    >>> plain = 15e4 ** (-np.arange(0, 64, 2) / 64)
    >>> both = [yarn(32.0, 4096).scale(plain, 15e4)[12] for yarn in (ExactYarn, YarnScaling)]
    >>> (both / plain[12]).round(3)
    array([0.593, 0.612])
    """

    def scale(self, frequencies: Floats, base: float) -> Floats:
        """Scale frequencies, see `sp.ops.rope.Scaling`."""
        pairs = len(frequencies)
        wavelengths = [self.original_context / (2 * math.pi * turns) for turns in (self.beta_fast, self.beta_slow)]
        edges = (pairs * math.log(wavelength) / math.log(base) for wavelength in wavelengths)
        fast, slow = (min(max(edge, 0.0), 2.0 * pairs - 1) for edge in edges)
        # Pairs below `fast` keep their frequency, pairs above `slow` are interpolated, with a linear ramp in between.
        unscaled = 1.0 - np.clip((np.arange(pairs) - fast) / max(slow - fast, 0.001), 0.0, 1.0)
        unscaled *= self.ext_factor
        return np.asarray(frequencies / self.factor * (1.0 - unscaled) + frequencies * unscaled)


def gpt_oss_config(keys: Keys, file: TensorFile) -> ModelConfig:
    """Read the configuration, see `Architecture`."""
    shared = shared_config(keys, file, experts=read_experts(keys, shared=False), base=BASE)
    if keys.real(LOCAL, above=1.0, default=shared.rope.base) != shared.rope.base:
        keys.refuse(LOCAL, f"is not rope.freq_base, {shared.rope.base:g}; sp uses one RoPE for all layers of gpt-oss")
    return windowed(shared, keys.count(WINDOW), keys.count(WINDOWED, default=EVERY))


def windowed(config: ModelConfig, window: int, every: int = EVERY) -> ModelConfig:
    """Turn a mixture into gpt-oss. `every`: period of layers, of which the last has no `window`."""
    windows = tuple(None if (layer + 1) % every == 0 else window for layer in range(config.layers))
    return replace(config, windows=windows, rope=exact(config.rope))


def exact(rope: Rope) -> Rope:
    """Return the rotary embedding with YaRN's edges unrounded."""
    scaling = rope.scaling
    if not isinstance(scaling, YarnScaling):
        return rope
    return replace(rope, scaling=ExactYarn(**{item.name: getattr(scaling, item.name) for item in fields(scaling)}))


def mixture(config: ModelConfig, experts: ExpertConfig, window: int = 128) -> ModelConfig:
    """Turn a dense shape into gpt-oss."""
    return windowed(replace(config, ffn=(experts.active,) * config.layers, experts=experts), window)


def gpt_oss_metadata(config: ModelConfig) -> dict[str, Value]:
    """Return the metadata of a configuration, see `Architecture`; the usual period is omitted, as converters do."""
    every = next((layer + 1 for layer, window in enumerate(config.windows) if window is None), config.layers + 1)
    window = next(window for window in config.windows if window is not None)
    return shared_metadata(config) | {WINDOW: window} | ({} if every == EVERY else {WINDOWED: every})


def gpt_oss_layer(config: ModelConfig, index: int) -> LayerSpec:
    """Return the computation of a layer."""
    return LayerSpec(
        qk_norm=False,
        sinks="attn_sinks",
        bias=True,
        out_bias=True,
        ffn_norm="post_attention_norm",
        window=config.windows[index],
        activation="clamped",
        expert_bias=True,
    )


register_architecture(
    Architecture(
        "gpt-oss",
        gpt_oss_layer,
        ("gpt-4o",),
        gpt_oss_config,
        gpt_oss_metadata,
        honours=(WINDOW, "expert_count"),
        usual_type="mxfp4_moe",
        about="gpt-oss, a mixture of experts with windows and sinks (20B, 120B)",
    )
)
