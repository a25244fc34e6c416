"""The caches of a conversation: slots of the target's cache, and the keys of the drafter."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.models import Cache, ModelConfig, SessionCache
from sp.models.cache.transfer import CacheChanges, ParkedCache, States
from sp.models.run.chunked import cross_gap
from sp.ops.attention.key_basis import KeyBasis
from sp.ops.rope import Rope
from sp.prompt import TokenisedPrompt
from sp.prompt.spans import same_start
from sp.scoring import PrefixKeys
from sp.session.answer import PrefilledAnswer, Progress, decode, read_prompt
from sp.session.compress import PART
from sp.session.device.cache_pool import CacheGraphs
from sp.session.loaded import Loaded
from sp.session.options import RunOptions
from sp.session.result import RecallMethod


@dataclass(frozen=True)
class Slots:
    """Tokens in the order in which they are cached.

    A token of the transcript is at its own place. A token of an excerpt comes before the token at its place; it is the
    transcript's token `source`, or none.

    Attributes
    ----------
    ids, positions : int64 (m,)
        Token, and its position for RoPE.
    place : int64 (m,)
        Ascending; a slot comes after the transcript's tokens below its place.
    source : int64 (m,)
        Token of the transcript that it is, or has a part of; -1 for none, or `PART`.
    """

    ids: Ints
    positions: Ints
    place: Ints
    source: Ints

    @classmethod
    def none(cls) -> Slots:
        """Return no tokens."""
        return cls(*(np.empty(0, np.int64) for _ in range(4)))

    @classmethod
    def of(cls, transcript: Ints, index: Ints, offset: int = 0, source: Ints | None = None) -> Slots:
        """Return tokens of a transcript at their own places, with positions `offset` further on."""
        return cls(transcript[index], index + offset, index, index if source is None else source[index])

    def __len__(self) -> int:
        return len(self.ids)

    def __add__(self, other: Slots) -> Slots:
        pairs = zip(self._columns, other._columns, strict=True)
        return Slots(*(np.concatenate(pair) for pair in pairs))

    def first(self, count: int) -> Slots:
        """Return the first `count` slots."""
        return Slots(*(column[:count] for column in self._columns))

    def before(self, place: int) -> int:
        """Return the number of slots before a place of the transcript."""
        return int(np.searchsorted(self.place, place))  # `place` is ascending

    def in_place(self, tokens: int) -> Bools:
        """Return the tokens, among the transcript's first `tokens`, that are at their own places, (tokens,)."""
        return self._mask(self.source[self.source == self.place], tokens)

    def present(self, tokens: int) -> Bools:
        """Return the tokens, among the transcript's first `tokens`, that are cached, excerpts included, (tokens,)."""
        return self._mask(self.source[self.source >= 0], tokens)

    @property
    def end(self) -> int:
        """Position after the last slot."""
        return int(self.positions[-1]) + 1 if len(self) else 0

    @property
    def excerpts(self) -> Bools:
        """Slots that belong to excerpts, (m,)."""
        mask: Bools = (self.source != self.place) & (self.source != PART)
        return mask

    @property
    def offset(self) -> int:
        """Difference of position and place after the last slot: the length of all excerpts."""
        return int(self.excerpts.sum())

    @property
    def _columns(self) -> tuple[Ints, Ints, Ints, Ints]:
        return self.ids, self.positions, self.place, self.source

    @staticmethod
    def _mask(index: Ints, tokens: int) -> Bools:
        mask = np.zeros(tokens, bool)
        mask[index[index < tokens]] = True
        return mask


def message_ends(prompt: TokenisedPrompt) -> Ints:
    """Return the tokens at which messages end, ascending.

    All tokens before the k-th end belong to the messages up to it, or to markup. A token that reaches over an end comes
    after it.
    """
    parts = prompt.prompt.segments or [span for span in prompt.prompt.spans if span.kind == "plain"]
    return _edges(prompt, [part.end for part in parts])


def message_starts(prompt: TokenisedPrompt) -> Ints:
    """Return the tokens with which messages begin, ascending; the question of a document counts as one."""
    segments = prompt.prompt.segments
    kinds = ("question",) if segments else ("plain", "question")
    spans = [span for span in prompt.prompt.spans if span.kind in kinds]
    return _edges(prompt, [segment.start for segment in segments] + [span.start for span in spans])


def _edges(prompt: TokenisedPrompt, offsets: list[int]) -> Ints:
    return np.unique(np.searchsorted(np.ascontiguousarray(prompt.bytes[:, 1]), offsets, side="right")).astype(np.int64)


@dataclass(frozen=True)
class TurnPlan:
    """The slots of a turn.

    `common`: number of first slots that the turn before planned, too; `decided`: first tokens of the transcript about
    which that turn decided; `way`: how something was recalled.
    """

    slots: Slots
    common: int
    decided: int
    way: RecallMethod | None = None


SPACING = 1024  # fewest tokens between snapshots, except for the last two of a turn
CLOSE = 512
"""Tokens within which ends of messages share a snapshot: a stop costs a pass over all weights, as much as reading
some hundred tokens again."""


CacheContents = tuple[ParkedCache, Mapping[int, States]]  # arguments of `SessionCache.put`


class TargetMemory:
    """The target's part of a conversation.

    The session cache `cache` holds the `slots`, or is refilled with them after a failure; they result from decisions
    about the tokens of the `transcript`, including those left out.
    """

    def __init__(
        self,
        target: Loaded,
        options: RunOptions,
        snapshots: int,
        bases: Callable[[str], Mapping[int, KeyBasis]] | None = None,
    ) -> None:
        self._loaded, self._options = target, options
        model = target.model
        self._bases = bases or model.bases_for
        self.cache = SessionCache(
            model.config,
            options.kv,
            rotate=options.rotate,
            device=model.device,
            snapshots=snapshots,
            precision=model.arithmetic.attention,
            bases=self._bases,
        )
        self.slots, self.transcript = Slots.none(), np.empty(0, np.int64)
        self._graphs: CacheGraphs | None = None

    def decided(self, ids: Ints) -> int:
        """Return how many first tokens of a transcript equal those of the turn before; at least one is left to read."""
        return min(same_start(self.transcript, ids), len(ids) - 1)

    def cost(self, plan: TurnPlan) -> int:
        """Return the number of tokens that the target would read for a plan."""
        return len(plan.slots) - self.cache.reachable(min(plan.common, self.cache.tokens))

    def begin(
        self, plan: TurnPlan, transcript: Ints, ends: Ints, options: RunOptions, progress: Progress | None
    ) -> PrefilledAnswer:
        """Bring the cache to the slots of a plan, up to the first token of the answer; repeatable after a failure.

        The tokens of the answer that were read are in the cache once it ends. For snapshots it stops at some of `ends`,
        the tokens at which messages end.
        """
        model, slots = self._loaded.model, plan.slots
        if model.cold is not None:
            model.cold.restart()
        position = self.cache.rewind_to(min(plan.common, self.cache.tokens))  # slots that stay in the cache
        self.cache.mark()  # a snapshot that costs no stop
        self.slots, self.transcript = slots.first(plan.common), transcript[: plan.decided]
        room = len(slots) - position + options.max_new_tokens  # tokens that the cache still has to take
        for stop in [*self._stops(slots, ends, position), len(slots)]:
            with self.cache.reading(room) as cache:
                graphs = self._graphs_of(cache)
                # Tokens left out since the last slot.
                gap = int(slots.positions[position] - slots.positions[position - 1]) - 1 if position else 0
                if gap > 0 and options.state_gaps != "compact":
                    cross_gap(model, cache, gap, options.state_gaps)
                run = slice(position, stop)
                logits, densities = read_prompt(model, slots.ids[run], slots.positions[run], graphs, options, progress)
            if stop < len(slots):
                self.cache.mark()
            room, position = room - (stop - position), stop
        self.slots, self.transcript = slots, transcript
        rest = self._decode(logits, options)
        return PrefilledAnswer(next(rest), rest, densities, prefill_counts=graphs.take_counts())

    def _decode(self, logits: Floats, options: RunOptions) -> Generator[int]:
        """Yield tokens from the logits of the last slot; those read become slots when this ends or is closed."""
        n, seen, before = len(self.transcript), list[int](), self.cache.tokens
        position = int(self.slots.positions[-1]) + 1
        with (
            self.cache.reading(options.max_new_tokens) as cache,
            closing(decode(self._loaded.model, logits, position, self._graphs_of(cache), options)) as stream,
            suppress(GeneratorExit),
        ):
            for token in stream:
                seen.append(token)
                yield token
        # The last tokens yielded may not have been fed back; only those in the cache become slots.
        fed = np.array(seen[: self.cache.tokens - before], np.int64)
        index = np.arange(n, n + len(fed))  # the answer continues the transcript
        self.slots += Slots(fed, position + np.arange(len(fed)), index, index)
        self.transcript = np.concatenate([self.transcript, fed])

    def reserve(self, tokens: int, room: int) -> None:
        """Rewind the cache to `tokens` and make room for `room` more, which `begin` does by itself."""
        self.cache.rewind_to(tokens)
        with self.cache.reading(room) as cache:
            self._graphs_of(cache)

    def settle(self) -> None:
        """See `SessionCache.settle`."""
        self.cache.settle()

    def changes(self, *, full: bool) -> list[CacheChanges]:
        """Return what is new in each of the `caches`, see `SessionCache.changes`."""
        return [self.cache.changes(full=full)]

    def put(self, slots: Slots, transcript: Ints, *contents: CacheContents) -> None:
        """Load the contents of the caches of another memory of the same model and options; see `SessionCache.put`."""
        self.cache.put(*contents[0])
        self.slots, self.transcript = slots, transcript

    @property
    def caches(self) -> tuple[SessionCache, ...]:
        """The cache, as a tuple."""
        return (self.cache,)

    @property
    def refused(self) -> str | None:
        """See `CacheGraphs.refused`."""
        return None if self._graphs is None else self._graphs.refused

    def fork(self, ids: Ints) -> TargetMemory:
        """Return another memory with the cached part of a transcript's beginning; this one is unchanged."""
        other = TargetMemory(self._loaded, self._options, 1, self._bases)
        decided = same_start(self.transcript, ids)
        common = self.slots.before(decided)
        other.cache = self.cache.fork(min(common, self.cache.tokens))
        other.slots, other.transcript = self.slots.first(common), self.transcript[:decided]
        return other

    @property
    def nbytes(self) -> int:
        """Size in bytes on the device of the cache and of the graphs that use it."""
        return self.cache.nbytes + (0 if self._graphs is None else self._graphs.graph_nbytes)

    def offload(self) -> bool:
        """Move the cache to host memory; False if all of it was there."""
        self.end_graphs()
        return self.cache.park()

    def clear(self) -> None:
        """Forget everything and free its memory."""
        self.end_graphs()
        self.cache.clear()
        self.slots, self.transcript = Slots.none(), np.empty(0, np.int64)

    def _stops(self, slots: Slots, ends: Ints, position: int) -> list[int]:
        """Return the slots at which to take snapshots.

        These are the ends of the last two messages that are not close to each other, and others well apart. Of those
        close to the last one the first is used: a turn that continues from the last one reads few tokens again, and one
        that rephrases the last question only those.
        """
        # Keys and values can be cut anywhere; only recurrent states need snapshots.
        if not self.cache.recurrent:
            return []
        stops, last = list[int](), 0
        for end in ends[::-1].tolist():
            stop = slots.before(end)
            if stop < position + CLOSE:  # close to the snapshot that this turn continues from
                break
            # The end of the prompt is no stop: the cache itself holds that state.
            if stop == len(slots):
                continue
            last = last or stop
            if last - stop < CLOSE:
                stops = [stop]
            elif len(stops) < 2 or stops[-1] - stop >= SPACING:
                stops.append(stop)
        return stops[::-1]

    def _graphs_of(self, cache: Cache) -> CacheGraphs:
        """Return the cache with its graphs, and free the graphs of the cache it grew from, which they keep alive."""
        model = self._loaded.model
        if self._graphs is None or not self._graphs.serves(model, cache):
            self.end_graphs()
            self._graphs = CacheGraphs(model, cache)
        return self._graphs

    def end_graphs(self) -> None:
        """End the graphs that use the cache; they are captured again when needed."""
        if self._graphs is not None:
            self._graphs.end()
            self._graphs = None


class DrafterMemory:
    """The drafter's part of a conversation: keys after RoPE.

    Where a transcript grows beyond the window, or is cut back to it, the scaling of RoPE changes (`Loaded.for_prompt`),
    and all is read again, so that scores are those of a first reading. Factors double, so while a transcript grows this
    adds up to less than two readings of its whole length.
    """

    def __init__(self, drafter: Loaded, layers: ModelConfig, kv: str, snapshots: int) -> None:
        self._arguments = drafter, layers, kv, snapshots
        self.cache = self._empty(drafter.model.config.rope)
        self._ids: Ints = np.empty(0, np.int64)
        self._forgotten: str | None = None

    def keys(self, ids: Ints, ends: Ints) -> PrefixKeys:
        """Return the keys of a prompt's beginning, for its scorer to continue from; all others are dropped."""
        rotary, known = self._rope(len(ids)), self.cache.tokens
        self._forgotten = None
        if rotary != self.cache.config.rope:
            if known:
                self._forgotten = (
                    f"drafter: {known:,} tokens of earlier turns are read again, because the scaling of RoPE changed"
                )
            self.cache.clear()
            self.cache = self._empty(rotary)
        self.cache.rewind_to(same_start(self._ids[: self.cache.tokens], ids))
        self._ids = ids  # valid as far as the cache goes, even if reading the rest fails
        return PrefixKeys(self.cache, tuple(ends[-self._arguments[3] :].tolist()))

    @property
    def forgotten(self) -> tuple[str, ...]:
        """Remarks for the report on keys that the last prompt could not continue from."""
        return (self._forgotten,) if self._forgotten else ()

    @property
    def ids(self) -> Ints:
        """The last prompt, of which the cache may hold a beginning."""
        return self._ids

    def put(self, ids: Ints, contents: ParkedCache, snapshots: Mapping[int, States]) -> None:
        """Load the contents of another memory of the same model and options; see `SessionCache.put`."""
        self.cache = self._empty(self._rope(len(ids)))
        self.cache.put(contents, snapshots)
        self._ids = ids

    def fork(self, ids: Ints) -> DrafterMemory:
        """Return another memory with the part of a prompt's beginning that the prompt can continue from."""
        other = DrafterMemory(*self._arguments)
        if self._rope(len(ids)) == self.cache.config.rope:
            other.cache = self.cache.fork(same_start(self._ids[: self.cache.tokens], ids))
        other._ids = ids
        return other

    def _rope(self, tokens: int) -> Rope:
        """Return the RoPE of a prompt of so many tokens."""
        return self._arguments[0].for_prompt(tokens).model.config.rope

    def _empty(self, rotary: Rope) -> SessionCache:
        drafter, layers, kv, snapshots = self._arguments
        model = drafter.model.with_rope(rotary)
        device, precision = model.device, model.arithmetic.attention
        layers = replace(layers, rope=rotary)
        return SessionCache(layers, kv, device=device, snapshots=snapshots, precision=precision, bases=model.bases_for)
