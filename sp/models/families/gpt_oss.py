"""gpt-oss: OpenAI's open mixtures (20B, 120B): every other layer attends in a window, and every head has a sink.

No norms of heads; biases on all that is projected, on routers and on experts; experts gated by a clamped SwiGLU, of
which a token passes four, weighted by the softmax of their own logits: that of all logits, divided by its sum over the
four. YaRN's edges are not rounded to whole pairs, as the model was trained and transformers has it (``truncate:
false``), where llama.cpp rounds those of every family. Source: OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", arXiv
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
    """YaRN whose edges may lie between two pairs.

    >>> plain = 15e4 ** (-np.arange(0, 64, 2) / 64)
    >>> both = [yarn(32.0, 4096).scale(plain, 15e4)[12] for yarn in (ExactYarn, YarnScaling)]
    >>> (both / plain[12]).round(3)
    array([0.593, 0.612])
    """

    def scale(self, frequencies: Floats, base: float) -> Floats:
        """See `sp.ops.rope.Scaling`."""
        pairs = len(frequencies)
        turned = [self.original_context / (2 * math.pi * turns) for turns in (self.beta_fast, self.beta_slow)]
        fast, slow = (min(max(pairs * math.log(one) / math.log(base), 0.0), 2.0 * pairs - 1) for one in turned)
        kept = 1.0 - np.clip((np.arange(pairs) - fast) / max(slow - fast, 0.001), 0.0, 1.0)
        kept *= self.ext_factor
        return np.asarray(frequencies / self.factor * (1.0 - kept) + frequencies * kept)


def gpt_oss_config(keys: Keys, file: TensorFile) -> ModelConfig:
    """See `Architecture`."""
    shared = shared_config(keys, file, experts=read_experts(keys, shared=False), base=BASE)
    if keys.real(LOCAL, above=1.0, default=shared.rope.base) != shared.rope.base:
        keys.refuse(LOCAL, f"is not rope.freq_base, {shared.rope.base:g}; sp turns all layers of gpt-oss alike")
    return windowed(shared, keys.count(WINDOW), keys.count(WINDOWED, default=EVERY))


def windowed(config: ModelConfig, window: int, every: int = EVERY) -> ModelConfig:
    """A mixture with what makes it gpt-oss. `every`: layers of which the last has no `window`."""
    windows = tuple(None if (layer + 1) % every == 0 else window for layer in range(config.layers))
    return replace(config, windows=windows, rope=exact(config.rope))


def exact(rope: Rope) -> Rope:
    """The same, YaRN's edges where they are."""
    scaling = rope.scaling
    if not isinstance(scaling, YarnScaling):
        return rope
    return replace(rope, scaling=ExactYarn(**{one.name: getattr(scaling, one.name) for one in fields(scaling)}))


def mixture(config: ModelConfig, experts: ExpertConfig, window: int = 128) -> ModelConfig:
    """A dense shape as gpt-oss."""
    return windowed(replace(config, ffn=(experts.active,) * config.layers, experts=experts), window)


def gpt_oss_metadata(config: ModelConfig) -> dict[str, Value]:
    """See `Architecture`; the period is not told where it is the usual one, as converters write it."""
    every = next((layer + 1 for layer, window in enumerate(config.windows) if window is None), config.layers + 1)
    window = next(window for window in config.windows if window is not None)
    return shared_metadata(config) | {WINDOW: window} | ({} if every == EVERY else {WINDOWED: every})


def gpt_oss_layer(config: ModelConfig, index: int) -> LayerSpec:
    """What a layer computes."""
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
