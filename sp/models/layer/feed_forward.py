"""GatedMLP, Experts: feed-forwards of dense models and of mixtures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sp.arrays import Floats
from sp.models.config import ExpertConfig
from sp.models.file.weights import Store
from sp.models.layer.cold_experts import BY_NEED, ColdLayer
from sp.models.layer.share import Share
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
    def take(cls, store: Store, index: int, activation: Activation = "silu") -> GatedMLP:
        """Build that of block `index`."""
        hidden, width, blk = store.config.hidden, store.config.ffn[index], f"blk.{index}."
        return cls(
            gate=store.matrix(f"{blk}ffn_gate.weight", (width, hidden)),
            up=store.matrix(f"{blk}ffn_up.weight", (width, hidden)),
            down=store.matrix(f"{blk}ffn_down.weight", (hidden, width)),
            activation=activation,
        )

    def cut(self, share: Share) -> GatedMLP:
        """See `Shareable`: columns of the hidden layer."""
        return replace(self, gate=share.rows(self.gate), up=share.rows(self.up), down=share.columns(self.down))

    def __call__(self, x: Floats, norm: Norm | Ready, reader: Weight | None) -> Any:
        """See `FeedForward`."""
        return gated_project(x, self.gate, self.up, norm, reader, gelu=self.activation == "gelu")

    def reads(self) -> list[Weight]:
        """See `Step`."""
        return [self.gate, self.up]


@dataclass(frozen=True)
class SharedExpert:
    """``sigmoid(g · h) * down(silu(gate(h)) * up(h))`` of a normed token h."""

    mix: Floats
    gate: Weight
    up: Weight
    down: Weight

    @classmethod
    def take(cls, store: Store, index: int, width: int) -> SharedExpert:
        """Build that of block `index`."""
        hidden, blk = store.config.hidden, f"blk.{index}."
        return cls(
            mix=store.vector(f"{blk}ffn_gate_inp_shexp.weight", hidden),
            gate=store.matrix(f"{blk}ffn_gate_shexp.weight", (width, hidden)),
            up=store.matrix(f"{blk}ffn_up_shexp.weight", (width, hidden)),
            down=store.matrix(f"{blk}ffn_down_shexp.weight", (hidden, width)),
        )

    def cut(self, share: Share) -> SharedExpert:
        """See `Shareable`: columns of the hidden layer."""
        return SharedExpert(self.mix, share.rows(self.gate), share.rows(self.up), share.columns(self.down))

    def __call__(self, x: Floats, norm: Norm) -> Floats:
        """Residual stream (n, hidden) -> the feed-forward of the normed tokens, without its share."""
        (y,) = project(gated_project(x, self.gate, self.up, norm), (self.down,))
        return y


@dataclass(frozen=True)
class ExpertBiases:
    """Of router (count,), of gates and of what they gate (count, width), and of the way back (count, hidden)."""

    router: Floats
    gate: Floats
    up: Floats
    down: Floats

    @classmethod
    def take(cls, store: Store, index: int, sizes: ExpertConfig) -> ExpertBiases:
        """Build those of block `index`."""
        hidden, blk = store.config.hidden, f"blk.{index}."
        return cls(
            router=store.vector(f"{blk}ffn_gate_inp.bias", sizes.count),
            gate=store.table(f"{blk}ffn_gate_exps.bias", (sizes.count, sizes.width)),
            up=store.table(f"{blk}ffn_up_exps.bias", (sizes.count, sizes.width)),
            down=store.table(f"{blk}ffn_down_exps.bias", (sizes.count, hidden)),
        )

    def cut(self, share: Share) -> ExpertBiases:
        """See `Shareable`: as the rows they are added to; that of the way back once."""
        gate, up = (np.ascontiguousarray(share.values(bias.T).T) for bias in (self.gate, self.up))
        down = share.once(self.down)
        assert down is not None
        return ExpertBiases(self.router, gate, up, down)


@dataclass(frozen=True)
class Experts:
    """A router, the experts it chooses from, and perhaps one that is always asked; see `FeedForward`.

    Files hold gate and up either in tensors of their own or in one, of every expert the gate's rows first. Where `cold`
    is given, `into` and `down_stack` lie in host memory: few tokens read there what they chose, for many all of it is
    brought over. Source: Shazeer et al., "Outrageously Large Neural Networks", 2017; the shared expert after Dai et
    al., "DeepSeekMoE", 2024.
    """

    sizes: ExpertConfig
    router: Weight
    into: tuple[Weight, ...]
    down_stack: Weight
    shared: SharedExpert | None
    cold: ColdLayer | None = None
    biases: ExpertBiases | None = None
    clamped: bool = False  # gated by `clamped_swiglu`

    down: ClassVar[None] = None  # experts add up what they say themselves, see `Spoken`

    @classmethod
    def take(cls, store: Store, index: int, spec: LayerSpec = PLAIN) -> Experts:
        """Build those of block `index`."""
        c, hidden, blk = store.config.experts, store.config.hidden, f"blk.{index}."
        assert c is not None, "a layer of experts without their sizes"
        fused = f"{blk}ffn_gate_up_exps.weight"
        names = (fused,) if fused in store else (f"{blk}ffn_gate_exps.weight", f"{blk}ffn_up_exps.weight")
        rows = 2 * c.width // len(names)
        return cls(
            sizes=c,
            router=store.matrix(f"{blk}ffn_gate_inp.weight", (c.count, hidden)),
            into=tuple(store.stack(name, (c.count, rows, hidden)) for name in names),
            down_stack=store.stack(f"{blk}ffn_down_exps.weight", (c.count, hidden, c.width)),
            shared=SharedExpert.take(store, index, c.shared) if c.shared else None,
            biases=ExpertBiases.take(store, index, c) if spec.expert_bias else None,
            clamped=spec.activation == "clamped",
        )

    def cut(self, share: Share) -> Experts:
        """See `Shareable`: columns of every expert's hidden layer; all cards choose alike, of the whole router."""
        groups = self.sizes.count * 2 // len(self.into)
        return replace(
            self,
            sizes=share.experts(self.sizes),
            into=tuple(share.rows(stack, groups) for stack in self.into),
            down_stack=share.columns(self.down_stack),
            shared=None if self.shared is None else self.shared.cut(share),
            biases=None if self.biases is None else self.biases.cut(share),
        )

    @property
    def gate(self) -> Stack:
        """The gate of every expert."""
        bias = None if self.biases is None else self.biases.gate
        return Stack(self.into[0], self.sizes.width * 2 // len(self.into), 0, self.sizes.width, bias)

    @property
    def up(self) -> Stack:
        """The matrix that is gated, of every expert."""
        width, fused = self.sizes.width, len(self.into) == 1
        bias = None if self.biases is None else self.biases.up
        return Stack(self.into[-1], 2 * width if fused else width, width if fused else 0, width, bias)

    def __call__(self, x: Floats, norm: Norm | Ready, reader: Weight | None) -> Spoken:
        """See `FeedForward`."""
        norm = norm.norm if isinstance(norm, Ready) else norm
        h = rms_norm(x, *norm)
        routing = self.routed(h)
        return Spoken(self, h, routing, None if self.shared is None else (self.shared.mix, self.shared(x, norm)))

    def routed(self, h: Floats) -> Routing:
        """Where normed tokens (n, hidden) go."""
        (logits,) = project(h, (self.router,), f32=(True,))
        bias = None if self.biases is None else self.biases.router
        return route(logits, self.sizes.used, normalised=self.sizes.normalised, bias=bias)


@dataclass(frozen=True)
class Spoken:
    """What experts say of normed tokens h, made as it is added to a stream."""

    experts: Experts
    h: Floats
    routing: Routing
    shared: Shared | None

    def onto(self, x: Floats) -> Floats:
        """The stream (n, hidden) and it; on the device in place."""
        cold = self.experts.cold
        if cold is None:
            return self._add(self.experts, x)
        cold.count(self.routing.experts)
        if len(x) <= BY_NEED:
            return self._add(self.experts, x)
        with cold.ring.lent(cold.index) as (*into, down):
            return self._add(replace(self.experts, into=tuple(into), down_stack=down), x)

    def _add(self, experts: Experts, x: Floats) -> Floats:
        bias = None if experts.biases is None else experts.biases.down
        down = Stack(experts.down_stack, x.shape[1], 0, x.shape[1], bias)
        stacks = experts.gate, experts.up, down
        return add_experts(x, self.h, *stacks, self.routing, self.shared, clamped=experts.clamped)
