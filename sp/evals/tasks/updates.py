"""Task `updates`: a value that changes; the last one counts, and the question does not name the thing with it.

Modelled on the knowledge updates and abstentions of LongMemEval (arXiv 2410.10813, MIT); idea only, own texts. Things
of the closed world get new values again and again; the question names one by its kind, which no text says.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import ClassVar

from sp.errors import ConfigError
from sp.evals.base import register_task
from sp.evals.story import Story, StoryQuestion, StoryTask
from sp.evals.text.tables import BLIND, table
from sp.evals.text.world import RELATIONS, Relation, capital, tell

TABLES = table(__file__)

UNKNOWN = "unknown"  # the answer where the text has no value
TIMES = 3  # average number of values of a thing; at least two, where the story has room
EASIER = 5  # things of easier questions


@dataclass(frozen=True)
class UpdatesPhrases:
    """Frames with the slots {thing} (named in full), {value}, {kind} and {what} (a thing named by its kind).

    `stated`, `raised` and `lowered` are statements with {thing} and {value}, the latter two where the value went up or
    down. `by_kind` are descriptions of a thing by its {kind}, by the name of its relation. `before` and `after` are
    beginnings and ends of statements, without days or hours, because only the order of statements may count.
    """

    stated: tuple[str, ...]
    raised: tuple[str, ...]
    lowered: tuple[str, ...]
    by_kind: dict[str, tuple[str, ...]]
    last: tuple[str, ...]  # last, first: questions with {what}; the answer is the last value, or the first
    first: tuple[str, ...]
    often: tuple[str, ...]  # questions with {what}; the answer is the number of its values
    whose: tuple[str, ...]  # questions with {value}; the answer is the thing
    before: tuple[str, ...]
    after: tuple[str, ...]


HELD_OUT = UpdatesPhrases(**TABLES["held_out"])


@register_task("updates", suite="unmatched")
@dataclass(frozen=True)
class Updates(StoryTask):
    """The last of the values of a thing, which the question names by its kind.

    Where the text has no such thing, the right answer is "unknown", and the evidence is two statements about things of
    the same sort, which answer nothing, like the whole text. A selection without any evidence can still be right there,
    so such examples are rare. The question does not say that "unknown" is a possible answer: the evaluation pair learns
    that from such stories. A pair without that training cannot know it; evaluate it with `never` 0.

    Parameters
    ----------
    seed, facts
        See `StoryTask`.
    never : int
        One example in `never` asks for a thing that is not in the text; 0 for none.
    """

    never: int = 48

    held_out: ClassVar[UpdatesPhrases] = HELD_OUT
    blind: ClassVar[UpdatesPhrases] = replace(
        HELD_OUT,
        stated=BLIND["updates_stated"],
        raised=BLIND["updates_stated"],
        lowered=BLIND["updates_stated"],
        last=BLIND["updates_questions"],
    )
    spacing: ClassVar[int] = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.never < 0:
            raise ConfigError(f"never must be at least 0, not {self.never}")

    def story(self, rng: random.Random, phrases: UpdatesPhrases, facts: int) -> Story:
        """Draw statements about things in random order, and ask for last values.

        >>> story = Updates().story(random.Random(2), HELD_OUT, 6)
        >>> story.questions[0].text, story.questions[0].answers
        ('For the building in Sunpune, what is the most recent count?', ('77889',))
        """
        choose = rng.choice
        amount = max(1, facts // TIMES)
        pair = rng.sample(RELATIONS, 2)
        kinds = rng.sample([(relation, index) for relation in pair for index in range(len(relation.kinds))], amount + 4)
        things = [
            (r, choose(r.things[index :: len(r.kinds)])) for r, index in kinds
        ]  # the last four are not in the text
        order = [*range(amount), *range(amount)][:facts]
        order += rng.choices(range(amount), k=facts - len(order))
        rng.shuffle(order)
        values: list[list[int]] = [[] for _ in range(amount)]
        statements: list[list[str]] = [[] for _ in range(amount)]
        passages = []
        for index in order:
            value = rng.randrange(100, 10 ** choose((4, 5)))
            while any(value in drawn for drawn in values):
                value = rng.randrange(100, 10**5)
            known, (relation, thing) = values[index], things[index]
            frames = phrases.stated
            if known and rng.random() < 0.6:
                frames = phrases.raised if value > known[-1] else phrases.lowered
            named = relation.named(thing)
            passages.append(tell(rng, choose(frames), phrases.before, phrases.after, thing=named, value=value))
            known.append(value)
            statements[index].append(passages[-1])

        def by_kind(relation: Relation, thing: str) -> str:
            return choose(phrases.by_kind[relation.name]).format(kind=relation.of[thing])

        def ask(
            frames: tuple[str, ...], description: str, answer: object, evidence: tuple[str, ...], kind: str
        ) -> StoryQuestion:
            return StoryQuestion(capital(choose(frames).format(what=description)), (str(answer),), evidence, kind=kind)

        drawn = rng.sample(range(amount), amount)
        hard = [
            ask(
                phrases.last,
                by_kind(*things[index]),
                values[index][-1],
                (statements[index][-1],),
                "last",
            )
            for index in drawn[:8]
        ]
        untold = []
        for relation, thing in things[amount:]:
            near = tuple(statements[index][-1] for index in drawn if things[index][0] is relation)[:2] or (
                passages[-1],
            )
            untold.append(ask(phrases.last, by_kind(relation, thing), UNKNOWN, near, "never"))
        if self.never and rng.randrange(self.never) == 0:
            hard = [untold[0], *hard]
        else:
            hard.append(untold[0])
        relation, thing = things[-1]
        easier = [ask(phrases.last, relation.named(thing), UNKNOWN, (), "never_named")]
        for index in drawn[:EASIER]:
            (relation, thing), known = things[index], values[index]
            named = relation.named(thing)
            pick = rng.randrange(len(known))
            easier += [
                ask(phrases.last, named, known[-1], (statements[index][-1],), "last_named"),
                ask(phrases.first, named, known[0], (statements[index][0],), "first_named"),
                ask(phrases.first, by_kind(relation, thing), known[0], (statements[index][0],), "first"),
                ask(phrases.often, named, len(known), tuple(statements[index]), "often"),
                StoryQuestion(
                    choose(phrases.whose).format(value=known[pick]),
                    (thing,),
                    (statements[index][pick],),
                    kind="whose",
                ),
            ]
        return Story(tuple(passages), (*hard, *easier))
