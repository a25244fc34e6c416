"""Steps: what a layer computes, each written once; executors (`sp.models.run`) say when and for which tokens.

    qkv -> attend -> join        a mixer that is no attention:  mix -> join
    mlp -> join                  the second half of every layer

`Join` adds to the residual stream, and nothing else does. A step that begins with a norm takes it unfused from its own
field, or as the product before has begun it (`Flow.norm`).
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
from sp.ops.attention.byte_attention.attend import byte_output
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
    """A tree of tokens that goes on from what a cache holds, in arrays where the model is. `seen`, uint64 (nodes,): bit
    j of word i: node i sees node j, which is itself or an ancestor; ancestors come first."""

    ids: Ints  # int64 (nodes,), on the device int32
    positions: Ints  # int64 (nodes,): where RoPE puts them
    seen: Any


@dataclass
class Flow:
    """Tokens on their way through the steps of layers. `x`, float32 (n, hidden): the residual stream; behind a mixer of
    the last `rows` tokens alone. On the device it is written over. `q`, `gate`: queries and gates of the attention that
    comes."""

    x: Floats
    positions: Ints  # int64 (n,): where the model is
    cache: Cache
    rows: int
    on_attention: OnAttention | None = None
    nodes: Nodes | None = None  # the tokens are a tree, not a run
    trace: DeltaTrace | None = None  # takes what moves the memory of recurrent layers on by a path of that tree
    norm: Norm | Ready | None = None  # the norm that x is to pass, or passed last
    h: Any = None  # what the last step made
    q: Any = None
    gate: Any = None
    reached: dict[int, Ints] = field(default_factory=dict)  # `Cache.reach` by window, of all n tokens

    def rule(self, mixer: Attention) -> ScoreRule:
        """What a layer that holds the tokens with a window does with scores of the queries."""
        if not len(self.cache.places):  # a draft's, whose windows are of tokens
            return mixer.rule
        last = slice(len(self.positions) - len(self.q), None)
        return with_reach(mixer, self.cache, self.positions, self.reached, self.nodes is not None).of_run(last)


class Mixer(Protocol):
    """A half of a layer where tokens meet that is no `Attention`."""

    @property
    def out(self) -> Weight | None:
        """The matrix that ends it, which `Join` multiplies by; None where the call has done all but the addition."""
        ...

    def __call__(self, norm: Norm | Ready, flow: Flow) -> Any:
        """What is made of the stream (n, hidden) for the last `rows` tokens: (rows, width); the memory takes all n."""
        ...


class FeedForward(Protocol):
    """The half of a layer where each token is alone."""

    @property
    def down(self) -> Weight | None:
        """As `Mixer.out`."""
        ...

    def __call__(self, x: Floats, norm: Norm | Ready, reader: Weight | None) -> Any:
        """Stream (n, hidden) -> (n, width), for the product with `reader` if that is given. Without `down` what comes
        out is added to the stream: float32 (n, hidden), or what has a method ``onto(x)``."""
        ...


class Step(Protocol):
    """One step of a layer."""

    def __call__(self, flow: Flow) -> None: ...

    def reads(self) -> list[Any] | None:
        """All weights and vectors that it reads; None where that is not known, so that its launches cannot be repeated
        with those of another layer."""
        ...


@dataclass(frozen=True)
class Qkv:
    """Norm, projections, norms of heads and RoPE: keys and values of all n tokens are stored.

    What it leaves, on the device q in float16 and the gate in bf16: `Flow.q`, float32 (rows, heads, head_dim), queries
    of the last `rows`; `Flow.gate`, float32 (rows, heads, 2 head_dim), query and gate rows as the wide query matrix
    gives them.
    """

    mixer: Attention
    norm: Norm

    def __call__(self, flow: Flow, out: Floats | None = None) -> None:
        """With `out`, queries are written there if all are asked for."""
        m, c, x, n, rows = self.mixer, self.mixer.config, flow.x, len(flow.x), flow.rows
        heads, kv_heads, head_dim = m.sizes.heads, m.sizes.kv_heads, m.sizes.head_dim
        flow.norm = norm = flow.norm or self.norm
        f32 = None if m.biases is None else (True, True, True)  # a bias is added before products are rounded to bf16
        asking = (m.q,) if m.gate is None else (m.q, m.gate)
        asked_of = (m.k,) if m.v is None else (m.k, m.v)
        if rows == n:
            found = project(x, (*asking, *asked_of), norm, f32)
        else:
            last = project(x[n - rows :], asking, norm, f32 and f32[:1])
            found = (*last, *project(x, asked_of, norm, f32 and f32[1:]))
        if m.biases is not None:
            found = add_bias(found, m.biases)
        asked, (k, *values) = found[: len(asking)], found[len(asking) :]
        # A gated q weight holds, head by head, head_dim query rows and then head_dim gate rows.
        wide = asked[0].reshape(rows, heads, m.q.shape[0] // heads)
        if m.gate is not None:
            wide = beside_gate(wide, asked[1].reshape(wide.shape))
        k, v = (each.reshape(n, kv_heads, head_dim) for each in (k, values[0] if values else k))
        rotary = m.spec.rope or flow.cache.config.rope  # not that of the weights: a reading may scale it
        flow.gate, at = wide if c.gated else None, flow.cache.add(m.index, n)
        places = flow.positions if rows == n else flow.positions[n - rows :]
        if rows == n:
            flow.q = attention_heads(wide, k, v, m.norms, flow.positions, rotary, at, out)
        else:
            v = normed_values(v, m.norms, flow.positions) if m.norms.values else v
            at.append(head_norm_rope(k, head_dim, m.norms.k, m.norms.eps, flow.positions, rotary), v)
            flow.q = head_norm_rope(wide, head_dim, m.norms.q, m.norms.eps, places, rotary)
        if c.query_growth is not None:
            scale_queries(flow.q, places, c.query_growth)

    def reads(self) -> list[Any]:
        """See `Step`."""
        m = self.mixer
        return _there([m.q, m.gate, m.k, m.v, self.norm[0], *(m.biases or ()), m.norms.q, m.norms.k])


@dataclass(frozen=True)
class Attend:
    """Attention of the last tokens over all that the layer holds, under their tree or causal, gated."""

    mixer: Attention
    reader: Weight | None = None

    def __call__(self, flow: Flow) -> None:
        index, rule = self.mixer.index, self.mixer.rule
        if rule.window is not None:
            rule = flow.rule(self.mixer)
        if flow.on_attention is not None:
            flow.on_attention(index, flow.q, flow.cache)
        if flow.nodes is None:
            flow.h = dense_attention(flow.cache, index, flow.q, flow.gate, rule)
        else:
            if rule.window is not None and rule.window < len(flow.q):
                raise ConfigError(
                    f"layer {index} has a window of {rule.window}, less than the {len(flow.q)} nodes of a tree"
                )
            how: dict[str, Any] = {"rule": rule, "wide": flow.gate, "reader": self.reader}
            flow.h = tree_attention(flow.q, flow.cache.stored(index), seen=flow.nodes.seen, **how)
        flow.q = flow.gate = None  # as large as the prompt: gone before the feed-forward needs room

    def reads(self) -> list[Any]:
        """See `Step`."""
        return []


@dataclass(frozen=True)
class Mix:
    """A mixer that is no attention."""

    mixer: Mixer
    norm: Norm

    def __call__(self, flow: Flow) -> None:
        flow.norm = flow.norm or self.norm
        flow.h = self.mixer(flow.norm, flow)

    def reads(self) -> None:
        """See `Step`."""


@dataclass(frozen=True)
class Mlp:
    """The feed-forward, but for its last product."""

    ffn: FeedForward
    norm: Norm
    reader: Weight | None = None

    def __call__(self, flow: Flow) -> None:
        flow.norm = flow.norm or self.norm
        flow.h = self.ffn(flow.x, flow.norm, self.reader)

    def reads(self) -> list[Any] | None:
        """See `Step`; of a feed-forward that says so itself."""
        reads = getattr(self.ffn, "reads", None)
        return None if reads is None else [*reads(), self.norm[0]]


@dataclass(frozen=True)
class Join:
    """``x += W h + b``, or ``x += norm(W h)``, times a number: the one place where the stream is changed."""

    weight: Weight | None  # W; None where h is the whole contribution
    behind: Norm | None = None  # the norm behind this half
    then: Norm | None = None  # the norm that comes next, which the product begins if it can: see `project_add_before`
    bias: Floats | None = None  # b
    scale: Floats | None = None  # float32 (1,): what the stream is multiplied by then

    def __call__(self, flow: Flow) -> None:
        x, h, before, flow.norm, flow.h = flow.x, flow.h, flow.norm, self.then, None
        if self.bias is not None:  # first, as the product may begin a norm of the sum
            x = added(x, self.bias)
        if self.behind is None and self.scale is None and self.then is not None and self.weight is not None:
            flow.x, flow.norm = project_add_before(x, h, self.weight, self.then, before)
            return
        to = x if self.behind is None else array_module(x).zeros(x.shape, np.float32)
        if self.weight is not None:
            to = project_add(to, h, self.weight)
        else:
            to = h.onto(to) if hasattr(h, "onto") else added(to, h)
        flow.x = to if self.behind is None else added(x, rms_norm(to, *self.behind, f32=True))
        if self.scale is not None:
            flow.x *= self.scale

    def reads(self) -> list[Any]:
        """See `Step`."""
        return _there([self.weight, self.bias, None if self.behind is None else self.behind[0], self.scale])


def _there(found: list[Any]) -> list[Any]:
    """Without what a layer has not."""
    return [one for one in found if one is not None]


def added(x: Floats, y: Floats) -> Floats:
    """``x + y``: a new array, on the device x itself."""
    if is_device(x):
        x += y
        return x
    return x + y


def with_reach(
    mixer: Attention, cache: Cache, positions: Ints, reached: dict[int, Ints], tree: bool = False
) -> ScoreRule:
    """What a layer with a window does with scores of tokens at these positions, which it holds; windows that layers
    before had are in `reached`."""
    window = mixer.rule.window
    assert window is not None, f"layer {mixer.index} has no window"
    if window not in reached:
        reached[window] = cache.reach(mixer.index, positions, window, tree=tree)
    return replace(mixer.rule, reach=reached[window])


def dense_attention(cache: Cache, layer: int, q: Floats, gate: Floats | None, rule: ScoreRule = PLAIN_SCORES) -> Floats:
    """Causal attention of the last tokens of what a layer holds, gated: (n, heads * head_dim).

    `q`, float32 (n, heads, head_dim): after RoPE, not rotated for the cache. `gate`, float32 (n, heads, 2 head_dim):
    query and gate rows as the wide query matrix gives them."""
    at = cache.stored(layer)
    if rule.fits_bytes and takes_bytes(cache.precision, len(q)):
        return byte_output(q, at, gate, rule)
    return attention_output(q, at, gate, rule)


Half = tuple[Step, ...]  # steps of half a layer; the last one joins it to the stream
