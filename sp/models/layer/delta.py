"""GatedDelta: the recurrent mixer of hybrid models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from sp.arrays import Floats
from sp.models.config import DeltaConfig
from sp.models.file.weights import WeightSource
from sp.models.layer.shard_spec import ShardSpec
from sp.models.layer.steps import Flow, Nodes
from sp.ops.delta.delta_mixer import DeltaParams, delta_mixer
from sp.ops.delta.delta_tree import delta_tree
from sp.ops.delta.padding import hide_padding, keep_taps
from sp.ops.matmul.project import project
from sp.ops.norms import Norm, Ready
from sp.quant import Weight


@dataclass(frozen=True)
class GatedDelta:
    """A Gated DeltaNet layer: convolution, delta-rule recurrence, gated norm. It has no positions and no pages. GGUF
    files store value heads in tiled order, ``ssm_a = -exp(A_log)`` and a plain ``ssm_norm``."""

    index: int
    sizes: DeltaConfig
    qkv: Weight  # rows q | k | v
    gate: Weight
    conv: Floats
    alpha: Weight
    beta: Weight
    dt_bias: Floats
    a: Floats
    norm: Floats
    out: Weight
    eps: float

    @classmethod
    def build(cls, store: WeightSource, index: int) -> GatedDelta:
        """Build the mixer of layer `index`."""
        c, hidden, blk = store.config.delta, store.config.hidden, f"blk.{index}."
        assert c is not None, "a delta layer without delta sizes"
        return cls(
            index=index,
            sizes=c,
            qkv=store.matrix(f"{blk}attn_qkv.weight", (c.conv_dim, hidden)),
            gate=store.matrix(f"{blk}attn_gate.weight", (c.value_dim, hidden)),
            alpha=store.matrix(f"{blk}ssm_alpha.weight", (c.value_heads, hidden)),
            beta=store.matrix(f"{blk}ssm_beta.weight", (c.value_heads, hidden)),
            out=store.matrix(f"{blk}ssm_out.weight", (hidden, c.value_dim)),
            conv=store.table(f"{blk}ssm_conv1d.weight", (c.conv_dim, c.conv_kernel)),
            a=store.vector(f"{blk}ssm_a", c.value_heads),
            dt_bias=store.vector(f"{blk}ssm_dt.bias", c.value_heads),
            norm=store.vector(f"{blk}ssm_norm.weight", c.head_dim),
            eps=store.config.eps,
        )

    def shard(self, shard: ShardSpec) -> GatedDelta:
        """Return one GPU's shard: some key heads, with the value heads that read them; see `Shardable`. Value head p
        reads key head ``p % key_heads``, so the file stores value heads in rounds of one per key head. A GPU takes its
        part of every round, which keeps that order within its shard."""
        c = self.sizes
        # q and k are one group each in `qkv`, v is one group per round: hence rounds + 2.
        rounds = c.value_heads // c.key_heads
        return replace(
            self,
            sizes=shard.delta(c),
            qkv=shard.rows(self.qkv, rounds + 2),
            gate=shard.rows(self.gate, rounds),
            alpha=shard.rows(self.alpha, rounds),
            beta=shard.rows(self.beta, rounds),
            conv=shard.values(self.conv, rounds + 2),
            a=shard.values(self.a, rounds),
            dt_bias=shard.values(self.dt_bias, rounds),
            out=shard.columns(self.out, rounds),
        )

    @cached_property
    def params(self) -> DeltaParams:
        """The small parameters, in the form that ops take."""
        c = self.sizes
        small = self.conv, self.a, self.dt_bias, self.norm, self.eps
        return DeltaParams(*small, c.key_heads, c.value_heads, c.head_dim)

    def __call__(self, norm: Norm | Ready, flow: Flow) -> Floats:
        """Mix tokens, see `Mixer`. Positions are ignored: they belong to attention layers."""
        if flow.nodes is not None:
            return self._tree(norm, flow, flow.nodes)
        x, rows, n = flow.x, flow.rows, len(flow.x)
        if rows == n:
            weights = self.qkv, self.alpha, self.beta, self.gate
            qkv, alpha, beta, z = project(x, weights, norm, f32=(False, True, True, False))
        else:
            qkv, alpha, beta = project(x, (self.qkv, self.alpha, self.beta), norm, f32=(False, True, True))
            # The gate is needed for the output rows only, unlike the inputs of the recurrence.
            (z,) = project(x[n - rows :], (self.gate,), norm)
        state = flow.cache.state(self.index)
        if state.real is not None:
            hide_padding(alpha, beta, state.real)
        out = delta_mixer(qkv, z, alpha, beta, self.params, state, rows)
        if state.real is not None:
            keep_taps(qkv, state.conv, state.real)
        # Padding is counted too; the caller of a padded graph corrects the counts.
        state.tokens += n
        return out

    def _tree(self, norm: Norm | Ready, flow: Flow, nodes: Nodes) -> Floats:
        """Process a tree of tokens: the state stays as it is, and the flow's trace records what advances it along a
        path."""
        x, cache = flow.x, flow.cache
        assert flow.trace is not None, f"layer {self.index} has nowhere to note a tree"
        weights = self.qkv, self.alpha, self.beta, self.gate
        qkv, alpha, beta, z = project(x, weights, norm, f32=(False, True, True, False))
        state, row = cache.state(self.index), cache.config.delta_layers.index(self.index)
        out = delta_tree(qkv, z, alpha, beta, self.params, state, nodes.seen, flow.trace, row, self.out)
        state.tokens += len(x)
        return out
