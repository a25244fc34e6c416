"""GatedMLP and Experts: feed-forwards of dense models and of mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sp.arrays import Floats
from sp.models.config import ExpertConfig
from sp.models.file.weights import WeightSource
from sp.models.layer.cold_experts import BY_NEED, ColdLayer
from sp.models.layer.shard_spec import ShardSpec
from sp.models.layer.spec import PLAIN, Activation, LayerSpec
from sp.ops.experts.expert_mlp import Shared, add_experts
from sp.ops.experts.routing import Routing, route
from sp.ops.experts.stack import Stack
from sp.ops.matmul.project import gated_project, project
from sp.ops.norms import Norm, Ready, rms_norm
from sp.quant import Weight


@dataclass(frozen=True)
class GatedMLP:
    """``down(act(gate(h)) * up(h))`` of a normed token h; see `FeedForward`. Source: Shazeer, "GLU Variants Improve
    Transformer", 2020."""

    gate: Weight
    up: Weight
    down: Weight
    activation: Activation = "silu"

    @classmethod
    def build(cls, store: WeightSource, index: int, activation: Activation = "silu") -> GatedMLP:
        """Build the feed-forward of block `index`."""
        hidden, width, blk = store.config.hidden, store.config.ffn[index], f"blk.{index}."
        return cls(
            gate=store.matrix(f"{blk}ffn_gate.weight", (width, hidden)),
            up=store.matrix(f"{blk}ffn_up.weight", (width, hidden)),
            down=store.matrix(f"{blk}ffn_down.weight", (hidden, width)),
            activation=activation,
        )

    def shard(self, shard: ShardSpec) -> GatedMLP:
        """Return one GPU's shard: some columns of the hidden layer; see `Shardable`."""
        return replace(self, gate=shard.rows(self.gate), up=shard.rows(self.up), down=shard.columns(self.down))

    def __call__(self, x: Floats, norm: Norm | Ready, consumer: Weight | None) -> Any:
        """Compute the gated product, without the down projection; see `FeedForward`."""
        return gated_project(x, self.gate, self.up, norm, consumer, gelu=self.activation == "gelu")

    def reads(self) -> list[Weight]:
        """List the weights that the call reads; see `LayerStep`."""
        return [self.gate, self.up]


@dataclass(frozen=True)
class SharedExpert:
    """``sigmoid(g · h) * down(silu(gate(h)) * up(h))`` of a normed token h."""

    mix: Floats
    gate: Weight
    up: Weight
    down: Weight

    @classmethod
    def build(cls, store: WeightSource, index: int, width: int) -> SharedExpert:
        """Build the shared expert of block `index`."""
        hidden, blk = store.config.hidden, f"blk.{index}."
        return cls(
            mix=store.vector(f"{blk}ffn_gate_inp_shexp.weight", hidden),
            gate=store.matrix(f"{blk}ffn_gate_shexp.weight", (width, hidden)),
            up=store.matrix(f"{blk}ffn_up_shexp.weight", (width, hidden)),
            down=store.matrix(f"{blk}ffn_down_shexp.weight", (hidden, width)),
        )

    def shard(self, shard: ShardSpec) -> SharedExpert:
        """Return one GPU's shard: some columns of the hidden layer; see `Shardable`."""
        return SharedExpert(self.mix, shard.rows(self.gate), shard.rows(self.up), shard.columns(self.down))

    def __call__(self, x: Floats, norm: Norm) -> Floats:
        """Map the residual stream (n, hidden) to the feed-forward of its normed tokens, before the gate ``sigmoid(g ·
        h)``."""
        (y,) = project(gated_project(x, self.gate, self.up, norm), (self.down,))
        return y


@dataclass(frozen=True)
class ExpertBiases:
    """Biases of the router (count,), of gate and up projections (count, width), and of the down projection (count,
    hidden)."""

    router: Floats
    gate: Floats
    up: Floats
    down: Floats

    @classmethod
    def build(cls, store: WeightSource, index: int, sizes: ExpertConfig) -> ExpertBiases:
        """Build the biases of block `index`."""
        hidden, blk = store.config.hidden, f"blk.{index}."
        return cls(
            router=store.vector(f"{blk}ffn_gate_inp.bias", sizes.count),
            gate=store.table(f"{blk}ffn_gate_exps.bias", (sizes.count, sizes.width)),
            up=store.table(f"{blk}ffn_up_exps.bias", (sizes.count, sizes.width)),
            down=store.table(f"{blk}ffn_down_exps.bias", (sizes.count, hidden)),
        )

    def shard(self, shard: ShardSpec) -> ExpertBiases:
        """Return one GPU's shard, split like the rows that the biases are added to; only the first GPU adds that of the
        down projection."""
        gate, up = (np.ascontiguousarray(shard.values(bias.T).T) for bias in (self.gate, self.up))
        down = shard.first_only(self.down)
        assert down is not None
        return ExpertBiases(self.router, gate, up, down)


@dataclass(frozen=True)
class Experts:
    """A router, the experts it chooses from, and optionally a shared expert that processes every token; see
    `FeedForward`.

    Files store gate and up projections either as two tensors or as one, in which the gate rows of every expert come
    first. If `cold` is set, `into` and `down_stack` are in host memory: a few tokens read the chosen experts there, and
    for many tokens the whole stack is copied to the device. Source: Shazeer et al., "Outrageously Large Neural
    Networks", 2017; the shared expert after Dai et al., "DeepSeekMoE", 2024.
    """

    sizes: ExpertConfig
    router: Weight
    into: tuple[Weight, ...]
    down_stack: Weight
    shared: SharedExpert | None
    cold: ColdLayer | None = None
    biases: ExpertBiases | None = None
    clamped: bool = False  # gated by `clamped_swiglu`

    down: ClassVar[None] = None  # experts add their output to the stream themselves, see `ExpertOutput`

    @classmethod
    def build(cls, store: WeightSource, index: int, spec: LayerSpec = PLAIN) -> Experts:
        """Build the experts of block `index`."""
        c, hidden, blk = store.config.experts, store.config.hidden, f"blk.{index}."
        assert c is not None, "a layer of experts without their sizes"
        # A fused tensor has the gate rows of an expert, then its up rows.
        fused = f"{blk}ffn_gate_up_exps.weight"
        names = (fused,) if fused in store else (f"{blk}ffn_gate_exps.weight", f"{blk}ffn_up_exps.weight")
        rows = 2 * c.width // len(names)
        return cls(
            sizes=c,
            router=store.matrix(f"{blk}ffn_gate_inp.weight", (c.count, hidden)),
            into=tuple(store.stack(name, (c.count, rows, hidden)) for name in names),
            down_stack=store.stack(f"{blk}ffn_down_exps.weight", (c.count, hidden, c.width)),
            shared=SharedExpert.build(store, index, c.shared) if c.shared else None,
            biases=ExpertBiases.build(store, index, c) if spec.expert_bias else None,
            clamped=spec.activation == "clamped",
        )

    def shard(self, shard: ShardSpec) -> Experts:
        """Return one GPU's shard: some columns of every expert's hidden layer; see `Shardable`. The router is whole, so
        all GPUs choose the same experts."""
        # Every expert is a group of rows of its own, two in a fused stack.
        groups = self.sizes.count * 2 // len(self.into)
        return replace(
            self,
            sizes=shard.experts(self.sizes),
            into=tuple(shard.rows(stack, groups) for stack in self.into),
            down_stack=shard.columns(self.down_stack),
            shared=None if self.shared is None else self.shared.shard(shard),
            biases=None if self.biases is None else self.biases.shard(shard),
        )

    @property
    def gate(self) -> Stack:
        """Gate projections of all experts."""
        bias = None if self.biases is None else self.biases.gate
        return Stack(self.into[0], self.sizes.width * 2 // len(self.into), 0, self.sizes.width, bias)

    @property
    def up(self) -> Stack:
        """Up projections of all experts."""
        width, fused = self.sizes.width, len(self.into) == 1
        bias = None if self.biases is None else self.biases.up
        return Stack(self.into[-1], 2 * width if fused else width, width if fused else 0, width, bias)

    def __call__(self, x: Floats, norm: Norm | Ready, consumer: Weight | None) -> ExpertOutput:
        """Route the tokens; the returned object computes the experts while it adds them to the stream. See
        `FeedForward`."""
        # experts need the normed tokens themselves, so a deferred norm is computed here
        norm = norm.norm if isinstance(norm, Ready) else norm
        h = rms_norm(x, *norm)
        routing = self.route(h)
        return ExpertOutput(self, h, routing, None if self.shared is None else (self.shared.mix, self.shared(x, norm)))

    def route(self, h: Floats) -> Routing:
        """Route normed tokens (n, hidden) to experts."""
        (logits,) = project(h, (self.router,), f32=(True,))
        bias = None if self.biases is None else self.biases.router
        return route(logits, self.sizes.used, normalised=self.sizes.normalised, bias=bias)


@dataclass(frozen=True)
class ExpertOutput:
    """Output of the experts for normed tokens h, computed when it is added to a stream."""

    experts: Experts
    h: Floats
    routing: Routing
    shared: Shared | None

    def add_to(self, x: Floats) -> Floats:
        """Return the stream (n, hidden) plus the experts' output; on the device in place."""
        cold = self.experts.cold
        if cold is None:
            return self._add(self.experts, x)
        cold.count(self.routing.experts)
        # few tokens choose few experts: reading those over the bus is faster than copying whole stacks
        if len(x) <= BY_NEED:
            return self._add(self.experts, x)
        with cold.ring.stacks_on_device(cold.index) as (*into, down):
            return self._add(replace(self.experts, into=tuple(into), down_stack=down), x)

    def _add(self, experts: Experts, x: Floats) -> Floats:
        bias = None if experts.biases is None else experts.biases.down
        down = Stack(experts.down_stack, x.shape[1], 0, x.shape[1], bias)
        stacks = experts.gate, experts.up, down
        return add_experts(x, self.h, *stacks, self.routing, self.shared, clamped=experts.clamped)
