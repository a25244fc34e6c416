"""Question and evidence joined by what the reader knows, not by words: after NoLiMa (arXiv 2502.05167), own texts.

Someone lives beside a landmark; the question is who has been to the city in which it stands. The landmark's city is
told nowhere: it is known from the closed world of `sp.evals.text.world`. NoLiMa's needles and code are under a
non-commercial licence of Adobe Research; only the idea is taken.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from sp.evals.base import register_task
from sp.evals.story import Question, Story, StoryTask
from sp.evals.text.tables import BLIND, NAMES, SURNAMES, table
from sp.evals.text.world import RELATIONS, capital, people, tell

TABLES = table(__file__)

ASIDES = 4  # questions of each easier sort that a story has at most


@dataclass(frozen=True)
class NolimaPhrases:
    """Frames by the name of a relation, with the slots {who}, {thing} (named in full) and {kind}; and names.
    `by_thing`, `by_who`, `kind_by_who`, `known`: easier questions: slot {thing}, answer who; slots {who} and {sort},
    answer the thing; {who} and {genus}, answer the kind; {thing} and {genus}, answer the kind, which no text tells."""

    facts: dict[str, tuple[str, ...]]  # slots {who} and {thing}
    asked: dict[str, tuple[str, ...]]  # the question to judge by: slot {kind}, answer who
    by_thing: tuple[str, ...]
    by_who: tuple[str, ...]
    kind_by_who: tuple[str, ...]
    known: tuple[str, ...]
    before: tuple[str, ...]  # before, after: what a fact may begin and end with
    after: tuple[str, ...]
    first: Sequence[str]  # first, last: names
    last: Sequence[str]


HELD_OUT = NolimaPhrases(**TABLES["held_out"], first=tuple(NAMES), last=tuple(SURNAMES))


@register_task("nolima", suite="unmatched")
@dataclass(frozen=True)
class Nolima(StoryTask):
    """Who has to do with a thing of that kind: the one of many persons whose thing is of the kind that is asked for.

    Two of the four relations of the world in each story, so that half of the facts are of the very sort asked for.

    Parameters
    ----------
    seed, facts
        See `StoryTask`.
    """

    held_out: ClassVar[NolimaPhrases] = HELD_OUT
    blind: ClassVar[NolimaPhrases] = replace(HELD_OUT, facts=BLIND["nolima_facts"], asked=BLIND["nolima_questions"])
    spacing: ClassVar[int] = 128

    def story(self, rng: random.Random, phrases: NolimaPhrases, facts: int) -> Story:
        """See `StoryTask.story`; only one person fits each kind that is asked for.

        >>> story = Nolima().story(random.Random(1), HELD_OUT, 6)
        >>> story.questions[0].text, story.questions[0].answers
        ('Whom would you ask about meals like those of Lankistan?', ('Leonard Tennant',))
        """
        choose = rng.choice
        pair = rng.sample(RELATIONS, 2)
        persons = people(rng, phrases.first, phrases.last, facts)
        sorts = [pair[rng.random() < 0.5] for _ in persons]
        things: dict[tuple[str, str], None] = {}
        told: list[str] = []
        drawn = []
        for who, relation in zip(persons, sorts, strict=True):
            thing = choose(relation.things)
            while (relation.name, thing) in things:
                thing = choose(relation.things)
            things[relation.name, thing] = None
            named = relation.named(thing)
            told.append(
                tell(rng, choose(phrases.facts[relation.name]), phrases.before, phrases.after, who=who, thing=named)
            )
            drawn.append((relation, thing, named, who, told[-1]))
        times = Counter((relation.name, relation.of[thing]) for relation, thing, *_ in drawn)
        rng.shuffle(drawn)
        hard = [one for one in drawn if times[one[0].name, one[0].of[one[1]]] == 1]
        if not hard:
            return self.story(rng, phrases, facts)
        questions = [
            Question(choose(phrases.asked[r.name]).format(kind=r.of[thing]), (who,), (said,), kind=r.name)
            for r, thing, _, who, said in hard[: 2 * ASIDES]
        ]
        for r, thing, named, who, said in drawn[:ASIDES]:
            kind = (r.of[thing],)
            easier = (
                Question(capital(choose(phrases.by_thing).format(thing=named)), (who,), (said,), kind="by_thing"),
                Question(choose(phrases.by_who).format(who=who, sort=r.name), (thing,), (said,), kind="by_who"),
                Question(choose(phrases.kind_by_who).format(who=who, genus=r.genus), kind, (said,), kind="kind_by_who"),
                Question(capital(choose(phrases.known).format(thing=named, genus=r.genus)), kind, (), kind="known"),
            )
            questions += easier
        return Story(tuple(told), tuple(questions))
