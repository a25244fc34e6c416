"""Task `json`: a value in nested records that all have the same fields; record, group and field identify it together.

Own texts, modelled on the structured contexts of HELMET (arXiv 2410.02694) and the key-value retrieval of Liu et al.
(arXiv 2307.03172). Groups and fields share one set of words, each in every role, so that no chunk differs by its words.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar, NamedTuple

from sp.errors import ConfigError
from sp.evals.base import register_task
from sp.evals.story import Story, StoryQuestion, StoryTask
from sp.evals.text.filler import Sentence
from sp.evals.text.tables import ADJECTIVES, BLIND, NOUNS, table

TABLES = table(__file__)


@dataclass(frozen=True)
class RecordLayout:
    """The syntax of records; braces are doubled in all frames.

    Attributes
    ----------
    head : str
        Frame of the start of a record, with {name}.
    begin, tail : str
        Text between the head and the first field, and after the last one.
    open, close : str
        Frames before and after the fields of a group, with {key}.
    leaf : str
        Frame of a field, with {key} and {value}.
    between : str
        Text between fields, and between groups.
    pad : str
        Indent of a level, for the slot {pad} of frames.
    """

    head: str
    begin: str
    open: str
    leaf: str
    between: str
    close: str
    tail: str
    pad: str = ""


@dataclass(frozen=True)
class JsonPhrases:
    """Words and layouts of records.

    `asks` are questions with {name} and {path}, or {group} and {key} in place of the path; `asks_top` have {name} and
    {key}; `asks_record` and `asks_group` have {value}, and ask for the record or the group with it.
    """

    layouts: tuple[RecordLayout, ...]
    vocabularies: tuple[tuple[str, ...], ...]  # words of groups and fields; a story uses one of them
    tops: tuple[str, ...]  # fields outside all groups
    names: tuple[tuple[str, ...], ...]  # parts of a record's name, joined by hyphens
    paths: tuple[tuple[str, bool], ...]  # text between the words of a path, and True if the innermost comes first
    asks: tuple[str, ...]
    asks_top: tuple[str, ...]
    asks_record: tuple[str, ...]
    asks_group: tuple[str, ...]


HELD_OUT = JsonPhrases(
    **TABLES["held_out"],
    layouts=(
        RecordLayout(
            '{{\n "name": "{name}"',
            ",\n",
            '{pad}"{key}": {{\n',
            '{pad}"{key}": {value}',
            ",\n",
            "\n{pad}}}",
            "\n}",
            " ",
        ),
        RecordLayout('{{"record": "{name}"', ", ", '"{key}": {{', '"{key}": {value}', ", ", "}}", "}"),
        RecordLayout("- name: {name}", "\n", "{pad}{key}:\n", "{pad}{key}: {value}", "\n", "", "", "  "),
        RecordLayout("[record {name}]", "\n", "[.{key}]\n", "{key} = {value}", "\n", "", ""),
        RecordLayout("(record {name}", " ", "({key} ", "({key} {value})", " ", ")", ")"),
        RecordLayout(
            "record {name} {{", "\n", "{pad}{key} {{\n", "{pad}{key} {value};", "\n", "\n{pad}}}", "\n}", "  "
        ),
        RecordLayout("{name} | ", "", "{key} < ", "{key}: {value}", ", ", " >", ";"),
    ),
    names=(tuple(ADJECTIVES), tuple(NOUNS)),
)

FRESH = JsonPhrases(
    **TABLES["fresh"],
    layouts=(
        RecordLayout("## {name}", "\n", "{pad}* {key}\n", "{pad}* {key}: {value}", "\n", "", "", "  "),
        RecordLayout(
            'entry("{name}", {{', "\n", "{pad}{key} = {{\n", "{pad}{key} = {value},", "\n", "\n{pad}}},", "\n})", "   "
        ),
        RecordLayout("'{name}' => {{", " ", ":{key} => {{ ", ":{key} => {value}", ", ", " }}", " }"),
        RecordLayout("{name} ==>", "\n", "{pad}{key} ->\n", "{pad}{key} -> {value}", "\n", "", "", "\t"),
        RecordLayout(
            "begin {name}", "\n", "{pad}begin {key}\n", "{pad}{key} {value}", "\n", "\n{pad}end", "\nend", " "
        ),
        RecordLayout("<{name}>", "", "<{key}>", "<{key} {value}>", "", "</>", "</>"),
    ),
    names=(tuple(NOUNS[::2]), tuple(NOUNS[1::2])),
)
"""A second set, written later and without knowledge of the training data: training data up to part 15 cannot depend on
it. The authors of later parts had seen it; a filter keeps its frames out of them."""


FURTHER = 15  # questions of a story besides the first
LARGEST = 6  # words of a vocabulary
TOPS = 2  # fields of a record outside all groups


class FieldGroup(NamedTuple):
    """A group of a record with the text of its beginning and of its fields.

    A field outside all groups is a group with a single field and an empty key.
    """

    key: str
    begin: str
    keys: list[str]
    values: list[str]
    fields: list[str]


class JsonRecord(NamedTuple):
    """A record with its text, the text of its head, its fields outside groups, and its groups in order."""

    name: str
    head: str
    text: str
    between: str
    tops: list[FieldGroup]
    groups: list[FieldGroup]


@register_task("json", suite="unmatched")
@dataclass(frozen=True)
class Json(StoryTask):
    """A value of a record by its path, too far from the record's name for a scorer by matching words.

    Parameters
    ----------
    seed, facts : int
        See `StoryTask`; a passage is a record.
    words : int
        Number of words of groups and fields, each a group whose fields are the others; fewer make shorter records.
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
        """Draw at least two records, and ask for a value by its path."""
        words, facts = rng.sample(rng.choice(phrases.vocabularies), self.words), max(2, facts)
        names: dict[str, None] = {}
        while len(names) < facts:
            names.setdefault(_name(rng, phrases))
        values = iter(draw_values(rng, facts * self.values))
        records = [self.record(rng, phrases, name, words, values) for name in names]
        drawn = rng.sample(records, min(3, facts))
        chosen = drawn[0]
        questions = [ask(rng, phrases, chosen, rng.choice(chosen.groups[(self.words + 1) // 2 :]), "path")]
        for _ in range(FURTHER):
            record, kind = rng.choice(drawn), rng.choice(KINDS)
            questions.append(
                ask(rng, phrases, record, rng.choice(record.tops if kind == "top" else record.groups), kind)
            )
        return Story(tuple(record.text for record in records), tuple(questions))

    @property
    def values(self) -> int:
        """Number of values of a record."""
        return self.words * (self.words - 1) + TOPS

    def filler(self, rng: random.Random, phrases: JsonPhrases) -> Iterator[Sentence]:
        """Yield other records, of any vocabulary."""
        while True:
            words = rng.sample(rng.choice(phrases.vocabularies), self.words)
            values = iter(draw_values(rng, self.values))
            yield Sentence(self.record(rng, phrases, _name(rng, phrases), words, values).text, True)

    def record(
        self, rng: random.Random, phrases: JsonPhrases, name: str, words: list[str], values: Iterator[str]
    ) -> JsonRecord:
        """Write a record with the next of the values, with groups and fields in random order."""
        layout = rng.choice(phrases.layouts)
        tops, groups, parts = [], [], [layout.head.format(name=name)]
        order = [*words, *rng.sample([other for other in phrases.tops if other not in words], TOPS)]
        rng.shuffle(order)
        for key in order:
            outside = key not in words
            keys = [key] if outside else sorted([word for word in words if word != key], key=lambda _: rng.random())
            own_values = list(islice(values, len(keys)))
            pad = layout.pad * (1 if outside else 2)
            fields = [
                layout.leaf.format(pad=pad, key=other, value=value)
                for other, value in zip(keys, own_values, strict=True)
            ]
            if outside:
                tops.append(FieldGroup("", "", keys, own_values, fields))
                parts += fields
            else:
                begin = layout.open.format(pad=layout.pad, key=key)
                groups.append(FieldGroup(key, begin, keys, own_values, fields))
                parts.append(f"{begin}{layout.between.join(fields)}{layout.close.format(pad=layout.pad, key=key)}")
        text = f"{parts[0]}{layout.begin}{layout.between.join(parts[1:])}{layout.tail}"
        return JsonRecord(name, parts[0], text, layout.between, tops, groups)


def ask(rng: random.Random, phrases: JsonPhrases, record: JsonRecord, group: FieldGroup, kind: str) -> StoryQuestion:
    """Ask a question of one of `KINDS` about a random field of a group."""
    index = rng.randrange(len(group.keys))
    key, value = group.keys[index], group.values[index]
    text = group.begin + record.between.join(group.fields[: index + 1])
    if kind == "group":
        return StoryQuestion(
            rng.choice(phrases.asks_group).format(value=value), (group.key,), (text.strip(),), kind=kind
        )
    if kind == "record":
        question = rng.choice(phrases.asks_record).format(value=value)
        return StoryQuestion(question, (record.name,), (record.head.strip(), text.strip()), kind=kind)
    if kind == "top":
        question = rng.choice(phrases.asks_top).format(name=record.name, key=key)
        return StoryQuestion(question, (value,), (record.head.strip(), text.strip()), kind=kind)
    joiner, inward = rng.choice(phrases.paths)
    path = f"{key}{joiner}{group.key}" if inward else f"{group.key}{joiner}{key}"
    question = rng.choice(phrases.asks).format(name=record.name, path=path, group=group.key, key=key)
    return StoryQuestion(question, (value,), (record.head.strip(), text.strip()), kind=kind)


KINDS = ("path", "path", "record", "group", "top")
"""Kinds of questions besides the first, which has a path; `top` are those for fields outside groups."""


def draw_values(rng: random.Random, amount: int) -> list[str]:
    """Draw different numbers of five digits; faster than `sample`, which would slow down training."""
    numbers: dict[int, None] = {}
    while len(numbers) < amount:
        numbers.setdefault(10_000 + int(90_000 * rng.random()))
    return list(map(str, numbers))


def _name(rng: random.Random, phrases: JsonPhrases) -> str:
    return "-".join([rng.choice(parts) for parts in phrases.names])
