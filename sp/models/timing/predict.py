"""Predicted seconds of what a request is made of, on a card that is known by its data sheet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from sp.models.cache.striped import Stripes
from sp.models.inspect.known_cards import Card
from sp.models.inspect.known_cards import Path as KernelPath
from sp.models.passes.prefill_graphs import MOST, longest
from sp.models.shards.in_parts import middle
from sp.models.timing.fitted import Fitted, busy_pass
from sp.models.timing.several import (
    ATTENTION,
    REPEATED,
    begun,
    gathered,
    graphs_begun,
    halved,
    last_of,
    longer,
    repeats,
    striped,
    sum_time,
    summed,
    sums,
    uneven,
)
from sp.models.timing.work import Weights, Work, reading, scoring, step
from sp.parallel.nccl import BLOCKS


@dataclass(frozen=True)
class Predictor:
    """Predicts for one card, or several of a kind that are linked.

    Parameters
    ----------
    card : Card
    known : Fitted
    path : {"sm_90a", "portable"}
        Kernels; those that the card runs are `Card.path`.
    cards, target_cards : int
        That read a prompt together for the drafter, and that share the target, whose `Weights` are then those of
        `share_of`.
    one_by_one : bool
        Whether a target reads launch by launch what is in graphs now, as in records from before: short runs of one
        card, all but short ones of two.
    """

    card: Card
    known: Fitted
    path: KernelPath
    cards: int = 1
    target_cards: int = 1
    one_by_one: bool = False

    @classmethod
    def of(cls, card: Card, known: Fitted, cards: int = 1, target_cards: int = 1) -> Predictor:
        """With the kernels that the card runs."""
        return cls(card, known, card.path, cards, target_cards)

    @property
    def alone(self) -> bool:
        """Whether one card does all, so that weights may wait in host memory."""
        return self.cards == self.target_cards == 1

    def prefill_s(self, model: Weights, tokens: int) -> float:
        """Seconds in which a target reads so many tokens."""
        n = self.target_cards
        work = reading(model, tokens)
        if n == 1:
            return self._queued(work, cards=int(tokens > MOST or self.one_by_one))
        between = self._sums_s(model, tokens)
        long = MOST if self.one_by_one else longest(n, model.rounded.attention_math)
        if tokens > MOST >= long:
            return self._queued(work, between, cards=n)
        in_parts = long > MOST and middle(min(tokens, long))  # one is added up while the other is computed
        work = halved(work) if in_parts else work
        first = graphs_begun(model, min(tokens, long), sum(one.launches for one in work) / ceil(tokens / long), n)
        if not in_parts:
            return first + self._queued(work, between, cards=0)
        all_of_them = self.card.multiprocessors
        left = replace(self, card=replace(self.card, multiprocessors=all_of_them - BLOCKS))
        return first + max(left._queued(work, cards=0) * all_of_them / (all_of_them - BLOCKS), between)

    def score_s(self, drafter: Weights, tokens: int, density: float | None = None) -> float:
        """Seconds in which a drafter scores a prompt; `density` of its attention as for `scoring`."""
        work, n = scoring(drafter, tokens, density), self.cards
        if n == 1 or not Stripes.fits(tokens, n, 1):
            return self._by_layers(drafter, work, 0.0, tokens, 1)
        links = self.known.links
        beside = drafter.config.layers * links.meeting_s * last_of(n) + links.uneven * self._uneven_s(work)
        pages = self._sent_s(gathered(drafter.config, tokens, n))
        return max(self._by_layers(drafter, striped(work, tokens, n), beside, tokens, n), pages + beside)

    def _by_layers(self, drafter: Weights, work: list[Work], beside: float, tokens: int, cards: int) -> float:
        """Seconds of a reading layer by layer: the card waits for the host while launches of the first are planned."""
        if not repeats(drafter, tokens, cards):
            return self._queued(work, beside + self.known.host.score_s, cards)
        layers, device = drafter.config.layers, self._busy_s(work) + beside
        alone = drafter.rounded.left if drafter.rounded.products else 0  # layers of another kind
        first, rest = (alone + 1) / layers, (layers - alone - 1) / layers
        at_first = cards * self.known.host.launch_s * begun(work, drafter.config, alone, cards)
        looking = [one for one in work if one.kind == "importance"]  # planned in every layer, for the first card
        repeated = REPEATED * self._host_s([one for one in work if one.kind != "importance"], cards)
        return max(at_first, device * first) + rest * max(device, repeated + self._host_s(looking, 1))

    def step_s(self, model: Weights, context: int, kv: str = "f16") -> float:
        """Seconds of a token that is decoded after `context` others; graphs take the host out of it."""
        work = step(model, context, kv)
        between = self._sums_s(model, 1) if self.target_cards > 1 else 0.0
        return self.known.host.step_share * self._busy_s(work) + between

    def copy_s(self, nbytes: float) -> float:
        """Seconds to bring bytes from the host."""
        return nbytes / (self.card.pcie * self.known.host.copy_share)

    def full_s(self, target: Weights, tokens: int) -> float:
        """Seconds to the first token of a prompt that the target reads whole."""
        return self.prefill_s(target, tokens) + self.known.host.token_s * tokens

    def compressed(
        self,
        target: Weights,
        drafter: Weights,
        tokens: int,
        keep_ratio: float,
        density: float | None = None,
        moved: int = 0,
    ) -> Compressed:
        """A request that is scored and of which the target reads `keep_ratio`.

        Parameters
        ----------
        moved : int
            Bytes of the target that come back from the host for it, while it reads.
        """
        read = max(self.prefill_s(target, ceil(keep_ratio * tokens)), self.copy_s(moved))
        around = self.known.host.request_s + self.known.host.token_s * tokens
        return Compressed(self.score_s(drafter, tokens, density), read, around)

    def _uneven_s(self, work: list[Work]) -> float:
        """Seconds by which the largest stripes take longer than a card's own, of a scoring that one card would do."""
        attention = [one for one in work if one.kind in ATTENTION]
        return uneven(self.cards) * self._busy_s(attention)

    def _sums_s(self, model: Weights, tokens: int) -> float:
        """Seconds of the all-reduces of a pass."""
        count, sent = sums(model, tokens), self._sent_s(summed(model.config, tokens, self.target_cards))
        each = self.known.links.sum_s * sum_time(self.target_cards) + longer(self.target_cards, sent / count)
        return count * each + sent

    def _sent_s(self, nbytes: float) -> float:
        """Seconds in which a card receives so much from the others."""
        return nbytes / (self.card.link * self.known.links.share)

    def _queued(self, work: list[Work], beside: float = 0.0, cards: float = 1) -> float:
        """Seconds of a card and what is beside it, or of the host that queues the launches of all if these are more."""
        return max(self._busy_s(work) + beside, self._host_s(work, cards))

    def _busy_s(self, work: list[Work]) -> float:
        """Seconds that a card is at work."""
        return busy_pass(work, self.card, self.path, self.known)

    def _host_s(self, work: list[Work], cards: float) -> float:
        """Seconds in which the host plans and queues the launches of so many cards."""
        return cards * self.known.host.launch_s * sum(one.launches for one in work)


@dataclass(frozen=True)
class Compressed:
    """Predicted seconds of a compressed request.

    Attributes
    ----------
    score_s, prefill_s : float
        Of the drafter, and of the target's prefill of the kept tokens.
    around_s : float
        Of what the host does beside them.
    """

    score_s: float
    prefill_s: float
    around_s: float

    @property
    def ttft_s(self) -> float:
        """To the first token."""
        return self.score_s + self.prefill_s + self.around_s
