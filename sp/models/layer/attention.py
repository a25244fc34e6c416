"""Attention: mixer weights of a layer that stores keys and values; the steps `Qkv` and `Attend` compute with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from sp.arrays import Floats
from sp.models.config import HeadSizes, ModelConfig
from sp.models.file.weights import WeightSource, split_rows
from sp.models.layer.shard_spec import ShardSpec
from sp.models.layer.spec import PLAIN, LayerSpec
from sp.ops.attention.attention_heads import HeadNorms
from sp.ops.attention.score_rule import ScoreRule
from sp.quant import Weight


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention with RoPE. Optional fields hold what some families add.

    Attributes
    ----------
    config : ModelConfig
        If it is `gated`, attention outputs pass through a sigmoid gate.
    v : Weight, optional
        Without it, values are the output of `k`, before norms and RoPE.
    gate : Weight, optional
        Projection of that gate; without it, its rows are interleaved with those of q, head by head.
    biases : tuple of float32, optional
        Biases of q, k and v, added before anything else.
    out_bias : float32, optional
        Bias of the output projection.
    norms : HeadNorms
        Norms of q and k before RoPE, and of v, if any.
    spec : LayerSpec
        Spec of the layer, for its RoPE and its window.
    sinks : float32 (heads,), optional
        Sink logits, see `ScoreRule`.
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
    def build(cls, store: WeightSource, index: int, spec: LayerSpec = PLAIN) -> Attention:
        """Build from separate q, k, v tensors or from a fused attn_qkv, whose rows are q | k | v."""
        config, sizes = store.config, store.config.heads_of(index)
        blk, hidden, d = f"blk.{index}.", config.hidden, sizes.head_dim
        # a gated model without a gate matrix of its own has head_dim gate rows after the query rows of every head
        q_rows = sizes.heads * d * (2 if config.gated and spec.gate is None else 1)
        kv_rows = sizes.kv_heads * d
        v: Weight | None
        # Some files fuse the three projections; the rows are split as views.
        if f"{blk}attn_qkv.weight" in store:
            fused = store.matrix(f"{blk}attn_qkv.weight", (q_rows + 2 * kv_rows, hidden))
            q, k, v = split_rows(fused, [q_rows, kv_rows, kv_rows])
        else:
            q = store.matrix(f"{blk}attn_q.weight", (q_rows, hidden))
            k = store.matrix(f"{blk}attn_k.weight", (kv_rows, hidden))
            v = store.matrix(f"{blk}attn_v.weight", (kv_rows, hidden)) if sizes.own_values else None
        gate = None if spec.gate is None else store.matrix(f"{blk}{spec.gate}.weight", (q_rows, hidden))
        out = store.matrix(f"{blk}attn_output.weight", (hidden, sizes.heads * d))
        biases, norms = None, HeadNorms(None, None, config.eps, spec.value_norm)
        # None means that the file decides, as in the llama family.
        if f"{blk}attn_q.bias" in store if spec.bias is None else spec.bias:
            lengths = {"q": q_rows, "k": kv_rows, "v": kv_rows}
            biases = tuple(store.vector(f"{blk}attn_{part}.bias", length) for part, length in lengths.items())
        if spec.qk_norm:
            q_norm, k_norm = (store.vector(f"{blk}attn_{part}_norm.weight", d) for part in "qk")
            norms = replace(norms, q=q_norm, k=k_norm)
        assert biases is None or gate is None, f"layer {index} has biases and a separate gate, which no step supports"
        sinks = None if spec.sinks is None else store.vector(f"{blk}{spec.sinks}.weight", sizes.heads)
        out_bias = store.vector(f"{blk}attn_output.bias", hidden) if spec.out_bias else None
        return cls(index, config, q, k, v, biases, norms, out, spec, sinks, out_bias, gate)

    @cached_property
    def sizes(self) -> HeadSizes:
        """Head sizes of the layer."""
        return self.config.heads_of(self.index)

    @cached_property
    def rule(self) -> ScoreRule:
        """Treatment of the attention scores: scale, soft cap, sinks and window."""
        return ScoreRule(self.spec.scale, self.spec.softcap, self.sinks, self.spec.window)

    def shard(self, shard: ShardSpec) -> Attention:
        """Return one GPU's shard: some kv heads, with the query heads that read them; see `Shardable`."""
        return replace(
            self,
            config=shard.config(self.config),
            q=shard.rows(self.q),
            k=shard.rows(self.k),
            v=None if self.v is None else shard.rows(self.v),
            biases=None if self.biases is None else tuple(shard.values(bias) for bias in self.biases),
            out=shard.columns(self.out),
            sinks=None if self.sinks is None else shard.values(self.sinks),
            out_bias=shard.first_only(self.out_bias),
            gate=None if self.gate is None else shard.rows(self.gate),
        )
