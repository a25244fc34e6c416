"""RepeatedTurns: what is queued from one layer's attention to the next one's, recorded once and queued again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sp.arrays import Floats
from sp.kernels import debugging, import_cupy
from sp.kernels.repeats import Recording, Repeat, watched
from sp.kernels.scratch import Scratch
from sp.models.config import ModelConfig
from sp.models.layers.attention import Attention
from sp.models.layers.block import Block
from sp.models.layers.feed_forward import SwiGLU
from sp.models.model import Model
from sp.models.passes.layer_attention import LayerAttention, Read, SparseAttention, dense_attention
from sp.models.passes.walk import Walk
from sp.ops.matmul.packed import PackedWeight
from sp.ops.sparse.block_budget import BlockBudget
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity

Asked = tuple[Floats, Floats | None]
"""Queries and gates of the layer that is next to attend."""

MOST_VALUES = 32768 * 1024
"""Of the residual stream of the largest stripe whose turns are recorded: for larger ones the device takes longer than
the host."""
MOST_KINDS = 2
"""Of turns that are recorded, which takes longer than planning one; where layers have other formats others are not."""


@dataclass(frozen=True)
class _Kept:
    """A recorded turn, and the blocks that its attention lists, if it does: where they lie when it was repeated."""

    repeat: Repeat
    read: Read | None


class Turn(NamedTuple):
    """What a turn reads of its two layers.

    Attributes
    ----------
    kind : tuple
        What turns have in common that can be repeated with each other's arrays; None of one that cannot.
    arrays : list of arrays
        Where its weights lie.
    """

    kind: Any
    arrays: list[Any]


class RepeatedTurns:
    """The turns of one stripe, layer by layer.

    A turn is attention of a layer, what follows it there, and what comes before attention in the next layer. Keys and
    values of two layers are held, in turn, and so are two arrays of queries: so turns differ by where these and their
    weights lie, and one of a kind is recorded.

    Parameters
    ----------
    walk : Walk
        With the cache of a reading in stripes.
    tokens : int
        Of the stripe.
    turns : list of Turn
        Of the model; see `turns_of`.
    scratch : Scratch or None
        Memory for what turns make; None only without `turns`. Stripes on one stream may share it, and whoever made it
        ends it when they are gone.

    Attributes
    ----------
    able : bool
        Whether turns are repeated. Among cards the last layer is then asked for as many queries as the others.
    """

    def __init__(self, walk: Walk, tokens: int, turns: list[Turn], scratch: Scratch | None) -> None:
        c = walk.model.config
        self.able = bool(turns) and may_repeat(c, walk.attend, tokens)
        self._walk, self._turns, self._scratch, self._kept = walk, turns, scratch, dict[Any, _Kept]()
        room = 2 if self.able else 0
        self._queries = [import_cupy().empty((tokens, c.heads, c.head_dim), "float16") for _ in range(room)]

    def queries(self, layer: int) -> Floats | None:
        """Where the queries of a layer go, if all turns are to find them there."""
        return self._queries[layer % 2] if self._queries else None

    def turn(self, layer: int, make: Callable[[], Asked]) -> Asked:
        """Queue the turn that begins with attention in a layer.

        Parameters
        ----------
        layer : int
            All of the stripe's tokens are asked for in the next one, too.
        make : callable
            Queues it launch by launch; called if it cannot be repeated.
        """
        kind, weights = self._turns[layer] if self.able else (None, [])
        if kind is None:
            return make()
        arrays = [*weights, *self._places(layer)]
        if kind in self._kept:
            return self._again(self._kept[kind], layer, [one.data.ptr for one in arrays])
        if len(self._kept) == MOST_KINDS or all(kind != later.kind for later in self._turns[layer + 1 :]):
            return make()
        assert self._scratch is not None
        recording = Recording(self._scratch)
        with recording.going_on():
            asked = make()
        read = self._read(layer)
        if read is not None:
            self._walk.attend.reads[layer][-1] = _apart(read)  # type: ignore[attr-defined]
        repeat = recording.repeat(arrays)
        if repeat is None:
            self.able = False
        else:
            self._kept[kind] = _Kept(repeat, read)
        return asked

    def _places(self, layer: int) -> list[Any]:
        """Queries of a layer and the next, and which pages are theirs."""
        cache: Any = self._walk.cache
        return [self.queries(layer), self.queries(layer + 1), cache.all_pages(layer), cache.own_pages(layer + 1)]

    def _again(self, kept: _Kept, layer: int, addresses: list[int]) -> Asked:
        kept.repeat(addresses)
        if kept.read is not None:
            self._walk.attend.reads.setdefault(layer, []).append(_apart(kept.read))  # type: ignore[attr-defined]
        queries = self._queries[(layer + 1) % 2]
        self._walk.cache.appended(layer + 1, len(queries))  # type: ignore[attr-defined]
        return queries, None

    def _read(self, layer: int) -> Read | None:
        attend = self._walk.attend
        return attend.reads[layer][-1] if isinstance(attend, SparseAttention) and attend.reads.get(layer) else None


def _apart(read: Read) -> Read:
    """What was listed, for later: the next turn lists its own in the same place."""
    return read._replace(counts=read.counts.copy())


def may_repeat(config: ModelConfig, attend: LayerAttention, tokens: int, most: int = MOST_VALUES) -> bool:
    """Whether it pays to repeat turns of so many tokens, and all that is done is known to be launches."""
    return pays(config, tokens, most) and _is_known(attend)


def pays(config: ModelConfig, tokens: float, most: int = MOST_VALUES) -> bool:
    """Whether all layers attend, without gates, and the stream of so many tokens has no more values than `most`."""
    attends = len(config.attention_layers) == config.layers and not config.gated
    return attends and tokens * config.hidden <= most


def turns_of(model: Model) -> list[Turn]:
    """All turns of a model, by the layer that they begin in; none where nothing can be repeated."""
    if model.device != "cuda" or model.cold is not None or debugging() or watched.get():
        return []
    blocks = model.trunk.blocks
    return [Turn(_kind(weights), _arrays(weights)) for weights in map(_weights, blocks, blocks[1:])]


def _is_known(attend: Any) -> bool:
    """Whether it launches kernels of `sp` and does nothing else on the device, and the same in every layer."""
    known = FlashPrefill | TopDensity | BlockBudget
    return attend is dense_attention or (type(attend) is SparseAttention and isinstance(attend.selector, known))


def _weights(block: Block, then: Block) -> list[Any] | None:
    """All that a turn reads of two layers, and nothing else; None where it is not known."""
    ffn, before, after = block.ffn, block.mixer, then.mixer
    if not (type(block) is Block and type(before) is type(after) is Attention and type(ffn) is SwiGLU):
        return None
    matrices = before.out, ffn.gate, ffn.up, ffn.down, after.q, after.k, after.v
    if not all(isinstance(one, PackedWeight) for one in matrices):
        return None
    vectors = block.ffn_norm, then.attn_norm, *(after.biases or ()), after.norms.q, after.norms.k
    return [*matrices, *(one for one in vectors if one is not None)]


def _kind(weights: list[Any] | None) -> Any:
    """What turns have in common that can be repeated with each other's arrays."""
    if weights is None:
        return None
    found: list[Any] = []
    for one in weights:
        kept = getattr(one, "kept", None)
        made = (one.format.name, one.math) if isinstance(one, PackedWeight) else ()
        found.append((*made, one.shape, kept and (kept.first, kept.rows.codes.shape)))
    return tuple(found)


def _arrays(weights: list[Any] | None) -> list[Any]:
    """Where weights lie, and once each what several are kept in together."""
    if weights is None:
        return []
    found = [one.data if isinstance(one, PackedWeight) else one for one in weights]
    kept = {id(one.kept.rows): one.kept.rows for one in weights if isinstance(one, PackedWeight) and one.kept}
    return found + [part for rows in kept.values() for part in (rows.codes, rows.scales)]
