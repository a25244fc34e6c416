"""Importance by the attention of a drafter: options, the pass over the prompt, the reduction, and scorer `tail`."""

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
    read_context_parallel,
    read_layer_major,
    read_with_replay,
)
from sp.models.cache.transfer import copy_pages
from sp.models.run.hooks import counts_on_host
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
MOST_QUESTION_TOKENS = 64  # of a longer question only the last tokens are queries, to bound the memory of their weights


OnLayer = Callable[[int, Floats, PagedKV], None]
"""Called for each scored layer: (layer, queries (n, heads, head_dim), keys of all tokens), both as they are scored."""


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
        The order and the kinds of the steps of `Reduction`.
    layers : tuple of int, or "middle", "last_half", "every_second", optional
        Layers whose attention counts; negative numbers count from the end of those that are run. The named sets are
        subsets of the attention layers that are run; every second one counts from the last. All by default; of a
        drafter with sliding windows only the layers without a window, unless numbers are given.
    depth : int, optional
        Number of the drafter's layers to run; all by default.
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
        _ = self.reduction  # whose constructor checks the steps

    @cached_property
    def reduction(self) -> Reduction:
        """The reduction these options describe."""
        return Reduction(self.order, self.over_heads, self.over_queries, self.pool, self.edges, self.pooling)

    def scored_layers(self, config: ModelConfig) -> tuple[int, ...]:
        """Return the attention layers that count, ascending.

        ConfigError: a layer is not run or has no attention, or none is left.
        """
        depth = config.layers if self.depth is None else self.depth
        if depth > config.layers:
            raise ConfigError(f"depth is {depth}, but the drafter has {config.layers} layers")
        there = [layer for layer in config.attention_layers if layer < depth]
        # A layer with a window was never trained on keys further back, so its weights on them mean nothing.
        wide = [layer for layer in config.global_layers if layer < depth] or there
        if self.layers is None:
            scored = wide
        elif isinstance(self.layers, str):
            half = len(wide) // 2
            scored = {"middle": wide[half : half + 1], "last_half": wide[half:], "every_second": wide[::-2]}[
                self.layers
            ]
        else:
            scored = [layer + depth * (layer < 0) for layer in self.layers]
        for layer in scored:
            if layer not in there:
                raise ConfigError(f"layer {layer} is not among the attention layers that are run: {there}")
        if not scored:
            raise ConfigError(f"none of the first {depth} layers of the drafter has attention")
        return tuple(sorted(set(scored)))

    def reading_depth(self, config: ModelConfig) -> int | None:
        """Return the number of layers up to the last one that counts."""
        return self.scored_layers(config)[-1] + 1

    def query_count(self, request: ScoreRequest) -> int:
        """Return the number of the prompt's last tokens that are queries."""
        n = len(request.ids)
        if self.queries != "question":
            return min(self.queries, n)
        return min(n - question_start(request), MOST_QUESTION_TOKENS)

    def visit_layers(
        self, request: ScoreRequest, on_layer: OnLayer, replay_key: Hashable | None = None
    ) -> LayerAttention:
        """Run the drafter over the prompt and call `on_layer` for every scored layer with the last tokens' queries.

        Memory holds the residual stream and the queries, keys and values of one layer. Layers after the last scored one
        are not run, and that one computes no attention output.

        Parameters
        ----------
        replay_key : hashable, optional
            Identifies the kernels that `on_layer` launches, if they are those of `sp` alone: launches of equal keys may
            be recorded once and replayed, see `read_context_parallel`.
        """
        model, queries = request.model, self.query_count(request)
        scored, attend = self.scored_layers(model.config), self.attend(request)

        def show(layer: int, q: Floats, cache: Cache) -> None:
            if layer not in scored:
                return
            rows, keys = q[-queries:], cache.stored(layer)
            if model.weights.blocks[layer].spec.scale is not None:
                rows = scaled_queries(rows, model, layer)
            if self.rotary == "none":
                rows = unrotated_queries(rows, request.positions[-queries:], model, layer)
                keys = unrotated_keys(keys, request.positions, model, layer)
            on_layer(layer, rows, replace(keys, tokens=len(request.ids)))

        replay_key = None if replay_key is None or self.rotary != "post" else (scored, replay_key)
        hooks = Hooks(on_attention=show, replay_key=replay_key)
        read_prompt(request, hooks, attend=attend, rows=queries, depth=scored[-1] + 1)
        return attend


def read_prompt(request: ScoreRequest, hooks: Hooks, *, attend: LayerAttention, rows: int, depth: int) -> None:
    """Run a model over a prompt as `read_layer_major` does, with the keys of one layer in memory at a time.

    With prefix keys, only the tokens that they lack are computed, and appended to them. Several GPUs, if the request
    has them, share the work where no token has such keys. The last `rows` tokens are always computed, because their
    queries are needed.
    """
    model, n, keys = request.model, len(request.ids), request.keys
    options: dict[str, Any] = {"attend": attend, "depth": depth}
    hooks = replace(hooks, progress=request.progress)
    if request.gpus is not None and (keys is None or not keys.cache.rewind_to(n - rows)):
        read_on_gpus(request, hooks, rows=rows, **options)
        return
    if (
        keys is None
        and model.device == "cuda"
        and read_with_replay(model, request.ids, request.positions, hooks, rows=rows, **options)
    ):
        return
    if keys is None:
        cache = model.new_cache(n, layers=1)
        read_layer_major(model, request.ids, request.positions, cache, hooks, rows=rows, **options)
        return
    start, session_cache = keys.cache.rewind_to(n - rows), keys.cache
    # Recurrent states can be restored only where a snapshot was taken, so the pass is split at the stops.
    stops = [stop for stop in keys.stops if start < stop <= n - rows] if session_cache.recurrent else []
    for stop in [*stops, n]:
        part, last = (request.ids[start:stop], request.positions[start:stop]), stop == n
        with session_cache.reading(n - start) as cache:
            seen = hooks if last else replace(hooks, on_attention=None)
            read_layer_major(model, *part, cache, seen, rows=rows if last else 1, keep_kv=True, **options)
        start = stop
        if not last:
            session_cache.mark()


def read_on_gpus(request: ScoreRequest, hooks: Hooks, **options: Any) -> None:
    """Run `read_context_parallel` over a prompt; prefix keys get a copy of all keys, on the first GPU."""
    assert request.gpus is not None, "several GPUs"
    prompt, n = (*request.gpus, request.ids, request.positions), len(request.ids)
    if request.keys is None:
        read_context_parallel(*prompt, hooks, **options)
        return
    kv, rotate = request.keys.cache.format
    with request.keys.cache.reading(n) as own:
        own.reserve(n)

        def on_attention(layer: int, q: Floats, cache: Cache) -> None:
            if hooks.on_attention is not None:
                hooks.on_attention(layer, q, cache)
            copy_pages(cache, own, layer, n)

        read_context_parallel(*prompt, replace(hooks, on_attention=on_attention), kv=kv, rotate=rotate, **options)
        if len(own.places):
            own.places[:n] = request.model.place(request.positions)
        own.crop(n)


def scaled_queries(q: Floats, model: Model, layer: int) -> Floats:
    """Return queries times a factor, so that scores divided by sqrt(head_dim) have the layer's own scale; a copy."""
    scale = model.weights.blocks[layer].spec.scale
    return q if scale is None else q * q.dtype.type(scale * q.shape[2] ** 0.5)


def unrotated_queries(q: Floats, positions: Ints, model: Model, layer: int) -> Floats:
    """Return a copy of a layer's queries without rotary embedding."""
    return unrotate(q.copy() if is_device(q) else q, model.place(positions), model.config.rope_of(layer))


def unrotated_keys(cache: PagedKV, positions: Ints, model: Model, layer: int) -> PagedKV:
    """Return a layer's keys of the first ``len(positions)`` tokens without rotary embedding, in new pages.

    The new cache has the keys in place of the values too, because no caller uses its values.
    """
    cache, rotary = replace(cache, tokens=len(positions)), model.config.rope_of(layer)
    plain: dict[str, Any] = {"rotated": False, "basis": None, "recent": None}
    if is_device(cache.k):
        pages = unpacked_pages(cache.k, cache.table, cache.tokens, cache.fmt)
        rows = cache.as_model(pages.reshape(-1, *pages.shape[2:]))
        unrotate(rows[: cache.tokens], model.place(positions), rotary)
        bits, table = rows.reshape(pages.shape).view(np.uint8), import_cupy().arange(len(pages), dtype=np.int32)
        return replace(cache, k=bits, v=bits, table=table, fmt=F16, value_fmt=F16, **plain)
    keys = unrotate(cache.model_keys(), positions, rotary)
    bits = np.ascontiguousarray(keys).view(np.uint8)[None]
    return replace(cache, k=bits, v=bits, table=np.zeros(1, np.int64), fmt=F32, value_fmt=F32, **plain)


__all__ = ["STEPS", "Fold", "Reduction", "average_pool"]


@dataclass
class Fold:
    """Running reduction over the layers of a drafter, in NumPy or on the device.

    `over_layers` is the reduction over layers, after that over the heads of each layer; without it the heads of all
    layers are reduced together, which is the same for equal reductions, because all layers have as many heads.

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
    _host: float = 0.0  # seconds that `add_layer` took on the CPU
    _events: list[tuple[Any, Any]] = field(default_factory=list)  # on the device: events before and after `add_layer`

    def add(self, probs: Floats) -> None:
        """Add one layer's weights (heads, queries, tokens)."""
        into = None if self.over_layers else self.running  # with `over_layers` each layer is reduced by itself
        self._take(fold_weights(probs, self.reduction, into, by_head=self.by_head), len(probs))

    def add_layer(self, q: Floats, keys: PagedKV, *, causal: bool) -> None:
        """Add the weights of queries (n, heads, head_dim) over a layer's keys; see `importance`."""
        stream = import_cupy().cuda.get_current_stream() if is_device(q) else None
        # On the device the time between two events counts, because kernels run after the host has submitted them.
        start, event = time.perf_counter(), stream and stream.record()
        into = None if self.over_layers else self.running
        folded = importance(q, keys, self.reduction, into, causal=causal, by_head=self.by_head)
        self._take(folded, q.shape[1])
        if stream is None:
            self._host += time.perf_counter() - start
        else:
            self._events.append((event, stream.record()))

    def _take(self, folded: Folded, heads: int) -> None:
        before, self.running = self.running, folded.running
        if self.over_layers:
            layer = folded.running / np.float32(heads) if self.reduction.heads == "mean" else folded.running
            if before is not None:
                layer = array_module(layer).maximum(before, layer) if self.over_layers == "max" else before + layer
            self.running, heads = layer, 0  # the mean over heads is taken already
        self.layers.append(folded.by_layer)
        if folded.by_head is not None:
            self.heads.append(folded.by_head)
        self.count += heads

    def result(self) -> Floats:
        """Return the importance (tokens,) after the steps that follow the heads; waits for the device."""
        assert self.running is not None, "no layer was folded in"
        running = counts_on_host([self.running])[0]
        if self.over_layers is None:
            return self.reduction.finish(running, self.count)
        return self.reduction.finish(running / np.float32(len(self.layers) if self.over_layers == "mean" else 1), 1)

    def importance(self, attend: LayerAttention, generated: tuple[int, ...] = ()) -> Importance:
        """Return the result of a scorer from the layers that were added; the first call that waits for the device."""
        by_head = np.stack(counts_on_host(self.heads)) if self.heads else None
        result = self.result(), np.stack(counts_on_host(self.layers)), generated, by_head, densities(attend)
        for _, ended in self._events:
            ended.synchronize()
        times = (import_cupy().cuda.get_elapsed_time(*pair) for pair in self._events)
        return Importance(*result, weighing=float(self._host + sum(times) / 1e3))


@register_scorer("tail")
@dataclass(frozen=True)
class TailScorer(AttentionScorer):
    """Attention of the last `queries` prompt tokens; nothing is generated.

    Where the chat template opens or closes thinking after the question, the queries are the question's last tokens, and
    the drafter stops there: most queries would be marks of thinking, whose attention finds few needles.

    Notes
    -----
    The idea is that of SpecPrefill (arXiv 2502.02789), with prompt tokens in place of look-ahead tokens. It fails where
    the end of the prompt does not refer to the needle; `lookahead` is safer there.
    """

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and reduce the tail's attention."""
        fold = Fold(self.reduction, request.by_head)
        shortened = request if self.queries == "question" else without_markup(request)
        replay_key = (fold.reduction, fold.by_head) if fold.reduction.in_kernel else None
        importance = fold.importance(
            self.visit_layers(shortened, lambda _, q, keys: fold.add_layer(q, keys, causal=True), replay_key)
        )
        return importance if shortened is request else padded(importance, len(request.ids))


def without_markup(request: ScoreRequest) -> ScoreRequest:
    """Return the request without the tokens after its question."""
    end = request.content_end
    if end is None or end >= len(request.ids):
        return request
    shortened = {name: getattr(request, name)[:end] for name in ("ids", "positions", "question", "needle")}
    return replace(request, **shortened, spans=None if request.spans is None else request.spans[:end])


def padded(importance: Importance, tokens: int) -> Importance:
    """Return an importance extended to a number of tokens; those added at the end have importance 0."""

    def pad(values: Floats | None, size: int) -> Floats | None:
        if values is None:
            return None
        return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, size - values.shape[-1])])

    chunks = -(-tokens // HEATMAP_CHUNK)
    scores = np.pad(importance.scores, (0, tokens - len(importance.scores)))
    return replace(
        importance, scores=scores, by_layer=pad(importance.by_layer, chunks), by_head=pad(importance.by_head, chunks)
    )
