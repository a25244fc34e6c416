"""gemma4: Gemma 4, dense, text (12B, 31B): five layers that attend in a window, then one with full attention and wider
heads.

Layers without a window have fewer kv heads, each twice as wide, and their values are the output of the key projection.
RoPE rotates a quarter of their values, which a tensor of divisors encodes: the divisors of the other pairs are huge.
Norms of heads, without weights for values; scores are not scaled; post-norms, GELU, and each layer multiplies its
output by a learned scalar. E-models and the mixture (26B-A4B) are refused. Source: Google DeepMind, Gemma 4, 2026;
transformers, ``models/gemma4``; keys and names: llama.cpp, ``src/models/gemma4.cpp``.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np

from sp.gguf import Value
from sp.models.config import HeadSizes, ModelConfig
from sp.models.families.base import Architecture, register_architecture
from sp.models.families.llama import FACTORS, FrequencyFactors, factors_of, with_factors
from sp.models.families.shared import (
    WINDOW,
    WINDOWED,
    read_heads,
    read_rope_dim,
    read_softcap,
    read_windows,
    shared_config,
    shared_metadata,
)
from sp.models.file.metadata_keys import Keys
from sp.models.file.refusals import OF_LAYERS
from sp.models.file.weights import TensorFile
from sp.models.layer.spec import LayerSpec
from sp.ops.rope import Rope

EVERY, LOCAL_BASE, BASE = 6, 1e4, 1e6
LOCAL, SOFTCAP = "rope.freq_base_swa", "final_logit_softcapping"
SCALE = "layer_output_scale"
UNTURNED = float(np.float32(1e30))  # divisor of the frequencies of pairs that are not rotated
REFUSED = {
    OF_LAYERS: "an E-model, with embeddings of every layer",
    "attention.shared_kv_layers": "an E-model, with layers that share keys and values",
    "expert_count": "a mixture (26B-A4B), whose layers have a dense feed-forward and experts side by side",
}
"""Keys of Gemma 4 models that sp does not support, and the kind of model each identifies."""


def gemma4_config(keys: Keys, file: TensorFile) -> ModelConfig:
    """Read the configuration, see `Architecture`."""
    for key, kind in REFUSED.items():
        if keys.is_set(key):
            keys.refuse(key, f"marks {kind}, which sp does not support; use a dense model, 12B or 31B")
    layers = keys.layers(len(file.tensors))
    windows = read_windows(keys, layers, keys.count(WINDOW), EVERY)
    local, wide = ([i for i, window in enumerate(windows) if (window is None) == seen] for seen in (False, True))
    # Counts come from lists by layer, lengths from keys with and without the suffix.
    others, near = read_heads(keys, layers, wide), read_heads(keys, layers, local, "_swa")
    if near.heads != others.heads:
        keys.refuse(
            "attention.head_count",
            f"is {near.heads} with a window and {others.heads} without; sp needs the same number",
        )
    if FACTORS not in file.tensors:
        keys.refuse(
            "rope.dimension_count", f"needs tensor {FACTORS}, which is missing: it defines which pairs RoPE rotates"
        )
    config = with_factors(shared_config(keys, file, heads=others, base=BASE), keys, file)
    # Wide layers have a value projection only if the file has the tensor.
    own = any(f"blk.{layer}.attn_v.weight" in file.tensors for layer in wide)
    rope = Rope(keys.real(LOCAL, above=1.0, default=LOCAL_BASE), read_rope_dim(keys, near.head_dim, "_swa"))
    return replace(
        widened(config, windows, near, replace(others, own_values=own), rope),
        final_softcap=read_softcap(keys, SOFTCAP),
        output_scales=f"blk.0.{SCALE}.weight" in file.tensors,
    )


def widened(
    config: ModelConfig, windows: tuple[int | None, ...], near: HeadSizes, others: HeadSizes, rope: Rope
) -> ModelConfig:
    """Turn a dense configuration into Gemma 4. `near`, `rope`: heads and RoPE of the windowed layers; `others`: heads
    of the layers without a window."""
    sized = replace(config, kv_heads=near.kv_heads, head_dim=near.head_dim, global_heads=others)
    return replace(sized, windows=windows, local_rope=rope, embedding_scale=sqrt(config.hidden))


def quarter_turned(head_dim: int) -> FrequencyFactors:
    """Return the divisors with which RoPE rotates a quarter of the values of a head; pairs are as far apart as if all
    were rotated.

    >>> [factor < 2 for factor in quarter_turned(16).by]
    [True, True, False, False, False, False, False, False]
    """
    rotated = head_dim // 8
    return FrequencyFactors((1.0,) * rotated + (UNTURNED,) * (head_dim // 2 - rotated))


def gemma4_metadata(config: ModelConfig) -> dict[str, Value]:
    """Return the metadata of a configuration, see `Architecture`."""
    others, rope = config.global_heads, config.local_rope
    assert others is not None
    assert rope is not None
    window = next(window for window in config.windows if window is not None)
    # Files describe the layers without a window in the usual keys, the windowed ones with suffix ``_swa``.
    metadata = shared_metadata(replace(config, kv_heads=others.kv_heads, head_dim=others.head_dim))
    metadata |= {
        "attention.head_count_kv": [config.heads_of(layer).kv_heads for layer in range(config.layers)],
        "attention.key_length_swa": config.head_dim,
        "attention.value_length_swa": config.head_dim,
        "rope.dimension_count": config.rope.dim,
        "rope.dimension_count_swa": rope.dim,
        LOCAL: rope.base,
        WINDOW: window,
        WINDOWED: [window is not None for window in config.windows],
    }
    return metadata if config.final_softcap is None else metadata | {SOFTCAP: config.final_softcap}


def gemma4_layer(config: ModelConfig, index: int) -> LayerSpec:
    """Return the computation of a layer."""
    window = config.windows[index]
    return LayerSpec(
        value_norm=True,
        scale=1.0,
        post_norms=("post_attention_norm", "post_ffw_norm"),
        output_scale=SCALE if config.output_scales else None,
        rope=None if window is None else config.local_rope,
        window=window,
        activation="gelu",
    )


register_architecture(
    Architecture(
        "gemma4",
        gemma4_layer,
        ("gemma4",),
        gemma4_config,
        gemma4_metadata,
        config_tensors={FACTORS: factors_of},
        honours=(WINDOW, SOFTCAP, *REFUSED),
        about="Gemma 4, dense, text (12B, 31B)",
    )
)
