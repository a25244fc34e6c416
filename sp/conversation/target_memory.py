"""TargetMemory: the target's cache from turn to turn, and what stands in it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing

import numpy as np

from sp.arrays import Floats, Ints
from sp.conversation.plan import Plan
from sp.conversation.slots import Slots, same_start
from sp.decode.graph import GraphDecoder
from sp.decode.greedy import gather, generate
from sp.models import Cache, Trail, prefill, prefill_sparse
from sp.models.passes.gaps import cross_gap
from sp.models.passes.prefill_graphs import PrefillGraphs
from sp.pipeline import Loaded, RunOptions
from sp.pipeline.stages import OnToken

SPACING = 1024
"""Tokens between snapshots, but for the last two of a turn."""
CLOSE = 512
"""Ends of messages so close to each other share a snapshot: to stop costs a pass over all weights, as much as to read
some hundred tokens again."""


class TargetMemory:
    """What the target has read.

    Parameters
    ----------
    target : Loaded
    options : RunOptions
    snapshots : int
        See `Trail`.

    Attributes
    ----------
    trail : Trail
    slots : Slots
        What the cache holds, or is to be made to hold again after a failure.
    transcript : int64 (n,)
        The tokens that `slots` decides, those left out among them.
    """

    def __init__(self, target: Loaded, options: RunOptions, snapshots: int) -> None:
        self._loaded, self._options = target, options
        model = target.model
        self.trail = Trail(
            model.config,
            options.kv,
            rotate=options.rotate,
            device=model.device,
            snapshots=snapshots,
            math=model.arithmetic.attention,
        )
        self.slots, self.transcript = Slots.none(), np.empty(0, np.int64)
        self._decoder: tuple[Cache, object, int, GraphDecoder] | None = None
        self._prefill: tuple[Cache, PrefillGraphs] | None = None

    def decided(self, ids: Ints) -> int:
        """How many first tokens of a transcript are those of the turn before; one at least is left to be read."""
        return min(same_start(self.transcript, ids), len(ids) - 1)

    def cost(self, plan: Plan) -> int:
        """Tokens that the target would read for a plan."""
        return len(plan.slots) - self.trail.reachable(min(plan.common, self.trail.tokens))

    def read(
        self, plan: Plan, transcript: Ints, ends: Ints, new_tokens: int, progress: Callable[[int], None] | None = None
    ) -> tuple[Floats, tuple[float, ...]]:
        """Bring the cache to the slots of a plan; logits of the last one, and densities as of `prefill_sparse`.

        Begun again after a failure it does the same.

        Parameters
        ----------
        plan : Plan
        transcript : int64 (n,)
        ends : int64
            Tokens of the transcript at which messages end, ascending: places for snapshots.
        new_tokens : int
            Room for the answer.
        progress : callable, optional
        """
        options, model, slots = self._options, self._loaded.model, plan.slots
        at = self.trail.back_to(min(plan.common, self.trail.tokens))
        self.trail.mark()  # a copy without a stop
        self.slots, self.transcript = slots.first(plan.common), transcript[: plan.decided]
        room, logits = len(slots) - at + new_tokens, None
        densities: tuple[float, ...] = ()
        for stop in [*self._stops(slots, ends, at), len(slots)]:
            what = slots.ids[at:stop], slots.positions[at:stop]
            with self.trail.reading(room) as cache:
                if any(known is not None and known[0] is not cache for known in (self._decoder, self._prefill)):
                    self._end_graphs()  # or what the cache grew out of would live on
                gap = int(slots.positions[at] - slots.positions[at - 1]) - 1 if at else 0
                if gap > 0 and options.state_gaps != "compact":
                    cross_gap(model, cache, gap, options.state_gaps)
                if options.target_sparse is None:
                    graphs = self._readers(cache)
                    logits = prefill(model, *what, cache, gaps=options.state_gaps, progress=progress, graphs=graphs)
                else:
                    logits, densities = prefill_sparse(model, *what, cache, options.target_sparse, progress=progress)
            if stop < len(slots):
                self.trail.mark()
            room, at = room - (stop - at), stop
        self.slots, self.transcript = slots, transcript
        assert logits is not None
        return logits, densities

    def told(self) -> dict[str, int]:
        """Tokens that `read` read since this was asked last, by how; see `PrefillGraphs.told`."""
        return {} if self._prefill is None else self._prefill[1].told()

    def answer(self, logits: Floats, options: RunOptions, on_token: OnToken | None) -> list[int]:
        """Decode from logits of the last slot; what was read of the answer is in the cache from then on."""
        n, limit, seen = len(self.transcript), options.max_new_tokens, list[int]()
        before, position = self.trail.tokens, int(self.slots.positions[-1]) + 1
        with self.trail.reading(limit) as cache:
            stream = generate(
                *(self._loaded.model, logits, position, cache),
                limit=limit,
                decoder=self._graphs(cache, limit),
                chooser=options.decode.chooser(options.seed),
            )
            tokens = gather(_noted(stream, seen), self._loaded.tokenizer.eos_ids, on_token)
        fed = np.array(seen[: self.trail.tokens - before], np.int64)
        index = np.arange(n, n + len(fed))
        self.slots += Slots(fed, position + np.arange(len(fed)), index, index)
        self.transcript = np.concatenate([self.transcript, fed])
        return tokens

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
        return self.trail.nbytes + (0 if self._prefill is None else self._prefill[1].nbytes)

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
        """Slots at which to take snapshots: the ends of the last two messages that are not close, others well apart.

        Of those close to the last one it is the first: a turn that goes on from the last reads few tokens again, and
        one that asks the last question otherwise none but those.
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

    def _graphs(self, cache: Cache, limit: int) -> GraphDecoder | None:
        """What decodes on the device; graphs know where weights and cache lie."""
        model = self._loaded.model
        if model.device == "cpu":
            return None
        known = self._decoder
        if known is None or known[0] is not cache or known[1] is not model.trunk or known[2] < limit:
            self._end_decoder()
            self._decoder = cache, model.trunk, limit, GraphDecoder(model, cache, limit)
        assert self._decoder is not None
        return self._decoder[3]

    def _readers(self, cache: Cache) -> PrefillGraphs | None:
        """What reads short runs of tokens on the device."""
        if self._loaded.model.device == "cpu":
            return None
        if self._prefill is None:
            self._prefill = cache, PrefillGraphs(self._loaded.model, cache)
        return self._prefill[1]

    def _end_graphs(self) -> None:
        self._end_decoder()
        if self._prefill is not None:
            self._prefill[1].end()
            self._prefill = None

    def _end_decoder(self) -> None:
        if self._decoder is not None:
            self._decoder[3].end()
            self._decoder = None


def _noted(stream: Generator[int], seen: list[int]) -> Generator[int]:
    """The same stream, all of it written down, the token that ends an answer too."""
    with closing(stream):
        for token in stream:
            seen.append(token)
            yield token
