"""Threads: facts of one sort in the results of an agent's tools, and questions about them."""

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
from sp.evals.story import StoryQuestion
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
class Narration:
    """Passages and questions of a thread.

    Attributes
    ----------
    passages : dict of int to list of str
        Texts for the result of each turn.
    questions : dict of Slot to StoryQuestion
        Questions with the answers as of their turn; the evidence is verbatim in the passages.
    stale : mapping of Slot to tuple of str
        Answers that were right in earlier turns.
    """

    passages: dict[int, list[str]]
    questions: dict[Slot, StoryQuestion]
    stale: Mapping[Slot, tuple[str, ...]]


class Thread(ABC):
    """Base of threads; each writes stories of one task, in the task's held-out phrases."""

    spacing: ClassVar[int]  # tokens of text for each passage
    words_match: ClassVar[bool] = False  # see `TranscriptQuestion.words_match`

    @abstractmethod
    def tell(
        self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]
    ) -> Narration:
        """Write passages for results, and a question for each slot; the subject of a question occurs only once.

        `room` is about the number of passages of each turn's result, in ascending order; `slots` are the questions of
        this thread; `tools` are those of every turn.
        """

    @abstractmethod
    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """Yield text between the passages in results of a tool, without end, which answers none of the questions."""


def free_turns(rng: random.Random, room: Mapping[int, int], used: Sequence[int]) -> list[int]:
    """Return the turns with unused places, each as often as it has such places, in random order."""
    free = [turn for turn, places in room.items() for _ in range(places - used.count(turn))]
    rng.shuffle(free)
    return free


@THREADS.register("code")
@dataclass(frozen=True)
class CodeThread(Thread):
    """The number that a function returns, where its body only names a constant or another function."""

    phrases: CodePhrases = field(default=CODE, repr=False)

    spacing: ClassVar[int] = 160

    def tell(
        self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]
    ) -> Narration:
        """Write functions and what they refer to; of two results, either may have the function."""
        homes = [rng.sample([slot.results[0], slot.results[-1]], 2) for slot in slots]
        free = free_turns(rng, room, [turn for pair in homes for turn in pair])
        pairs = [*homes, *([first, second] for first, second in zip(free[::2], free[1::2], strict=False))]
        links = draw_links(rng, self.phrases, len(pairs))
        passages: dict[int, list[str]] = {turn: [] for turn in room}
        for link, (here, there) in zip(links, pairs, strict=True):
            passages[here].append(link.text)
            passages[there].append(link.target_text)
        links_by_slot = dict(zip(slots, links, strict=False))
        for texts in passages.values():
            for _ in range(8):  # shuffle until no function of a question is next to what it refers to
                rng.shuffle(texts)
                if not any(near(texts, link) for link in links_by_slot.values()):
                    break
        questions = {
            slot: StoryQuestion(
                rng.choice(self.phrases.asks).format(name=link.name), (link.value,), (link.text, link.target_text)
            )
            for slot, link in links_by_slot.items()
        }
        return Narration(passages, questions, {})

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """Yield other functions, constants and remarks."""
        return Code().filler(rng, self.phrases)


def near(texts: Sequence[str], link: Link) -> bool:
    """Return True if a function and what it refers to are almost neighbours in one result."""
    if link.text not in texts or link.target_text not in texts:
        return False
    return abs(texts.index(link.text) - texts.index(link.target_text)) <= min(NEAR, len(texts) - 2)


FILES = 12  # average number of lines for each file in the result of a search


@THREADS.register("facts")
@dataclass(frozen=True)
class FactsThread(Thread):
    """The number of a key, which question and result name by the same word."""

    phrases: FactPhrases = field(default=FACT, repr=False)

    spacing: ClassVar[int] = 480
    words_match: ClassVar[bool] = True

    def tell(
        self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]
    ) -> Narration:
        """Write keys and values, all of which are different."""
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
            key, value, sentence = draw(slot.results[0])
            passages[slot.results[0]].append(sentence)
            questions[slot] = StoryQuestion(choose(self.phrases.questions).replace("{key}", key), (value,), (sentence,))
        for turn, places in room.items():
            passages[turn] += [draw(turn)[2] for _ in range(places - len(passages[turn]))]
            rng.shuffle(passages[turn])
        return Narration(passages, questions, {})

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """Yield lines of the kind of text of the form; in results of a search, below names of files."""
        for line in self.phrases.fillers[self.form(tool).filler](rng):
            if tool == "search" and rng.randrange(FILES) == 0:
                yield Sentence(f"{TOOLBOX['read_file'].value(rng)}:", True)
            yield line

    def form(self, tool: str) -> FactForm:
        """Return the form of facts in a tool's results: the form of that name, or the first for that kind of text."""
        form_name = TOOLBOX[tool].form
        named = [form for form in self.phrases.forms if form_name == form.name]
        return (named or [form for form in self.phrases.forms if form_name == form.filler and len(form.frames) == 1])[0]


TASK = Json()


def is_json(text: str) -> bool:
    """Return True if a text is one JSON value."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@cache
def in_json(phrases: JsonPhrases) -> JsonPhrases:
    """Return the phrases with only those layouts that are JSON."""
    layouts = []
    for layout in phrases.layouts:
        single, rng = replace(phrases, layouts=(layout,)), random.Random(0)
        words = list(phrases.vocabularies[0][: TASK.words])
        if is_json(TASK.record(rng, single, "a-b", words, iter(draw_values(rng, TASK.values))).text):
            layouts.append(layout)
    return replace(phrases, layouts=tuple(layouts))


@THREADS.register("records")
@dataclass(frozen=True)
class RecordsThread(Thread):
    """A value by the name of its record and the path inside it."""

    phrases: JsonPhrases = field(default=JSON, repr=False)

    spacing: ClassVar[int] = 1024

    def tell(
        self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]
    ) -> Narration:
        """Write records, which all have the same groups and fields."""
        phrases = in_json(self.phrases)
        words = rng.sample(rng.choice(phrases.vocabularies), TASK.words)
        slots_of_turn = {turn: [slot for slot in slots if slot.results[0] == turn] for turn in room}
        amount = {turn: max(places, len(slots_of_turn[turn])) for turn, places in room.items()}
        total = sum(amount.values())
        names = ["-".join(parts) for parts in rng.sample(list(product(*self.names(0))), total)]
        values, questions = iter(draw_values(rng, total * TASK.values)), dict[Slot, StoryQuestion]()
        passages: dict[int, list[str]] = {}
        for turn, number in amount.items():
            records = [TASK.record(rng, phrases, names.pop(), words, values) for _ in range(number)]
            for slot, record in zip(slots_of_turn[turn], rng.sample(records, len(slots_of_turn[turn])), strict=True):
                group = rng.choice(record.groups[(TASK.words + 1) // 2 :])  # far from the name, as in the task
                questions[slot] = ask(rng, phrases, record, group, "path")
            passages[turn] = [record.text for record in records]
        return Narration(passages, questions, {})

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """Yield records with other names and any vocabulary."""
        phrases, names = in_json(self.phrases), self.names(1)
        while True:
            words = rng.sample(rng.choice(phrases.vocabularies), TASK.words)
            name = "-".join(map(rng.choice, names))
            values = iter(draw_values(rng, TASK.values))
            yield Sentence(TASK.record(rng, phrases, name, words, values).text, True)

    def names(self, half: int) -> tuple[Sequence[str], ...]:
        """Return parts of names: of the thread's records with 0, of the filler's with 1, so that names are unique."""
        first, *others = self.phrases.names
        return first[half::2], *others


PAIRS = 6  # average number of relatives of one speaker


@THREADS.register("sessions")
@dataclass(frozen=True)
class SessionsThread(Thread):
    """A fact about somebody's relative: one message names the relative, another gives the fact by name."""

    phrases: SessionPhrases = field(default=SESSIONS, repr=False)

    spacing: ClassVar[int] = 128

    def tell(
        self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]
    ) -> Narration:
        """Write messages; of two results, either may name the relative, and days ascend from result to result."""
        choose, sorts = rng.choice, [sort for sort in self.phrases.asked if sort in self.phrases.facts]
        homes = [rng.sample([slot.results[0], slot.results[-1]], 2) for slot in slots]
        free = free_turns(rng, room, [turn for pair in homes for turn in pair])
        pairs = [*homes, *([first, other] for first, other in zip(free[::2], free[1::2], strict=False))]
        speakers = people(rng, self.phrases.first, self.phrases.last, max(2, -(-len(pairs) // PAIRS)))
        known = {word for first in speakers for word in first.split()}
        names = people(rng, self.phrases.first, self.phrases.last, len(pairs), known)
        roles = rng.sample([(who, kin) for who in speakers for kin in KIN], len(pairs))
        sayings: list[tuple[int, float, str]] = []
        evidence, values = [], []
        for (link_in, told_in), name, (speaker, kin) in zip(pairs, names, roles, strict=True):
            sort = choose(sorts)
            value = str(rng.randrange(10_000, 10**6)) if sort == "number" else choose(self.phrases.values[sort])
            other = choose([first for first in speakers if first != speaker])
            affixes = self.phrases.before, self.phrases.after
            link = f"{speaker}: {tell(rng, choose(self.phrases.links), *affixes, kin=kin, name=name)}"
            statement = f"{other}: {tell(rng, choose(self.phrases.facts[sort]), *affixes, name=name, value=value)}"
            sayings += [(link_in, rng.random(), link), (told_in, rng.random(), statement)]
            evidence.append((link, statement))
            values.append((sort, value))
        day, header = date(2023, 1, 1) + timedelta(rng.randrange(365)), choose(self.phrases.headers)
        passages: dict[int, list[str]] = {turn: [] for turn in room}
        for turn, _, text in sorted(sayings):
            day += timedelta(choose((1, 1, 2, 2, 3)))
            passages[turn].append(f"{header.format(day=f'{day.day} {MONTHS[day.month - 1]} {day.year}')}\n{text}")
        questions = {}
        for slot, (speaker, kin), parts, (sort, value) in zip(slots, roles, evidence, values, strict=False):
            whom = choose(self.phrases.whom).format(kin=kin, speaker=speaker)
            questions[slot] = StoryQuestion(choose(self.phrases.asked[sort]).format(whom=whom), (value,), parts)
        return Narration(passages, questions, {})

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """Yield small talk."""
        return MultiSession().filler(rng, self.phrases)


LATER = 0.5  # probability of a further update in a result after the question, if one follows


@THREADS.register("updates")
@dataclass(frozen=True)
class UpdatesThread(Thread):
    """The last figure of a thing, which the question names by its kind and the results by its name."""

    phrases: UpdatesPhrases = field(default=UPDATES, repr=False)

    spacing: ClassVar[int] = 128

    def tell(
        self, rng: random.Random, room: Mapping[int, int], slots: Sequence[Slot], tools: Sequence[str]
    ) -> Narration:
        """Write updates: one for a thing in each of its results, or two in a single result."""
        homes: list[list[int]] = []  # turns with updates of each thing
        for slot in slots:
            later = [turn for turn in room if turn > slot.turn]
            more = [rng.choice(later)] if later and rng.random() < LATER else []
            homes.append([slot.results[0], slot.results[-1], *more])
        free = free_turns(rng, room, [turn for turns in homes for turn in turns])
        homes += [free[index : index + TIMES] for index in range(0, len(free), TIMES)]
        kinds = [(relation, index) for relation in rng.sample(RELATIONS, 2) for index in range(len(relation.kinds))]
        homes = homes[: len(kinds)]
        things = [(r, rng.choice(r.things[index :: len(r.kinds)])) for r, index in rng.sample(kinds, len(homes))]
        order = sorted((turn, rng.random(), thing) for thing, turns in enumerate(homes) for turn in turns)
        figures = iter(_figures(rng, len(order)))
        passages: dict[int, list[str]] = {turn: [] for turn in room}
        known: list[list[tuple[int, int, str]]] = [[] for _ in things]  # turn, figure, statement
        for turn, _, index in order:
            figure, (relation, thing), before = next(figures), things[index], known[index]
            frames = self.phrases.stated
            if before and rng.random() < 0.6:
                frames = self.phrases.raised if figure > before[-1][1] else self.phrases.lowered
            named = relation.named(thing)
            statement = tell(
                rng, rng.choice(frames), self.phrases.before, self.phrases.after, thing=named, value=figure
            )
            passages[turn].append(statement)
            before.append((turn, figure, statement))
        questions, stale = {}, {}
        for slot, (relation, thing), updates in zip(slots, things, known, strict=False):
            until = [update for update in updates if update[0] <= slot.turn]
            description = rng.choice(self.phrases.by_kind[relation.name]).format(kind=relation.of[thing])
            text = capital(rng.choice(self.phrases.last).format(what=description))
            questions[slot] = StoryQuestion(text, (str(until[-1][1]),), (until[-1][2],))
            stale[slot] = tuple(str(update[1]) for update in until[:-1])
        return Narration(passages, questions, stale)

    def filler(self, rng: random.Random, tool: str) -> Iterator[Sentence]:
        """Yield lines of a log."""
        return FILLERS["log"](rng)


def _figures(rng: random.Random, amount: int) -> list[int]:
    """Draw different numbers of three to five digits, half of them with fewer than five."""
    figures: dict[int, None] = {}
    while len(figures) < amount:
        figures.setdefault(rng.randrange(100, 10 ** rng.choice((4, 5))))
    return list(figures)
