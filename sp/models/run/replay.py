"""Launch replay: the launches of a layer are recorded once, in segments, and submitted again for the other layers, by
one GPU or by each of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from sp.arrays import Floats, Ints
from sp.kernels import debugging, import_cupy
from sp.kernels.launch_replay import LaunchRecorder, LaunchReplay, replay_disabled
from sp.kernels.workspace import Workspace
from sp.models.cache.context_parallel_cache import ContextChunks, ContextParallelCache
from sp.models.cache.transfer import copy_over
from sp.models.config import ModelConfig
from sp.models.layer.steps import Attend, LayerStep, Qkv, dense_attention
from sp.models.network.model import Model
from sp.models.network.weights import ModelWeights
from sp.models.run.chunked import checked_prompt
from sp.models.run.hooks import Hooks, ProgressReporter
from sp.models.run.layer_attention import BlockCounts, ByEnergy, LayerAttention, SparseAttention
from sp.models.run.layer_major import NARROW, LayerMajorPass, chunk_on_device
from sp.ops.matmul.packed import PackedWeight
from sp.quant import Math


class LayerSegment(NamedTuple):
    """The steps of a layer before attention, or those after it."""

    kind: Any  # equal for segments whose launches can be replayed with each other's arrays; None if not replayable
    arrays: list[Any]  # its weights


class LayerSegments(NamedTuple):
    """The two segments of a layer: norm, QKV projections and RoPE, and everything after attention."""

    qkv_proj: LayerSegment
    out_proj: LayerSegment


def segments_of(model: Model) -> list[LayerSegments]:
    """Return the segments of all layers; an empty list if nothing can be replayed."""
    if model.device != "cuda" or model.cold is not None or debugging() or replay_disabled.get():
        return []
    return model.weights.memoized(_segments_of)


def replay_refusal(model: Model) -> str | None:
    """Return the step and layer that prevents a replay, so that every layer is launched by itself; None if all can be
    replayed."""
    if model.cold is not None:
        return "experts of some layers wait in host memory"
    return model.weights.memoized(_refusal_of)


def _refusal_of(weights: ModelWeights) -> str | None:
    for index, (mix, feed) in enumerate(weights.layers):
        for step in (*mix, *feed):
            reads = step.reads()
            if reads is None:
                sublayer = getattr(step, "mixer", None) or getattr(step, "ffn", step)
                return f"layer {index}: {type(sublayer).__name__} does not list the weights it reads"
            if not all(isinstance(array, PackedWeight) for array in reads if hasattr(array, "format")):
                return f"layer {index}: its weights are not packed, as on the CPU"
            if isinstance(step, Attend) and step.mixer.spec.window is not None:
                return f"layer {index} attends in a window, and other layers may not"
            if isinstance(step, Attend) and step.mixer.config.gated:
                return f"layer {index}: its attention output is gated"
    return None


def _segments_of(weights: ModelWeights) -> list[LayerSegments]:
    if any(block.spec.window is not None for block in weights.blocks):
        return []  # one layer's attention is replayed for all layers, so all must attend alike
    segments = []
    for block, ((first, *rest), feed) in zip(weights.blocks, weights.layers, strict=True):
        kind, attends = (block.spec.rope, block.spec.activation), isinstance(first, Qkv)
        qkv_proj, out_proj = ([first], [*rest[1:], *feed]) if attends else ([], [])
        segments.append(LayerSegments(_segment(qkv_proj, "enter", *kind), _segment(out_proj, "leave", *kind)))
    return segments


def _segment(steps: Sequence[LayerStep], *side: Any) -> LayerSegment:
    """Return the segment of some steps. It cannot be replayed if there are no steps, or if a step does not list what it
    reads. `side`: distinguishes segments before and after attention."""
    reads = [step.reads() for step in steps]
    arrays_read = (array for listed_arrays in reads for array in listed_arrays or ())
    every = sorted(arrays_read, key=lambda array: not hasattr(array, "format"))  # matrices first
    packed = all(isinstance(array, PackedWeight) for array in every if hasattr(array, "format"))
    if not packed or not every or any(listed_arrays is None for listed_arrays in reads):
        return LayerSegment(None, [])
    kinds, arrays, together = list(side), list[Any](), dict[int, Any]()
    for array in every:
        is_packed, prequantized = isinstance(array, PackedWeight), getattr(array, "kept", None)
        form = (array.format.name, array.math) if is_packed else ()
        kinds.append((*form, array.shape, prequantized and (prequantized.first, prequantized.rows.codes.shape)))
        arrays.append(array.data if is_packed else array)
        if prequantized:  # several weights may share the same prequantized rows, which are listed once
            together[id(prequantized.rows)] = prequantized.rows
    return LayerSegment(
        tuple(kinds), arrays + [array for rows in together.values() for array in (rows.codes, rows.scales)]
    )


QueriesAndGates = tuple[Floats, Floats | None]  # queries and gates of the layer that is next to attend

MOST_VALUES = 36864 * 1024
"""Values of the residual stream of the largest context chunk whose launches are recorded: for larger ones the device is
slower than the host. This is 32,768 tokens and an eighth more, by which context chunks may exceed equal parts."""
WORTH = 3
"""Least number of uses for which launches are recorded. Recording costs as much as launching twice, a replay a fifth of
a launch."""


@dataclass(frozen=True)
class _Attention:
    """Recorded attention: the launches, the output array, and for sparse attention the block lists, which every replay
    overwrites."""

    repeat: LaunchReplay
    output: Floats
    block_counts: BlockCounts | None

    def copied_counts(self) -> list[BlockCounts]:
        """Copy the block counts of the last run, before the next layer overwrites them."""
        return [] if self.block_counts is None else [self.block_counts._replace(counts=_copy(self.block_counts.counts))]


class ReplayWorkspace(NamedTuple):
    """Memory for recorded attention, and for the rest of a layer. They are separate, because the attention of one chunk
    is recorded when the rest of another chunk already is: attention's output must not share memory with the arrays of
    the segment that reads it."""

    attention: Workspace
    rest: Workspace


@contextmanager
def replay_workspace(layers: list[LayerSegments]) -> Iterator[ReplayWorkspace | None]:
    """Yield a workspace on the current stream, freed at the end, after its users are gone; None without layers."""
    if not layers:
        yield None
        return
    with Workspace() as attention, Workspace() as rest:
        yield ReplayWorkspace(attention, rest)


class ReplayedLayers:
    """The launches of one context chunk, layer by layer; each segment of a layer is recorded once and replayed for the
    others.

    Keys and values of two layers are stored, alternately, and so are two arrays of queries. Attention is therefore the
    same in every layer except for these addresses. The segments before and after it also differ by the weights, and
    between chunks of equal length by the addresses of stream, queries and pages.

    Parameters
    ----------
    prompt_pass : LayerMajorPass
        Pass over the chunk, with a `ContextParallelCache`.
    stream : float32 (tokens, hidden)
        Residual stream of the chunk.
    which : int
        Index of the chunk among those of the cache.
    layers : list of LayerSegments
        Segments of the model, see `segments_of`.
    workspace : ReplayWorkspace or None
        Memory for intermediate arrays; None only without `layers`. Chunks on one stream share it.
    before : ReplayedLayers, optional
        Launches of a chunk on the same stream that passes every layer before this one.

    Attributes
    ----------
    able : bool
        True if launches are replayed. With several GPUs the last layer then computes as many queries as the others.
    """

    def __init__(
        self,
        prompt_pass: LayerMajorPass,
        stream: Floats,
        which: int,
        layers: list[LayerSegments],
        workspace: ReplayWorkspace | None,
        before: ReplayedLayers | None = None,
    ) -> None:
        c, tokens = prompt_pass.model.config, len(stream)
        self.able = workspace is not None and may_replay(c, prompt_pass.attend, tokens)
        self._prompt_pass, self._stream, self._which = prompt_pass, stream, which
        self._layers, self._workspace = layers, workspace
        self._attention: _Attention | None = None
        self._segments, self._chunks = dict[Any, LaunchReplay](), 1
        if before is not None and len(before._stream) == tokens:
            before._chunks = 2  # both chunks use what the first one records
            self._segments = before._segments
        # Queries alternate between two buffers, like the keys and values of two layers.
        shape = tokens, c.heads, c.head_dim
        self._query_buffers = [import_cupy().empty(shape, "float16") for _ in range(2 if self.able else 0)]

    def query_buffer(self, layer: int) -> Floats | None:
        """Return the array for the queries of a layer, if recorded attention expects them there."""
        return self._query_buffers[layer % 2] if self._query_buffers else None

    def qkv_proj(self, layer: int) -> QueriesAndGates:
        """Run the steps before attention in a layer, for all tokens of the chunk."""

        def launch() -> QueriesAndGates:
            return self._prompt_pass.qkv_proj(
                layer, self._stream, len(self._stream), report_progress=False, into=self.query_buffer(layer)
            )

        if not self.able:
            return launch()
        cache: Any = self._prompt_pass.cache
        places = [self.query_buffer(layer), cache.own_pages(layer, self._which), self._prompt_pass.positions]
        queries: QueriesAndGates | None = self._segment(self._layers[layer].qkv_proj, layer, places, launch)
        if queries is not None:
            return queries
        # A replay runs no Python, so its tokens are counted here.
        cache.appended(layer, len(self._stream))
        return self._query_buffers[layer % 2], None

    def attend(self, layer: int, queries: QueriesAndGates) -> list[Floats]:
        """Run the attention of a layer and return its output, as the only item of a list."""
        cache: Any = self._prompt_pass.cache
        known = self._attention
        # Too few layers are left for a recording to pay.
        if not self.able or (known is None and len(self._layers) - layer <= WORTH):
            return [self._prompt_pass.attention(layer, *queries)]
        assert self._workspace is not None
        arrays = [self.query_buffer(layer), cache.all_pages(layer)]
        if known is not None:
            known.repeat([array.data.ptr for array in arrays])
            self._reads.setdefault(layer, []).extend(known.copied_counts())
            return [known.output]
        output, repeat = self._recorded(
            self._workspace.attention, arrays, lambda: self._prompt_pass.attention(layer, *queries)
        )
        if repeat is not None:
            reads = self._reads.get(layer, [])
            # The recorded call has appended its counts; the copy replaces them, as replays overwrite the array.
            self._attention = _Attention(repeat, output, reads.pop() if reads else None)
            reads.extend(self._attention.copied_counts())
        return [output]

    def out_proj(self, layer: int, attended: list[Floats]) -> None:
        """Run the steps after attention in a layer: output projection and feed-forward. `attended`: result of `attend`;
        it is removed from the list when launches are made, so that no one keeps it alive longer."""

        def launch() -> None:
            self._prompt_pass.out_proj(layer, self._stream, attended)

        if self.able:
            self._segment(self._layers[layer].out_proj, layer, attended, launch)
        else:
            launch()

    def _segment(self, segment: LayerSegment, layer: int, places: list[Any], launch: Callable[[], Any]) -> Any:
        """Launch or replay a segment of a layer; return the result of the launch, None after a replay."""
        replay = self._segments.get(segment.kind)
        if replay is None and not self._comes_often(segment.kind, layer):
            return launch()
        arrays = [*segment.arrays, self._stream, *places]
        if replay is not None:
            replay([array.data.ptr for array in arrays])
            return None
        assert self._workspace is not None
        result, repeat = self._recorded(self._workspace.rest, arrays, launch)
        if repeat is not None:
            self._segments[segment.kind] = repeat
        return result

    def _comes_often(self, kind: Any, layer: int) -> bool:
        """Return True if enough layers remain for recording a segment of this kind to pay."""
        coming = sum(kind in (layer_.qkv_proj.kind, layer_.out_proj.kind) for layer_ in self._layers[layer:])
        return kind is not None and coming * self._chunks >= WORTH

    def _recorded(
        self, workspace: Workspace, arrays: list[Any], launch: Callable[[], Any]
    ) -> tuple[Any, LaunchReplay | None]:
        """Launch and record; return the result, and the replay for other arrays. If no replay is possible, nothing more
        is recorded."""
        recorder = LaunchRecorder(workspace)
        with recorder.recording():
            result = launch()
        repeat = recorder.replay(arrays)
        self.able = repeat is not None
        return result, repeat

    @property
    def _reads(self) -> dict[int, list[BlockCounts]]:
        """Block counts of sparse attention, by layer."""
        attend = self._prompt_pass.attend
        return attend.reads if isinstance(attend, SparseAttention) else {}


def _copy(array: Any) -> Any:
    """Copy an array on the current stream."""
    copy = import_cupy().empty(array.shape, array.dtype)
    copy_over(array, copy)
    return copy


def may_replay(config: ModelConfig, attend: LayerAttention, tokens: int, most: int = MOST_VALUES) -> bool:
    """Return True if a replay pays for so many tokens, and if `attend` is known to launch only kernels of `sp` on the
    device, the same ones in every layer."""
    known = type(attend) is SparseAttention and isinstance(attend.selector, ByEnergy)
    return pays(config, tokens, most) and (known or attend is dense_attention)


def pays(config: ModelConfig, tokens: float, most: int = MOST_VALUES) -> bool:
    """Return True if all layers attend alike, without gates, and so many tokens are `short`."""
    uniform = len(config.attention_layers) == config.layers and not config.gated and not any(config.windows)
    return uniform and short(config, tokens, most)


def short(config: ModelConfig, tokens: float, most: int = MOST_VALUES) -> bool:
    """Return True if the stream of so many tokens has at most `most` values, or is `NARROW`."""
    return tokens * config.hidden <= most or config.hidden <= NARROW


MOST_ALONE = {Math.BF16: 12288 * 1024, Math.FP8: 12288 * 1024, Math.INT8: 16384 * 1024}
"""Values of the residual stream of the longest prompt that is read with replay, by precision. Recorded launches are
prepared before the device starts, while plain launches overlap with its work. With a drafter of 0.6B an H100 with a
slow host took 34, 49 and 60 ms for 2,048, 8,192 and 16,384 tokens in int8, and 21, 27 and 43 ms with replay; in BF16
27, 40 and 43 ms, and 16, 26 and 45 with replay. An H200 took 43, 32 and 39 ms for 10,240, 12,288 and 16,384 tokens in
BF16, and 29, 31 and 40 with replay."""


def read_with_replay(
    model: Model,
    ids: Ints,
    positions: Ints,
    hooks: Hooks,
    *,
    attend: LayerAttention = dense_attention,
    rows: int = 1,
    depth: int | None = None,
) -> bool:
    """Read a prompt as `read_layer_major` does into a temporary cache, if replay pays and is possible.

    It pays if the host takes longer to prepare the launches of a layer than the device takes to run them: see
    `MOST_ALONE`. Keys, values and queries of two layers and the intermediate arrays of a layer stay allocated, so it is
    not used under a memory limit. The result is the same to the bit.

    Parameters
    ----------
    model, ids, positions, hooks, attend, rows, depth
        See `read_layer_major`.

    Returns
    -------
    bool
        True if the prompt was read; if False, nothing was done.

    Examples
    --------
    >>> import numpy as np
    >>> from sp.models import Hooks, load_model
    >>> from sp.session.loaded import embedded
    >>> read_with_replay(load_model(embedded("drafter")), np.arange(600), np.arange(600), Hooks())  # on the CPU
    False
    """
    if model.device != "cuda":
        return False
    n, layers = len(ids), model.config.layers
    depth = layers if depth is None else depth
    model.check_loaded(depth)
    most = MOST_ALONE[model.arithmetic.precision]
    if not (
        may_replay(model.config, attend, n, most) and ContextChunks.fits(n, 1, 1) and (segments := segments_of(model))
    ):
        return False
    # Not under a memory budget: a replay holds more arrays than single launches.
    if import_cupy().get_default_memory_pool().get_limit():
        return False
    chunk = chunk_on_device(model.config)
    ids, positions = checked_prompt(model, ids, positions, chunk, rows)
    options = {"device": model.device, "precision": model.arithmetic.attention}
    cache = ContextParallelCache(model.config, ContextChunks(n, 1, 1), 0, **options)  # type: ignore[arg-type]
    pass_arguments = model, model.place(positions), cache, attend, chunk, ProgressReporter(model, None)
    with replay_workspace(segments) as workspace:
        x, prompt_pass = model.embed(ids), LayerMajorPass(*pass_arguments)
        pace = ProgressReporter(model, hooks.progress)
        replayed = ReplayedLayers(prompt_pass, x, 0, segments, workspace)
        for layer in range(depth):
            last = layer == depth - 1  # of the last layer only the queries that a hook sees are needed
            queries = (
                prompt_pass.qkv_proj(layer, x, min(rows, n), report_progress=False)
                if last
                else replayed.qkv_proj(layer)
            )
            if hooks.on_attention is not None:
                hooks.on_attention(layer, queries[0], cache)
            if not last:
                replayed.out_proj(layer, replayed.attend(layer, queries))
            cache.release(layer)
            pace.done(n)
        pace.done(n * (layers - depth), ahead=0)
        del replayed, queries  # their arrays are in the workspace, which ends here
    return True
