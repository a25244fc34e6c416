"""What recurrent layers do where a prompt has gaps: tokens that were left out, which positions tell of.

Attention sees a gap through the positions of its keys. A recurrent layer sees only the order of its tokens, so it
takes those on both sides of a gap for neighbours. That is what published systems do; here are two other ways, to
measure what it matters.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from sp.arrays import Ints
from sp.models.cache.cache import Cache
from sp.models.layers.delta import GatedDelta
from sp.models.model import Model
from sp.ops.array_module import array_module

Gaps = Literal["compact", "reset", "decay"]
"""Neighbours; forget everything at a gap; or forget what the tokens left out would have made it forget."""


def gap_lengths(positions: Ints) -> dict[int, int]:
    """Tokens left out before a token, by its index, where there are any.

    Examples
    --------
    >>> gap_lengths(np.array([0, 1, 5, 6, 9]))
    {2: 3, 4: 2}
    """
    steps = np.diff(positions) - 1
    return {int(at) + 1: int(steps[at]) for at in np.flatnonzero(steps > 0)}


def cross_gap(model: Model, cache: Cache, tokens: int, gaps: Gaps) -> None:
    """Change the recurrent states of a cache as they are to meet the first token behind a gap of so many tokens.

    The inputs of the convolution are forgotten in any case. With `decay` the state of head h is multiplied by
    ``exp(tokens a[h] softplus(dt_bias[h]))``: what tokens with ``alpha = 0`` would leave of it.
    """
    for layer in model.config.delta_layers:
        mixer, state = model.trunk.blocks[layer].mixer, cache.state(layer)
        assert isinstance(mixer, GatedDelta), f"layer {layer} has no recurrent state"
        state.conv.fill(0)
        if gaps == "reset":
            state.recurrent.fill(0)
        else:
            xp = array_module(mixer.params.a)
            rate = mixer.params.a * xp.logaddexp(mixer.params.dt_bias, np.float32(0))
            state.recurrent *= xp.exp(np.float32(tokens) * rate)[:, None, None]
