"""Steps: each computation of a layer, written once; executors (`sp.models.run`) decide when and for which tokens.

    qkv -> attend -> join        a mixer other than attention:  mix -> join mlp -> join                  the second
    sublayer of every layer

`Join` adds to the residual stream, and no other step does. A step that starts with a norm takes it from its own field,
or in the deferred form that the preceding product has started (`Flow.norm`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.kernels import is_device
from sp.models.cache.cache import Cache
from sp.models.layer.attention import Attention
from sp.ops.add_bias import add_bias
from sp.ops.array_module import array_module
from sp.ops.attention.attention import attention_output, takes_bytes
from sp.ops.attention.attention_heads import attention_heads, head_norm_rope, normed_values
from sp.ops.attention.beside_gate import beside_gate
from sp.ops.attention.byte_attention.attend import byte_output, fits
from sp.ops.attention.position_scale import scale_queries
from sp.ops.attention.score_rule import PLAIN as PLAIN_SCORES
from sp.ops.attention.score_rule import ScoreRule
from sp.ops.attention.tree_attention import tree_attention
from sp.ops.delta.delta_tree import DeltaTrace
from sp.ops.matmul.project import project, project_add, project_add_before
from sp.ops.norms import Norm, Ready, rms_norm
from sp.quant import Weight

OnAttention = Callable[[int, Floats, Cache], None]  # see `sp.models.run.hooks.Hooks`


@dataclass(frozen=True)
class Nodes:
    """A tree of tokens that continues what a cache holds, as arrays where the model is. `seen`, uint64 (nodes,): bit j
    of word i is set if node i sees node j, which is itself or an ancestor; ancestors come first."""

    ids: Ints  # int64 (nodes,), on the device int32
    positions: Ints  # int64 (nodes,): RoPE positions
    seen: Any


@dataclass
class Flow:
    """State of a pass of tokens through the steps of layers. `x`, float32 (n, hidden): the residual stream; after a
    mixer only that of the last `rows` tokens. On the device it is overwritten. `q`, `gate`: queries and gates for the
    next attention step."""

    x: Floats
    positions: Ints  # int64 (n,): where the model is
    cache: Cache
    rows: int
    on_attention: OnAttention | None = None
    nodes: Nodes | None = None  # set if the tokens are a tree, not a sequence
    trace: DeltaTrace | None = None  # records what advances recurrent states along a path of that tree
    norm: Norm | Ready | None = None  # the deferred norm of x, or the norm that was applied last
    h: Any = None  # output of the last step
    q: Any = None
    gate: Any = None
    reached: dict[int, Ints] = field(default_factory=dict)  # `Cache.reach` by window, of all n tokens

    def rule(self, mixer: Attention) -> ScoreRule:
        """Return the treatment of scores for the queries of a layer that stores its tokens with a window."""
        if not len(self.cache.places):  # the cache of a draft, whose windows count tokens, not positions
            return mixer.rule
        last = slice(len(self.positions) - len(self.q), None)
        return with_reach(mixer, self.cache, self.positions, self.reached, self.nodes is not None).of_run(last)


class Mixer(Protocol):
    """A sublayer other than `Attention` in which tokens interact."""

    @property
    def out(self) -> Weight | None:
        """Output projection, which `Join` multiplies by; None if the call does everything but the addition."""
        ...

    def __call__(self, norm: Norm | Ready, flow: Flow) -> Any:
        """Map the stream (n, hidden) to the output of the last `rows` tokens, (rows, width); the memory takes all n
        tokens."""
        ...


class FeedForward(Protocol):
    """The sublayer in which each token is processed by itself."""

    @property
    def down(self) -> Weight | None:
        """Down projection, which `Join` multiplies by; None if the call does everything but the addition."""
        ...

    def __call__(self, x: Floats, norm: Norm | Ready, consumer: Weight | None) -> Any:
        """Map the stream (n, hidden) to (n, width), in the layout that the weight `consumer` reads if that is given.
        Without `down` the output is added to the stream as it is: float32 (n, hidden), or an object with a method
        ``add_to(x)``."""
        ...


class LayerStep(Protocol):
    """One step of a layer."""

    def __call__(self, flow: Flow) -> None: ...

    def reads(self) -> list[Any] | None:
        """List all weights and vectors that the step reads; None if that is unknown, so that its launches cannot be
        replayed with those of another layer."""
        ...


@dataclass(frozen=True)
class Qkv:
    """Norm, projections, norms of heads and RoPE; stores the keys and values of all n tokens.

    Output: `Flow.q`, float32 (rows, heads, head_dim), queries of the last `rows`; `Flow.gate`, float32 (rows, heads, 2
    head_dim), query and gate rows in the layout of the wide query matrix. On the device q is float16 and the gate bf16.
    """

    mixer: Attention
    norm: Norm

    def __call__(self, flow: Flow, out: Floats | None = None) -> None:
        """Compute the step; with `out`, queries are written there if all rows are requested."""
        m, c, x, n, rows = self.mixer, self.mixer.config, flow.x, len(flow.x), flow.rows
        heads, kv_heads, head_dim = m.sizes.heads, m.sizes.kv_heads, m.sizes.head_dim
        flow.norm = norm = flow.norm or self.norm
        f32 = None if m.biases is None else (True, True, True)  # a bias is added before products are rounded to bf16
        query_weights = (m.q,) if m.gate is None else (m.q, m.gate)
        kv_weights = (m.k,) if m.v is None else (m.k, m.v)
        if rows == n:
            products = project(x, (*query_weights, *kv_weights), norm, f32)
        else:
            last = project(x[n - rows :], query_weights, norm, f32 and f32[:1])
            products = (*last, *project(x, kv_weights, norm, f32 and f32[1:]))
        if m.biases is not None:
            products = add_bias(products, m.biases)
        wide_queries, (k, *values) = products[: len(query_weights)], products[len(query_weights) :]
        # A gated q weight holds, head by head, head_dim query rows and then head_dim gate rows.
        wide = wide_queries[0].reshape(rows, heads, m.q.shape[0] // heads)
        if m.gate is not None:
            wide = beside_gate(wide, wide_queries[1].reshape(wide.shape))
        k, v = (rows_.reshape(n, kv_heads, head_dim) for rows_ in (k, values[0] if values else k))
        rotary = m.spec.rope or flow.cache.config.rope  # the cache's, not the weights': one reading may scale RoPE
        flow.gate, pages = wide if c.gated else None, flow.cache.add(m.index, n)
        query_positions = flow.positions if rows == n else flow.positions[n - rows :]
        if rows == n:
            flow.q = attention_heads(wide, k, v, m.norms, flow.positions, rotary, pages, out)
        else:
            v = normed_values(v, m.norms, flow.positions) if m.norms.values else v
            pages.append(head_norm_rope(k, head_dim, m.norms.k, m.norms.eps, flow.positions, rotary), v)
            flow.q = head_norm_rope(wide, head_dim, m.norms.q, m.norms.eps, query_positions, rotary)
        if c.query_growth is not None:
            scale_queries(flow.q, query_positions, c.query_growth)

    def reads(self) -> list[Any]:
        """List the projections, biases and norms; see `LayerStep`."""
        m = self.mixer
        return _present([m.q, m.gate, m.k, m.v, self.norm[0], *(m.biases or ()), m.norms.q, m.norms.k])


@dataclass(frozen=True)
class Attend:
    """Attention of the last tokens over all tokens that the layer stores, causal or restricted to their tree, and
    gated."""

    mixer: Attention
    consumer: Weight | None = None

    def __call__(self, flow: Flow) -> None:
        index, rule = self.mixer.index, self.mixer.rule
        if rule.window is not None:
            # Windows refer to positions, so the first visible token depends on the queries.
            rule = flow.rule(self.mixer)
        # before attention: a hook may read the queries, which are dropped below
        if flow.on_attention is not None:
            flow.on_attention(index, flow.q, flow.cache)
        if flow.nodes is None:
            flow.h = dense_attention(flow.cache, index, flow.q, flow.gate, rule)
        else:
            if rule.window is not None and rule.window < len(flow.q):
                raise ConfigError(
                    f"layer {index} has a window of {rule.window}, less than the {len(flow.q)} nodes of a tree"
                )
            options: dict[str, Any] = {"rule": rule, "wide": flow.gate, "reader": self.consumer}
            flow.h = tree_attention(flow.q, flow.cache.stored(index), seen=flow.nodes.seen, **options)
        flow.q = flow.gate = None  # as large as the prompt: gone before the feed-forward needs room

    def reads(self) -> list[Any]:
        """Attention reads no weights; see `LayerStep`."""
        return []


@dataclass(frozen=True)
class Mix:
    """A mixer other than attention."""

    mixer: Mixer
    norm: Norm

    def __call__(self, flow: Flow) -> None:
        flow.norm = flow.norm or self.norm
        flow.h = self.mixer(flow.norm, flow)

    def reads(self) -> None:
        """Unknown for a mixer of any kind; see `LayerStep`."""


@dataclass(frozen=True)
class Mlp:
    """The feed-forward without its down projection."""

    ffn: FeedForward
    norm: Norm
    consumer: Weight | None = None

    def __call__(self, flow: Flow) -> None:
        flow.norm = flow.norm or self.norm
        flow.h = self.ffn(flow.x, flow.norm, self.consumer)

    def reads(self) -> list[Any] | None:
        """List the weights of the feed-forward, if it lists them itself; see `LayerStep`."""
        reads = getattr(self.ffn, "reads", None)
        return None if reads is None else [*reads(), self.norm[0]]


@dataclass(frozen=True)
class Join:
    """``x += W h + b``, or ``x += norm(W h)``, times a scalar: the only step that changes the stream."""

    weight: Weight | None  # W; None where h is the whole contribution
    post_norm: Norm | None = None  # the norm after this sublayer
    next_norm: Norm | None = (
        None  # the norm that comes next, which the product begins if it can: see `project_add_before`
    )
    bias: Floats | None = None  # b
    scale: Floats | None = None  # float32 (1,): factor on the stream after the addition

    def __call__(self, flow: Flow) -> None:
        # `flow.norm` becomes the deferred norm only if the product below starts it.
        x, h, before, flow.norm, flow.h = flow.x, flow.h, flow.norm, self.next_norm, None
        if self.bias is not None:  # first, because the product may start the deferred norm of the sum
            x = added(x, self.bias)
        if self.post_norm is None and self.scale is None and self.next_norm is not None and self.weight is not None:
            flow.x, flow.norm = project_add_before(x, h, self.weight, self.next_norm, before)
            return
        # With a post-norm the contribution is computed apart, normed, and then added.
        to = x if self.post_norm is None else array_module(x).zeros(x.shape, np.float32)
        if self.weight is not None:
            to = project_add(to, h, self.weight)
        else:
            to = h.add_to(to) if hasattr(h, "add_to") else added(to, h)
        flow.x = to if self.post_norm is None else added(x, rms_norm(to, *self.post_norm, f32=True))
        if self.scale is not None:
            flow.x *= self.scale

    def reads(self) -> list[Any]:
        """List the matrix, bias, norm and scale; see `LayerStep`."""
        return _present([self.weight, self.bias, None if self.post_norm is None else self.post_norm[0], self.scale])


def _present(arrays: list[Any]) -> list[Any]:
    """Drop the None entries, for weights that a layer does not have."""
    return [array for array in arrays if array is not None]


def added(x: Floats, y: Floats) -> Floats:
    """Return ``x + y``: a new array, or on the device x itself."""
    if is_device(x):
        x += y
        return x
    return x + y


def with_reach(
    mixer: Attention, cache: Cache, positions: Ints, reached: dict[int, Ints], tree: bool = False
) -> ScoreRule:
    """Return the score rule of a windowed layer for the tokens at these positions, which it stores. `reached` caches
    the first visible token by window, as layers with one window share it."""
    window = mixer.rule.window
    assert window is not None, f"layer {mixer.index} has no window"
    if window not in reached:
        reached[window] = cache.reach(mixer.index, positions, window, tree=tree)
    return replace(mixer.rule, reach=reached[window])


def dense_attention(cache: Cache, layer: int, q: Floats, gate: Floats | None, rule: ScoreRule = PLAIN_SCORES) -> Floats:
    """Causal attention of the last tokens that a layer stores, gated: (n, heads * head_dim).

    `q`, float32 (n, heads, head_dim): after RoPE, not rotated for the cache. `gate`, float32 (n, heads, 2 head_dim):
    query and gate rows in the layout of the wide query matrix."""
    pages = cache.stored(layer)
    if takes_bytes(cache.precision, len(q)) and fits(q.shape[2], rule):
        return byte_output(q, pages, gate, rule)
    return attention_output(q, pages, gate, rule)


Sublayer = tuple[LayerStep, ...]  # the steps of a sublayer; the last one adds its output to the stream
