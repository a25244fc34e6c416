"""Importance by the attention of a drafter: options, reading, folding, and the scorer that asks with the tail."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.kernels import import_cupy, is_device
from sp.models import (
    Cache,
    Hooks,
    LayerAttention,
    Model,
    ModelConfig,
    read_by_layer,
    read_by_layer_on,
    read_repeated,
)
from sp.models.run.hooks import looked_at
from sp.ops.array_module import array_module
from sp.ops.attention.attention_heads import unrotate
from sp.ops.attention.importance import STEPS, Edges, Folded, Pooling, Reduction, average_pool, fold_weights, importance
from sp.ops.attention.kv_pages import PagedKV, unpacked_pages
from sp.quant import F16, F32
from sp.scoring.base import (
    HEATMAP_CHUNK,
    Importance,
    ReadingScorer,
    ScoreRequest,
    densities,
    question_start,
    register_scorer,
)

Rotary = Literal["post", "none"]
LayerSet = Literal["middle", "last_half", "every_second"]
MOST_QUESTION_TOKENS = 64  # of a longer question only the last tokens are queries, for the memory of their weights


Take = Callable[[int, Floats, PagedKV], None]
"""Sees each scored layer: (layer, queries (n, heads, head_dim), keys of all tokens), both as they are scored."""


@dataclass(frozen=True)
class AttentionScorer(ReadingScorer):
    """Options of scorers that reduce a drafter's attention.

    Parameters
    ----------
    sparse
        See `ReadingScorer`.
    queries : int or "question"
        Number of query tokens whose attention counts, or all from the first token of the question on.
    rotary : {"post", "none"}
        Score with rotary embedding (as the drafter attends) or without it (position-free relevance).
    order, over_heads, over_queries, pool, pooling, edges
        The steps of `Reduction` and how each is done.
    layers : tuple of int, or "middle", "last_half", "every_second", optional
        Layers whose attention counts; negative ones count from the end of those that are run. The named sets are
        taken of the attention layers that are run, every second one from the last on. All by default; of a drafter with
        windows those that have none, unless numbers are given.
    depth : int, optional
        Run only so many of the drafter's layers.
    """

    keeps: ClassVar[bool] = True

    queries: int | Literal["question"] = 8
    rotary: Rotary = "post"
    order: str = "pool,heads,queries"
    over_heads: Literal["max", "mean"] = "max"
    over_queries: Literal["mean", "max"] = "mean"
    pool: int = 13
    pooling: Pooling = "mean"
    edges: Edges = "renormalise"
    layers: tuple[int, ...] | LayerSet | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queries != "question" and self.queries < 1:
            raise ConfigError(f"queries must be at least 1, not {self.queries}")
        if self.depth is not None and self.depth < 1:
            raise ConfigError(f"depth must be at least 1, not {self.depth}")
        _ = self.reduction  # which checks its steps

    @cached_property
    def reduction(self) -> Reduction:
        """The reduction these options describe."""
        return Reduction(self.order, self.over_heads, self.over_queries, self.pool, self.edges, self.pooling)

    def scored_layers(self, config: ModelConfig) -> tuple[int, ...]:
        """Attention layers that count, ascending. ConfigError for a layer that is not run or has no attention, or when
        none is left.
        """
        depth = config.layers if self.depth is None else self.depth
        if depth > config.layers:
            raise ConfigError(f"depth is {depth}, but the drafter has {config.layers} layers")
        there = [layer for layer in config.attention_layers if layer < depth]
        # A layer with a window was never asked about what lies further back: its weights there mean nothing.
        wide = [layer for layer in config.global_layers if layer < depth] or there
        if self.layers is None:
            asked = wide
        elif isinstance(self.layers, str):
            half = len(wide) // 2
            asked = {"middle": wide[half : half + 1], "last_half": wide[half:], "every_second": wide[::-2]}[self.layers]
        else:
            asked = [layer + depth * (layer < 0) for layer in self.layers]
        for layer in asked:
            if layer not in there:
                raise ConfigError(f"layer {layer} is not among the attention layers that are run: {there}")
        if not asked:
            raise ConfigError(f"none of the first {depth} layers of the drafter has attention")
        return tuple(sorted(set(asked)))

    def reading_depth(self, config: ModelConfig) -> int | None:
        """Up to the last layer that counts."""
        return self.scored_layers(config)[-1] + 1

    def query_count(self, request: ScoreRequest) -> int:
        """Number of the prompt's last tokens that are queries."""
        n = len(request.ids)
        if self.queries != "question":
            return min(self.queries, n)
        return min(n - question_start(request), MOST_QUESTION_TOKENS)

    def read(self, request: ScoreRequest, take: Take, like: Hashable | None = None) -> LayerAttention:
        """Let the drafter read the prompt once, and show every scored layer with the last tokens' queries. The memory
        held is the stream and one layer's queries, keys and values, at any depth. Layers behind the last that counts
        are not run, and that one does not attend. `like` names what `take` does on the device, for `read_by_layer_on`.
        """
        model, queries = request.model, self.query_count(request)
        scored, attend = self.scored_layers(model.config), self.attend(request)

        def show(layer: int, q: Floats, cache: Cache) -> None:
            if layer not in scored:
                return
            rows, at = q[-queries:], cache.stored(layer)
            if model.trunk.blocks[layer].spec.scale is not None:
                rows = asked_rows(rows, model, layer)
            if self.rotary == "none":
                rows = unrotated_rows(rows, request.positions[-queries:], model, layer)
                at = unrotated_keys(at, request.positions, model, layer)
            take(layer, rows, replace(at, tokens=len(request.ids)))

        like = None if like is None or self.rotary != "post" else (scored, like)
        hooks = Hooks(on_attention=show, queues=like)
        read_on(request, hooks, attend=attend, rows=queries, depth=scored[-1] + 1)
        return attend


def read_on(request: ScoreRequest, hooks: Hooks, *, attend: LayerAttention, rows: int, depth: int) -> None:
    """Read a prompt as `read_by_layer` does: with the keys of one layer at a time, or what a trail lacks into it. Where
    several cards are given and no keys are kept, they read it together. Progress goes to the request's. The last `rows`
    tokens are read in any case, since their queries are wanted.
    """
    model, n, keys = request.model, len(request.ids), request.keys
    how: dict[str, Any] = {"attend": attend, "depth": depth}
    hooks = replace(hooks, progress=request.progress)
    if keys is None and request.cards is not None:
        read_by_layer_on(*request.cards, request.ids, request.positions, hooks, rows=rows, **how)
        return
    if (
        keys is None
        and model.device == "cuda"
        and read_repeated(model, request.ids, request.positions, hooks, rows=rows, **how)
    ):
        return
    if keys is None:
        cache = model.new_cache(n, layers=1)
        read_by_layer(model, request.ids, request.positions, cache, hooks, rows=rows, **how)
        return
    at, trail = keys.trail.back_to(n - rows), keys.trail
    stops = [stop for stop in keys.stops if at < stop <= n - rows] if trail.recurrent else []
    for stop in [*stops, n]:
        part, last = (request.ids[at:stop], request.positions[at:stop]), stop == n
        with trail.reading(n - at) as cache:
            seen = hooks if last else replace(hooks, on_attention=None)
            read_by_layer(model, *part, cache, seen, rows=rows if last else 1, keep_kv=True, **how)
        at = stop
        if not last:
            trail.mark()


def asked_rows(q: Floats, model: Model, layer: int) -> Floats:
    """Queries of a layer as they are scored, which divides their products with keys by the root of the head size: times
    what makes of that the layer's own scale; the ones given stay as they are."""
    scale = model.trunk.blocks[layer].spec.scale
    return q if scale is None else q * q.dtype.type(scale * q.shape[2] ** 0.5)


def unrotated_rows(q: Floats, positions: Ints, model: Model, layer: int) -> Floats:
    """Queries of a layer without rotary embedding; the ones given stay as they are."""
    return unrotate(q.copy() if is_device(q) else q, model.place(positions), model.config.rope_of(layer))


def unrotated_keys(at: PagedKV, positions: Ints, model: Model, layer: int) -> PagedKV:
    """A layer's keys of the first ``len(positions)`` tokens without rotary embedding, in pages of their own. They
    stand in place of the values, which none reads.
    """
    at, rotary = replace(at, tokens=len(positions)), model.config.rope_of(layer)
    plain: dict[str, Any] = {"rotated": False, "basis": None}
    if is_device(at.k):
        pages = unpacked_pages(at.k, at.table, at.tokens, at.fmt)
        rows = at.as_model(pages.reshape(-1, *pages.shape[2:]))
        unrotate(rows[: at.tokens], model.place(positions), rotary)
        bits, table = rows.reshape(pages.shape).view(np.uint8), import_cupy().arange(len(pages), dtype=np.int32)
        return replace(at, k=bits, v=bits, table=table, fmt=F16, value_fmt=F16, **plain)
    keys = unrotate(at.model_keys(), positions, rotary)
    bits = np.ascontiguousarray(keys).view(np.uint8)[None]
    return replace(at, k=bits, v=bits, table=np.zeros(1, np.int64), fmt=F32, value_fmt=F32, **plain)


__all__ = ["STEPS", "Fold", "Reduction", "average_pool"]


@dataclass
class Fold:
    """Running reduction over the layers of a drafter, in NumPy or on the device.

    `over_layers`: how layers are reduced, after the heads of each by themselves; without it heads of all layers are
    reduced together, which is the same where heads are reduced likewise, since all layers have as many.

    >>> fold = Fold(Reduction(pool=1), over_layers="mean")
    >>> for top in (0.5, 1.0):
    ...     fold.add(np.array([[[top, 0]], [[0, 0.25]]], np.float32))
    >>> fold.result().tolist()
    [0.75, 0.25]
    """

    reduction: Reduction
    by_head: bool = False
    over_layers: Literal["mean", "max"] | None = None
    running: Any = None
    count: int = 0
    layers: list[Any] = field(default_factory=list)
    heads: list[Any] = field(default_factory=list)
    _host: float = 0.0  # seconds that `add_layer` took, or
    _events: list[tuple[Any, Any]] = field(default_factory=list)  # on the device between which it worked

    def add(self, probs: Floats) -> None:
        """Fold in one layer's weights (heads, queries, tokens)."""
        into = None if self.over_layers else self.running
        self._take(fold_weights(probs, self.reduction, into, by_head=self.by_head), len(probs))

    def add_layer(self, q: Floats, keys: PagedKV, *, causal: bool) -> None:
        """Fold in the weights of queries (n, heads, head_dim) over a layer's keys; see `importance`."""
        stream = import_cupy().cuda.get_current_stream() if is_device(q) else None
        start, begun = time.perf_counter(), stream and stream.record()
        into = None if self.over_layers else self.running
        found = importance(q, keys, self.reduction, into, causal=causal, by_head=self.by_head)
        self._take(found, q.shape[1])
        if stream is None:
            self._host += time.perf_counter() - start
        else:
            self._events.append((begun, stream.record()))

    def _take(self, found: Folded, heads: int) -> None:
        before, self.running = self.running, found.running
        if self.over_layers:
            layer = found.running / np.float32(heads) if self.reduction.heads == "mean" else found.running
            if before is not None:
                layer = array_module(layer).maximum(before, layer) if self.over_layers == "max" else before + layer
            self.running, heads = layer, 0
        self.layers.append(found.by_layer)
        if found.by_head is not None:
            self.heads.append(found.by_head)
        self.count += heads

    def result(self) -> Floats:
        """Importance (tokens,) after the steps that come behind the heads; waits for the device."""
        assert self.running is not None, "no layer was folded in"
        running = looked_at([self.running])[0]
        if self.over_layers is None:
            return self.reduction.finish(running, self.count)
        return self.reduction.finish(running / np.float32(len(self.layers) if self.over_layers == "mean" else 1), 1)

    def importance(self, attend: LayerAttention, generated: tuple[int, ...] = ()) -> Importance:
        """What a scorer returns of the layers that were folded in; waits for the device, which nobody does before."""
        by_head = np.stack(looked_at(self.heads)) if self.heads else None
        found = self.result(), np.stack(looked_at(self.layers)), generated, by_head, densities(attend)
        for _, ended in self._events:
            ended.synchronize()
        times = (import_cupy().cuda.get_elapsed_time(*pair) for pair in self._events)
        return Importance(*found, weighing=float(self._host + sum(times) / 1e3))


@register_scorer("tail")
@dataclass(frozen=True)
class TailScorer(AttentionScorer):
    """Attention of the last `queries` prompt tokens; nothing is generated.

    Where the chat template opens or closes thinking behind the question, it is that of the question's last tokens, and
    the drafter reads no further: the marks would be most of the queries, and a drafter asked by them finds few needles.

    Notes
    -----
    Source of the idea: SpecPrefill (arXiv 2502.02789) with prompt tokens in place of look-ahead tokens.
    It fails where the end of the prompt does not yet ask for the needle; `lookahead` is safer there.
    """

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and reduce the tail's attention."""
        fold = Fold(self.reduction, request.by_head)
        asking = request if self.queries == "question" else without_markup(request)
        like = (fold.reduction, fold.by_head) if fold.reduction.in_kernel else None
        found = fold.importance(self.read(asking, lambda _, q, keys: fold.add_layer(q, keys, causal=True), like))
        return found if asking is request else padded(found, len(request.ids))


def without_markup(request: ScoreRequest) -> ScoreRequest:
    """The request up to its last token that asks."""
    end = request.asked
    if end is None or end >= len(request.ids):
        return request
    cut = {name: getattr(request, name)[:end] for name in ("ids", "positions", "question", "needle")}
    return replace(request, **cut, spans=None if request.spans is None else request.spans[:end])


def padded(found: Importance, tokens: int) -> Importance:
    """The same for so many tokens: those behind the queries have no importance."""

    def pad(values: Floats | None, size: int) -> Floats | None:
        if values is None:
            return None
        return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, size - values.shape[-1])])

    chunks = -(-tokens // HEATMAP_CHUNK)
    scores = np.pad(found.scores, (0, tokens - len(found.scores)))
    return replace(found, scores=scores, by_layer=pad(found.by_layer, chunks), by_head=pad(found.by_head, chunks))
