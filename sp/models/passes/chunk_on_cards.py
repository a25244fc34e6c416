"""tokens_together, alike: how many tokens of a prompt each of several cards projects at once."""

from __future__ import annotations

from sp.models.config import ModelConfig
from sp.models.model import Model
from sp.models.passes.layerwise import CHUNK_BY_LAYER
from sp.ops.attention.kv_pages import PAGE_TOKENS

MOST_TOGETHER = 65536
"""Most tokens that a card of several projects together."""
TOGETHER_BYTES = 1 << 30
"""What the widest product of that many may take."""


def tokens_together(model: Model) -> int:
    """Tokens that each of several cards projects together.

    The threads of all cards take turns at Python for every launch, so there are as few launches as memory allows: on
    the device twice as many tokens as one card takes and twice as many again, while the widest product fits
    `TOGETHER_BYTES`. Experts sort tokens, which takes more.

    Examples
    --------
    >>> from sp.models import load_model
    >>> from sp.session.loaded import embedded
    >>> tokens_together(load_model(embedded("drafter")))
    2048
    """
    config, found = model.config, CHUNK_BY_LAYER[model.device]
    if model.device == "cuda" and config.experts is None:
        while found < MOST_TOGETHER and 2 * found * _widest(config) <= TOGETHER_BYTES:
            found *= 2
    return found


def alike(tokens: int, most: int) -> int:
    """Of how many tokens chunks of a stripe are, equally long ones of `most` or an eighth more.

    A few tokens that are left over would take all launches of a layer.

    Examples
    --------
    >>> alike(67_584, 65_536), alike(133_000, 65_536), alike(150_000, 65_536), alike(1000, 65_536)
    (67584, 66560, 50048, 1024)
    """
    parts = -(-8 * tokens // (9 * most))
    return -(-tokens // (parts * PAGE_TOKENS)) * PAGE_TOKENS


def _widest(config: ModelConfig) -> int:
    """Bytes of a token in 16 bits: normed, and as queries, gates, keys and values or in a feed-forward."""
    heads = config.heads * (2 if config.gated else 1) + 2 * config.kv_heads
    return 2 * (config.hidden + max(*config.ffn, heads * config.head_dim))
