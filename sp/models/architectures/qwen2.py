"""qwen2: the dense Qwen2 and Qwen2.5 architecture."""

from __future__ import annotations

from functools import partial

from sp.models.architectures.base import Architecture, register_architecture
from sp.models.layers.attention import Attention
from sp.models.layers.block import Block
from sp.models.layers.feed_forward import SwiGLU
from sp.models.weights import Store


def qwen2_block(store: Store, index: int) -> Block:
    """Build block `index` of a `qwen2` file: biases on q, k and v, no norms of heads, RoPE over halves.

    References
    ----------
    Qwen Team, "Qwen2 Technical Report", 2024, and "Qwen2.5 Technical Report", 2024.
    """
    return Block.take(store, index, partial(Attention.take, norms=False, biases=True), SwiGLU.take)


register_architecture(Architecture("qwen2", qwen2_block, ("qwen2", "deepseek-r1-qwen")))
