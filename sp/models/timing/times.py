"""predicted_times: what a plan's requests would take on a card, told by length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sp.errors import ConfigError
from sp.models.arithmetic import AskedMath
from sp.models.inspect.cards import ANSWER, Drafter, need
from sp.models.inspect.known_cards import Card
from sp.models.inspect.plan import Plan
from sp.models.inspect.ways import best, room, ways
from sp.models.timing.fitted import Fitted
from sp.models.timing.predict import Predictor
from sp.models.timing.rounded import Rounded
from sp.models.timing.work import Weights
from sp.quant import Math

Density = Callable[[int], float | None]
"""Of a prompt of so many tokens the share of causal blocks that a drafter is expected to read; None for all."""


def predicted_times(
    plan: Plan,
    card: Card,
    known: Fitted,
    density: Density,
    math: AskedMath = Math.BF16,
    drafter_math: AskedMath = Math.BF16,
    cards: int = 1,
) -> list[dict[str, Any]]:
    """Predicted seconds of a plan's requests on a card or several alike, one dict a length.

    Parameters
    ----------
    plan : Plan
        Of one card, or of one of several that share the target.
    card : Card
    known : Fitted
    density : callable
        Of the drafter's attention.
    math, drafter_math : Math or "auto"
        What target and drafter are asked to multiply, see `Rounded.of`.
    cards : int
        That read a prompt together for the drafter, which lies on each.

    Returns
    -------
    list of dict
        ``tokens`` (prompt and answer), ``full_s`` (first token after a full prefill), ``score_s``, ``prefill_s`` and
        ``ttft_s`` of a compressed request, and ``decode_tok_s`` after the prompt as it is read; None where the card
        has no room, or there is no drafter. None at all of mixtures of experts, of models that no card runs, and of
        several cards that are not linked.

    Raises
    ------
    ConfigError
        Several cards cannot read with the drafter.
    """
    if plan.sizes is None or plan.target.streamed is None or plan.verdict.role == "drafter":
        return []
    if max(cards, plan.target.cards) > 1 and not card.link:
        return []
    config, held = plan.sizes
    if config.experts or (plan.drafter is not None and plan.drafter.config.experts):
        return []
    target = Weights(config, plan.target.streamed, Rounded.of(math, config, card, card.path))
    predictor, reader = Predictor.of(card, known, cards, plan.target.cards), None
    if cards > 1 and plan.drafter is not None and plan.drafter.config.delta is not None:
        raise ConfigError(f"{plan.drafter.name} has recurrent layers, which several cards cannot read together")
    if plan.drafter is not None:
        rounded = Rounded.of(drafter_math, plan.drafter.config, card, card.path)
        reader = Weights(plan.drafter.config, plan.drafter.weights, rounded)
    return [
        {"tokens": tokens}
        | _full(predictor, target, held, tokens)
        | (_compressed(predictor, plan, target, reader, held, tokens, density) if reader else {})
        for tokens in plan.lengths
    ]


def _full(predictor: Predictor, target: Weights, held: int, tokens: int) -> dict[str, float | None]:
    """Of a prompt that is read whole."""
    way = best(
        list(ways(target.config, held, None, tokens, math=target.rounded.math, alone=predictor.alone)),
        predictor.card.gib,
    )
    if way is None:
        return {"full_s": None, "decode_tok_s": None}
    prompt = tokens - ANSWER
    return {"full_s": predictor.full_s(target, prompt), "decode_tok_s": 1 / predictor.step_s(target, prompt, way.kv)}


def _compressed(
    predictor: Predictor, plan: Plan, target: Weights, reader: Weights, held: int, tokens: int, density: Density
) -> dict[str, float | None]:
    """Of one that a drafter scores."""
    drafter, gib = plan.drafter, predictor.card.gib
    assert drafter is not None
    math = target.rounded.math
    way = best(list(ways(target.config, held, drafter, tokens, plan.keep, math=math, alone=predictor.alone)), gib)
    if way is None:
        return dict.fromkeys(("score_s", "prefill_s", "ttft_s", "decode_tok_s"))
    prompt = tokens - ANSWER
    moved = _moved(target, held, drafter, prompt, way.kv, plan.keep, gib) if way.by_turns else 0
    found = predictor.compressed(target, reader, prompt, plan.keep, density(prompt), moved)
    return {
        "score_s": found.score_s,
        "prefill_s": found.prefill_s,
        "ttft_s": found.ttft_s,
        "decode_tok_s": 1 / predictor.step_s(target, max(1, int(plan.keep * prompt)), way.kv),
    }


def _moved(target: Weights, held: int, drafter: Drafter, prompt: int, kv: str, keep: float, gib: int) -> int:
    """Bytes that wait in host memory while the drafter is at work, and come back."""
    found = need(target.config, held, drafter, prompt, kv, keep, math=target.rounded.math)
    return max(0, found.together - room(gib))
