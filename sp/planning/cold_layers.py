"""cold_layers: which layers of a mixture keep their experts in host memory, so that a budget holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sp.errors import ModelError
from sp.models.config import ModelConfig
from sp.models.layer.cold_experts import ring_bytes
from sp.models.network.arithmetic import AUTO, read_math
from sp.planning.memory import Stacks, held_weights, kv_bytes, reading_bytes, stack_bytes, state_bytes
from sp.quant import BlockFormat, Math

RESERVED = 32768
"""Tokens of prompt and answer that work and cache have room for beside the weights: a prompt's length is not known when
weights are placed, and they stay where they are."""


@dataclass(frozen=True)
class Cold:
    """Where the weights of a mixture lie.

    Attributes
    ----------
    layers : tuple of int
        Whose experts wait in host memory, ascending.
    host : int
        Bytes of those.
    device : int
        Bytes of all other weights, and of the room that experts are brought to.
    """

    layers: tuple[int, ...]
    host: int
    device: int


def cold_layers(config: ModelConfig, weights: int, stacks: Stacks, room: int, math: Math = Math.BF16) -> Cold:
    """As few cold layers as leave room for the work on `RESERVED` tokens, or all if that is never left.

    They lie as far apart as they can, so that a copy has the time of the layers between.

    Parameters
    ----------
    config : ModelConfig
    weights : int
        Bytes of all weights on the device, if none of them waits.
    stacks : tuple of tuple of int
        See `stack_bytes`.
    room : int
        Bytes for weights, cache and work.
    math : Math
        What products are made in.

    Examples
    --------
    >>> from sp.models.synthetic.shapes import find_shape
    >>> config, stacks = find_shape("qwen3.6-35b-a3b").config, ((450 << 20,) * 1,) * 40
    >>> few, more = (cold_layers(config, 20 << 30, stacks, size << 30) for size in (16, 12))
    >>> len(few.layers), len(more.layers), more.layers[:3], more.host + more.device - (20 << 30) == 2 * (450 << 20)
    (19, 29, (0, 1, 3), True)
    """
    most, left = len(stacks), room - work_bytes(config, math)
    for number in range(most + 1):
        found = _placed(weights, stacks, spread(number, most))
        if found.device <= left or number == most:
            return found
    raise AssertionError("no layers")


def cold_within(
    config: ModelConfig, formats: Mapping[str, BlockFormat], room: int | None, math: str = Math.BF16
) -> tuple[int, ...]:
    """Layers whose experts have to wait in host memory for a model to have room; none of one without experts.

    What `auto` will choose is not known yet: it is reckoned with as int8.
    """
    if room is None or config.experts is None:
        return ()
    try:
        weights = sum(row.nbytes for row in held_weights(config, formats))
        reckoned = Math.INT8 if (asked := read_math(math, "math")) == AUTO else Math(asked)
        return cold_layers(config, weights, stack_bytes(config, formats), room, reckoned).layers
    except (ModelError, KeyError):  # what is wrong or missing is for loading to say
        return ()


def least_cold(config: ModelConfig, weights: int, stacks: Stacks, work: int) -> int | None:
    """Bytes of device memory from which on a mixture runs because its experts wait.

    None of a model without experts, and where the cache and the work of a request take more than was kept for them.
    """
    kept = work_bytes(config)
    return _placed(weights, stacks, tuple(range(len(stacks)))).device + kept if stacks and work <= kept else None


def work_bytes(config: ModelConfig, math: Math = Math.BF16) -> int:
    """Bytes that are kept for cache and work when weights are placed."""
    tokens = min(RESERVED, config.context)
    return state_bytes(config) + kv_bytes(config, tokens, "f16") + reading_bytes(config, tokens, math)


def spread(number: int, most: int) -> tuple[int, ...]:
    """So many of the layers, the last one first, as far apart as they can be.

    >>> spread(1, 8), spread(3, 8), spread(0, 8)
    ((7,), (1, 4, 7), ())
    """
    return tuple((i + 1) * most // number - 1 for i in range(number))


def _placed(weights: int, stacks: Stacks, layers: tuple[int, ...]) -> Cold:
    host = sum(sum(stacks[layer]) for layer in layers)
    return Cold(layers, host, weights - host + ring_bytes([stacks[layer] for layer in layers]))
