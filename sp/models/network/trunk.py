"""Trunk: every weight of a model, and how they are built from a store or moved to another place."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from sp.arrays import Floats
from sp.models.config import ModelConfig
from sp.models.families.base import find_architecture
from sp.models.file.weights import RecordingStore, Store, Tensor
from sp.models.layer.block import Block, Halves, chained
from sp.models.layer.spec import LayerSpec
from sp.quant import Weight

Part = TypeVar("Part")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Trunk:
    """Embedding table (vocab, hidden), layers, the norm before the head, and the head (vocab, hidden).

    Where embedding and head are tied, `output` is the very object `embed`. Of a model that is not run to its end there
    are fewer layers, and no head.
    """

    embed: Weight
    blocks: tuple[Block, ...]
    output_norm: Floats
    output: Weight | None

    @cached_property
    def layers(self) -> list[Halves]:
        """The steps of every layer."""
        return [block.steps() for block in self.blocks]

    @cached_property
    def chained_layers(self) -> list[Halves]:
        """The same for tokens that pass all of them at once: products begin the norm that comes next."""
        return chained(self.layers, (self.output_norm, self.blocks[-1].eps))

    @cached_property
    def _facts(self) -> dict[Any, Any]:
        return {}

    def found(self, find: Callable[[Trunk], Found]) -> Found:
        """What a function finds in these weights, looked for once as long as they lie where they lie."""
        if find not in self._facts:
            self._facts[find] = find(self)
        found: Found = self._facts[find]
        return found

    @classmethod
    def take(cls, store: Store, depth: int | None = None) -> Trunk:
        """Build from a store of weights; with a `depth` only so many layers, and no head."""
        config: ModelConfig = store.config
        table = (config.vocab, config.hidden)
        family = find_architecture(config.architecture)
        if depth is not None:
            embed = store.matrix("token_embd.weight", table)
            norm = store.vector("output_norm.weight", config.hidden)  # which tells models apart
            return cls(embed, tuple(family.block(store, i) for i in range(depth)), norm, None)
        tied = "output.weight" not in store
        embed = store.matrix("token_embd.weight", table)
        output = embed if tied else store.matrix("output.weight", table)
        norm = store.vector("output_norm.weight", config.hidden)
        return cls(embed, tuple(family.block(store, i) for i in range(config.layers)), norm, output)


def trunk_tensors(config: ModelConfig, present: Container[str] = (), depth: int | None = None) -> list[Tensor]:
    """Every tensor of a model, in the order of the parts that hold them, which is that of files. `present` names
    tensors that the model may have, see `RecordingStore`: ``output.weight`` where the head is not tied. With a `depth`
    those of so many layers, without the head."""
    store = RecordingStore(config, present)
    return in_order(Trunk.take(store, depth), store)


def in_order(parts: object, store: RecordingStore) -> list[Tensor]:
    """What a store has noted, in the order of the parts of a model that were built from it."""
    names: list[str] = []

    def meet(tensor: Tensor) -> Tensor:
        names.append(tensor.name)
        return tensor

    mapped(parts, meet)
    return [store.tensors[name] for name in dict.fromkeys(names)]


def mapped(part: Part, leaf: Callable[[Any], Any]) -> Part:
    """A copy of a tree of dataclasses and tuples, with `leaf` applied to every weight and array in it."""
    if hasattr(part, "nbytes"):  # what holds numbers: packed or not, on the host or the device
        return leaf(part)  # type: ignore[no-any-return]
    if isinstance(part, tuple):
        return tuple(mapped(item, leaf) for item in part)  # type: ignore[return-value]
    if not is_dataclass(part) or isinstance(part, type | ModelConfig | LayerSpec):
        return part
    return replace(part, **{field.name: mapped(getattr(part, field.name), leaf) for field in fields(part)})
