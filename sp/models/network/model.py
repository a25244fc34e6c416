"""Model: embed, layer and head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError, ModelError, PromptError
from sp.kernels import import_cupy, is_device
from sp.models.cache.cache import Cache
from sp.models.cache.kv_type import USUAL, KVType, known_kv
from sp.models.config import ModelConfig
from sp.models.layer.block import Halves
from sp.models.layer.cold_experts import ColdExperts
from sp.models.layer.steps import Flow, Half, OnAttention
from sp.models.network.arithmetic import Arithmetic
from sp.models.network.trunk import Trunk
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.embedding import embedding
from sp.ops.matmul.project import project
from sp.ops.norms import Norm, Ready, ones, rms_norm
from sp.ops.rope import Rope
from sp.ops.sampling.cap_logits import cap_logits
from sp.quant.cached import K5
from sp.quant.repack import Repacked

Device = Literal["cpu", "cuda"]


@dataclass(eq=False)
class Placement:
    """Where a model's weights lie now; one for all models of the same weights."""

    trunk: Trunk


class Model:
    """A language model ready to run; `load_model` makes one.

    On the device, arrays go in and come out as CuPy arrays, and the residual stream given to `layer` is
    overwritten by the one it returns.

    Attributes
    ----------
    trunk : Trunk
        Another one where weights are put elsewhere.
    placement : Placement
        Of the weights, which models by `with_rope` share.
    nbytes : int
        Bytes of all weights as they are held, packed: on the CPU as a view of the file; without experts that wait in
        host memory, but with the room they come to.
    repacked : tuple of Repacked
        Weights that the device holds in another format than their file.
    cold : ColdExperts or None
        What layers share whose experts wait in host memory.
    arithmetic : Arithmetic
        What products of a prompt are made in.
    captures : bool
        Whether work on the device may become CUDA graphs.
    agreed : callable or None
        See `ShardModel.agreed`; None of a model that nobody else has a share of.
    sharers : int
        Cards that have a share of it.
    in_parts : callable or None
        See `ShardModel.in_parts`; None of a model that nobody else has a share of.
    queueing : callable
        Around a pass of many tokens; where cards share the model, they queue it side by side.
    turn : callable
        Around what is queued at once, and nothing waits for; where cards share the model, one after the other.
    key_bases : callable or None
        Given the model, or one by `with_rope`, the bases of its keys that were measured; None of a model whose caches
        have plain ones.
    """

    captures = True
    sharers = 1
    agreed: Callable[[bool], bool] | None = None
    in_parts: Callable[[Floats, Ints, Cache, Ints], Floats] | None = None
    queueing: Callable[[], AbstractContextManager[None]] = nullcontext
    turn: Callable[[], AbstractContextManager[Any]] = nullcontext
    key_bases: Callable[[Model], Mapping[int, KeyBasis]] | None = None

    def __init__(
        self,
        config: ModelConfig,
        trunk: Trunk,
        device: Device,
        nbytes: int,
        repacked: tuple[Repacked, ...] = (),
        cold: ColdExperts | None = None,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        self.config = config
        self.placement = Placement(trunk)
        self.device: Device = device
        self.nbytes = nbytes
        self.repacked = repacked
        self.cold = cold
        self.arithmetic = arithmetic or Arithmetic()

    def __repr__(self) -> str:
        of = self.config
        return f"Model({of.architecture}: {of.layers} layers of {of.hidden:,}, context {of.context:,}, {self.device})"

    @property
    def trunk(self) -> Trunk:
        """See `Model`."""
        return self.placement.trunk

    @trunk.setter
    def trunk(self, trunk: Trunk) -> None:
        self.placement.trunk = trunk

    @property
    def depth(self) -> int:
        """Layers that are loaded, the first ones."""
        return len(self.trunk.blocks)

    def check_loaded(self, depth: int | None = None) -> None:
        """ModelError unless so many layers are loaded, ConfigError if the model has fewer; by default all of them and
        the head."""
        layers, loaded = self.config.layers, len(self.trunk.blocks)
        if depth is not None and not 1 <= depth <= layers:
            raise ConfigError(f"depth is {depth}; the model has layers 1 to {layers}")
        if loaded < (layers if depth is None else depth) or (depth is None and self.trunk.output is None):
            wanted = f"all {layers} and the head are" if depth is None else f"{depth} are"
            raise ModelError(f"only the first {loaded} layers of the model are loaded, and {wanted} needed")

    def with_rope(self, rotary: Rope) -> Model:
        """The same weights, wherever they lie, with another rotary embedding: that of its caches and of its scorers."""
        return self if rotary == self.config.rope else self.read_as(replace(self.config, rope=rotary))

    def read_as(self, config: ModelConfig) -> Model:
        """The same weights, wherever they lie, for who reads further, or by another rotary embedding."""
        other = copy(self)
        other.config = config
        return other

    def new_cache(
        self, tokens: int, kv: str = USUAL, *, rotate: bool | None = None, layers: int | None = None, once: bool = False
    ) -> Cache:
        """An empty cache for `tokens` tokens; see `Cache` for the options. `once`: they are read one after the other,
        and never again from a place further back: layers with a window then keep no more than it reaches."""
        c, precision = self.config, self.arithmetic.attention
        windows = [c.windows[layer] for layer in c.attention_layers] if once and any(c.windows) else None
        how: dict[str, Any] = {"rotate": rotate, "layers": layers, "device": self.device}
        kv = kv if isinstance(kv, KVType) else known_kv(kv)
        bases = self.bases_for(kv) if kv.k is K5 else {}
        return Cache(c, tokens, kv, windows=windows, precision=precision, bases=bases, **how)

    def bases_for(self, kv: str) -> Mapping[int, KeyBasis]:
        """What a cache of that name takes as `bases`: none, unless its keys are packed in `K5`. Those of a file that
        nobody asked for yet are measured first, which takes as long as some thousand tokens."""
        fits = all(sizes.head_dim % K5.block_size == 0 for sizes in self.config.head_sizes)
        if self.key_bases is None or known_kv(kv).k is not K5 or not fits:
            return {}
        return self.key_bases(self)

    def embed(self, ids: Ints, *, normed: bool = True) -> Floats:
        """Token ids (n,), which nobody looks at any more, -> the residual stream (n, hidden) that enters layer 0.
        Without `normed` the norm that some models have there is left out: drafts take what their target looks up."""
        x = embedding(self.place(ids, np.int32), self.trunk.embed)
        if self.config.embedding_scale != 1:
            x *= np.float32(self.config.embedding_scale)
        if normed and self.config.embedding_norm:
            x = rms_norm(x, ones(self.config.hidden, x), self.config.eps, f32=True)
        return x

    def place(self, values: Ints, kind: type[np.integer[Any]] = np.int64) -> Ints:
        """Positions, or as int32 ids, as an array where the model is; on the CPU as they are."""
        if self.device == "cpu" or is_device(values):
            return values
        placed: Ints = import_cupy().asarray(values, kind)
        return placed

    def layer(
        self,
        index: int,
        x: Floats,
        positions: Ints,
        cache: Cache,
        *,
        rows: int | None = None,
        on_attention: OnAttention | None = None,
    ) -> Floats:
        """Run one layer over the next tokens of a sequence.

        `x`, float32 (n, hidden): what the layer before returned for these tokens. `positions`, int64 (n,): where RoPE
        puts them; gaps allowed. Who sees whom follows the order in the cache. `cache`: takes the keys and values, or
        the new state, of all n tokens. `rows`: compute the output only for the last `rows` tokens (0 to n); all by
        default. Keys, values and states are computed for all n in any case. `on_attention`: see
        `sp.models.run.hooks.Hooks`. Returns float32 (rows, hidden).
        """
        n = len(x)
        if len(positions) != n:
            raise PromptError(f"{len(positions)} positions for {n} tokens; give one position a token")
        rows = n if rows is None else rows
        assert 0 <= rows <= n, f"rows {rows} of {n}"
        return self.pass_layer(self.trunk.layers[index], Flow(x, self.place(positions), cache, rows, on_attention))

    @property
    def chained_layers(self) -> list[Halves]:
        """The steps of every layer for tokens that pass all of them at once; see `Trunk`."""
        return self.trunk.chained_layers

    def pass_layer(self, layer: Sequence[Half], flow: Flow) -> Floats:
        """What flows, through the steps of a layer: the stream behind it. The first step, which fills the memory, takes
        all tokens, and only those that are wanted go on."""
        for step in chain.from_iterable(layer):
            step(flow)
            if flow.rows != len(flow.x):  # to cut an array takes the host a good part of a launch
                flow.x = flow.x[len(flow.x) - flow.rows :]
            if not flow.rows:
                break
        return flow.x

    def parts_at(self, tokens: int) -> int:
        """Where the second of two parts begins in which `in_parts` takes so many tokens; 0 where they go in one."""
        return 0

    def whole(self, x: Floats) -> Floats:
        """The residual stream as features take it, of one as layers hand it on: the same, but where cards share it."""
        return x

    def arrived(self, event: Any) -> None:
        """Wait until an event of the device has happened."""
        event.synchronize()

    def done_before(self, known: bool) -> None:
        """Say whether what is queued next was done before, as after a graph that was replayed; see `Card`."""

    def settled(self) -> None:
        """Wait until what was queued is done, where cards share the model: one that hangs is found out."""

    def head(self, x: Floats, norm: Norm | Ready | None = None) -> Floats:
        """Residual stream after the last layer (n, hidden) -> logits (n, vocab). `norm`: that before the head if the
        product before has begun it, see `project_add_before`."""
        norm = (self.trunk.output_norm, self.config.eps) if norm is None else norm
        assert self.trunk.output is not None, "the model was loaded without its head"
        (logits,) = project(x, (self.trunk.output,), norm, f32=(True,))
        scale, cap = self.config.logit_scale, self.config.final_softcap
        return logits if scale == 1 and cap is None else cap_logits(logits, scale, cap)
