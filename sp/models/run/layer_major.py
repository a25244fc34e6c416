"""Layer-major prefill: the whole prompt passes one layer after the other, with one attention per layer over all
of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import PromptError
from sp.kernels import import_cupy, is_device
from sp.models.cache.cache import Cache
from sp.models.config import ModelConfig
from sp.models.layer.steps import Attend, Flow, Qkv, dense_attention, with_reach
from sp.models.network.model import Model
from sp.models.run.chunked import CHUNK, checked_prompt, slices
from sp.models.run.hooks import NO_HOOKS, Hooks, Progress, ProgressReporter
from sp.models.run.layer_attention import LayerAttention, SparseAttention
from sp.ops.skip_softmax import SkipSoftmax
from sp.ops.sparse.block_selector import BlockSelector

LAYER_MAJOR_CHUNK = {"cpu": 2048, "cuda": 16384}
"""Tokens that are projected together: on the CPU what fits its caches, on the device what fills it."""
NARROW = 640
"""Hidden size up to which the host is slower than the device at any length. With SmolLM2 (576) scoring of 16K, 33K, 70K
and 134K tokens on an H200 with a slow host took 28, 48, 107 and 180 ms, and with replay 15, 27, 93 and 140 ms."""
NARROW_CHUNK = 65536
"""`LAYER_MAJOR_CHUNK` of such a model on the device: fewer launches, and a partly filled wave of tiles only at the end.
An H200 scored 33K and 131K tokens with SmolLM2 in 23.6 and 103.6 ms in chunks of 16,384, and in 19.7 and 98.4 ms in
chunks of this size."""
SPARSE_CHUNK = {"cpu": 8192, "cuda": 32768}
"""Tokens that pass a layer together: on the device limited by the memory of their queries and gates."""


@dataclass(frozen=True)
class LayerMajorPass:
    """A pass of one prompt through the layers: what all layers share."""

    model: Model
    positions: Ints  # int64 (n,): where the model is
    cache: Cache
    attend: LayerAttention  # attention of the layers without a window
    chunk: int  # tokens that pass a step together, except attention
    pace: ProgressReporter  # counts tokens x layers
    hooks: Hooks = NO_HOOKS
    reached: dict[int, Ints] = field(default_factory=dict)  # see `with_reach`

    def layer(self, index: int, x: Floats, rows: int, *, finish: bool = True) -> Floats:
        """Pass the stream (n, hidden) through a layer, in place, and return its last `rows`. With ``finish=False`` an
        attention layer stops once its keys, its values and the last queries are computed and shown to the hook."""
        # Recurrent layers have no attention over the whole prompt, and run chunk by chunk below.
        steps = self.model.weights.layers[index]
        rows = min(rows, len(x))
        first = len(x) - rows
        if isinstance(steps[0][0], Qkv):
            q, gate = self.qkv_proj(index, x, rows, report_progress=not finish)
            if self.hooks.on_attention is not None:
                self.hooks.on_attention(index, q, self.cache)
            if finish:
                mixed = [self.attention(index, q, gate)]
                del q, gate  # as large as the prompt: freed before the feed-forward needs memory
                self.out_proj(index, x[first:], mixed)
                self.pace.done(first)
        elif finish:
            for part, flow in self.flows(x, rows):
                done = self.model.pass_layer(steps, flow)
                if not is_device(done):  # on the device the steps work in place
                    x[part.stop - len(done) : part.stop] = done
                self.pace.done(part.stop - part.start)
        else:
            self.pace.done(len(x))
        return x[first:]

    def attention(self, index: int, q: Floats, gate: Floats | None) -> Floats:
        """Compute the attention output of a layer for the queries of the last tokens, gated."""
        step = self.model.weights.layers[index][0][1]
        assert isinstance(step, Attend), f"layer {index} does not attend"
        attend = self.attend if step.mixer.rule.window is None else dense_attention
        rule = step.mixer.rule
        if rule.window is not None:
            rule = with_reach(step.mixer, self.cache, self.positions, self.reached)
            rule = rule.of_run(slice(len(self.positions) - len(q), None))
        return attend(self.cache, index, q, gate, rule)

    def qkv_proj(
        self, index: int, x: Floats, rows: int, report_progress: bool, into: Floats | None = None
    ) -> tuple[Floats, Floats | None]:
        """Run the steps before attention, chunk by chunk; return the queries (written to `into`, if given) and gates of
        the last `rows` tokens."""
        qkv, on_device = self.model.weights.layers[index][0][0], is_device(x)
        assert isinstance(qkv, Qkv), f"layer {index} does not attend"
        sizes = qkv.mixer.sizes
        xp = import_cupy() if on_device else np
        # Queries are float16 on the device, as attention kernels read them; gates stay bf16 (uint16).
        kind = np.float16 if on_device else np.float32
        q: Floats = xp.empty((rows, sizes.heads, sizes.head_dim), kind) if into is None else into
        shape, gated = (rows, sizes.heads, 2 * sizes.head_dim), self.model.config.gated
        gates: Floats | None = xp.empty(shape, np.uint16 if on_device else np.float32) if gated else None
        start = 0
        for part, flow in self.flows(x, rows):
            end = start + flow.rows
            to = q if flow.rows == rows else q[start:end]
            qkv(flow, to)
            # the step writes to `to` itself only if it computes all rows of its chunk
            if flow.q is not to and flow.rows:
                to[...] = flow.q
            if gates is not None and flow.rows:
                gates[start:end] = flow.gate
            start = end
            if report_progress:
                self.pace.done(part.stop - part.start)
        return q, gates

    def out_proj(self, index: int, x: Floats, mixed: list[Any]) -> None:
        """Run the steps after attention, chunk by chunk: output projection and feed-forward. Updates the stream (n,
        hidden) in place. The attention output is removed from the list `mixed`, so that no one keeps it alive
        longer."""
        (_, _, *rest), feed = self.model.weights.layers[index]
        whole = mixed.pop()
        for part, flow in self.flows(x, len(x)):
            flow.h = whole if flow.rows == len(whole) else whole[part]
            done = self.model.pass_layer((tuple(rest), feed), flow)
            if not is_device(done):
                x[part] = done
            self.pace.done(part.stop - part.start)

    def flows(self, x: Floats, rows: int) -> Iterator[tuple[slice, Flow]]:
        """Yield the stream (n, hidden) chunk by chunk, for steps of which the last `rows` tokens are needed."""
        for part, needed in slices(len(x), self.chunk, rows):
            if part.stop - part.start == len(self.positions):  # slicing costs the host a good part of a launch
                yield part, Flow(x, self.positions, self.cache, needed)
            else:
                yield part, Flow(x[part], self.positions[part], self.cache, needed)


def chunk_on_device(config: ModelConfig) -> int:
    """Return the number of tokens that the device projects together in a layer-major prefill.

    >>> from sp.models.synthetic.shapes import find_shape
    >>> chunk_on_device(find_shape("qwen3-0.6b").config)
    16384
    """
    return NARROW_CHUNK if config.hidden <= NARROW else LAYER_MAJOR_CHUNK["cuda"]


def prefill_layer_major(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    *,
    chunk: int | None = None,
    attend: LayerAttention = dense_attention,
    rows: int = 1,
    keep_kv: bool = True,
    hooks: Hooks = NO_HOOKS,
) -> Floats:
    """Read a prompt layer by layer: all of it through layer 0, then all of it through layer 1, and so on.

    The result equals that of `prefill`, within rounding. Projections and feed-forward run chunk by chunk, attention
    once per layer. With ``keep_kv=False`` the pages of each layer are released after it, so a cache with ``layers=1``
    is large enough; no token can be decoded from it afterwards.

    Parameters
    ----------
    attend : LayerAttention
        Attention of every layer that has no window.
    hooks : Hooks
        Called once per layer, in the last layer with the queries of the last `rows`; progress counts tokens x layers.
    model, ids, positions, cache, chunk, rows
        See `prefill`.

    Returns
    -------
    float32 (vocab,)
        Logits of the last token.
    """
    model.check_loaded()
    x = _read(model, ids, positions, cache, attend, rows, None, chunk, hooks, keep_kv=keep_kv)
    logits: Floats = model.head(x[-1:])[0]
    return logits


def read_layer_major(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    hooks: Hooks,
    *,
    attend: LayerAttention = dense_attention,
    rows: int = 1,
    depth: int | None = None,
    keep_kv: bool = False,
    chunk: int | None = None,
) -> None:
    """Read a prompt for what its attention layers show to hooks, storing the keys and values of one layer at a time.

    Layers from `depth` on are not run, and of the last layer that is run only keys, values and the queries of the last
    `rows` tokens are computed. With `keep_kv` the cache, which then covers these layers, keeps all of it, and more
    tokens can be read. Everything else is as in `prefill_layer_major`.
    """
    _read(model, ids, positions, cache, attend, rows, depth, chunk, hooks, finish=False, keep_kv=keep_kv)


def stream_layer_major(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    *,
    attend: LayerAttention = dense_attention,
    depth: int | None = None,
    chunk: int | None = None,
    hooks: Hooks = NO_HOOKS,
) -> Floats:
    """Read a prompt for its residual stream after the first `depth` layers, all of them by default.

    The keys and values of one layer are stored at a time. Everything else is as in `read_layer_major`.

    Returns
    -------
    float32 (n, hidden)
        Where the model is; the input of `Model.head`, if all layers were run.
    """
    return _read(model, ids, positions, cache, attend, max(1, len(ids)), depth, chunk, hooks)


def _read(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    attend: LayerAttention,
    rows: int,
    depth: int | None,
    chunk: int | None,
    hooks: Hooks,
    *,
    finish: bool = True,
    keep_kv: bool = False,
) -> Floats:
    """Return the stream after `depth` layers; the last of them is computed for the last `rows` only, and finished or
    not."""
    depth = model.config.layers if depth is None else depth
    model.check_loaded(depth)
    if chunk is None:
        chunk = LAYER_MAJOR_CHUNK["cpu"] if model.device == "cpu" else chunk_on_device(model.config)
    ids, positions = checked_prompt(model, ids, positions, chunk, rows, cache)
    if len(ids) > cache.most_at_once:  # all of them are stored before the first one attends
        raise PromptError(
            f"a layer-major prefill stores all {len(ids)} tokens of a layer, and windowed layers of this cache take "
            f"{cache.most_at_once} at once; use prefill, or a cache without `windows`"
        )
    pace = ProgressReporter(model, hooks.progress)
    x, prompt_pass = model.embed(ids), LayerMajorPass(model, model.place(positions), cache, attend, chunk, pace, hooks)
    for index in range(depth):
        last = index == depth - 1
        # Only the last layer may be cut to `rows`: earlier ones feed keys of all tokens.
        x = prompt_pass.layer(index, x, rows if last else len(x), finish=finish or not last)
        if not keep_kv:
            cache.release(index)
    pace.done(len(ids) * (model.config.layers - depth), ahead=0)
    if cache.recent:
        cache.end_run()
    return x


def prefill_sparse(
    model: Model,
    ids: Ints,
    positions: Ints,
    cache: Cache,
    selector: BlockSelector | SkipSoftmax,
    *,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> tuple[Floats, tuple[float, ...]]:
    """Read a prompt whose attention layers see, of the preceding tokens, only the key blocks that a selector lists.

    Chunks pass all layers one after the other, each with the cache as its prefix. If the selector says so, the last
    query blocks of the prompt see everything; those of earlier chunks do not.

    Parameters
    ----------
    model, ids, positions, progress
        See `prefill`.
    cache : Cache
        Of any format, rotated or not; may hold earlier tokens of the same sequence.
    selector : BlockSelector or SkipSoftmax
        For example ``FlashPrefill(alpha=0.1)``.
    chunk : int, optional
        Tokens of a chunk. The result depends on it slightly, since query blocks start where chunks do.

    Returns
    -------
    logits : float32 (vocab,)
        Logits of the last token, where the model is.
    densities : tuple of float
        Share of the causal blocks that each attention layer read. The last layer is not listed: one row per chunk is
        computed there, and it reads all blocks.

    Raises
    ------
    PromptError
        As `prefill`.
    """
    chunk = min(SPARSE_CHUNK[model.device] if chunk is None else chunk, cache.most_at_once)
    inside = min(chunk, CHUNK[model.device])
    ids, positions = checked_prompt(model, ids, positions, chunk, 1, cache)
    attend, reported = SparseAttention(selector, ends=False), _whole_tokens(model.config.layers, progress)
    logits = None
    for part, _ in slices(len(ids), chunk, 1):
        if part.stop == len(ids):
            attend = replace(attend, ends=True)  # the copy shares the block counts
        logits = prefill_layer_major(
            model, ids[part], positions[part], cache, chunk=inside, attend=attend, hooks=Hooks(progress=reported)
        )  # fmt: skip
    assert logits is not None
    return logits, attend.densities()


def _whole_tokens(layers: int, progress: Progress | None) -> Progress | None:
    """Convert progress in tokens x layers to tokens that have passed all layers."""
    if progress is None:
        return None
    total, report_progress = 0, progress

    def count(amount: int) -> None:
        nonlocal total
        before, total = total, total + amount
        report_progress(total // layers - before // layers)

    return count
