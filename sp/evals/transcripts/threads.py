"""Threads: facts of one sort that run through the results of an agent's tools, and what can be asked of them."""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import cache
from itertools import product
from typing import ClassVar

from sp.config import Registry
from sp.evals.story import Question
from sp.evals.tasks.code import HELD_OUT as CODE
from sp.evals.tasks.code import NEAR, Code, CodePhrases, Link, draw_links
from sp.evals.tasks.fact import FILLERS, FactForm, FactPhrases, key_of
from sp.evals.tasks.fact import HELD_OUT as FACT
from sp.evals.tasks.json import HELD_OUT as JSON
from sp.evals.tasks.json import Json, JsonPhrases, ask, draw_values
from sp.evals.tasks.multi_session import HELD_OUT as SESSIONS
from sp.evals.tasks.multi_session import KIN, MONTHS, MultiSession, SessionPhrases
from sp.evals.tasks.updates import HELD_OUT as UPDATES
from sp.evals.tasks.updates import TIMES, UpdatesPhrases
from sp.evals.text.filler import Sentence
from sp.evals.text.world import RELATIONS, capital, people, tell
from sp.evals.transcripts.plan import TOOLBOX, Slot

THREADS: Registry[Thread] = Registry("thread")


@dataclass(frozen=True)
class Told:
    """What a thread says. `passages`: by turn, as they stand in its result; `questions`: answers as of the turn of the
    slot, evidence verbatim in the passages; `stale`: answers that were right before."""

    passages: dict[int, list[str]]
    questions: dict[Slot, Question]
    stale: Mapping[Slot, tuple[str, ...]]


class Thread(ABC):
    """Base of threads; each tells stories of one task, in the task's held-out phrases."""

    spacing: ClassVar[int]  # tokens of a result for each passage
    words_match: ClassVar[bool] = False  # see `Asked.words_match`

    @abstractmethod
    def tell(self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]) -> Told:
        """Passages for results, and a question for each slot; nothing that is asked of is told twice. `room`: about how
        many passages a result takes, by turn, ascending; `slots`: questions of this thread; `tools`: of every turn."""

    @abstractmethod
    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """What stands between the passages in results of a tool, without end; it answers none of the questions."""


def spread(rng: random.Random, room: Mapping[int, int], taken: Sequence[int]) -> list[int]:
    """Turns of the places that are left, each as often as it has room, in random order."""
    free = [turn for turn, places in room.items() for _ in range(places - taken.count(turn))]
    rng.shuffle(free)
    return free


@THREADS.register("code")
@dataclass(frozen=True)
class CodeThread(Thread):
    """What number a function gives back, where it only names a constant or another function."""

    phrases: CodePhrases = field(default=CODE, repr=False)

    spacing: ClassVar[int] = 160

    def tell(self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]) -> Told:
        """See `Thread.tell`; of two results either may have the function, the other what it refers to."""
        homes = [rng.sample([slot.results[0], slot.results[-1]], 2) for slot in slots]
        free = spread(rng, room, [turn for pair in homes for turn in pair])
        pairs = [*homes, *([one, other] for one, other in zip(free[::2], free[1::2], strict=False))]
        links = draw_links(rng, self.phrases, len(pairs))
        passages: dict[int, list[str]] = {turn: [] for turn in room}
        for link, (here, there) in zip(links, pairs, strict=True):
            passages[here].append(link.text)
            passages[there].append(link.target_text)
        asked = dict(zip(slots, links, strict=False))
        for texts in passages.values():
            for _ in range(8):
                rng.shuffle(texts)
                if not any(near(texts, link) for link in asked.values()):
                    break
        questions = {
            slot: Question(
                rng.choice(self.phrases.asks).format(name=link.name), (link.value,), (link.text, link.target_text)
            )
            for slot, link in asked.items()
        }
        return Told(passages, questions, {})

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """See `Thread.filler`; other functions, constants and remarks."""
        return Code().filler(rng, self.phrases)


def near(texts: Sequence[str], link: Link) -> bool:
    """Whether a function and what it refers to are all but neighbours in one result."""
    if link.text not in texts or link.target_text not in texts:
        return False
    return abs(texts.index(link.text) - texts.index(link.target_text)) <= min(NEAR, len(texts) - 2)


FILES = 12  # lines of a file that match a search, about


@THREADS.register("facts")
@dataclass(frozen=True)
class FactsThread(Thread):
    """The number of a key: the question names it as the result does, so words match."""

    phrases: FactPhrases = field(default=FACT, repr=False)

    spacing: ClassVar[int] = 480
    words_match: ClassVar[bool] = True

    def tell(self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]) -> Told:
        """See `Thread.tell`; no key and no value is told twice."""
        choose, used = rng.choice, set[str]()

        def draw(turn: int) -> tuple[str, str, str]:
            form = self.form(tools[turn])
            while True:
                key = key_of(choose(form.styles), rng, self.phrases.adjectives, self.phrases.nouns)
                value = str(rng.randrange(10 ** choose((2, 3, 4, 5, 6)), 10**7))
                bare = key.lower().replace("_", "-")
                if used.isdisjoint((bare, value)):
                    used.update((bare, value))
                    return key, value, form.frames[0].replace("{key}", key).replace("{value}", value)

        passages: dict[int, list[str]] = {turn: [] for turn in room}
        questions = {}
        for slot in slots:
            key, value, said = draw(slot.results[0])
            passages[slot.results[0]].append(said)
            questions[slot] = Question(choose(self.phrases.questions).replace("{key}", key), (value,), (said,))
        for turn, places in room.items():
            passages[turn] += [draw(turn)[2] for _ in range(places - len(passages[turn]))]
            rng.shuffle(passages[turn])
        return Told(passages, questions, {})

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """See `Thread.filler`; lines of the kind that the form belongs in, below files where it is found in such."""
        for line in self.phrases.fillers[self.form(tool).filler](rng):
            if tool == "search" and rng.randrange(FILES) == 0:
                yield Sentence(f"{TOOLBOX['read_file'].value(rng)}:", True)
            yield line

    def form(self, tool: str) -> FactForm:
        """How a tool's results have facts: in the form that is called so, or the first for such text."""
        wanted = TOOLBOX[tool].form
        named = [one for one in self.phrases.forms if wanted == one.name]
        return (named or [one for one in self.phrases.forms if wanted == one.filler and len(one.frames) == 1])[0]


TASK = Json()


def is_json(text: str) -> bool:
    """Whether a text is one JSON value."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@cache
def in_json(phrases: JsonPhrases) -> JsonPhrases:
    """The phrases with those layouts that are JSON."""
    layouts = []
    for layout in phrases.layouts:
        one, rng = replace(phrases, layouts=(layout,)), random.Random(0)
        words = list(phrases.vocabularies[0][: TASK.words])
        if is_json(TASK.record(rng, one, "a-b", words, iter(draw_values(rng, TASK.values))).text):
            layouts.append(layout)
    return replace(phrases, layouts=tuple(layouts))


@THREADS.register("records")
@dataclass(frozen=True)
class RecordsThread(Thread):
    """A value by the name of its record and the path inside it."""

    phrases: JsonPhrases = field(default=JSON, repr=False)

    spacing: ClassVar[int] = 1024

    def tell(self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]) -> Told:
        """See `Thread.tell`; every record has the same groups and fields."""
        phrases = in_json(self.phrases)
        words = rng.sample(rng.choice(phrases.vocabularies), TASK.words)
        wanted = {turn: [slot for slot in slots if slot.results[0] == turn] for turn in room}
        amount = {turn: max(places, len(wanted[turn])) for turn, places in room.items()}
        total = sum(amount.values())
        names = ["-".join(parts) for parts in rng.sample(list(product(*self.names(0))), total)]
        values, questions = iter(draw_values(rng, total * TASK.values)), dict[Slot, Question]()
        passages: dict[int, list[str]] = {}
        for turn, number in amount.items():
            records = [TASK.record(rng, phrases, names.pop(), words, values) for _ in range(number)]
            for slot, record in zip(wanted[turn], rng.sample(records, len(wanted[turn])), strict=True):
                group = rng.choice(record.groups[(TASK.words + 1) // 2 :])  # away from the name, as the task has it
                questions[slot] = ask(rng, phrases, record, group, "path")
            passages[turn] = [record.text for record in records]
        return Told(passages, questions, {})

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """See `Thread.filler`; records of other names and any vocabulary."""
        phrases, names = in_json(self.phrases), self.names(1)
        while True:
            words = rng.sample(rng.choice(phrases.vocabularies), TASK.words)
            name = "-".join(map(rng.choice, names))
            values = iter(draw_values(rng, TASK.values))
            yield Sentence(TASK.record(rng, phrases, name, words, values).text, True)

    def names(self, half: int) -> tuple[Sequence[str], ...]:
        """Parts of names: of the records with 0, of those between with 1, so that a name is there once."""
        first, *others = self.phrases.names
        return first[half::2], *others


PAIRS = 6  # relatives of one speaker, about


@THREADS.register("sessions")
@dataclass(frozen=True)
class SessionsThread(Thread):
    """What became of somebody's relative: one message says who that is, another tells of them by name."""

    phrases: SessionPhrases = field(default=SESSIONS, repr=False)

    spacing: ClassVar[int] = 128

    def tell(self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]) -> Told:
        """See `Thread.tell`; of two results either may come first, and days go on from result to result."""
        choose, sorts = rng.choice, [sort for sort in self.phrases.asked if sort in self.phrases.facts]
        homes = [rng.sample([slot.results[0], slot.results[-1]], 2) for slot in slots]
        free = spread(rng, room, [turn for pair in homes for turn in pair])
        pairs = [*homes, *([one, other] for one, other in zip(free[::2], free[1::2], strict=False))]
        speakers = people(rng, self.phrases.first, self.phrases.last, max(2, -(-len(pairs) // PAIRS)))
        known = {word for one in speakers for word in one.split()}
        names = people(rng, self.phrases.first, self.phrases.last, len(pairs), known)
        roles = rng.sample([(who, kin) for who in speakers for kin in KIN], len(pairs))
        said: list[tuple[int, float, str]] = []
        evidence, values = [], []
        for (link_in, told_in), name, (speaker, kin) in zip(pairs, names, roles, strict=True):
            sort = choose(sorts)
            value = str(rng.randrange(10_000, 10**6)) if sort == "number" else choose(self.phrases.values[sort])
            other = choose([one for one in speakers if one != speaker])
            how = self.phrases.before, self.phrases.after
            link = f"{speaker}: {tell(rng, choose(self.phrases.links), *how, kin=kin, name=name)}"
            told = f"{other}: {tell(rng, choose(self.phrases.facts[sort]), *how, name=name, value=value)}"
            said += [(link_in, rng.random(), link), (told_in, rng.random(), told)]
            evidence.append((link, told))
            values.append((sort, value))
        day, header = date(2023, 1, 1) + timedelta(rng.randrange(365)), choose(self.phrases.headers)
        passages: dict[int, list[str]] = {turn: [] for turn in room}
        for turn, _, text in sorted(said):
            day += timedelta(choose((1, 1, 2, 2, 3)))
            passages[turn].append(f"{header.format(day=f'{day.day} {MONTHS[day.month - 1]} {day.year}')}\n{text}")
        questions = {}
        for slot, (speaker, kin), parts, (sort, value) in zip(slots, roles, evidence, values, strict=False):
            whom = choose(self.phrases.whom).format(kin=kin, speaker=speaker)
            questions[slot] = Question(choose(self.phrases.asked[sort]).format(whom=whom), (value,), parts)
        return Told(passages, questions, {})

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """See `Thread.filler`; small talk."""
        return MultiSession().filler(rng, self.phrases)


LATER = 0.5  # how often what is asked of is told once more in a result after the question, if one follows


@THREADS.register("updates")
@dataclass(frozen=True)
class UpdatesThread(Thread):
    """The last figure of a thing that is named by its kind, which no result tells."""

    phrases: UpdatesPhrases = field(default=UPDATES, repr=False)

    spacing: ClassVar[int] = 128

    def tell(self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]) -> Told:
        """See `Thread.tell`; a thing is told of in each of its results, in a single one twice."""
        told: list[list[int]] = []  # turns in which a thing is told of
        for slot in slots:
            later = [turn for turn in room if turn > slot.turn]
            more = [rng.choice(later)] if later and rng.random() < LATER else []
            told.append([slot.results[0], slot.results[-1], *more])
        free = spread(rng, room, [turn for turns in told for turn in turns])
        told += [free[at : at + TIMES] for at in range(0, len(free), TIMES)]
        kinds = [(relation, at) for relation in rng.sample(RELATIONS, 2) for at in range(len(relation.kinds))]
        told = told[: len(kinds)]
        things = [(r, rng.choice(r.things[at :: len(r.kinds)])) for r, at in rng.sample(kinds, len(told))]
        order = sorted((turn, rng.random(), thing) for thing, turns in enumerate(told) for turn in turns)
        figures = iter(_figures(rng, len(order)))
        passages: dict[int, list[str]] = {turn: [] for turn in room}
        known: list[list[tuple[int, int, str]]] = [[] for _ in things]  # turn, figure, statement
        for turn, _, at in order:
            figure, (relation, thing), before = next(figures), things[at], known[at]
            frames = self.phrases.stated
            if before and rng.random() < 0.6:
                frames = self.phrases.raised if figure > before[-1][1] else self.phrases.lowered
            named = relation.named(thing)
            said = tell(rng, rng.choice(frames), self.phrases.before, self.phrases.after, thing=named, value=figure)
            passages[turn].append(said)
            before.append((turn, figure, said))
        questions, stale = {}, {}
        for slot, (relation, thing), found in zip(slots, things, known, strict=False):
            until = [one for one in found if one[0] <= slot.turn]
            what = rng.choice(self.phrases.by_kind[relation.name]).format(kind=relation.of[thing])
            text = capital(rng.choice(self.phrases.last).format(what=what))
            questions[slot] = Question(text, (str(until[-1][1]),), (until[-1][2],))
            stale[slot] = tuple(str(one[1]) for one in until[:-1])
        return Told(passages, questions, stale)

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """See `Thread.filler`; lines of a log."""
        return FILLERS["log"](rng)


def _figures(rng: random.Random, amount: int) -> list[int]:
    """Different numbers of three to five digits, half of them with fewer than five."""
    found: dict[int, None] = {}
    while len(found) < amount:
        found.setdefault(rng.randrange(100, 10 ** rng.choice((4, 5))))
    return list(found)
