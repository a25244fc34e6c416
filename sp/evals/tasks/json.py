"""A value in nested records that all have the same fields: which record, which group and which field decide together.

Our own, after the structured contexts of HELMET (arXiv 2410.02694) and the key-value retrieval of Liu et al. (arXiv
2307.03172). Groups and fields share one set of words, each in every role, so that no chunk stands out by its words.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar, NamedTuple

from sp.errors import ConfigError
from sp.evals.base import register_task
from sp.evals.story import Question, Story, StoryTask
from sp.evals.text.filler import Sentence
from sp.evals.text.tables import ADJECTIVES, BLIND, NOUNS, table

TABLES = table(__file__)


@dataclass(frozen=True)
class Layout:
    """How records are written. `head`, `begin`, `tail`: what stands before the fields, which has the {name}, between it
    and the first field, and behind the last one. Braces are doubled in the head, as in all frames."""

    head: str
    begin: str
    open: str  # open, close: frames around the fields of a group, with {key}
    leaf: str  # frame of a field, with {key} and {value}
    between: str  # between fields, and between groups
    close: str
    tail: str
    pad: str = ""  # in front of a line, once for each level, where frames say {pad}


@dataclass(frozen=True)
class JsonPhrases:
    """Words and layouts of records. `asks`, `asks_top`, `asks_record`, `asks_group`: frames with {name} and {path}, or
    {group} and {key} in place of it; {name} and {key}; {value}; and {value}."""

    layouts: tuple[Layout, ...]
    vocabularies: tuple[tuple[str, ...], ...]  # words of groups and fields; a story takes one of them
    tops: tuple[str, ...]  # fields outside all groups
    names: tuple[tuple[str, ...], ...]  # parts of a record's name, joined by hyphens
    paths: tuple[tuple[str, bool], ...]  # what joins the words of a path, and whether the innermost comes first
    asks: tuple[str, ...]
    asks_top: tuple[str, ...]
    asks_record: tuple[str, ...]
    asks_group: tuple[str, ...]


HELD_OUT = JsonPhrases(
    **TABLES["held_out"],
    layouts=(
        Layout(
            '{{\n "name": "{name}"',
            ",\n",
            '{pad}"{key}": {{\n',
            '{pad}"{key}": {value}',
            ",\n",
            "\n{pad}}}",
            "\n}",
            " ",
        ),
        Layout('{{"record": "{name}"', ", ", '"{key}": {{', '"{key}": {value}', ", ", "}}", "}"),
        Layout("- name: {name}", "\n", "{pad}{key}:\n", "{pad}{key}: {value}", "\n", "", "", "  "),
        Layout("[record {name}]", "\n", "[.{key}]\n", "{key} = {value}", "\n", "", ""),
        Layout("(record {name}", " ", "({key} ", "({key} {value})", " ", ")", ")"),
        Layout("record {name} {{", "\n", "{pad}{key} {{\n", "{pad}{key} {value};", "\n", "\n{pad}}}", "\n}", "  "),
        Layout("{name} | ", "", "{key} < ", "{key}: {value}", ", ", " >", ";"),
    ),
    names=(tuple(ADJECTIVES), tuple(NOUNS)),
)

FRESH = JsonPhrases(
    **TABLES["fresh"],
    layouts=(
        Layout("## {name}", "\n", "{pad}* {key}\n", "{pad}* {key}: {value}", "\n", "", "", "  "),
        Layout(
            'entry("{name}", {{', "\n", "{pad}{key} = {{\n", "{pad}{key} = {value},", "\n", "\n{pad}}},", "\n})", "   "
        ),
        Layout("'{name}' => {{", " ", ":{key} => {{ ", ":{key} => {value}", ", ", " }}", " }"),
        Layout("{name} ==>", "\n", "{pad}{key} ->\n", "{pad}{key} -> {value}", "\n", "", "", "\t"),
        Layout("begin {name}", "\n", "{pad}begin {key}\n", "{pad}{key} {value}", "\n", "\n{pad}end", "\nend", " "),
        Layout("<{name}>", "", "<{key}>", "<{key} {value}>", "", "</>", "</>"),
    ),
    names=(tuple(NOUNS[::2]), tuple(NOUNS[1::2])),
)
"""A second set, written later and without sight of what was trained: no part up to 15 can have been trained towards it.
Who wrote the later parts had seen it; a filter keeps its frames out of them."""


FURTHER = 15  # questions of a story besides the first
LARGEST = 6  # words of a vocabulary
TOPS = 2  # fields of a record outside all groups


class Group(NamedTuple):
    """A group of a record, or a field outside all groups, which is one of a single field and no key of its own. Its
    beginning and its fields are as written."""

    key: str
    begin: str
    keys: list[str]
    values: list[str]
    fields: list[str]


class Record(NamedTuple):
    """A record as written, its first part, which has its name, its fields outside groups, and its groups in order."""

    name: str
    head: str
    text: str
    between: str
    tops: list[Group]
    groups: list[Group]


@register_task("json", suite="unmatched")
@dataclass(frozen=True)
class Json(StoryTask):
    """A value of a record by its path; it lies further from the record's name than a scorer of matching words reaches.

    Parameters
    ----------
    seed, facts : int
        See `StoryTask`; a passage is a record.
    words : int
        Words of groups and fields, each a group whose fields are the others; fewer make records short, for training.
    """

    words: int = 5

    held_out: ClassVar[JsonPhrases] = HELD_OUT
    fresh: ClassVar[JsonPhrases] = FRESH
    blind: ClassVar[JsonPhrases] = replace(FRESH, asks=BLIND["json_questions"])
    spacing: ClassVar[int] = 520
    fewest: ClassVar[int] = 3
    most: ClassVar[int] = 260

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.words <= LARGEST:
            raise ConfigError(f"words must be from 2 to {LARGEST}, not {self.words}")

    def story(self, rng: random.Random, phrases: JsonPhrases, facts: int) -> Story:
        """See `StoryTask.story`; at least two records."""
        words, facts = rng.sample(rng.choice(phrases.vocabularies), self.words), max(2, facts)
        names: dict[str, None] = {}
        while len(names) < facts:
            names.setdefault(_name(rng, phrases))
        values = iter(draw_values(rng, facts * self.values))
        records = [self.record(rng, phrases, name, words, values) for name in names]
        asked = rng.sample(records, min(3, facts))
        chosen = asked[0]
        questions = [ask(rng, phrases, chosen, rng.choice(chosen.groups[(self.words + 1) // 2 :]), "path")]
        for _ in range(FURTHER):
            record, kind = rng.choice(asked), rng.choice(KINDS)
            questions.append(
                ask(rng, phrases, record, rng.choice(record.tops if kind == "top" else record.groups), kind)
            )
        return Story(tuple(record.text for record in records), tuple(questions))

    @property
    def values(self) -> int:
        """Values of a record."""
        return self.words * (self.words - 1) + TOPS

    def filler(self, rng: random.Random, phrases: JsonPhrases) -> Iterator[Sentence]:
        """Other records, of any vocabulary."""
        while True:
            words = rng.sample(rng.choice(phrases.vocabularies), self.words)
            values = iter(draw_values(rng, self.values))
            yield Sentence(self.record(rng, phrases, _name(rng, phrases), words, values).text, True)

    def record(
        self, rng: random.Random, phrases: JsonPhrases, name: str, words: list[str], values: Iterator[str]
    ) -> Record:
        """A record with the next of these values; groups, fields, and what is outside them in random order."""
        layout = rng.choice(phrases.layouts)
        tops, groups, parts = [], [], [layout.head.format(name=name)]
        order = [*words, *rng.sample([one for one in phrases.tops if one not in words], TOPS)]
        rng.shuffle(order)
        for key in order:
            outside = key not in words
            keys = [key] if outside else sorted([word for word in words if word != key], key=lambda _: rng.random())
            held = list(islice(values, len(keys)))
            pad = layout.pad * (1 if outside else 2)
            fields = [layout.leaf.format(pad=pad, key=one, value=value) for one, value in zip(keys, held, strict=True)]
            if outside:
                tops.append(Group("", "", keys, held, fields))
                parts += fields
            else:
                begin = layout.open.format(pad=layout.pad, key=key)
                groups.append(Group(key, begin, keys, held, fields))
                parts.append(f"{begin}{layout.between.join(fields)}{layout.close.format(pad=layout.pad, key=key)}")
        text = f"{parts[0]}{layout.begin}{layout.between.join(parts[1:])}{layout.tail}"
        return Record(name, parts[0], text, layout.between, tops, groups)


def ask(rng: random.Random, phrases: JsonPhrases, record: Record, group: Group, kind: str) -> Question:
    """A question of one of `KINDS` for some field of a group."""
    at = rng.randrange(len(group.keys))
    key, value = group.keys[at], group.values[at]
    text = group.begin + record.between.join(group.fields[: at + 1])
    if kind == "group":
        return Question(rng.choice(phrases.asks_group).format(value=value), (group.key,), (text.strip(),), kind=kind)
    if kind == "record":
        asked = rng.choice(phrases.asks_record).format(value=value)
        return Question(asked, (record.name,), (record.head.strip(), text.strip()), kind=kind)
    if kind == "top":
        asked = rng.choice(phrases.asks_top).format(name=record.name, key=key)
        return Question(asked, (value,), (record.head.strip(), text.strip()), kind=kind)
    joiner, inward = rng.choice(phrases.paths)
    path = f"{key}{joiner}{group.key}" if inward else f"{group.key}{joiner}{key}"
    asked = rng.choice(phrases.asks).format(name=record.name, path=path, group=group.key, key=key)
    return Question(asked, (value,), (record.head.strip(), text.strip()), kind=kind)


KINDS = ("path", "path", "record", "group", "top")
"""Questions besides the first, which asks for a path; those for fields outside groups are `top`."""


def draw_values(rng: random.Random, amount: int) -> list[str]:
    """Different numbers of five digits; quicker than `sample`, which training would wait for."""
    found: dict[int, None] = {}
    while len(found) < amount:
        found.setdefault(10_000 + int(90_000 * rng.random()))
    return list(map(str, found))


def _name(rng: random.Random, phrases: JsonPhrases) -> str:
    return "-".join([rng.choice(parts) for parts in phrases.names])
