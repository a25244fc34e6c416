"""muse-glimmer: Muse-Glimmer-30B, text: three layers that attend in a window, then one with full attention and no RoPE.

Norms of heads, whose weights include the scale of queries; a sigmoid gate on attention's output from a matrix of its
own; post-norms with an epsilon of their own; a norm without weights on embeddings; logits are scaled and soft-capped.
Rows of q and k are ordered so that the pairs that RoPE rotates are neighbours. Source: Muse Glimmer, transformers,
``models/muse_glimmer``; keys and defaults: llama.cpp, ``src/models/muse-glimmer.cpp``.
"""

from __future__ import annotations

from dataclasses import replace

from sp.gguf import Value
from sp.models.config import ModelConfig
from sp.models.families.base import Architecture, register_architecture
from sp.models.families.shared import (
    WINDOW,
    read_softcap,
    read_windows,
    shared_config,
    shared_metadata,
    window_metadata,
)
from sp.models.file.metadata_keys import Keys
from sp.models.file.weights import TensorFile
from sp.models.layer.spec import LayerSpec

EVERY, BASE = 4, 5e5
POST_NORM_EPS = 1e-8  # epsilon of the post-norms, which files do not store
LOCAL, SCALE, SOFTCAP = "rope.freq_base_swa", "logit_scale", "final_logit_softcapping"


def muse_glimmer_config(keys: Keys, file: TensorFile) -> ModelConfig:
    """Read the configuration, see `Architecture`."""
    config = shared_config(keys, file, gated=True, pairing="interleaved", base=BASE)
    if config.rope.scaling is not None:
        keys.refuse(
            "rope.scaling.type", "sets a scaling, which sp does not support here: only layers with a window have RoPE"
        )
    base = keys.real(LOCAL, above=1.0, default=config.rope.base)
    scaled = replace(
        config,
        rope=replace(config.rope, base=base),
        logit_scale=keys.real(SCALE, above=0.0, default=1.0),
        final_softcap=read_softcap(keys, SOFTCAP),
    )
    return windowed(scaled, read_windows(keys, config.layers, keys.count(WINDOW), EVERY))


def windowed(config: ModelConfig, windows: tuple[int | None, ...]) -> ModelConfig:
    """Turn a dense configuration into Muse Glimmer, whose windowed layers have its RoPE."""
    bare = replace(config.rope, dim=0, scaling=None, magnitude=1.0)
    return replace(config, windows=windows, local_rope=config.rope, rope=bare, embedding_norm=True, gated=True)


def muse_glimmer_metadata(config: ModelConfig) -> dict[str, Value]:
    """Return the metadata of a configuration, see `Architecture`."""
    assert config.local_rope is not None
    metadata = shared_metadata(config) | window_metadata(config.windows)
    metadata |= {"rope.dimension_count": config.local_rope.dim, SCALE: config.logit_scale}
    return metadata if config.final_softcap is None else metadata | {SOFTCAP: config.final_softcap}


def muse_glimmer_layer(config: ModelConfig, index: int) -> LayerSpec:
    """Return the computation of a layer."""
    window = config.windows[index]
    return LayerSpec(
        gate="attn_gate",
        post_norms=("post_attention_norm", "post_ffw_norm"),
        post_norm_eps=POST_NORM_EPS,
        window=window,
        rope=None if window is None else config.local_rope,
    )


register_architecture(
    Architecture(
        "muse-glimmer",
        muse_glimmer_layer,
        ("llama4",),
        muse_glimmer_config,
        muse_glimmer_metadata,
        honours=(WINDOW, SCALE, SOFTCAP),
        about="Muse-Glimmer-30B, text",
    )
)
