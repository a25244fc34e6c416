"""Task `multi_session`: a chat log of dated sessions; one names a relative, another has a fact about that person.

Modelled on the multi-session questions of LongMemEval (arXiv 2410.10813, MIT); idea only, own texts. The question names
the speaker and a relation ("the brother of Nora"), one session gives the brother's name, another a fact about the
brother by name alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import ClassVar

from sp.evals.base import register_task
from sp.evals.story import Story, StoryQuestion, StoryTask
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
"""Relatives of speakers: the same in every set of phrases, because they occur in its frames."""
WHEN = 4  # one question in WHEN is for the day of a session


@dataclass(frozen=True)
class SessionPhrases:
    """Frames, names, and small talk.

    `facts` are statements about {name} with {value}, by the sort of the value: "number", "town" or "trade". `asked` are
    questions for the value of {whom}, by the same sorts, and "day", for the day of the session with the fact. The
    session that names {whom} is about the same person, so questions for a day must exclude it.
    """

    headers: tuple[str, ...]  # first lines of a session; slot {day}
    links: tuple[str, ...]  # statements of the speaker about {kin}, called {name}
    facts: dict[str, tuple[str, ...]]
    asked: dict[str, tuple[str, ...]]
    linked: tuple[str, ...]  # questions for the name of {whom}
    by_day: tuple[str, ...]  # questions for the name of the person in the session of {day}
    whom: tuple[str, ...]  # descriptions of the {kin} of {speaker}
    values: dict[str, Sequence[str]]  # towns and trades
    before: tuple[str, ...]  # before, after: beginnings and ends of a turn
    after: tuple[str, ...]
    first: Sequence[str]  # first, last: names
    last: Sequence[str]
    talk: Callable[[random.Random], str]  # draws a sentence of small talk


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
    """A fact about somebody's relative, for which two sessions must be joined; sometimes the day of the session.

    Every passage begins a session: a line with its day, in ascending order, and a turn. Half of them name relatives,
    the other half have facts about those persons, each by another speaker.

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
        """Draw sessions that name relatives and sessions with facts about them, and ask for the facts.

        >>> story = MultiSession().story(random.Random(3), HELD_OUT, 6)
        >>> story.questions[0].text, story.questions[0].answers
        ("What is the job of Ernest Yates's teacher?", ('miner',))
        """
        choose = rng.choice
        pairs = max(1, facts // 2)
        amount = max(2, -(-pairs // 6))
        speakers = people(rng, phrases.first, phrases.last, amount)
        known = {word for speaker_name in speakers for word in speaker_name.split()}
        names = people(rng, phrases.first, phrases.last, pairs, known)  # no word of a speaker's name in theirs
        roles = rng.sample([(who, kin) for who in speakers for kin in KIN], pairs)
        turns = []
        for number, ((speaker, kin), name) in enumerate(zip(roles, names, strict=True)):
            link = tell(rng, choose(phrases.links), phrases.before, phrases.after, kin=kin, name=name)
            sort = choose(("number", "town", "trade"))
            value = str(rng.randrange(10_000, 10**6)) if sort == "number" else choose(phrases.values[sort])
            statement = tell(rng, choose(phrases.facts[sort]), phrases.before, phrases.after, name=name, value=value)
            other = choose(speakers)
            while other == speaker:
                other = choose(speakers)
            turns += [(number, "link", kin, f"{speaker}: {link}"), (number, sort, value, f"{other}: {statement}")]
        rng.shuffle(turns)
        day, header = date(2023, 1, 1) + timedelta(rng.randrange(365)), choose(phrases.headers)
        passages, days = [], dict[str, str]()
        by_person: dict[tuple[int, bool], tuple[str, str, str]] = {}
        for number, sort, value, turn in turns:
            day += timedelta(choose((1, 1, 2, 2, 3)))
            days[turn] = f"{day.day} {MONTHS[day.month - 1]} {day.year}"
            passages.append(f"{header.format(day=days[turn])}\n{turn}")
            by_person[number, sort == "link"] = sort, value, turn
        questions, easier = [], []
        for number in rng.sample(range(pairs), pairs):
            speaker, kin = roles[number]
            whom = choose(phrases.whom).format(kin=kin, speaker=speaker)
            (_, _, link), (sort, value, statement) = by_person[number, True], by_person[number, False]
            name, evidence = names[number], (link, statement)
            dated = f"{header.format(day=days[statement])}\n{statement}"
            by_value = StoryQuestion(choose(phrases.asked[sort]).format(whom=whom), (value,), evidence, kind=sort)
            by_day = StoryQuestion(
                choose(phrases.asked["day"]).format(whom=whom), (days[statement],), (link, dated), kind="day"
            )
            questions += [by_day, by_value] if rng.randrange(WHEN) == 0 else [by_value]
            easier += [
                StoryQuestion(choose(phrases.linked).format(whom=whom), (name,), (link,), kind="linked"),
                StoryQuestion(
                    choose(phrases.asked[sort]).format(whom=name), (value,), (statement,), kind=f"{sort}_named"
                ),
                StoryQuestion(
                    choose(phrases.asked["day"]).format(whom=name), (days[statement],), (dated,), kind="day_named"
                ),
                StoryQuestion(choose(phrases.by_day).format(day=days[statement]), (name,), (dated,), kind="by_day"),
            ]
        return Story(tuple(passages), (*questions[:8], *easier[:16]))

    def filler(self, rng: random.Random, phrases: SessionPhrases) -> Iterator[Sentence]:
        """Yield turns of small talk, each on a line."""
        while True:
            yield Sentence(f"{rng.choice(phrases.first)} {rng.choice(phrases.last)}: {phrases.talk(rng)}", True)
