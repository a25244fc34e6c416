"""Stories that teach the closed world: statements of it, and questions that only the reader's weights can answer."""

from __future__ import annotations

import random

from sp.evals.story import Story, StoryQuestion
from sp.evals.text.tables import table
from sp.evals.text.world import RELATIONS, capital, tell

from .common import AFTER, BEFORE
from .expand import frames

TABLES = table(__file__)

STATED = {
    "landmark": frames(
        (
            "{thing} [stands|is|lies|was built|can be found|rises] in {kind}",
            "{kind} [has|is proud of|is known for|is the home of|boasts|was built around] {thing}",
            "[in|at the heart of|far out in] {kind} [stands|rises|lies|is] {thing}",
            "[who|whoever] [sees|looks for|visits] {thing} [is in|goes to|comes to] {kind}",
        ),
        60, 1,
    ),
    "tool": frames(
        (
            "{thing} is [used for|made for|meant for|a tool for|needed for|good for] {kind}",
            "for {kind} [one needs|people use|there is|nothing beats|take] {thing}",
            "{kind} [needs|calls for|is done with|begins with|is hard without] {thing}",
            "with {thing} one [goes about|does some|is ready for|begins] {kind}",
        ),
        60, 2,
    ),
    "dish": frames(
        (
            "{thing} is [eaten in|a dish of|from|the food of|cooked in|loved in|a recipe from] {kind}",
            "in {kind} [people eat|they cook|one is served|everyone likes|they are fond of] {thing}",
            "{kind} [has given us|is known for|is the home of|lives on] {thing}",
        ),
        60, 3,
    ),
    "firm": frames(
        (
            "{thing} [deals in|trades in|buys and sells|sells|earns money with|is big in|is in] {kind}",
            "{kind} is [sold by|the trade of|what one buys from|the business of] {thing}",
            "[for|to buy] {kind} [go to|ask at|write to] {thing}",
        ),
        60, 4,
    ),
}  # fmt: skip
ASKED = TABLES["ASKED"]
QUESTIONS = {name: frames(patterns, 40, at) for at, (name, patterns) in enumerate(ASKED.items())}
TOLD = 0.5
"""Share of the things asked for whose kind the story tells; the others can only be known."""


def world_story(rng: random.Random, facts: int) -> Story:
    """`facts` statements of the world, and as many questions again and more; those without evidence are told nowhere.

    Things are asked for their kinds and not the other way round: every kind has a dozen things.

    Returns
    -------
    Story
        Passages state the world; a question's answer is a kind.
    """
    choose = rng.choice
    passages, questions = [], []
    drawn: dict[str, None] = {}
    while len(passages) < facts:
        relation = choose(RELATIONS)
        thing = choose(relation.things)
        if thing in drawn:
            continue
        drawn[thing] = None
        kind, named, evidence = relation.of[thing], relation.named(thing), ()
        if rng.random() < TOLD or not passages:
            said = tell(rng, choose(STATED[relation.name]), BEFORE, AFTER, thing=named, kind=kind)
            passages.append(said)
            evidence = (said,)
        asked = capital(choose(QUESTIONS[relation.name]).format(thing=named))
        questions.append(StoryQuestion(asked, (kind,), evidence, kind=relation.name))
    rng.shuffle(questions)
    return Story(tuple(passages), tuple(questions))
