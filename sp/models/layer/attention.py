"""Attention: weights of the mixer of every layer that keeps keys and values; `Qkv` and `Attend` compute with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from sp.arrays import Floats
from sp.models.config import HeadSizes, ModelConfig
from sp.models.file.weights import Store, split_rows
from sp.models.layer.share import Share
from sp.models.layer.spec import PLAIN, LayerSpec
from sp.ops.attention.attention_heads import HeadNorms
from sp.ops.attention.score_rule import ScoreRule
from sp.quant import Weight


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention with RoPE; what a family may have besides is told by what is there.

    Attributes
    ----------
    config : ModelConfig
        If it is `gated`, a sigmoid gate lies on the output.
    v : Weight, optional
        Without it values are what `k` makes, before norms and RoPE.
    gate : Weight, optional
        Of that gate; without it its rows lie beside those of q, head by head.
    biases : tuple of float32, optional
        Of q, k and v, added before anything else.
    out_bias : float32, optional
        Added to what `out` makes.
    norms : HeadNorms
        Of q and k before RoPE, and of v, if there are any.
    spec : LayerSpec
        Of the layer, for its RoPE and its window.
    sinks : float32 (heads,), optional
        See `ScoreRule`.
    """

    index: int
    config: ModelConfig
    q: Weight
    k: Weight
    v: Weight | None
    biases: tuple[Floats, ...] | None
    norms: HeadNorms
    out: Weight
    spec: LayerSpec = PLAIN
    sinks: Floats | None = None
    out_bias: Floats | None = None
    gate: Weight | None = None

    @classmethod
    def take(cls, store: Store, index: int, spec: LayerSpec = PLAIN) -> Attention:
        """Build from split q, k, v tensors or from a fused attn_qkv, whose rows are q | k | v."""
        config, sizes = store.config, store.config.heads_of(index)
        blk, hidden, d = f"blk.{index}.", config.hidden, sizes.head_dim
        q_rows = sizes.heads * d * (2 if config.gated and spec.gate is None else 1)
        kv_rows = sizes.kv_heads * d
        v: Weight | None
        if f"{blk}attn_qkv.weight" in store:
            fused = store.matrix(f"{blk}attn_qkv.weight", (q_rows + 2 * kv_rows, hidden))
            q, k, v = split_rows(fused, [q_rows, kv_rows, kv_rows])
        else:
            q = store.matrix(f"{blk}attn_q.weight", (q_rows, hidden))
            k = store.matrix(f"{blk}attn_k.weight", (kv_rows, hidden))
            v = store.matrix(f"{blk}attn_v.weight", (kv_rows, hidden)) if sizes.own_values else None
        gate = None if spec.gate is None else store.matrix(f"{blk}{spec.gate}.weight", (q_rows, hidden))
        out = store.matrix(f"{blk}attn_output.weight", (hidden, sizes.heads * d))
        added, normed = None, HeadNorms(None, None, config.eps, spec.value_norm)
        if f"{blk}attn_q.bias" in store if spec.bias is None else spec.bias:
            lengths = {"q": q_rows, "k": kv_rows, "v": kv_rows}
            added = tuple(store.vector(f"{blk}attn_{part}.bias", length) for part, length in lengths.items())
        if spec.qk_norm:
            q_norm, k_norm = (store.vector(f"{blk}attn_{part}_norm.weight", d) for part in "qk")
            normed = replace(normed, q=q_norm, k=k_norm)
        assert added is None or gate is None, f"layer {index} has biases and a gate apart, which no step adds to"
        sinks = None if spec.sinks is None else store.vector(f"{blk}{spec.sinks}.weight", sizes.heads)
        out_bias = store.vector(f"{blk}attn_output.bias", hidden) if spec.out_bias else None
        return cls(index, config, q, k, v, added, normed, out, spec, sinks, out_bias, gate)

    @cached_property
    def sizes(self) -> HeadSizes:
        """Heads of the layer."""
        return self.config.heads_of(self.index)

    @cached_property
    def rule(self) -> ScoreRule:
        """What the layer does with its scores."""
        return ScoreRule(self.spec.scale, self.spec.softcap, self.sinks, self.spec.window)

    def cut(self, share: Share) -> Attention:
        """See `Shareable`: kv heads with the heads that read them."""
        return replace(
            self,
            config=share.config(self.config),
            q=share.rows(self.q),
            k=share.rows(self.k),
            v=None if self.v is None else share.rows(self.v),
            biases=None if self.biases is None else tuple(share.values(bias) for bias in self.biases),
            out=share.columns(self.out),
            sinks=None if self.sinks is None else share.values(self.sinks),
            out_bias=share.once(self.out_bias),
            gate=None if self.gate is None else share.rows(self.gate),
        )
