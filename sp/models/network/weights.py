"""ModelWeights: every weight of a model, how they are built from a source, and how they are moved."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from sp.arrays import Floats
from sp.models.config import ModelConfig
from sp.models.families.base import find_architecture
from sp.models.file.weights import RecordingStore, TensorSpec, WeightSource
from sp.models.layer.block import Block, Sublayers, with_deferred_norms
from sp.models.layer.spec import LayerSpec
from sp.quant import Weight

Tree = TypeVar("Tree")
T = TypeVar("T")


@dataclass(frozen=True)
class ModelWeights:
    """Embedding table (vocab, hidden), layers, the norm before the head, and the head (vocab, hidden).

    If embedding and head are tied, `output` is the same object as `embed`. A model that is loaded only in part has
    fewer layers and no head.
    """

    embed: Weight
    blocks: tuple[Block, ...]
    output_norm: Floats
    output: Weight | None

    @cached_property
    def layers(self) -> list[Sublayers]:
        """The steps of every layer."""
        return [block.steps() for block in self.blocks]

    @cached_property
    def deferred_norm_layers(self) -> list[Sublayers]:
        """The steps of every layer for tokens that pass all layers in one call: products start the norm that follows
        them."""
        return with_deferred_norms(self.layers, (self.output_norm, self.blocks[-1].eps))

    @cached_property
    def _memo(self) -> dict[Any, Any]:
        return {}

    def memoized(self, compute: Callable[[ModelWeights], T]) -> T:
        """Return ``compute(self)``, evaluated once for as long as the weights stay where they are."""
        if compute not in self._memo:
            self._memo[compute] = compute(self)
        value: T = self._memo[compute]
        return value

    @classmethod
    def build(cls, store: WeightSource, depth: int | None = None) -> ModelWeights:
        """Build from a source of weights; with a `depth` only so many layers, and no head."""
        config: ModelConfig = store.config
        table = (config.vocab, config.hidden)
        family = find_architecture(config.architecture)
        if depth is not None:
            embed = store.matrix("token_embd.weight", table)
            norm = store.vector("output_norm.weight", config.hidden)  # read although unused: it distinguishes models
            return cls(embed, tuple(family.block(store, i) for i in range(depth)), norm, None)
        tied = "output.weight" not in store
        embed = store.matrix("token_embd.weight", table)
        output = embed if tied else store.matrix("output.weight", table)
        norm = store.vector("output_norm.weight", config.hidden)
        return cls(embed, tuple(family.block(store, i) for i in range(config.layers)), norm, output)


def model_tensors(config: ModelConfig, present: Collection[str] = (), depth: int | None = None) -> list[TensorSpec]:
    """List every tensor of a model in the order of the parts that hold them, which is the order of files. `present`
    names tensors that the model may have, see `RecordingStore`: ``output.weight`` if the head is not tied. With a
    `depth` list the tensors of so many layers, without the head."""
    return list(_listed(config, frozenset(present), depth, find_architecture(config.architecture).block))


@lru_cache(32)
def _listed(
    config: ModelConfig, present: frozenset[str], depth: int | None, block: Callable[[WeightSource, int], Block]
) -> tuple[TensorSpec, ...]:
    """Return what `model_tensors` lists. Cached, because plans ask for the same model thousands of times; `block` is
    the one that is built, as a family's name may be given to another one."""
    store = RecordingStore(config, present)
    return tuple(in_file_order(ModelWeights.build(store, depth), store))


def in_file_order(parts: object, store: RecordingStore) -> list[TensorSpec]:
    """List what a store has recorded, in the order of the parts of a model that were built from it."""
    names: list[str] = []

    def record(tensor: TensorSpec) -> TensorSpec:
        names.append(tensor.name)
        return tensor

    map_leaves(parts, record)
    return [store.tensors[name] for name in dict.fromkeys(names)]


def map_leaves(part: Tree, leaf: Callable[[Any], Any]) -> Tree:
    """Return a copy of a tree of dataclasses and tuples with `leaf` applied to every weight and array in it."""
    if hasattr(part, "nbytes"):  # a leaf: packed or not, on the host or the device
        return leaf(part)  # type: ignore[no-any-return]
    if isinstance(part, tuple):
        return tuple(map_leaves(item, leaf) for item in part)  # type: ignore[return-value]
    if not is_dataclass(part) or isinstance(part, type | ModelConfig | LayerSpec):
        return part
    return replace(part, **{field.name: map_leaves(getattr(part, field.name), leaf) for field in fields(part)})
