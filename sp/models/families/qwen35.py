"""qwen35, qwen35moe: the Qwen3.5 / Qwen3.6 hybrid of Gated DeltaNet and gated attention, dense or with experts,
including a shared one (35B-A3B, 122B-A10B).

Source: Qwen Team, Qwen3-Next and Qwen3.5; Yang et al., "Gated Delta Networks", 2024.
"""

from __future__ import annotations

import numpy as np

from sp.gguf import Value
from sp.models.config import DeltaConfig, ExpertConfig, LayerKind, ModelConfig
from sp.models.families.base import Architecture, register_architecture
from sp.models.families.shared import read_experts, shared_config, shared_metadata
from sp.models.file.metadata_keys import Keys
from sp.models.file.weights import TensorFile
from sp.models.layer.spec import LayerSpec


def qwen35_config(keys: Keys, file: TensorFile, experts: ExpertConfig | None = None) -> ModelConfig:
    """Read the configuration, see `Architecture`."""
    layers = keys.layers(len(file.tensors))
    kinds = _kinds(keys, layers)
    delta = _delta(keys) if "delta" in kinds else None
    if "attention" not in kinds:
        keys.refuse("full_attention_interval", f"leaves none of {layers} layers with attention")
    return shared_config(keys, file, kinds=kinds, gated=True, delta=delta, experts=experts)


def qwen35_metadata(config: ModelConfig) -> dict[str, Value]:
    """Return the metadata of a configuration, see `Architecture`."""
    delta, pairs = config.delta, config.rope.dim // 2
    assert delta is not None, "a hybrid without delta sizes"
    # Files store a period, so the layers must have one.
    interval = config.kinds.index("attention") + 1
    assert config.kinds == tuple(_every(interval, config.layers)), f"{config.kinds}: attention at no fixed interval"
    # M-RoPE assigns the pairs to its three axes in turn; text uses one position for all axes.
    sections = [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0]
    return shared_metadata(config) | {
        "rope.dimension_count": config.rope.dim,
        "rope.dimension_sections": np.array(sections, np.int32),
        "full_attention_interval": interval,
        "ssm.conv_kernel": delta.conv_kernel,
        "ssm.state_size": delta.head_dim,
        "ssm.group_count": delta.key_heads,
        "ssm.time_step_rank": delta.value_heads,
        "ssm.inner_size": delta.value_dim,
    }


def _kinds(keys: Keys, layers: int) -> list[LayerKind]:
    """Return the kind of every layer of the main model; the explicit list of newer files overrides the interval."""
    flags = keys.flags("attention.recurrent_layers", layers)
    if flags is not None:
        return ["delta" if flag else "attention" for flag in flags]
    return _every(keys.count("full_attention_interval", default=4), layers)


def _every(interval: int, layers: int) -> list[LayerKind]:
    """Return layer kinds in which the last of every `interval` layers attends."""
    return ["delta" if (i + 1) % interval else "attention" for i in range(layers)]


def _delta(keys: Keys) -> DeltaConfig:
    """Read the sizes of the recurrent layers."""
    config = DeltaConfig(
        key_heads=keys.count("ssm.group_count"),
        value_heads=keys.count("ssm.time_step_rank"),
        head_dim=keys.count("ssm.state_size"),
        conv_kernel=keys.count("ssm.conv_kernel"),
    )
    # Value head p reads key head ``p % key_heads``, see `DeltaConfig`.
    if config.value_heads % config.key_heads:
        keys.refuse("ssm.group_count", f"is {config.key_heads}, which does not divide {config.value_heads} value heads")
    inner = keys.count("ssm.inner_size")
    if inner != config.value_dim:
        keys.refuse(
            "ssm.inner_size",
            f"is {inner}; it must be {config.value_heads} heads x {config.head_dim} = {config.value_dim}",
        )
    return config


def qwen35moe_config(keys: Keys, file: TensorFile) -> ModelConfig:
    """Read the configuration, see `Architecture`."""
    return qwen35_config(keys, file, read_experts(keys, shared=True))


LAYER = LayerSpec(ffn_norm="post_attention_norm")

HYBRID = "the hybrid of Gated DeltaNet and gated attention of Qwen3.5 and Qwen3.6"

register_architecture(Architecture("qwen35", LAYER, ("qwen35",), qwen35_config, qwen35_metadata, about=HYBRID))
register_architecture(
    Architecture(
        "qwen35moe",
        LAYER,
        ("qwen35",),
        qwen35moe_config,
        qwen35_metadata,
        honours=("expert_count",),
        about=f"{HYBRID} with experts, one of them shared (35B-A3B, 122B-A10B)",
    )
)
