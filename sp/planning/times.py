"""predicted_times: what a plan's requests would take on a card, told by length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sp.errors import ConfigError
from sp.models.network.arithmetic import AskedMath
from sp.planning.cards import ANSWER, Way, best, need, room, ways
from sp.planning.known_cards import Card
from sp.planning.plan import Plan
from sp.planning.roofline import Roofline, TimedModel
from sp.quant import Math

Density = Callable[[int], float | None]
"""Of a prompt of so many tokens the share of causal blocks that a drafter is expected to read; None for all."""


def predicted_times(
    plan: Plan,
    card: Card,
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
    density : callable
        Of the drafter's attention.
    math, drafter_math : Math or "auto"
        What target and drafter are asked to multiply, see `TimedModel.multiplied_in`.
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
    (config, held), drafter = plan.sizes, plan.drafter
    if config.experts or (drafter is not None and drafter.config.experts):
        return []
    if cards > 1 and drafter is not None and drafter.config.delta is not None:
        raise ConfigError(f"{drafter.name} has recurrent layers, which several cards cannot read together")
    roofline = Roofline(card, cards, plan.target.cards)
    target = TimedModel(config, plan.target.streamed).multiplied_in(math, card)
    made_in = Math.INT8 if target.int8 else Math.BF16

    def way(tokens: int, compressed: bool) -> Way | None:
        scorer = drafter if compressed else None
        return best(list(ways(config, held, scorer, tokens, plan.keep, math=made_in, alone=roofline.alone)), card.gib)

    def full(tokens: int) -> dict[str, float | None]:
        if (fits := way(tokens, False)) is None:
            return {"full_s": None, "decode_tok_s": None}
        prompt = tokens - ANSWER
        return {"full_s": roofline.full_s(target, prompt), "decode_tok_s": 1 / roofline.step_s(target, prompt, fits.kv)}

    def compressed(tokens: int) -> dict[str, float | None]:
        if drafter is None:
            return {}
        if (fits := way(tokens, True)) is None:
            return dict.fromkeys(("score_s", "prefill_s", "ttft_s", "decode_tok_s"))
        prompt, reader = tokens - ANSWER, TimedModel(drafter.config, drafter.weights)
        moved = 0
        if fits.by_turns:  # what waits in host memory while the drafter is at work comes back
            together = need(config, held, drafter, prompt, fits.kv, plan.keep, math=made_in).together
            moved = max(0, together - room(card.gib))
        times = roofline.compressed(
            target, reader.multiplied_in(drafter_math, card), prompt, plan.keep, density(prompt), moved
        )
        step = roofline.step_s(target, max(1, int(plan.keep * prompt)), fits.kv)
        return {**times._asdict(), "decode_tok_s": 1 / step}

    return [{"tokens": tokens} | full(tokens) | compressed(tokens) for tokens in plan.lengths]
