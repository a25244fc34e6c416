"""What the host does while cards read a prompt together: launches, waits for a turn, waits for other cards.

    python experiments/host_time_on_cards.py --cards 2 --tokens 131072 --density 0.05

A drafter of random weights reads a few times, and once more while every launch and every wait is timed, by thread:
`_take` waits for a turn, `_until` for the end of a step or for others to come to it; `begin_gather` has the calls of
NCCL besides. Where threads wait much in `_until`, the devices set the pace; where they hardly do, the host does. With
`--without-turns` all threads launch at once. Nothing is recorded.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from sp.kernels.launch import KernelSpec
from sp.models import Cards
from sp.models.arithmetic import scoring
from sp.models.synthetic.random_store import random_model
from sp.parallel.nccl import copies, group_of
from sp.parallel.nccl_card import NcclCard
from sp.parallel.turns import Turns
from sp.scoring import SCORERS, ScoreRequest

Spent = dict[tuple[str, str], list[float]]


def timed(spent: Spent, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, noting seconds by thread."""

    def once(*given: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(*given, **named)
        finally:
            spent[threading.current_thread().name, name].append(time.perf_counter() - start)

    return once


def main() -> None:
    """Read, and print a line a thread and kind of call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--cards", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--density", type=float, default=0.05)
    parser.add_argument("--without-turns", action="store_true", help="let all threads launch at once")
    given = parser.parse_args()
    if given.without_turns:
        NcclCard.turn = lambda card: nullcontext()  # type: ignore[method-assign]
    group = group_of(given.cards, "cuda")
    models = [random_model(given.shape, "bf16", math="auto")]
    if group is not None:
        models += copies(group, lambda: random_model(given.shape, "bf16", math="auto"))
    for model in models:
        model.arithmetic = scoring(model.arithmetic, "cuda", model.config.head_dim)
        model.config = replace(model.config, context=max(model.config.context, given.tokens))
    scorer = SCORERS.build("tail", {"sparse": f"density:{given.density}"})
    ids, nothing = np.arange(given.tokens) % model.config.vocab, np.zeros(given.tokens, bool)
    cards = None if group is None else Cards(group, models)
    request = ScoreRequest(models[0], ids, np.arange(given.tokens), nothing, nothing, cards=cards)

    def read() -> float:
        start = time.perf_counter()
        scorer.score(request)
        return time.perf_counter() - start

    plain, spent = min(read() for _ in range(3)), defaultdict[tuple[str, str], list[float]](list)
    for owner, name in ((KernelSpec, "launch"), (Turns, "_take"), (NcclCard, "_until"), (NcclCard, "begin_gather")):
        setattr(owner, name, timed(spent, name, getattr(owner, name)))
    whole = read()
    print(
        f"{given.cards} cards, {given.tokens:,} tokens, density {given.density:g}: {plain:.3f} s, timed {whole:.3f} s"
    )
    for (thread, name), seconds in sorted(spent.items()):
        each = 1e6 * sum(seconds) / len(seconds)
        print(f"{thread:12} {name:13} {len(seconds):6,} calls {1e3 * sum(seconds):8.1f} ms, {each:7.1f} us each")


if __name__ == "__main__":
    main()
