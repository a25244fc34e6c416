"""mistral3: Ministral 3 (3B to 14B) and Devstral Small 2: llama's layers, YaRN, and queries scaled by position.

YaRN does not change the magnitude of scores (``rope.scaling.yarn_log_multiplier`` of 1). After RoPE a query is
multiplied by ``1 + scale * ln(1 + floor(position / length))``, where `length` is YaRN's original context unless a key
sets it. Rows of q and k are ordered as in files of `llama`. Source: Liu et al., "Ministral 3", arXiv 2601.08584;
transformers, ``models/ministral3``; keys: llama.cpp, ``src/models/mistral3.cpp`` and ``conversion/mistral3.py``.
"""

from __future__ import annotations

from dataclasses import replace

from sp.gguf import Value
from sp.models.config import ModelConfig
from sp.models.families.base import Architecture, register_architecture
from sp.models.families.llama import BASE
from sp.models.families.shared import shared_config, shared_metadata
from sp.models.file.metadata_keys import Keys
from sp.models.file.rope_keys import ATTENTION_FACTOR, LOG_MULTIPLIER
from sp.models.file.weights import TensorFile
from sp.models.layer.spec import LayerSpec
from sp.ops.attention.position_scale import PositionScale
from sp.ops.rope import YarnScaling

SCALE, LENGTH = "attention.temperature_scale", "attention.temperature_length"
OLLAMA = "rope.scaling_beta"
MOST_SCALE = 16.0  # limit of a factor that is 0.1 in published files


def mistral3_config(keys: Keys, file: TensorFile) -> ModelConfig:
    """Read the configuration, see `Architecture`."""
    if keys.get(OLLAMA) is not None and keys.get(SCALE) is None:
        keys.refuse(OLLAMA, f"replaces {SCALE} in files that Ollama converted; use a file that llama.cpp converted")
    config = shared_config(keys, file, pairing="interleaved", base=BASE, quieted=True)
    return replace(config, query_growth=_growth(keys, config)) if keys.is_set(SCALE) else config


def _growth(keys: Keys, config: ModelConfig) -> PositionScale:
    """Read the scaling of queries by position."""
    scale, scaling = keys.real(SCALE, above=0.0), config.rope.scaling
    if scale > MOST_SCALE:
        keys.refuse(SCALE, f"is {scale:g}; it must be at most {MOST_SCALE:g}")
    original = scaling.original_context if isinstance(scaling, YarnScaling) else config.context
    return PositionScale(scale, keys.count(LENGTH, most=1 << 40) if keys.is_set(LENGTH) else original)


def mistral3_metadata(config: ModelConfig) -> dict[str, Value]:
    """Return the metadata of a configuration, see `Architecture`."""
    metadata, growth, scaling = shared_metadata(config), config.query_growth, config.rope.scaling
    metadata["rope.dimension_count"] = config.rope.dim
    if isinstance(scaling, YarnScaling) and config.rope.magnitude == 1:
        metadata.pop(ATTENTION_FACTOR, None)
        metadata[LOG_MULTIPLIER] = 1.0
    return metadata if growth is None else metadata | {SCALE: growth.scale, LENGTH: growth.length}


register_architecture(
    Architecture(
        "mistral3",
        LayerSpec(qk_norm=False, bias=None),
        ("tekken",),
        mistral3_config,
        mistral3_metadata,
        honours=(SCALE, LENGTH),
        about="Ministral 3 (3B to 14B) and Devstral Small 2",
    )
)
