"""qwen35moe: the hybrid of Qwen3.5 and Qwen3.6 with experts, one of them shared (35B-A3B, 122B-A10B)."""

from __future__ import annotations

from sp.models.architectures.base import Architecture, register_architecture
from sp.models.architectures.qwen35 import qwen35_block, qwen35_config, qwen35_metadata
from sp.models.config import ModelConfig
from sp.models.expert_keys import read_experts
from sp.models.layers.block import Block
from sp.models.layers.experts import Experts
from sp.models.metadata_keys import Keys
from sp.models.weights import Store, TensorFile


def qwen35moe_block(store: Store, index: int) -> Block:
    """Build block `index` of a `qwen35moe` file: the mixers of `qwen35`, then experts."""
    return qwen35_block(store, index, Experts.take)


def qwen35moe_config(keys: Keys, file: TensorFile) -> ModelConfig:
    """See `Architecture`."""
    return qwen35_config(keys, file, read_experts(keys, shared=True))


register_architecture(
    Architecture(
        "qwen35moe",
        qwen35moe_block,
        ("qwen35",),
        config=qwen35moe_config,
        metadata=qwen35_metadata,
        honours=("expert_count",),
    )
)
