"""Block: the weights of a layer, and the steps that compute it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sp.arrays import Floats
from sp.models.file.weights import Store
from sp.models.layer.attention import Attention
from sp.models.layer.delta import GatedDelta
from sp.models.layer.feed_forward import Experts, GatedMLP
from sp.models.layer.spec import LayerSpec
from sp.models.layer.steps import Attend, FeedForward, Half, Join, Mix, Mixer, Mlp, Qkv
from sp.ops.norms import Norm

Halves = tuple[Half, Half]
"""The steps of a layer: tokens meet, and then each is alone. Cards that share a layer add up behind either half."""


@dataclass(frozen=True)
class Block:
    """The weights of a layer: two halves, each with a norm before it and perhaps one behind it."""

    spec: LayerSpec
    attn_norm: Floats
    mixer: Attention | Mixer
    attn_behind: Floats | None
    ffn_norm: Floats
    ffn: FeedForward
    ffn_behind: Floats | None
    eps: float
    output_scale: Floats | None = None

    @classmethod
    def take(cls, store: Store, index: int, spec: LayerSpec) -> Block:
        """Build block `index` of what a store holds; it asks for every tensor of the layer."""
        config, blk = store.config, f"blk.{index}."
        if spec.mixer is not None:
            mixer = spec.mixer(store, index)
        else:
            attends = config.kinds[index] == "attention"
            mixer = Attention.take(store, index, spec) if attends else GatedDelta.take(store, index)
        first, second = (None, None) if spec.behind is None else spec.behind

        def norm(name: str | None) -> Any:
            return None if name is None else store.vector(f"{blk}{name}.weight", config.hidden)

        return cls(
            spec=spec,
            mixer=mixer,
            attn_norm=norm("attn_norm"),
            attn_behind=norm(first),
            ffn_norm=norm(spec.ffn_norm),
            ffn=_feed_forward(store, index, spec),
            ffn_behind=norm(second),
            eps=config.eps,
            output_scale=None if spec.output_scale is None else store.vector(f"{blk}{spec.output_scale}.weight", 1),
        )

    def steps(self) -> Halves:
        """What computes the layer."""
        mixer, ffn = self.mixer, self.ffn
        if isinstance(mixer, Attention):
            mix: Half = Qkv(mixer, (self.attn_norm, self.eps)), Attend(mixer)
            bias = mixer.out_bias
        else:
            mix, bias = (Mix(mixer, (self.attn_norm, self.eps)),), None
        feed = Mlp(ffn, (self.ffn_norm, self.eps))
        return (
            with_reader((*mix, Join(mixer.out, self._behind(self.attn_behind), bias=bias))),
            with_reader((feed, Join(ffn.down, self._behind(self.ffn_behind), scale=self.output_scale))),
        )

    def _behind(self, weight: Floats | None) -> Norm | None:
        eps = self.spec.behind_eps
        return None if weight is None else (weight, self.eps if eps is None else eps)


def _feed_forward(store: Store, index: int, spec: LayerSpec) -> Any:
    if spec.ffn is not None:
        return spec.ffn(store, index)
    dense = store.config.experts is None
    assert spec.activation != ("clamped" if dense else "gelu"), f"layer {index} has {spec.activation} where none is"
    return GatedMLP.take(store, index, spec.activation) if dense else Experts.take(store, index, spec)


def with_reader(half: Half) -> Half:
    """The same steps, where what is made for a product alone is made as that product reads it."""
    *others, before, join = half
    if isinstance(before, Attend | Mlp) and isinstance(join, Join) and join.weight is not None:
        before = replace(before, reader=join.weight)
    return (*others, before, join)


def chained(layers: Sequence[Halves], last: Norm) -> list[Halves]:
    """The same layers one after the other, where each product begins the norm that comes next; `last` is the head's."""
    found = list[Halves]()
    for index, (mix, feed) in enumerate(layers):
        then = last if index == len(layers) - 1 else _first_norm(layers[index + 1][0])
        found.append((_begins(mix, _first_norm(feed)), _begins(feed, then)))
    return found


def _first_norm(half: Half) -> Norm:
    norm: Norm = half[0].norm  # type: ignore[attr-defined]
    return norm


def _begins(half: Half, then: Norm) -> Half:
    *others, join = half
    assert isinstance(join, Join), f"half a layer ends in {type(join).__name__}"
    return (*others, replace(join, then=then))
