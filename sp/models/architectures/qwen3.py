"""qwen3: the dense Qwen3 architecture."""

from __future__ import annotations

from sp.models.architectures.base import Architecture, register_architecture
from sp.models.layers.attention import Attention
from sp.models.layers.block import Block
from sp.models.layers.feed_forward import SwiGLU
from sp.models.weights import Store


def qwen3_block(store: Store, index: int) -> Block:
    """Build block `index` of a `qwen3` file.

    Attention with RMS norms on every q and k head before RoPE over the whole head, then a SwiGLU feed-forward.
    Head size is independent of hidden size, there are no biases and no embedding scale.

    References
    ----------
    Qwen Team, "Qwen3 Technical Report", 2025.
    """
    return Block.take(store, index, Attention.take, SwiGLU.take)


register_architecture(Architecture("qwen3", qwen3_block, ("qwen2",)))
