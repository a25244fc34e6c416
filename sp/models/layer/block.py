"""Block: the weights of a layer, and the steps that compute it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sp.arrays import Floats
from sp.models.file.weights import WeightSource
from sp.models.layer.attention import Attention
from sp.models.layer.delta import GatedDelta
from sp.models.layer.feed_forward import Experts, GatedMLP
from sp.models.layer.spec import LayerSpec
from sp.models.layer.steps import Attend, FeedForward, Join, Mix, Mixer, Mlp, Qkv, Sublayer
from sp.ops.norms import Norm

Sublayers = tuple[Sublayer, Sublayer]
"""The steps of a layer: the mixer, where tokens interact, and the feed-forward, where each token is processed alone.
With tensor parallelism an all-reduce follows each of the two."""


@dataclass(frozen=True)
class Block:
    """The weights of a layer: mixer and feed-forward, each with a norm before it and, in some families, one after
    it."""

    spec: LayerSpec
    attn_norm: Floats
    mixer: Attention | Mixer
    attn_post_norm: Floats | None
    ffn_norm: Floats
    ffn: FeedForward
    ffn_post_norm: Floats | None
    eps: float
    output_scale: Floats | None = None

    @classmethod
    def build(cls, store: WeightSource, index: int, spec: LayerSpec) -> Block:
        """Build block `index` from a source of weights; it requests every tensor of the layer."""
        config, blk = store.config, f"blk.{index}."
        if spec.mixer is not None:
            mixer = spec.mixer(store, index)
        else:
            attends = config.kinds[index] == "attention"
            mixer = Attention.build(store, index, spec) if attends else GatedDelta.build(store, index)
        first, second = (None, None) if spec.post_norms is None else spec.post_norms

        def norm(name: str | None) -> Any:
            return None if name is None else store.vector(f"{blk}{name}.weight", config.hidden)

        return cls(
            spec=spec,
            mixer=mixer,
            attn_norm=norm("attn_norm"),
            attn_post_norm=norm(first),
            ffn_norm=norm(spec.ffn_norm),
            ffn=_feed_forward(store, index, spec),
            ffn_post_norm=norm(second),
            eps=config.eps,
            output_scale=None if spec.output_scale is None else store.vector(f"{blk}{spec.output_scale}.weight", 1),
        )

    def steps(self) -> Sublayers:
        """Return the steps that compute the layer."""
        mixer, ffn = self.mixer, self.ffn
        if isinstance(mixer, Attention):
            mix: Sublayer = Qkv(mixer, (self.attn_norm, self.eps)), Attend(mixer)
            bias = mixer.out_bias
        else:
            mix, bias = (Mix(mixer, (self.attn_norm, self.eps)),), None
        feed = Mlp(ffn, (self.ffn_norm, self.eps))
        return (
            # Each sublayer ends in the only step that changes the stream.
            with_consumer((*mix, Join(mixer.out, self._post_norm(self.attn_post_norm), bias=bias))),
            with_consumer((feed, Join(ffn.down, self._post_norm(self.ffn_post_norm), scale=self.output_scale))),
        )

    def _post_norm(self, weight: Floats | None) -> Norm | None:
        eps = self.spec.post_norm_eps
        return None if weight is None else (weight, self.eps if eps is None else eps)


def _feed_forward(store: WeightSource, index: int, spec: LayerSpec) -> Any:
    if spec.ffn is not None:
        return spec.ffn(store, index)
    dense = store.config.experts is None
    assert spec.activation != ("clamped" if dense else "gelu"), (
        f"layer {index}: activation {spec.activation} is not for {'dense' if dense else 'expert'} layers"
    )
    return GatedMLP.build(store, index, spec.activation) if dense else Experts.build(store, index, spec)


def with_consumer(sublayer: Sublayer) -> Sublayer:
    """Pass the output projection to the step before it, so that this step writes its output in the layout that the
    projection reads."""
    *first_steps, before, join = sublayer
    if isinstance(before, Attend | Mlp) and isinstance(join, Join) and join.weight is not None:
        before = replace(before, consumer=join.weight)
    return (*first_steps, before, join)


def with_deferred_norms(layers: Sequence[Sublayers], last: Norm) -> list[Sublayers]:
    """Let each product start the norm that follows it, for layers that run one after the other. `last`: the norm before
    the head."""
    chained = list[Sublayers]()
    for index, (mix, feed) in enumerate(layers):
        next_norm = last if index == len(layers) - 1 else _first_norm(layers[index + 1][0])
        chained.append((_with_next_norm(mix, _first_norm(feed)), _with_next_norm(feed, next_norm)))
    return chained


def _first_norm(sublayer: Sublayer) -> Norm:
    norm: Norm = sublayer[0].norm  # type: ignore[attr-defined]
    return norm


def _with_next_norm(sublayer: Sublayer, next_norm: Norm) -> Sublayer:
    *first_steps, join = sublayer
    assert isinstance(join, Join), f"a sublayer ends in {type(join).__name__}"
    return (*first_steps, replace(join, next_norm=next_norm))
