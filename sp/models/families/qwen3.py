"""qwen3 and qwen3moe: Qwen3, dense or with a mixture of experts in every layer (30B-A3B, 235B-A22B).

Attention with RMS norms on every q and k head before RoPE over the whole head, then a gated feed-forward or experts.
Head size is independent of hidden size, there are no biases and no embedding scale.
Source: Qwen Team, "Qwen3 Technical Report", 2025.
"""

from __future__ import annotations

from sp.models.config import ModelConfig
from sp.models.families.base import Architecture, register_architecture
from sp.models.families.shared import read_experts, shared_config
from sp.models.file.metadata_keys import Keys
from sp.models.file.weights import TensorFile
from sp.models.layer.spec import LayerSpec


def qwen3moe_config(keys: Keys, file: TensorFile) -> ModelConfig:
    """Read the configuration, see `Architecture`."""
    return shared_config(keys, file, experts=read_experts(keys, shared=False))


register_architecture(Architecture("qwen3", LayerSpec(), ("qwen2",), about="the dense Qwen3 architecture"))
register_architecture(
    Architecture(
        "qwen3moe",
        LayerSpec(),
        ("qwen2",),
        config=qwen3moe_config,
        honours=("expert_count",),
        about="Qwen3 with a mixture of experts in every layer (30B-A3B, 235B-A22B)",
    )
)
