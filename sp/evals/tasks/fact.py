"""Task `fact`: a key and its value in forms without training: prose, code, JSON, tables, settings, logs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import ClassVar

from sp.errors import ConfigError
from sp.evals.base import Count, Example, register_task
from sp.evals.story import Story, StoryQuestion, StoryTask
from sp.evals.text.filler import Sentence, filler
from sp.evals.text.tables import ADJECTIVES, NAMES, NOUNS, TOWNS, VERBS, pseudo_word, uuid

STYLES = ("adjective-noun", "snake", "upper", "camel", "two words", "title", "noun-number", "uuid")


def key_of(style: str, rng: random.Random, adjectives: Sequence[str], nouns: Sequence[str]) -> str:
    """Draw a key in one of the `STYLES`, of the given words.

    >>> [key_of(style, random.Random(0), ["calm"], ["fox"]) for style in STYLES[:6]]
    ['calm-fox', 'calm_fox', 'CALM_FOX', 'calmFox', 'calm fox', 'Calm Fox']
    """
    if style == "uuid":
        return uuid(rng)
    adjective, noun = rng.choice(adjectives), rng.choice(nouns)
    key = {
        "adjective-noun": f"{adjective}-{noun}",
        "snake": f"{adjective}_{noun}",
        "upper": f"{adjective}_{noun}".upper(),
        "camel": f"{adjective}{noun.capitalize()}",
        "two words": f"{adjective} {noun}",
        "title": f"{adjective} {noun}".title(),
    }
    return key.get(style) or f"{noun}-{rng.randrange(10, 10_000)}"


def code_line(rng: random.Random) -> str:
    """Draw an irrelevant line of a program, without assignments of constants."""
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
    """Draw a JSON record on one line."""
    choose = rng.choice
    return choose((
        f'{{"town": "{choose(TOWNS)}", "year": {rng.randrange(1800, 2030)}, "open": {choose(("true", "false"))}}}',
        f'{{"owner": "{choose(NAMES)}", "items": ["{choose(NOUNS)}", "{choose(NOUNS)}"]}}',
        f'{{"noun": "{choose(NOUNS)}", "tag": "{choose(ADJECTIVES)}", "weight": {rng.randrange(1, 900) / 10}}}',
        f'{{"state": "{choose(VERBS)}", "by": "{choose(NAMES)}", "retry": {rng.randrange(9)}}}',
    ))  # fmt: skip


def table_line(rng: random.Random) -> str:
    """Draw a row of a table in Markdown."""
    choose = rng.choice
    return choose((
        f"| {choose(NAMES)} | {choose(TOWNS)} | {choose(VERBS)} |",
        f"| {choose(NOUNS)} | {choose(ADJECTIVES)} | {rng.randrange(1, 99)} % |",
        f"| {choose(TOWNS)} | {choose(NOUNS)} | {choose(NAMES)} |",
    ))  # fmt: skip


def yaml_line(rng: random.Random) -> str:
    """Draw a line of settings in YAML."""
    choose = rng.choice
    return choose((
        f"{choose(NOUNS)}:", f"  {choose(ADJECTIVES)}: {choose(('yes', 'no', 'auto'))}", f"  - {choose(NOUNS)}",
        f"  owner: {choose(NAMES)}", f"  # {choose(VERBS)} {choose(NOUNS)}", f"  town: {choose(TOWNS)}",
        f"  limit: {rng.randrange(1, 99)}",
    ))  # fmt: skip


def log_line(rng: random.Random) -> str:
    """Draw a line of a log."""
    choose = rng.choice
    time = f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"
    return choose((
        f"{time} INFO {choose(NOUNS)} {choose(VERBS)} by {choose(NAMES)}",
        f"{time} WARN {choose(NOUNS)} is {choose(ADJECTIVES)}, {rng.randrange(2, 60)} ms",
        f"{time} DEBUG {choose(VERBS)} {rng.randrange(2, 99)} of {rng.randrange(99, 200)} {choose(NOUNS)}s",
    ))  # fmt: skip


def lines(line: Callable[[random.Random], str], rng: random.Random) -> Iterator[Sentence]:
    """Yield lines of one kind, without end."""
    while True:
        yield Sentence(line(rng), True)


FILLERS: dict[str, Callable[[random.Random], Iterator[Sentence]]] = {
    "prose": partial(filler, "grammar"),
    "code": partial(lines, code_line),
    "json": partial(lines, json_line),
    "table": partial(lines, table_line),
    "yaml": partial(lines, yaml_line),
    "log": partial(lines, log_line),
}  # filler around a fact, by the kind of text


ASKED, REVERSED = 10, 4  # questions of a story by key, and by value
RUNS = 4, 24  # least number of consecutive sentences of one kind of filler where kinds mix, and the bound of it


@dataclass(frozen=True)
class FactForm:
    """A form of facts.

    Attributes
    ----------
    frames : tuple of str
        Passages of one fact, with the slots {key}, {value} and {alias}.
    filler : str
        Kind of text around it, a key of the phrases' `fillers`.
    styles : tuple of str
        Styles of keys, see `key_of`.
    """

    name: str
    frames: tuple[str, ...]
    filler: str = "prose"
    styles: tuple[str, ...] = ("adjective-noun",)


@dataclass(frozen=True)
class FactPhrases:
    """Forms and questions of facts.

    Attributes
    ----------
    questions, reversed : tuple of str
        Questions with {key} for the value, and with {value} for the key.
    adjectives, nouns : tuple of str
        Words of keys.
    values : tuple of str
        Kinds of values: "number" of up to 7 digits, or "word".
    invent : callable
        Draws a new word, for values and aliases.
    fillers : mapping of str to callable
        Kinds of text, each a function from a generator to endless sentences.
    """

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
        Number of the form; -1 uses all forms in turn.
    """

    form: int = -1

    held_out: ClassVar[FactPhrases] = HELD_OUT

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -1 <= self.form < len(self.held_out.forms):
            names = ", ".join(f"{number} {form.name}" for number, form in enumerate(self.held_out.forms))
            raise ConfigError(f"form must be -1 for all in turn, or one of {names}; not {self.form}")

    def story(self, rng: random.Random, phrases: FactPhrases, facts: int) -> Story:
        """Draw facts of one form, and ask for some of them by key and by value.

        >>> story = Fact(form=1).story(random.Random(0), HELD_OUT, 2)
        >>> story.passages[0], story.questions[0].text
        ('PLIABLE_PUPPET = 8468240', 'Look up PLIABLE_PUPPET and give only its number.')
        """
        choose = rng.choice
        form = phrases.forms[self.form] if self.form >= 0 else choose(phrases.forms)
        parts = len(form.frames)
        value_and_text: dict[str, tuple[str, tuple[str, ...]]] = {}
        used: set[str] = set()
        kind = choose(phrases.values)
        while len(value_and_text) < max(1, facts // parts):
            key = key_of(choose(form.styles), rng, phrases.adjectives, phrases.nouns)
            value = (
                str(rng.randrange(10 ** choose((2, 3, 4, 5, 6)), 10**7)) if kind == "number" else phrases.invent(rng)
            )
            alias = phrases.invent(rng).capitalize()
            if used.isdisjoint((key, value, alias)):
                used |= {key, value, alias}
                slots = (("{key}", key), ("{value}", value), ("{alias}", alias))
                sentences = []
                for frame in form.frames:
                    text = frame  # not `format`, because braces of JSON and code are not slots
                    for slot, filled in slots:
                        text = text.replace(slot, filled)
                    sentences.append(text)
                value_and_text[key] = value, tuple(sentences)
        passages = [sentence for _, sentences in value_and_text.values() for sentence in sentences]
        rng.shuffle(passages)
        chosen = rng.sample(list(value_and_text.items()), min(ASKED, len(value_and_text)))
        questions = [
            StoryQuestion(choose(phrases.questions).replace("{key}", key), (value,), sentences, kind=form.name)
            for key, (value, sentences) in chosen
        ]
        questions += [
            StoryQuestion(choose(phrases.reversed).replace("{value}", value), (key,), sentences, kind="reversed")
            for key, (value, sentences) in chosen[-REVERSED:]
        ]
        return Story(tuple(passages), tuple(questions))

    def filler(self, rng: random.Random, phrases: FactPhrases) -> Iterator[Sentence]:
        """Yield text of the form's kind, or runs of all kinds where the form is drawn for each story."""
        if self.form >= 0:
            yield from phrases.fillers[phrases.forms[self.form].filler](rng)
        streams = [make(rng) for make in phrases.fillers.values()]
        while True:
            yield from islice(rng.choice(streams), rng.randrange(*RUNS))

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """Make an example; with all forms in turn, the form depends on the index."""
        if self.form >= 0:
            return super().example(index, tokens, count)
        example = replace(self, form=index % len(self.held_out.forms)).example(index, tokens, count)
        return replace(example, id=self.example_id(index, tokens))
