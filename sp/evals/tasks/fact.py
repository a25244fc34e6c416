"""A plain fact in forms that nobody trained: key and value in prose, code, JSON, tables, settings, logs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import ClassVar

from sp.errors import ConfigError
from sp.evals.base import Count, Example, register_task
from sp.evals.story import Question, Story, StoryTask
from sp.evals.text.filler import Sentence, filler
from sp.evals.text.tables import ADJECTIVES, NAMES, NOUNS, TOWNS, VERBS, pseudo_word, uuid

STYLES = ("adjective-noun", "snake", "upper", "camel", "two words", "title", "noun-number", "uuid")


def key_of(style: str, rng: random.Random, adjectives: Sequence[str], nouns: Sequence[str]) -> str:
    """A key in one of the `STYLES`, of the given words.

    >>> [key_of(style, random.Random(0), ["calm"], ["fox"]) for style in STYLES[:6]]
    ['calm-fox', 'calm_fox', 'CALM_FOX', 'calmFox', 'calm fox', 'Calm Fox']
    """
    if style == "uuid":
        return uuid(rng)
    adjective, noun = rng.choice(adjectives), rng.choice(nouns)
    made = {
        "adjective-noun": f"{adjective}-{noun}",
        "snake": f"{adjective}_{noun}",
        "upper": f"{adjective}_{noun}".upper(),
        "camel": f"{adjective}{noun.capitalize()}",
        "two words": f"{adjective} {noun}",
        "title": f"{adjective} {noun}".title(),
    }
    return made.get(style) or f"{noun}-{rng.randrange(10, 10_000)}"


def code_line(rng: random.Random) -> str:
    """A line of a program that says nothing; no bare constant is assigned."""
    choose = rng.choice
    noun, other, verb, adj = choose(NOUNS), choose(NOUNS), choose(VERBS), choose(ADJECTIVES)
    return choose((
        f"def {verb}_{noun}({other}, {adj}):",
        f"    {noun}s = [{other} for {other} in {verb}_{noun} if {other}.{adj}]",
        f"    if not {noun}.{adj} and len({other}s) > {rng.randrange(2, 64)}:",
        f"        return {verb}_{other}({noun}, {adj}={rng.choice(('True', 'False', 'None'))})",
        f"    # the {other} comes before the {adj} {noun}",
        f"    {noun}.{verb}({other}) or {other}.{verb}({noun})",
        f'    log.debug("{verb} %s", {noun})',
        f"    for {noun} in sorted({other}s, key=by_{adj}):",
        f"        {noun} += {other}.{adj}",
        f"class {noun.capitalize()}{other.capitalize()}:",
        f"    with open_{noun}({other}) as {adj}:",
        f"from {noun} import {verb}_{other}",
    ))  # fmt: skip


def json_line(rng: random.Random) -> str:
    """A record on a line."""
    choose = rng.choice
    return choose((
        f'{{"town": "{choose(TOWNS)}", "year": {rng.randrange(1800, 2030)}, "open": {choose(("true", "false"))}}}',
        f'{{"owner": "{choose(NAMES)}", "items": ["{choose(NOUNS)}", "{choose(NOUNS)}"]}}',
        f'{{"noun": "{choose(NOUNS)}", "tag": "{choose(ADJECTIVES)}", "weight": {rng.randrange(1, 900) / 10}}}',
        f'{{"state": "{choose(VERBS)}", "by": "{choose(NAMES)}", "retry": {rng.randrange(9)}}}',
    ))  # fmt: skip


def table_line(rng: random.Random) -> str:
    """A row of a table in Markdown."""
    choose = rng.choice
    return choose((
        f"| {choose(NAMES)} | {choose(TOWNS)} | {choose(VERBS)} |",
        f"| {choose(NOUNS)} | {choose(ADJECTIVES)} | {rng.randrange(1, 99)} % |",
        f"| {choose(TOWNS)} | {choose(NOUNS)} | {choose(NAMES)} |",
    ))  # fmt: skip


def yaml_line(rng: random.Random) -> str:
    """A line of settings."""
    choose = rng.choice
    return choose((
        f"{choose(NOUNS)}:", f"  {choose(ADJECTIVES)}: {choose(('yes', 'no', 'auto'))}", f"  - {choose(NOUNS)}",
        f"  owner: {choose(NAMES)}", f"  # {choose(VERBS)} {choose(NOUNS)}", f"  town: {choose(TOWNS)}",
        f"  limit: {rng.randrange(1, 99)}",
    ))  # fmt: skip


def log_line(rng: random.Random) -> str:
    """A line of a log."""
    choose = rng.choice
    at = f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"
    return choose((
        f"{at} INFO {choose(NOUNS)} {choose(VERBS)} by {choose(NAMES)}",
        f"{at} WARN {choose(NOUNS)} is {choose(ADJECTIVES)}, {rng.randrange(2, 60)} ms",
        f"{at} DEBUG {choose(VERBS)} {rng.randrange(2, 99)} of {rng.randrange(99, 200)} {choose(NOUNS)}s",
    ))  # fmt: skip


def lines(line: Callable[[random.Random], str], rng: random.Random) -> Iterator[Sentence]:
    """Lines without end."""
    while True:
        yield Sentence(line(rng), True)


FILLERS: dict[str, Callable[[random.Random], Iterator[Sentence]]] = {
    "prose": partial(filler, "grammar"),
    "code": partial(lines, code_line),
    "json": partial(lines, json_line),
    "table": partial(lines, table_line),
    "yaml": partial(lines, yaml_line),
    "log": partial(lines, log_line),
}  # what surrounds a fact, by the kind of text


ASKED, REVERSED = 10, 4  # facts that a story asks for, and those it asks for by their values
RUNS = 4, 24  # sentences of one kind of filler where kinds mix


@dataclass(frozen=True)
class FactForm:
    """How a fact is written. `frames`: passages that make up one fact, with the slots {key}, {value} and {alias};
    `filler`: kind of text around it: a key of the phrases' `fillers`; `styles`: of keys; see
    `sp.evals.tasks.fact.key_of`."""

    name: str
    frames: tuple[str, ...]
    filler: str = "prose"
    styles: tuple[str, ...] = ("adjective-noun",)


@dataclass(frozen=True)
class FactPhrases:
    """Forms and questions. `questions`, `reversed`: with {key}, answer the value; with {value}, answer the key;
    `adjectives`, `nouns`: what keys are made of; `values`: kinds of values: "number" of up to 7 digits, or "word";
    `invent`: A new word, for values and aliases; `fillers`: kinds of text, each a stream of sentences without end from
    a generator."""

    forms: tuple[FactForm, ...]
    questions: tuple[str, ...]
    reversed: tuple[str, ...]
    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    values: tuple[str, ...]
    invent: Callable[[random.Random], str]
    fillers: Mapping[str, Callable[[random.Random], Iterator[Sentence]]]


HELD_OUT = FactPhrases(
    forms=(
        FactForm("assigned", ("{key} was assigned the number {value}.",)),
        FactForm("code", ("{key} = {value}",), "code", ("snake", "upper")),
        FactForm("json", ('{"id": "{key}", "value": {value}}',), "json"),
        FactForm("paraphrase", ("Anyone who wants to get past {key} had better have {value} at hand.",)),
        FactForm("passive", ("{key} has always been filed by the archivists under {value}.",)),
        FactForm("table", ("| {key} | {value} |",), "table"),
        FactForm("yaml", ("{key}: {value}",), "yaml", ("snake",)),
        FactForm("log", ("INFO {key} resolved to {value} after one retry",), "log"),
        FactForm("comment", ("    # {key} must stay at {value} for old clients",), "code", ("snake",)),
        FactForm("value_first", ("{value} is what the ledger gives for {key}.",)),
        FactForm("alias", ("{key} is also called {alias}.", "{alias}: {value}.")),
    ),
    questions=(
        "What is the number of {key}?",
        "Which value does {key} have in the text above?",
        "Look up {key} and give only its number.",
        "What does the text give for {key}?",
    ),
    reversed=(
        "What is {value} the number of?",
        "Which name has the value {value} in the text above?",
        "Look up {value} and give only its name.",
        "What does the text give {value} for?",
    ),
    adjectives=tuple(ADJECTIVES),
    nouns=tuple(NOUNS),
    values=("number",),
    invent=pseudo_word,
    fillers=FILLERS,
)


@register_task("fact", suite="phrasings")
@dataclass(frozen=True)
class Fact(StoryTask):
    """The value of a key, among other facts of the same form.

    Parameters
    ----------
    seed, facts
        See `StoryTask`.
    form : int
        Which of the forms; -1 takes them in turn.
    """

    form: int = -1

    held_out: ClassVar[FactPhrases] = HELD_OUT

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -1 <= self.form < len(self.held_out.forms):
            names = ", ".join(f"{at} {one.name}" for at, one in enumerate(self.held_out.forms))
            raise ConfigError(f"form must be -1 for all in turn, or one of {names}; not {self.form}")

    def story(self, rng: random.Random, phrases: FactPhrases, facts: int) -> Story:
        """See `StoryTask.story`.

        >>> story = Fact(form=1).story(random.Random(0), HELD_OUT, 2)
        >>> story.passages[0], story.questions[0].text
        ('PLIABLE_PUPPET = 8468240', 'Look up PLIABLE_PUPPET and give only its number.')
        """
        choose = rng.choice
        form = phrases.forms[self.form] if self.form >= 0 else choose(phrases.forms)
        parts = len(form.frames)
        told: dict[str, tuple[str, tuple[str, ...]]] = {}
        used: set[str] = set()
        kind = choose(phrases.values)
        while len(told) < max(1, facts // parts):
            key = key_of(choose(form.styles), rng, phrases.adjectives, phrases.nouns)
            value = (
                str(rng.randrange(10 ** choose((2, 3, 4, 5, 6)), 10**7)) if kind == "number" else phrases.invent(rng)
            )
            alias = phrases.invent(rng).capitalize()
            if used.isdisjoint((key, value, alias)):
                used |= {key, value, alias}
                slots = (("{key}", key), ("{value}", value), ("{alias}", alias))
                said = []
                for frame in form.frames:
                    text = frame  # braces of JSON and code are no slots
                    for slot, filled in slots:
                        text = text.replace(slot, filled)
                    said.append(text)
                told[key] = value, tuple(said)
        passages = [one for _, said in told.values() for one in said]
        rng.shuffle(passages)
        asked = rng.sample(list(told.items()), min(ASKED, len(told)))
        questions = [
            Question(choose(phrases.questions).replace("{key}", key), (value,), said, kind=form.name)
            for key, (value, said) in asked
        ]
        questions += [
            Question(choose(phrases.reversed).replace("{value}", value), (key,), said, kind="reversed")
            for key, (value, said) in asked[-REVERSED:]
        ]
        return Story(tuple(passages), tuple(questions))

    def filler(self, rng: random.Random, phrases: FactPhrases) -> Iterator[Sentence]:
        """Text of the kind that the form belongs in; runs of all kinds where the form is drawn anew for each story."""
        if self.form >= 0:
            yield from phrases.fillers[phrases.forms[self.form].filler](rng)
        streams = [make(rng) for make in phrases.fillers.values()]
        while True:
            yield from islice(rng.choice(streams), rng.randrange(*RUNS))

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`."""
        if self.form >= 0:
            return super().example(index, tokens, count)
        found = replace(self, form=index % len(self.held_out.forms)).example(index, tokens, count)
        return replace(found, id=self.example_id(index, tokens))
