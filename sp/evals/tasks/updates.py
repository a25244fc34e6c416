"""A value that changes: the last one counts, and the question does not name whose it is.

After the knowledge updates and abstentions of LongMemEval (arXiv 2410.10813, MIT); idea only, own texts. Things of the
closed world are marked again and again; the question names one by its kind, which no text tells.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import ClassVar

from sp.errors import ConfigError
from sp.evals.base import register_task
from sp.evals.story import Question, Story, StoryTask
from sp.evals.text.tables import BLIND, table
from sp.evals.text.world import RELATIONS, Relation, capital, tell

TABLES = table(__file__)

UNKNOWN = "unknown"  # the answer where nothing was told
TIMES = 3  # values that a thing has on average; at least two, where the story has room
EASIER = 5  # things that easier questions ask of


@dataclass(frozen=True)
class UpdatesPhrases:
    """Frames with the slots {thing} (named in full), {value}, {kind} and {what} (a thing named by its kind). `stated`,
    `raised`, `lowered`: statements with {thing} and {value}; the latter two where the value went up or down; `by_kind`:
    how the thing of a kind is described, by the name of its relation; slot {kind}; `before`, `after`: what a statement
    may begin and end with; no days or hours, since the order of telling alone is to count."""

    stated: tuple[str, ...]
    raised: tuple[str, ...]
    lowered: tuple[str, ...]
    by_kind: dict[str, tuple[str, ...]]
    last: tuple[str, ...]  # last, first: questions with {what}; the answer is the last value, or the first
    first: tuple[str, ...]
    often: tuple[str, ...]  # questions with {what}; the answer is how many values it was given
    whose: tuple[str, ...]  # questions with {value}; the answer is the thing
    before: tuple[str, ...]
    after: tuple[str, ...]


HELD_OUT = UpdatesPhrases(**TABLES["held_out"])


@register_task("updates", suite="unmatched")
@dataclass(frozen=True)
class Updates(StoryTask):
    """The last of the values that a thing has been given, the thing named by its kind.

    Where the text never tells of such a thing the right answer is "unknown", and the evidence is two statements about
    things of the same sort: they answer nothing, as the whole text does. Whoever keeps nothing of use can still be
    right there, so such examples are few. The question does not say that "unknown" may be answered: the instrument
    learns that from stories in which nothing was told, whose questions say nothing of it either. A pair that was not
    trained on such stories cannot know it; ask it with `never` 0.

    Parameters
    ----------
    seed, facts
        See `StoryTask`.
    never : int
        One example in so many asks for what was never told; 0 for none.
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
        """See `StoryTask.story`; statements of all things in turn, at random.

        >>> story = Updates().story(random.Random(2), HELD_OUT, 6)
        >>> story.questions[0].text, story.questions[0].answers
        ('For the building in Sunpune, what is the most recent count?', ('77889',))
        """
        choose = rng.choice
        amount = max(1, facts // TIMES)
        pair = rng.sample(RELATIONS, 2)
        kinds = rng.sample([(relation, at) for relation in pair for at in range(len(relation.kinds))], amount + 4)
        things = [(r, choose(r.things[at :: len(r.kinds)])) for r, at in kinds]  # the last four are never told
        order = [*range(amount), *range(amount)][:facts]
        order += rng.choices(range(amount), k=facts - len(order))
        rng.shuffle(order)
        values: list[list[int]] = [[] for _ in range(amount)]
        said: list[list[str]] = [[] for _ in range(amount)]
        passages = []
        for at in order:
            value = rng.randrange(100, 10 ** choose((4, 5)))
            while any(value in told for told in values):
                value = rng.randrange(100, 10**5)
            known, (relation, thing) = values[at], things[at]
            frames = phrases.stated
            if known and rng.random() < 0.6:
                frames = phrases.raised if value > known[-1] else phrases.lowered
            named = relation.named(thing)
            passages.append(tell(rng, choose(frames), phrases.before, phrases.after, thing=named, value=value))
            known.append(value)
            said[at].append(passages[-1])

        def by_kind(relation: Relation, thing: str) -> str:
            return choose(phrases.by_kind[relation.name]).format(kind=relation.of[thing])

        def ask(frames: tuple[str, ...], what: str, answer: object, evidence: tuple[str, ...], kind: str) -> Question:
            return Question(capital(choose(frames).format(what=what)), (str(answer),), evidence, kind=kind)

        told = rng.sample(range(amount), amount)
        hard = [ask(phrases.last, by_kind(*things[at]), values[at][-1], (said[at][-1],), "last") for at in told[:8]]
        untold = []
        for relation, thing in things[amount:]:
            near = tuple(said[at][-1] for at in told if things[at][0] is relation)[:2] or (passages[-1],)
            untold.append(ask(phrases.last, by_kind(relation, thing), UNKNOWN, near, "never"))
        if self.never and rng.randrange(self.never) == 0:
            hard = [untold[0], *hard]
        else:
            hard.append(untold[0])
        relation, thing = things[-1]
        easier = [ask(phrases.last, relation.named(thing), UNKNOWN, (), "never_named")]
        for at in told[:EASIER]:
            (relation, thing), known = things[at], values[at]
            named = relation.named(thing)
            pick = rng.randrange(len(known))
            easier += [
                ask(phrases.last, named, known[-1], (said[at][-1],), "last_named"),
                ask(phrases.first, named, known[0], (said[at][0],), "first_named"),
                ask(phrases.first, by_kind(relation, thing), known[0], (said[at][0],), "first"),
                ask(phrases.often, named, len(known), tuple(said[at]), "often"),
                Question(choose(phrases.whose).format(value=known[pick]), (thing,), (said[at][pick],), kind="whose"),
            ]
        return Story(tuple(passages), (*hard, *easier))
