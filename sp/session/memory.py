"""What both models remember of a transcript: slots of the target's cache, and the keys of the drafter."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.models import Cache, ModelConfig, SessionCache
from sp.models.cache.transfer import ParkedCache, States
from sp.models.run.chunked import cross_gap
from sp.ops.rope import Rope
from sp.prompt import TokenisedPrompt
from sp.prompt.spans import same_start
from sp.scoring import PrefixKeys
from sp.session.answer import Begun, Progress, decode, read_prompt
from sp.session.compress import PART
from sp.session.loaded import Loaded
from sp.session.options import RunOptions
from sp.session.residency import CacheGraphs
from sp.session.result import Way


@dataclass(frozen=True)
class Slots:
    """Tokens in the order they are cached. A token of the transcript stands at its own place. One of an excerpt stands
    before the token at its place; in the transcript it is the token at `source`, or none. `ids`, `positions` int64
    (m,): token, and where RoPE puts it.
    """

    ids: Ints
    positions: Ints
    place: Ints  # ascending: what of the transcript comes before a slot are the tokens below its place
    source: Ints  # which token of the transcript it is, perhaps a part of it; -1 for none, or `PART`

    @classmethod
    def none(cls) -> Slots:
        """No tokens."""
        return cls(*(np.empty(0, np.int64) for _ in range(4)))

    @classmethod
    def of(cls, transcript: Ints, index: Ints, offset: int = 0, source: Ints | None = None) -> Slots:
        """Tokens of a transcript at their own places, their positions `offset` further on."""
        return cls(transcript[index], index + offset, index, index if source is None else source[index])

    def __len__(self) -> int:
        return len(self.ids)

    def __add__(self, other: Slots) -> Slots:
        pairs = zip(self._columns, other._columns, strict=True)
        return Slots(*(np.concatenate(pair) for pair in pairs))

    def first(self, count: int) -> Slots:
        """The first `count` of them."""
        return Slots(*(column[:count] for column in self._columns))

    def before(self, place: int) -> int:
        """How many stand before a place of the transcript."""
        return int(np.searchsorted(self.place, place))

    def in_place(self, tokens: int) -> Bools:
        """Which of a transcript's first `tokens` tokens stand at their own places, (tokens,)."""
        return self._mask(self.source[self.source == self.place], tokens)

    def present(self, tokens: int) -> Bools:
        """Which of them stand anywhere, excerpts included, (tokens,)."""
        return self._mask(self.source[self.source >= 0], tokens)

    @property
    def end(self) -> int:
        """The position behind the last of them."""
        return int(self.positions[-1]) + 1 if len(self) else 0

    @property
    def excerpts(self) -> Bools:
        """Which of them belong to excerpts, (m,)."""
        found: Bools = (self.source != self.place) & (self.source != PART)
        return found

    @property
    def offset(self) -> int:
        """By how much positions run ahead of places behind the last slot: the length of all excerpts."""
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
    """Tokens at which messages end, ascending: all before the k-th belong to the messages up to it, or to markup. A
    token that reaches over an end stands behind it.
    """
    said = prompt.prompt.segments or [span for span in prompt.prompt.spans if span.kind == "plain"]
    return _edges(prompt, [each.end for each in said])


def message_starts(prompt: TokenisedPrompt) -> Ints:
    """Tokens with which messages begin, ascending; the question of a document counts as one."""
    segments = prompt.prompt.segments
    kinds = ("question",) if segments else ("plain", "question")
    spans = [span for span in prompt.prompt.spans if span.kind in kinds]
    return _edges(prompt, [each.start for each in segments] + [each.start for each in spans])


def _edges(prompt: TokenisedPrompt, at: list[int]) -> Ints:
    return np.unique(np.searchsorted(np.ascontiguousarray(prompt.bytes[:, 1]), at, side="right")).astype(np.int64)


@dataclass(frozen=True)
class Plan:
    """The slots of a turn, which decide the first `decided` tokens of the transcript as the turn before did. The first
    `common` slots were planned for that turn too; `way` is how something was recalled.
    """

    slots: Slots
    common: int
    decided: int
    way: Way | None = None


SPACING = 1024  # tokens between snapshots, but for the last two of a turn
CLOSE = 512
"""Ends of messages so close to each other share a snapshot: to stop costs a pass over all weights, as much as to read
some hundred tokens again."""


class TargetMemory:
    """What the target has read. Its `trail` holds the `slots`, or is to be made to hold them again after a failure;
    these decide the tokens of the `transcript`, those left out among them.
    """

    def __init__(self, target: Loaded, options: RunOptions, snapshots: int) -> None:
        self._loaded, self._options = target, options
        model = target.model
        self.trail = SessionCache(
            model.config,
            options.kv,
            rotate=options.rotate,
            device=model.device,
            snapshots=snapshots,
            precision=model.arithmetic.attention,
            bases=model.bases_for,
        )
        self.slots, self.transcript = Slots.none(), np.empty(0, np.int64)
        self._graphs: CacheGraphs | None = None

    def decided(self, ids: Ints) -> int:
        """How many first tokens of a transcript are those of the turn before; one at least is left to be read."""
        return min(same_start(self.transcript, ids), len(ids) - 1)

    def cost(self, plan: Plan) -> int:
        """Tokens that the target would read for a plan."""
        return len(plan.slots) - self.trail.reachable(min(plan.common, self.trail.tokens))

    def begin(self, plan: Plan, transcript: Ints, ends: Ints, options: RunOptions, progress: Progress | None) -> Begun:
        """Bring the cache to the slots of a plan, up to the first token of the answer. Begun again after a failure it
        does the same. What is read of the answer is in the cache from its end on. At some of `ends`, the tokens at
        which messages end, it stops for snapshots.
        """
        model, slots = self._loaded.model, plan.slots
        if model.cold is not None:
            model.cold.restart()
        at = self.trail.rewind_to(min(plan.common, self.trail.tokens))
        self.trail.mark()  # a copy without a stop
        self.slots, self.transcript = slots.first(plan.common), transcript[: plan.decided]
        room = len(slots) - at + options.max_new_tokens
        for stop in [*self._stops(slots, ends, at), len(slots)]:
            with self.trail.reading(room) as cache:
                graphs = self._graphs_of(cache)
                gap = int(slots.positions[at] - slots.positions[at - 1]) - 1 if at else 0
                if gap > 0 and options.state_gaps != "compact":
                    cross_gap(model, cache, gap, options.state_gaps)
                what = model, slots.ids[at:stop], slots.positions[at:stop], graphs, options
                logits, densities = read_prompt(*what, progress)
            if stop < len(slots):
                self.trail.mark()
            room, at = room - (stop - at), stop
        self.slots, self.transcript = slots, transcript
        rest = self._decode(logits, options)
        return Begun(next(rest), rest, densities, read=graphs.take_counts())

    def _decode(self, logits: Floats, options: RunOptions) -> Generator[int]:
        """Tokens from the logits of the last slot; those that were read are slots once this has ended or is closed."""
        n, seen, before = len(self.transcript), list[int](), self.trail.tokens
        position = int(self.slots.positions[-1]) + 1
        with (
            self.trail.reading(options.max_new_tokens) as cache,
            closing(decode(self._loaded.model, logits, position, self._graphs_of(cache), options)) as stream,
            suppress(GeneratorExit),
        ):
            for token in stream:
                seen.append(token)
                yield token
        fed = np.array(seen[: self.trail.tokens - before], np.int64)
        index = np.arange(n, n + len(fed))
        self.slots += Slots(fed, position + np.arange(len(fed)), index, index)
        self.transcript = np.concatenate([self.transcript, fed])

    def put(self, slots: Slots, transcript: Ints, held: ParkedCache, snapshots: Mapping[int, States]) -> None:
        """Know what another one of the same model and options was seen to know; see `SessionCache.put`."""
        self.trail.put(held, snapshots)
        self.slots, self.transcript = slots, transcript

    def fork(self, ids: Ints) -> TargetMemory:
        """Another memory with what this one holds of a transcript's beginning; this one stays as it is."""
        other = TargetMemory(self._loaded, self._options, 1)
        decided = same_start(self.transcript, ids)
        common = self.slots.before(decided)
        other.trail = self.trail.fork(min(common, self.trail.tokens))
        other.slots, other.transcript = self.slots.first(common), self.transcript[:decided]
        return other

    @property
    def nbytes(self) -> int:
        """Bytes on the device: of the trail, and of what reads into it."""
        return self.trail.nbytes + (0 if self._graphs is None else self._graphs.graph_nbytes)

    def leave(self) -> bool:
        """Move the cache to host memory; False if nothing of it was elsewhere."""
        self._end_graphs()
        return self.trail.park()

    def clear(self) -> None:
        """Let go of everything."""
        self._end_graphs()
        self.trail.clear()
        self.slots, self.transcript = Slots.none(), np.empty(0, np.int64)

    def _stops(self, slots: Slots, ends: Ints, at: int) -> list[int]:
        """Slots at which to take snapshots: the ends of the last two messages that are not close, others well apart. Of
        those close to the last one it is the first: a turn that goes on from the last reads few tokens again, and one
        that asks the last question otherwise none but those.
        """
        if not self.trail.recurrent:
            return []
        found, last = list[int](), 0
        for end in ends[::-1].tolist():
            stop = slots.before(end)
            if stop < at + CLOSE:  # of the snapshot that is gone on from
                break
            if stop == len(slots):
                continue
            last = last or stop
            if last - stop < CLOSE:
                found = [stop]
            elif len(found) < 2 or found[-1] - stop >= SPACING:
                found.append(stop)
        return found[::-1]

    def _graphs_of(self, cache: Cache) -> CacheGraphs:
        """The cache with its graphs; those of what it grew out of would keep that alive."""
        model = self._loaded.model
        if self._graphs is None or not self._graphs.serves(model, cache):
            self._end_graphs()
            self._graphs = CacheGraphs(model, cache)
        return self._graphs

    def _end_graphs(self) -> None:
        if self._graphs is not None:
            self._graphs.end()
            self._graphs = None


class DrafterMemory:
    """What the drafter has read. Keys are kept as RoPE has turned them. Where a transcript grows beyond the window, or
    is cut back to it, RoPE is another one (`Loaded.for_prompt`), and all is read again, so that scores are those of a
    first reading. Factors double, so that while a transcript grows this adds up to less than two readings of its whole
    length.
    """

    def __init__(self, drafter: Loaded, layers: ModelConfig, kv: str, snapshots: int) -> None:
        self._how = drafter, layers, kv, snapshots
        self.trail = self._empty(drafter.model.config.rope)
        self._ids: Ints = np.empty(0, np.int64)
        self._forgotten: str | None = None

    def keys(self, ids: Ints, ends: Ints) -> PrefixKeys:
        """What is known of a prompt, for its scorer to go on from; all else is forgotten."""
        rotary, known = self._rope(len(ids)), self.trail.tokens
        self._forgotten = None
        if rotary != self.trail.config.rope:
            if known:
                self._forgotten = f"drafter: {known:,} tokens of earlier turns are read again, as RoPE is scaled anew"
            self.trail.clear()
            self.trail = self._empty(rotary)
        self.trail.rewind_to(same_start(self._ids[: self.trail.tokens], ids))
        self._ids = ids  # as far as the trail goes, whatever becomes of the reading
        return PrefixKeys(self.trail, tuple(ends[-self._how[3] :].tolist()))

    @property
    def forgotten(self) -> tuple[str, ...]:
        """What the report says of keys that the last prompt could not go on from; nothing where it could."""
        return (self._forgotten,) if self._forgotten else ()

    @property
    def ids(self) -> Ints:
        """The last prompt, of which the trail may hold a beginning."""
        return self._ids

    def put(self, ids: Ints, held: ParkedCache, snapshots: Mapping[int, States]) -> None:
        """Know what another one of the same model and options was seen to know; see `SessionCache.put`."""
        self.trail = self._empty(self._rope(len(ids)))
        self.trail.put(held, snapshots)
        self._ids = ids

    def fork(self, ids: Ints) -> DrafterMemory:
        """Another memory with what this one holds of a prompt's beginning, as far as the prompt can go on from it."""
        other = DrafterMemory(*self._how)
        if self._rope(len(ids)) == self.trail.config.rope:
            other.trail = self.trail.fork(same_start(self._ids[: self.trail.tokens], ids))
        other._ids = ids
        return other

    def _rope(self, tokens: int) -> Rope:
        """That of a prompt of so many tokens."""
        return self._how[0].for_prompt(tokens).model.config.rope

    def _empty(self, rotary: Rope) -> SessionCache:
        drafter, layers, kv, snapshots = self._how
        model = drafter.model.with_rope(rotary)
        device, precision = model.device, model.arithmetic.attention
        layers = replace(layers, rope=rotary)
        return SessionCache(layers, kv, device=device, snapshots=snapshots, precision=precision, bases=model.bases_for)
