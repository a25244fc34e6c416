"""A chat log of dated sessions: one says who somebody is, another what became of them.

After the multi-session questions of LongMemEval (arXiv 2410.10813, MIT); idea only, own texts. The question names the
speaker and a relation ("the brother of Nora"), one session tells the brother's name, another tells of the brother by
name alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import ClassVar

from sp.evals.base import register_task
from sp.evals.story import Question, Story, StoryTask
from sp.evals.text.filler import Sentence, grammar_sentence
from sp.evals.text.tables import BLIND, NAMES, SURNAMES, TOWNS, table
from sp.evals.text.world import people, tell

TABLES = table(__file__)

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
KIN = (
    "brother", "sister", "cousin", "uncle", "aunt", "nephew", "landlord", "dentist", "teacher", "lawyer", "gardener",
    "tailor",
)  # fmt: skip
"""Who a speaker may tell of: in every set of phrases the same, as the words of the frames are."""
WHEN = 4  # one judged question in so many asks for the day of a session


@dataclass(frozen=True)
class SessionPhrases:
    """Frames, names, and the small talk between. `facts`: what somebody else says of {name}, with {value}; by what the
    value is: "number", "town" or "trade". `asked`: questions for the value of {whom}, by the same; and "day", for the
    day of the session that told it. The session that says who {whom} is speaks of the same person, so questions for a
    day must rule it out."""

    headers: tuple[str, ...]  # how a session begins; slot {day}
    links: tuple[str, ...]  # what the speaker says of {kin}, called {name}
    facts: dict[str, tuple[str, ...]]
    asked: dict[str, tuple[str, ...]]
    linked: tuple[str, ...]  # questions for the name of {whom}
    by_day: tuple[str, ...]  # questions for the name of whom the session of {day} tells
    whom: tuple[str, ...]  # how the {kin} of {speaker} is described
    values: dict[str, Sequence[str]]  # towns and trades
    before: tuple[str, ...]  # before, after: what a turn may begin and end with
    after: tuple[str, ...]
    first: Sequence[str]  # first, last: names
    last: Sequence[str]
    talk: Callable[[random.Random], str]  # a sentence of small talk from a generator


TRADES = """barber beekeeper blacksmith bookbinder bricklayer butcher carpenter chemist clockmaker cook
draughtsman driver fisherman florist glazier goldsmith grocer hatter jeweller joiner librarian locksmith
ferryman miller miner nurse optician painter pilot plumber glassblower ropemaker printer roofer sailor
shepherd stonecutter surveyor tanner watchman weaver welder""".split()  # noqa: SIM905

VILLAGES = """Ashcombe Birchover Copthorne Draycott Elmstead Fordwich Grimsthorpe Hawkshead Ivinghoe Jesmond Kirkoswald
Lavenham Marlpool Nunthorpe Otterden Penwortham Queniborough Ravenglass Swaffham Tisbury Uppingham Venton Wharram
Yoxford""".split()  # noqa: SIM905

HELD_OUT = SessionPhrases(
    **TABLES["held_out"],
    values={"town": (*TOWNS, *VILLAGES), "trade": tuple(TRADES)},
    first=tuple(NAMES),
    last=tuple(SURNAMES),
    talk=grammar_sentence,
)


@register_task("multi_session", suite="unmatched")
@dataclass(frozen=True)
class MultiSession(StoryTask):
    """What became of somebody's relative: two sessions must be joined; now and then, on which day it was told.

    Every passage begins a session: a line with its day, later from session to session, and a turn. Half of them tell
    who somebody is, half tell of those persons, each in another speaker's words.

    Parameters
    ----------
    seed, facts
        See `StoryTask`.
    """

    held_out: ClassVar[SessionPhrases] = HELD_OUT
    blind: ClassVar[SessionPhrases] = replace(
        HELD_OUT, links=BLIND["session_links"], facts=BLIND["session_facts"], asked=BLIND["session_questions"]
    )
    spacing: ClassVar[int] = 128

    def story(self, rng: random.Random, phrases: SessionPhrases, facts: int) -> Story:
        """See `StoryTask.story`.

        >>> story = MultiSession().story(random.Random(3), HELD_OUT, 6)
        >>> story.questions[0].text, story.questions[0].answers
        ("What is the job of Ernest Yates's teacher?", ('miner',))
        """
        choose = rng.choice
        pairs = max(1, facts // 2)
        amount = max(2, -(-pairs // 6))
        speakers = people(rng, phrases.first, phrases.last, amount)
        known = {word for one in speakers for word in one.split()}
        names = people(rng, phrases.first, phrases.last, pairs, known)  # no word of a speaker's name in theirs
        roles = rng.sample([(who, kin) for who in speakers for kin in KIN], pairs)
        turns = []
        for at, ((speaker, kin), name) in enumerate(zip(roles, names, strict=True)):
            link = tell(rng, choose(phrases.links), phrases.before, phrases.after, kin=kin, name=name)
            sort = choose(("number", "town", "trade"))
            value = str(rng.randrange(10_000, 10**6)) if sort == "number" else choose(phrases.values[sort])
            told = tell(rng, choose(phrases.facts[sort]), phrases.before, phrases.after, name=name, value=value)
            other = choose(speakers)
            while other == speaker:
                other = choose(speakers)
            turns += [(at, "link", kin, f"{speaker}: {link}"), (at, sort, value, f"{other}: {told}")]
        rng.shuffle(turns)
        day, header = date(2023, 1, 1) + timedelta(rng.randrange(365)), choose(phrases.headers)
        passages, days = [], dict[str, str]()
        found: dict[tuple[int, bool], tuple[str, str, str]] = {}
        for at, sort, value, turn in turns:
            day += timedelta(choose((1, 1, 2, 2, 3)))
            days[turn] = f"{day.day} {MONTHS[day.month - 1]} {day.year}"
            passages.append(f"{header.format(day=days[turn])}\n{turn}")
            found[at, sort == "link"] = sort, value, turn
        questions, easier = [], []
        for at in rng.sample(range(pairs), pairs):
            speaker, kin = roles[at]
            whom = choose(phrases.whom).format(kin=kin, speaker=speaker)
            (_, _, link), (sort, value, told) = found[at, True], found[at, False]
            name, evidence = names[at], (link, told)
            dated = f"{header.format(day=days[told])}\n{told}"
            by_value = Question(choose(phrases.asked[sort]).format(whom=whom), (value,), evidence, kind=sort)
            by_day = Question(choose(phrases.asked["day"]).format(whom=whom), (days[told],), (link, dated), kind="day")
            questions += [by_day, by_value] if rng.randrange(WHEN) == 0 else [by_value]
            easier += [
                Question(choose(phrases.linked).format(whom=whom), (name,), (link,), kind="linked"),
                Question(choose(phrases.asked[sort]).format(whom=name), (value,), (told,), kind=f"{sort}_named"),
                Question(choose(phrases.asked["day"]).format(whom=name), (days[told],), (dated,), kind="day_named"),
                Question(choose(phrases.by_day).format(day=days[told]), (name,), (dated,), kind="by_day"),
            ]
        return Story(tuple(passages), (*questions[:8], *easier[:16]))

    def filler(self, rng: random.Random, phrases: SessionPhrases) -> Iterator[Sentence]:
        """Turns of small talk, each on a line."""
        while True:
            yield Sentence(f"{rng.choice(phrases.first)} {rng.choice(phrases.last)}: {phrases.talk(rng)}", True)
