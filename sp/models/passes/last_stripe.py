"""pages_less: by how much a prompt's last stripe is shorter than others, since the card that reads it does more."""

from __future__ import annotations

from functools import lru_cache

from sp.models.config import ModelConfig
from sp.models.cost import prefill_cost
from sp.models.passes.layer_attention import ByEnergy, LayerAttention, SparseAttention
from sp.ops.attention.key_blocks import BLOCK
from sp.ops.sparse.expected_density import expected_density

LOOKED = 700
"""Operations for which a card has time while it looks at a byte of keys for the last queries: of 256K tokens 0.44 ms a
layer on an H200, which does 860 Tflop/s of a drafter's work (results/nvidia-h200/notes-cards.md)."""


def pages_less(config: ModelConfig, attend: LayerAttention, tokens: int) -> int:
    """Pages that the last stripe has less than others, so that all cards take as long.

    Besides its tokens the card that reads it looks at all keys of every layer for the last queries, and where a
    selector says so it attends for the last blocks of queries to all keys in place of a share of them.

    Parameters
    ----------
    config : ModelConfig
        Of the drafter.
    attend : LayerAttention
        The share of another selector than those of `sp.ops.sparse` that go by energies counts as everything.
    tokens : int

    Examples
    --------
    >>> from sp.models.synthetic.shapes import find_shape
    >>> from sp.ops.sparse.flashprefill import TopDensity
    >>> drafter, density = find_shape("qwen3-0.6b").config, lambda share: SparseAttention(TopDensity(share))
    >>> [pages_less(drafter, density(share), n) for n in (131072, 262144) for share in (0.05, 0.24)]
    [36, 10, 45, 11]
    >>> pages_less(drafter, density(0.05), 2048)
    0
    """
    selector = attend.selector if isinstance(attend, SparseAttention) else None
    known = selector if isinstance(selector, ByEnergy) else None
    return _pages_less(config, known, tokens)


@lru_cache(64)
def _pages_less(config: ModelConfig, selector: ByEnergy | None, tokens: int) -> int:
    share = 1.0 if selector is None else expected_density(selector, tokens)
    cost, whole = prefill_cost(config, tokens, share), prefill_cost(config, tokens).attention
    at_end = (cost.weights + 2 * cost.attention) / tokens  # of a token there; a token in the middle sees half as much
    dense = 0.0 if selector is None else selector.last_n * BLOCK * (1 - share) * 2 * whole / tokens
    keys = 2.0 * len(config.attention_layers) * config.kv_heads * config.head_dim * tokens
    return int((dense + LOOKED * keys) / at_end / BLOCK)
