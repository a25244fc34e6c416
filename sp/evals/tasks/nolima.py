"""Task `nolima`: question and evidence connected by knowledge, not by words: the idea of NoLiMa, own texts.

Someone lives next to a landmark; the question is who has been to the landmark's city. The text does not say in which
city a landmark is: that is known from the closed world of `sp.evals.text.world`. NoLiMa's needles and code (arXiv
2502.05167) are under a non-commercial licence of Adobe Research; nothing of them is used.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from sp.evals.base import register_task
from sp.evals.story import Story, StoryQuestion, StoryTask
from sp.evals.text.tables import BLIND, NAMES, SURNAMES, table
from sp.evals.text.world import RELATIONS, capital, people, tell

TABLES = table(__file__)

ASIDES = 4  # most questions of each easier kind in a story


@dataclass(frozen=True)
class NolimaPhrases:
    """Frames by the name of a relation, and names of persons.

    Easier questions are `by_thing` (slot {thing}, the answer is the person), `by_who` ({who} and {sort}, the thing),
    `kind_by_who` ({who} and {genus}, the kind) and `known` ({thing} and {genus}, the kind, which no text says).
    """

    facts: dict[str, tuple[str, ...]]  # slots {who} and {thing}, the thing named in full
    asked: dict[str, tuple[str, ...]]  # the question of examples: slot {kind}, the answer is the person
    by_thing: tuple[str, ...]
    by_who: tuple[str, ...]
    kind_by_who: tuple[str, ...]
    known: tuple[str, ...]
    before: tuple[str, ...]  # before, after: beginnings and ends of a fact
    after: tuple[str, ...]
    first: Sequence[str]  # first, last: names
    last: Sequence[str]


HELD_OUT = NolimaPhrases(**TABLES["held_out"], first=tuple(NAMES), last=tuple(SURNAMES))


@register_task("nolima", suite="unmatched")
@dataclass(frozen=True)
class Nolima(StoryTask):
    """The one of many persons with a thing of the kind in the question.

    Each story has two of the four relations of the world, so that half of the facts are of the sort of the question.

    Parameters
    ----------
    seed, facts
        See `StoryTask`.
    """

    held_out: ClassVar[NolimaPhrases] = HELD_OUT
    blind: ClassVar[NolimaPhrases] = replace(HELD_OUT, facts=BLIND["nolima_facts"], asked=BLIND["nolima_questions"])
    spacing: ClassVar[int] = 128

    def story(self, rng: random.Random, phrases: NolimaPhrases, facts: int) -> Story:
        """Draw facts about persons and things, and ask for persons by kinds that only one person's thing has.

        >>> story = Nolima().story(random.Random(1), HELD_OUT, 6)
        >>> story.questions[0].text, story.questions[0].answers
        ('Whom would you ask about meals like those of Lankistan?', ('Leonard Tennant',))
        """
        choose = rng.choice
        pair = rng.sample(RELATIONS, 2)
        persons = people(rng, phrases.first, phrases.last, facts)
        sorts = [pair[rng.random() < 0.5] for _ in persons]
        things: dict[tuple[str, str], None] = {}
        passages: list[str] = []
        drawn = []
        for who, relation in zip(persons, sorts, strict=True):
            thing = choose(relation.things)
            while (relation.name, thing) in things:
                thing = choose(relation.things)
            things[relation.name, thing] = None
            named = relation.named(thing)
            passages.append(
                tell(rng, choose(phrases.facts[relation.name]), phrases.before, phrases.after, who=who, thing=named)
            )
            drawn.append((relation, thing, named, who, passages[-1]))
        times = Counter((relation.name, relation.of[thing]) for relation, thing, *_ in drawn)
        rng.shuffle(drawn)
        hard = [fact for fact in drawn if times[fact[0].name, fact[0].of[fact[1]]] == 1]
        if not hard:
            return self.story(rng, phrases, facts)
        questions = [
            StoryQuestion(choose(phrases.asked[r.name]).format(kind=r.of[thing]), (who,), (sentence,), kind=r.name)
            for r, thing, _, who, sentence in hard[: 2 * ASIDES]
        ]
        for r, thing, named, who, sentence in drawn[:ASIDES]:
            kind = (r.of[thing],)
            easier = (
                StoryQuestion(
                    capital(choose(phrases.by_thing).format(thing=named)), (who,), (sentence,), kind="by_thing"
                ),
                StoryQuestion(
                    choose(phrases.by_who).format(who=who, sort=r.name), (thing,), (sentence,), kind="by_who"
                ),
                StoryQuestion(
                    choose(phrases.kind_by_who).format(who=who, genus=r.genus), kind, (sentence,), kind="kind_by_who"
                ),
                StoryQuestion(
                    capital(choose(phrases.known).format(thing=named, genus=r.genus)), kind, (), kind="known"
                ),
            )
            questions += easier
        return Story(tuple(passages), tuple(questions))
