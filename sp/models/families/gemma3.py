"""gemma3: Gemma 3, text (270M to 27B): five layers that attend in a window, then one with full attention.

Norms of heads, post-norms, GELU, and embeddings times the root of the hidden size. RoPE of the windowed layers has a
base of its own and is never scaled. Files store the weights of norms as multipliers. Source: Gemma Team, "Gemma 3
Technical Report", arXiv 2503.19786; keys and defaults: llama.cpp, ``src/models/gemma3.cpp``.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from sp.gguf import Value
from sp.models.config import ModelConfig
from sp.models.families.base import Architecture, register_architecture
from sp.models.families.shared import (
    WINDOW,
    read_windows,
    shared_config,
    shared_metadata,
    window_metadata,
)
from sp.models.file.metadata_keys import Keys
from sp.models.file.weights import TensorFile
from sp.models.layer.spec import LayerSpec
from sp.ops.rope import Rope

EVERY, LOCAL_BASE, BASE = 6, 1e4, 1e6
LARGE = 62  # layers of the 27B, whose scores are divided by the root of hidden size over heads
LOCAL = "rope.freq_base_swa"


def gemma3_config(keys: Keys, file: TensorFile) -> ModelConfig:
    """Read the configuration, see `Architecture`."""
    shared = shared_config(keys, file, base=BASE)
    base = keys.real(LOCAL, above=1.0, default=LOCAL_BASE)
    return windowed(shared, read_windows(keys, shared.layers, keys.count(WINDOW), EVERY), base)


def windowed(config: ModelConfig, windows: tuple[int | None, ...], base: float = LOCAL_BASE) -> ModelConfig:
    """Turn a dense configuration into Gemma 3. `base`: RoPE base of the windowed layers."""
    local = Rope(base, config.rope.dim)
    return replace(config, windows=windows, local_rope=local, embedding_scale=sqrt(config.hidden))


def gemma3_metadata(config: ModelConfig) -> dict[str, Value]:
    """Return the metadata of a configuration, see `Architecture`."""
    assert config.local_rope is not None
    return shared_metadata(config) | window_metadata(config.windows) | {LOCAL: config.local_rope.base}


def gemma3_layer(config: ModelConfig, index: int) -> LayerSpec:
    """Return the computation of a layer."""
    window = config.windows[index]
    return LayerSpec(
        post_norms=("post_attention_norm", "post_ffw_norm"),
        activation="gelu",
        window=window,
        rope=None if window is None else config.local_rope,
        scale=sqrt(config.heads / config.hidden) if config.layers == LARGE else None,
    )


register_architecture(
    Architecture(
        "gemma3",
        gemma3_layer,
        ("llama",),
        gemma3_config,
        gemma3_metadata,
        honours=(WINDOW,),
        about="Gemma 3, text (270M to 27B)",
    )
)
