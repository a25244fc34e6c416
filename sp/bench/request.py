"""One timed request: from the text to the first token, by stage, and the rate of the tokens after it."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from sp.bench.record import running
from sp.models.cache.pages import cache_name
from sp.models.shards.shared_model import SharedModel
from sp.prompt import Prompt
from sp.scoring.base import DRAFTING, recorded
from sp.selection import SELECTORS
from sp.session import Loaded, Pipeline, RunOptions
from sp.session.device_memory import format_bytes
from sp.trace import Stage

SKIPPED = 3  # decoded tokens before the rate is taken: one launch by launch, one captured, one replayed


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes
    ----------
    ttft_s : float
        From the text to the first token on the host.
    stages : dict of str to float
        Seconds by stage; `other` is what lies between them.
    prompt_tokens, kept_tokens : int
    density : float or None
        Share of the causal blocks the drafter read; None where nothing was skipped.
    decode_tok_s : float or None
        Tokens a second after the first few; None if there were too few.
    peak_bytes : int
        Most device memory in use during the request, weights included, of cards that of the one that held most; on the
        CPU the process' most so far.
    timeline : tuple of (seconds, bytes)
        Device memory in use since the request began.
    moves : tuple of dict
        Models, or parts of them, that left the device and came back, as the trace has them.
    """

    ttft_s: float
    stages: dict[str, float]
    prompt_tokens: int
    kept_tokens: int
    density: float | None
    decode_tok_s: float | None
    peak_bytes: int = 0
    timeline: tuple[tuple[float, int], ...] = ()
    moves: tuple[dict[str, Any], ...] = ()


def measure(pipeline: Pipeline, prompt: Prompt, options: RunOptions) -> Request:
    """Run one request and take its times."""
    arrivals: list[float] = []
    start = time.perf_counter()
    result = pipeline.run(prompt, options, full=False, on_token=lambda _: arrivals.append(time.perf_counter()))
    ttft = (arrivals[0] if arrivals else time.perf_counter()) - start
    stages = until_first_token(result.answer.trace.stages, ttft)
    counted = arrivals[SKIPPED:]
    rate = (len(counted) - 1) / (counted[-1] - counted[0]) if len(counted) > 1 else None
    densities = result.importance.densities if result.importance else ()
    density = mean(densities) if densities else None
    memory = result.answer.trace.facts.get("residency", {})
    timeline = tuple((at, used) for at, used in memory.get("memory", ()))
    moves, peaks = tuple(memory.get("transitions", ())), result.answer.trace.facts.get("card_peaks", ())
    peak = max(memory.get("peak_bytes", 0), *peaks, 0) or result.peak_bytes
    tokens, kept = len(result.prompt), result.kept_tokens
    return Request(ttft, stages, tokens, kept, density, rate, peak, timeline, moves)


def until_first_token(done: Iterable[Stage], ttft: float) -> dict[str, float]:
    """Seconds by name of the stages before decoding; `other` is what lies between them.

    Examples
    --------
    >>> until_first_token([Stage("score", seconds=1.0), Stage("decode", seconds=9.0)], 1.5)
    {'score': 1.0, 'other': 0.5}
    """
    spent: dict[str, float] = {}
    for stage in done:
        if stage.name == "decode":
            break
        spent[stage.name] = spent.get(stage.name, 0.0) + stage.seconds
    spent["other"] = max(0.0, ttft - sum(spent.values()))
    return spent


def pair_config(pipeline: Pipeline, options: RunOptions, vram: int | None, path: str, drafts: bool) -> dict[str, Any]:
    """What records have of a pair and how it reads; without what only a drafter has where nothing is drafted.

    `cards` are those on which it drafts, `target_cards` those that share the target, where there are several; `math`
    is the target's, `drafter_math` the drafter's where it is another.
    """
    drafter = pipeline.drafter if drafts else None
    cards = 1 if pipeline.cards is None or drafter is None else pipeline.cards.group.size
    roles = {"target": pipeline.target} | ({"drafter": drafter} if drafter else {})
    model = pipeline.target.model
    scorer = options.scorer.chosen(drafter.model.config) if drafter else options.scorer
    shared = {"target_cards": model.shards.group.size} if isinstance(model, SharedModel) else {}
    return {
        "target": pipeline.target.path.name,
        "drafter": drafter.path.name if drafter else None,
        **(recorded(scorer) if drafts else dict.fromkeys(DRAFTING[:-1])),
        "selector": SELECTORS.name_of(options.selector) if drafts else None,
        "vram": format_bytes(vram),
        "kv": cache_name(options.kv, options.rotate),
        **running(path, model.arithmetic, cards),
        **shared,
        **(_drafter_math(pipeline.target, drafter, path) if drafter else {}),
        **{f"{role}_rope": str(one.asked) for role, one in roles.items() if one.asked},
    }


def _drafter_math(target: Loaded, drafter: Loaded, path: str) -> dict[str, Any]:
    """What the drafter's products are made in, where that is not what the target's are."""
    theirs, ours = (running(path, one.model.arithmetic) for one in (target, drafter))
    told = [key for key in ("math", "products", "asked_math", "kept_bytes") if key in ours]
    alike = ours.keys() == theirs.keys() and all(ours[key] == theirs[key] for key in told if key != "kept_bytes")
    return {} if alike else {f"drafter_{key}": ours[key] for key in told}


def without_ends(loaded: Loaded) -> Loaded:
    """The same model with no token that ends an answer, whose length then does not depend on the weights."""
    tokenizer = copy.copy(loaded.tokenizer)
    tokenizer.eos_ids = frozenset()
    return replace(loaded, tokenizer=tokenizer)
