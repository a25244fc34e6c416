"""Trunk: every weight of a model, and how they are built from a store or moved to another place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from sp.arrays import Floats
from sp.models.architectures.qwen3 import qwen3_block
from sp.models.architectures.qwen35 import qwen35_block
from sp.models.config import ModelConfig
from sp.models.layers.blocks import Block
from sp.models.weights import Store
from sp.quant import Weight

BLOCKS: dict[str, Callable[[Store, int], Block]] = {"qwen3": qwen3_block, "qwen35": qwen35_block}
Part = TypeVar("Part")


@dataclass(frozen=True)
class Trunk:
    """Embedding table (vocab, hidden), layers, the norm before the head, and the head (vocab, hidden).

    Where embedding and head are tied, `output` is the very object `embed`.
    """

    embed: Weight
    blocks: tuple[Block, ...]
    output_norm: Floats
    output: Weight

    @classmethod
    def take(cls, store: Store) -> Trunk:
        """Build from a store of weights."""
        config: ModelConfig = store.config
        table = (config.vocab, config.hidden)
        tied = "output.weight" not in store
        # Only rows of the embedding are ever read, unless it is the head as well.
        embed = store.matrix("token_embd.weight", table, keep_packed=not tied)
        output = embed if tied else store.matrix("output.weight", table)
        norm = store.vector("output_norm.weight", config.hidden)
        return cls(embed, tuple(BLOCKS[config.architecture](store, i) for i in range(config.layers)), norm, output)


def mapped(part: Part, leaf: Callable[[Any], Any]) -> Part:
    """A copy of a tree of dataclasses and tuples, with `leaf` applied to every weight and array in it."""
    if hasattr(part, "nbytes"):  # what holds numbers: packed or not, on the host or the device
        return leaf(part)  # type: ignore[no-any-return]
    if isinstance(part, tuple):
        return tuple(mapped(item, leaf) for item in part)  # type: ignore[return-value]
    if not is_dataclass(part) or isinstance(part, type | ModelConfig):
        return part
    return replace(part, **{field.name: mapped(getattr(part, field.name), leaf) for field in fields(part)})
