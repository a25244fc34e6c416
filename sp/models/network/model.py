"""Model: a language model as embedding, layers and head."""

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
from sp.models.layer.block import Sublayers
from sp.models.layer.cold_experts import ColdExperts
from sp.models.layer.steps import Flow, OnAttention, Sublayer
from sp.models.network.arithmetic import Arithmetic
from sp.models.network.weights import ModelWeights
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.embedding import embedding
from sp.ops.matmul.project import project
from sp.ops.norms import Norm, Ready, ones, rms_norm
from sp.ops.rope import Rope
from sp.ops.sampling.cap_logits import cap_logits
from sp.quant.cached import BLOCK, IN_BASIS
from sp.quant.repack import Repacked

Device = Literal["cpu", "cuda"]


@dataclass(eq=False)
class Placement:
    """Current location of a model's weights; shared by all models that use the same weights."""

    weights: ModelWeights


class Model:
    """A language model ready to run; `load_model` makes one.

    On the device, arrays go in and come out as CuPy arrays, and `layer` overwrites the residual stream it is given with
    the one it returns.

    Attributes
    ----------
    weights : ModelWeights
        Replaced when the weights are moved.
    placement : Placement
        Holder of the weights, shared with the models that `with_rope` returns.
    nbytes : int
        Bytes of all weights as stored, packed; on the CPU they are a view of the file. Experts that wait in host memory
        are excluded, the device memory reserved for copies of them is included.
    repacked : tuple of Repacked
        Weights that the device stores in another format than their file.
    cold : ColdExperts or None
        State shared by the layers whose experts wait in host memory.
    arithmetic : Arithmetic
        Precision of the products of a prompt.
    captures : bool
        True if work on the device may be captured as CUDA graphs.
    all_agree : callable or None
        Consensus over the GPUs that share the model, see `ShardModel.all_agree`; None for a model on one GPU.
    shard_count : int
        Number of GPUs that share the model.
    run_overlapped : callable or None
        Pass that overlaps computation with all-reduces, see `ShardModel.run_overlapped`; None for a model on one GPU.
    on_shared_cpu : callable
        Context manager around a pass of many tokens. Where GPUs share the model, it sets the CPU affinity of their
        threads, which launch at the same time.
    launch_lock : callable
        Context manager around launches that wait for nothing. Where GPUs share the model, their threads take turns.
    key_bases : callable or None
        Given the model, or one from `with_rope`, returns the measured bases of its keys; None for a model whose caches
        use plain bases.
    """

    captures = True
    shard_count = 1
    all_agree: Callable[[bool], bool] | None = None
    run_overlapped: Callable[[Floats, Ints, Cache, Ints], Floats] | None = None
    on_shared_cpu: Callable[[], AbstractContextManager[None]] = nullcontext
    launch_lock: Callable[[], AbstractContextManager[Any]] = nullcontext
    key_bases: Callable[[Model], Mapping[int, KeyBasis]] | None = None

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        device: Device,
        nbytes: int,
        repacked: tuple[Repacked, ...] = (),
        cold: ColdExperts | None = None,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        self.config = config
        self.placement = Placement(weights)
        self.device: Device = device
        self.nbytes = nbytes
        self.repacked = repacked
        self.cold = cold
        self.arithmetic = arithmetic or Arithmetic()

    def __repr__(self) -> str:
        c = self.config
        return f"Model({c.architecture}: {c.layers} layers of {c.hidden:,}, context {c.context:,}, {self.device})"

    @property
    def weights(self) -> ModelWeights:
        """All weights of the model, where they are now."""
        return self.placement.weights

    @weights.setter
    def weights(self, weights: ModelWeights) -> None:
        self.placement.weights = weights

    @property
    def depth(self) -> int:
        """Number of loaded layers, counted from the first."""
        return len(self.weights.blocks)

    def check_loaded(self, depth: int | None = None) -> None:
        """Raise ModelError unless the first `depth` layers are loaded, ConfigError if the model has fewer layers. By
        default all layers and the head must be loaded."""
        layers, loaded = self.config.layers, len(self.weights.blocks)
        if depth is not None and not 1 <= depth <= layers:
            raise ConfigError(f"depth is {depth}; the model has layers 1 to {layers}")
        if loaded < (layers if depth is None else depth) or (depth is None and self.weights.output is None):
            required = f"all {layers} and the head are" if depth is None else f"{depth} are"
            raise ModelError(f"only the first {loaded} layers of the model are loaded, and {required} needed")

    def with_rope(self, rotary: Rope) -> Model:
        """Return a model of the same weights, wherever they are, with another rotary embedding, which its caches and
        scorers use too."""
        return self if rotary == self.config.rope else self.with_config(replace(self.config, rope=rotary))

    def with_config(self, config: ModelConfig) -> Model:
        """Return a model of the same weights, wherever they are, with another configuration, such as a longer context
        or another rotary embedding."""
        other = copy(self)
        other.config = config
        return other

    def new_cache(
        self, tokens: int, kv: str = USUAL, *, rotate: bool | None = None, layers: int | None = None, once: bool = False
    ) -> Cache:
        """Return an empty cache for `tokens` tokens; see `Cache` for the options. With `once` the tokens are read in
        order and the cache never goes back; layers with a window then store no more than the window."""
        c, precision = self.config, self.arithmetic.attention
        # Rings of pages are for caches that never rewind.
        windows = [c.windows[layer] for layer in c.attention_layers] if once and any(c.windows) else None
        options: dict[str, Any] = {"rotate": rotate, "layers": layers, "device": self.device}
        kv = kv if isinstance(kv, KVType) else known_kv(kv)
        # Measured only for the format that uses them: it takes as long as a prompt.
        bases = self.bases_for(kv) if kv.k in IN_BASIS else {}
        return Cache(c, tokens, kv, windows=windows, precision=precision, bases=bases, **options)

    def bases_for(self, kv: str) -> Mapping[int, KeyBasis]:
        """Return the `bases` argument of a cache of type `kv`: none unless its keys are packed in one (`IN_BASIS`). If
        no one has asked for the bases of this file before, they are measured first, which takes as long as reading a
        few thousand tokens."""
        fits = all(sizes.head_dim % BLOCK == 0 for sizes in self.config.head_sizes)
        if self.key_bases is None or known_kv(kv).k not in IN_BASIS or not fits:
            return {}
        return self.key_bases(self)

    def embed(self, ids: Ints, *, normed: bool = True) -> Floats:
        """Map token ids (n,), which are not validated here, to the residual stream (n, hidden) that enters layer 0.
        With ``normed=False`` the embedding norm of some models is skipped: drafts use the raw embeddings of their
        target."""
        x = embedding(self.place(ids, np.int32), self.weights.embed)
        if self.config.embedding_scale != 1:
            x *= np.float32(self.config.embedding_scale)
        if normed and self.config.embedding_norm:
            x = rms_norm(x, ones(self.config.hidden, x), self.config.eps, f32=True)
        return x

    def place(self, values: Ints, kind: type[np.integer[Any]] = np.int64) -> Ints:
        """Return positions, or ids with `kind` int32, as an array on the model's device; on the CPU unchanged."""
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

        `x`, float32 (n, hidden): output of the previous layer for these tokens. `positions`, int64 (n,): RoPE
        positions; gaps are allowed. Causality follows the order in the cache. `cache`: takes the keys and values, or
        the new state, of all n tokens. `rows`: compute the output only for the last `rows` tokens (0 to n); all by
        default. Keys, values and states are computed for all n in any case. `on_attention`: see
        `sp.models.run.hooks.Hooks`. Returns float32 (rows, hidden).
        """
        n = len(x)
        if len(positions) != n:
            raise PromptError(f"{len(positions)} positions for {n} tokens; pass one position per token")
        rows = n if rows is None else rows
        assert 0 <= rows <= n, f"rows {rows} of {n}"
        return self.pass_layer(self.weights.layers[index], Flow(x, self.place(positions), cache, rows, on_attention))

    @property
    def deferred_norm_layers(self) -> list[Sublayers]:
        """The steps of every layer for tokens that pass all layers in one call; see `ModelWeights`."""
        return self.weights.deferred_norm_layers

    def pass_layer(self, layer: Sequence[Sublayer], flow: Flow) -> Floats:
        """Run a flow through the steps of a layer and return the stream after it. The first step, which fills the
        cache, takes all tokens; the steps after it take only the last `flow.rows`."""
        for step in chain.from_iterable(layer):
            step(flow)
            if flow.rows != len(flow.x):  # slicing costs the host a good part of a launch
                flow.x = flow.x[len(flow.x) - flow.rows :]
            if not flow.rows:
                break
        return flow.x

    def overlap_start(self, tokens: int) -> int:
        """Return the index at which `run_overlapped` splits so many tokens in two; 0 if it takes them in one piece."""
        return 0

    def full_stream(self, x: Floats) -> Floats:
        """Return the residual stream as features take it, from the one that layers pass on; they differ only where GPUs
        share the model."""
        return x

    def wait_for_event(self, event: Any) -> None:
        """Block until an event of the device has completed."""
        event.synchronize()

    def set_warm(self, known: bool) -> None:
        """State if the next queued work repeats earlier work, as after a replayed graph; see `Rank`."""

    def wait_until_done(self) -> None:
        """Block until all queued work is done, where GPUs share the model, so that a GPU that hangs is detected."""

    def head(self, x: Floats, norm: Norm | Ready | None = None) -> Floats:
        """Map the residual stream after the last layer (n, hidden) to logits (n, vocab). `norm`: the norm before the
        head, or its deferred form if the preceding product has started it, see `project_add_before`."""
        norm = (self.weights.output_norm, self.config.eps) if norm is None else norm
        assert self.weights.output is not None, "the model was loaded without its head"
        (logits,) = project(x, (self.weights.output,), norm, f32=(True,))
        scale, cap = self.config.logit_scale, self.config.final_softcap
        return logits if scale == 1 and cap is None else cap_logits(logits, scale, cap)
