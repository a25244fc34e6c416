"""qwen3moe: Qwen3 with a mixture of experts in every layer (30B-A3B, 235B-A22B)."""

from __future__ import annotations

from sp.models.architectures.base import Architecture, register_architecture
from sp.models.architectures.shared import shared_config
from sp.models.config import ModelConfig
from sp.models.expert_keys import read_experts
from sp.models.layers.attention import Attention
from sp.models.layers.block import Block
from sp.models.layers.experts import Experts
from sp.models.metadata_keys import Keys
from sp.models.weights import Store, TensorFile


def qwen3moe_block(store: Store, index: int) -> Block:
    """Build block `index` of a `qwen3moe` file: the attention of `qwen3`, then experts.

    References
    ----------
    Qwen Team, "Qwen3 Technical Report", 2025.
    """
    return Block.take(store, index, Attention.take, Experts.take)


def qwen3moe_config(keys: Keys, file: TensorFile) -> ModelConfig:
    """See `Architecture`."""
    return shared_config(keys, file, experts=read_experts(keys, shared=False))


register_architecture(
    Architecture("qwen3moe", qwen3moe_block, ("qwen2",), config=qwen3moe_config, honours=("expert_count",))
)
