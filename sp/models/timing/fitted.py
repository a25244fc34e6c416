"""How near to a card's limits each kind of kernel comes, and what the host takes: fitted to records of one card;
what several cards wait for, to records of two.

``fitted.json`` is made by ``experiments/fit_times.py`` from records that it names; see `sp.bench.predicted`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path

from sp.models.inspect.known_cards import Card
from sp.models.inspect.known_cards import Path as KernelPath
from sp.models.timing.tiles import in_tiles
from sp.models.timing.work import IN_BYTES, Work

FILE = Path(__file__).with_name("fitted.json")
LONG_S = 0.06
"""Passes that keep a card busy for longer find its products slower, see `Fitted.slower`: of 43 ms (512 tokens) an H200
takes no longer than its kernels by themselves, of 78 ms and more some per cent."""
PRODUCTS = ("matmul", "matmul int8")


@dataclass(frozen=True)
class Rate:
    """Of one kind of kernel.

    Attributes
    ----------
    share : float
        Of the card's peak, in operations or in bytes, whichever bounds it.
    launch_s : float
        Seconds that a launch takes besides: waves that are not full, the way to memory and back.
    """

    share: float
    launch_s: float = 0.0


@dataclass(frozen=True)
class Host:
    """What a request waits for besides a busy card.

    Attributes
    ----------
    launch_s : float
        Seconds to plan and queue a launch of a prefill: short ones end no sooner than they are queued.
    launch_us : float
        What a host that takes so long takes for a small launch: microseconds of `sp.bench.timing.HostTime`.
    score_s : float
        Seconds of a scoring beside its kernels, where launches are planned for every layer.
    request_s : float
        Seconds of a request that is compressed, whatever its length.
    token_s : float
        Seconds for every token of the prompt, whose text is cut up.
    step_share : float
        Of the sum over its kernels, what a decoded token takes: they overlap.
    copy_share : float
        Of the speed of PCIe, for weights that come back from the host.
    """

    launch_s: float
    launch_us: float
    score_s: float
    request_s: float
    token_s: float
    step_share: float
    copy_share: float


@dataclass(frozen=True)
class Links:
    """What several cards wait for besides their own work.

    Attributes
    ----------
    share : float
        Of NVLink's speed, at which sums and pages go between cards.
    meeting_s : float
        Seconds of a layer of a drafter's reading by two, where one waits for the other; pages are gathered beside it.
        Among more see `sp.models.timing.several.last_of`.
    uneven : float
        Of `sp.models.timing.several.uneven`, how much is waited for there.
    sum_s : float
        Seconds of a short all-reduce between two cards beside its bytes; of others see `sum_time` and `longer` in
        `sp.models.timing.several`.
    """

    share: float
    meeting_s: float
    uneven: float
    sum_s: float


@dataclass(frozen=True)
class Fitted:
    """All that is fitted.

    Attributes
    ----------
    rates : mapping
        By path of kernels and kind of `Work`.
    host, links
        The host's part, and what cards wait for.
    slower : float
        How long products of Hopper's kernels take in long passes over what they take in short ones: power is short.
    """

    rates: Mapping[str, Mapping[str, Rate]]
    host: Host
    links: Links
    slower: float

    def by_host(self, launch_us: float | None) -> Fitted:
        """With a host that takes so long for a small launch; the same where that is not known."""
        if launch_us is None:
            return self
        launch_s = self.host.launch_s * launch_us / self.host.launch_us
        return replace(self, host=replace(self.host, launch_s=launch_s, launch_us=launch_us))


@cache
def fitted() -> Fitted:
    """What the file beside this one says."""
    told = json.loads(FILE.read_text(encoding="utf-8"))
    rates = {path: {kind: Rate(**one) for kind, one in kinds.items()} for path, kinds in told["rates"].items()}
    return Fitted(rates, Host(**told["host"]), Links(**told["links"]), told["slower"])


def bound(work: Work, card: Card, path: KernelPath) -> float:
    """Seconds below which no kernel does the work: its operations or its bytes, whichever take longer.

    On Hopper's kernels the operations of products are those of `sp.models.timing.tiles.in_tiles`, and all others' those
    that a card could do while some of its multiprocessors have nothing to do.
    """
    in_bytes, flops = work.kind in IN_BYTES, work.flops
    if path == "sm_90a" and work.products:
        flops = sum(count * in_tiles(one, card.multiprocessors, in_bytes) for one, count in work.products)
    if work.blocks:
        flops *= ceil(work.blocks / card.multiprocessors) * card.multiprocessors / work.blocks
    return max(flops / card.peak(path, in_bytes), work.nbytes / card.bandwidth)


def busy_pass(work: Sequence[Work], card: Card, path: KernelPath, known: Fitted) -> float:
    """Seconds that a card is at work in a pass, whose products are slower if it is long."""
    rates = known.rates[path]
    alone = busy(work, card, path, rates)
    if path != "sm_90a" or alone <= LONG_S:
        return alone
    products = busy((one for one in work if one.kind in PRODUCTS), card, path, rates)
    return alone + (known.slower - 1) * products


def busy(work: Iterable[Work], card: Card, path: KernelPath, rates: Mapping[str, Rate]) -> float:
    """Seconds of work: every kind at its share of the bound, its exponentials, and its launches.

    Examples
    --------
    >>> from sp.models.inspect.known_cards import find_card
    >>> half = {"matmul": Rate(0.5, 1e-5)}
    >>> round(busy([Work("matmul", 71e12, 0.0, 1000)], find_card("rtx3090"), "portable", half), 2)
    2.01
    """
    return sum(
        bound(one, card, path) / rates[one.kind].share
        + one.exponentials / card.exponentials
        + one.launches * rates[one.kind].launch_s
        for one in work
    )
