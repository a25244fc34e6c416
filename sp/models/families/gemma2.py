"""gemma2: Gemma 2, text (2B to 27B): every other layer attends in a window; scores and logits are soft-capped.

No norms of heads, one RoPE, post-norms, GELU, and embeddings times the root of the hidden size. Files store the weights
of norms as multipliers. Source: Gemma Team, "Gemma 2", arXiv 2408.00118; keys and defaults: llama.cpp,
``src/models/gemma2.cpp``.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from sp.gguf import Value
from sp.models.config import ModelConfig
from sp.models.families.base import Architecture, register_architecture
from sp.models.families.shared import (
    LEAST_CAP,
    WINDOW,
    read_windows,
    shared_config,
    shared_metadata,
    window_metadata,
)
from sp.models.file.metadata_keys import Keys
from sp.models.file.weights import TensorFile
from sp.models.layer.spec import LayerSpec

EVERY, BASE, LENGTH = 2, 1e4, 4096
LARGE = 46  # layers of the 27B, whose scores are divided by the root of hidden size over heads
SCORES, LOGITS = "attn_logit_softcapping", "final_logit_softcapping"
SCORES_CAP, LOGITS_CAP = 50.0, 30.0


def gemma2_config(keys: Keys, file: TensorFile) -> ModelConfig:
    """Read the configuration, see `Architecture`."""
    config = shared_config(keys, file, base=BASE)
    windows = read_windows(keys, config.layers, keys.count(WINDOW, default=LENGTH), EVERY)
    defaults = (SCORES, SCORES_CAP), (LOGITS, LOGITS_CAP)
    caps = (keys.real(key, above=LEAST_CAP, default=cap) for key, cap in defaults)
    return windowed(config, windows, *caps)


def windowed(
    config: ModelConfig, windows: tuple[int | None, ...], scores: float = SCORES_CAP, logits: float = LOGITS_CAP
) -> ModelConfig:
    """Turn a dense configuration into Gemma 2: windows, and soft caps on scores and logits."""
    capped = replace(config, attention_softcap=scores, final_softcap=logits)
    return replace(capped, windows=windows, embedding_scale=sqrt(config.hidden))


def gemma2_metadata(config: ModelConfig) -> dict[str, Value]:
    """Return the metadata of a configuration, see `Architecture`."""
    assert config.attention_softcap is not None
    assert config.final_softcap is not None
    caps: dict[str, Value] = {SCORES: config.attention_softcap, LOGITS: config.final_softcap}
    return shared_metadata(config) | window_metadata(config.windows) | caps


def gemma2_layer(config: ModelConfig, index: int) -> LayerSpec:
    """Return the computation of a layer."""
    return LayerSpec(
        qk_norm=False,
        post_norms=("post_attention_norm", "post_ffw_norm"),
        activation="gelu",
        window=config.windows[index],
        softcap=config.attention_softcap,
        scale=(config.hidden / config.heads) ** -0.5 if config.layers == LARGE else None,
    )


register_architecture(
    Architecture(
        "gemma2",
        gemma2_layer,
        ("llama",),
        gemma2_config,
        gemma2_metadata,
        honours=(WINDOW, SCORES, LOGITS),
        about="Gemma 2, text (2B to 27B)",
    )
)
