"""What the nested records of `json` are made of: layouts, words, and questions."""

from __future__ import annotations

from dataclasses import dataclass

from sp.evals.text.words import ADJECTIVES, NOUNS


@dataclass(frozen=True)
class Layout:
    """How records are written.

    Parameters
    ----------
    head, begin, tail : str
        What stands before the fields, which has the {name}, between it and the first field, and behind the last one.
        Braces are doubled in the head, as in all frames.
    open, close : str
        Frames around the fields of a group, with {key}.
    leaf : str
        Frame of a field, with {key} and {value}.
    between : str
        Between fields, and between groups.
    pad : str
        In front of a line, once for each level, where frames say {pad}.
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

    Parameters
    ----------
    layouts : tuple of Layout
    vocabularies : tuple of tuple of str
        Words of groups and fields; a story takes one of them.
    tops : tuple of str
        Fields outside all groups.
    names : tuple of tuple of str
        Parts of a record's name, joined by hyphens.
    paths : tuple of (str, bool)
        What joins the words of a path, and whether the innermost comes first.
    asks, asks_top, asks_record, asks_group : tuple of str
        Frames with {name} and {path}, or {group} and {key} in place of it; {name} and {key}; {value}; and {value}.
    """

    layouts: tuple[Layout, ...]
    vocabularies: tuple[tuple[str, ...], ...]
    tops: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    paths: tuple[tuple[str, bool], ...]
    asks: tuple[str, ...]
    asks_top: tuple[str, ...]
    asks_record: tuple[str, ...]
    asks_group: tuple[str, ...]


HELD_OUT = JsonPhrases(
    layouts=(
        Layout('{{\n "name": "{name}"', ",\n", '{pad}"{key}": {{\n', '{pad}"{key}": {value}', ",\n", "\n{pad}}}",
        "\n}", " "),
        Layout('{{"record": "{name}"', ", ", '"{key}": {{', '"{key}": {value}', ", ", "}}", "}"),
        Layout("- name: {name}", "\n", "{pad}{key}:\n", "{pad}{key}: {value}", "\n", "", "", "  "),
        Layout("[record {name}]", "\n", "[.{key}]\n", "{key} = {value}", "\n", "", ""),
        Layout("(record {name}", " ", "({key} ", "({key} {value})", " ", ")", ")"),
        Layout("record {name} {{", "\n", "{pad}{key} {{\n", "{pad}{key} {value};", "\n", "\n{pad}}}", "\n}", "  "),
        Layout("{name} | ", "", "{key} < ", "{key}: {value}", ", ", " >", ";"),
    ),
    vocabularies=(
        ("port", "owner", "region", "backup", "limit", "status"),
        ("cache", "quota", "carrier", "weight", "policy", "branch"),
        ("origin", "budget", "sensor", "merit", "supply", "margin"),
        ("relay", "tariff", "volume", "schedule", "credit", "depot"),
    ),
    tops=("serial", "edition", "checksum"),
    names=(tuple(ADJECTIVES), tuple(NOUNS)),
    paths=((", then at ", False), (", to be found inside ", True), (" and in there ", False),
    (", which is within ", True)),
    asks=(
        "Which number does {name} have under {path}?",
        "Go to {name}, and look at {path}. Which number is there?",
        "In {name}, what is the value of {path}?",
        "Give the number at {path}; the record is {name}.",
    ),
    asks_top=(
        "Which {key} does {name} have?",
        "Go to {name} and give its {key}.",
        "What is the value of {key} for {name}?",
        "The record is {name}. Give the {key}.",
    ),
    asks_record=(
        "Which record has the number {value} in it?",
        "{value} is part of a record. Which one?",
        "Give the name of the record with {value}.",
        "To which record does {value} belong?",
    ),
    asks_group=(
        "Which group has the number {value} in it?",
        "{value} is part of a group. Which one?",
        "Give the name of the group with {value}.",
        "To which group does {value} belong?",
    ),
)  # fmt: skip

FRESH = JsonPhrases(
    layouts=(
        Layout("## {name}", "\n", "{pad}* {key}\n", "{pad}* {key}: {value}", "\n", "", "", "  "),
        Layout('entry("{name}", {{', "\n", "{pad}{key} = {{\n", "{pad}{key} = {value},", "\n", "\n{pad}}},",
        "\n})", "   "),
        Layout("'{name}' => {{", " ", ":{key} => {{ ", ":{key} => {value}", ", ", " }}", " }"),
        Layout("{name} ==>", "\n", "{pad}{key} ->\n", "{pad}{key} -> {value}", "\n", "", "", "\t"),
        Layout("begin {name}", "\n", "{pad}begin {key}\n", "{pad}{key} {value}", "\n", "\n{pad}end", "\nend", " "),
        Layout("<{name}>", "", "<{key}>", "<{key} {value}>", "", "</>", "</>"),
    ),
    vocabularies=(
        ("gauge", "ledger", "voltage", "tenant", "ration", "signal"),
        ("parity", "freight", "roster", "torque", "permit", "bearing"),
        ("levy", "caliber", "caterer", "draught", "lease", "humidity"),
        ("notch", "mileage", "rebate", "hangar", "pension", "cipher"),
    ),
    tops=("docket", "folio", "tally"),
    names=(tuple(NOUNS[::2]), tuple(NOUNS[1::2])),
    paths=((" and, one level below, ", False), (" as listed inside ", True), (" in the part called ", True),
    (", and of what that holds, ", False)),
    asks=(
        "Among the entries of {name}, which figure stands for {path}?",
        "How much is {path} in {name}?",
        "Report what {name} lists for {path}.",
        "I need a figure from {name}, namely {path}.",
    ),
    asks_top=(
        "Report which {key} is listed for {name}.",
        "How much is {key} in {name}?",
        "Among the entries of {name}, which figure stands for {key}?",
        "I need a figure from {name}, namely {key}.",
    ),
    asks_record=(
        "Report which of the records lists {value}.",
        "{value} turns up in one of the records; say in which.",
        "I need to know the record that {value} was listed for.",
        "Among all the records, which one lists {value}?",
    ),
    asks_group=(
        "Report which of the groups lists {value}.",
        "{value} turns up in one of the groups; say in which.",
        "I need to know the group that {value} was listed for.",
        "Among all the groups, which one lists {value}?",
    ),
)  # fmt: skip
"""A second set, written later and without sight of what was trained: no part up to 15 can have been trained towards it.
Who wrote the later parts had seen it; a filter keeps its frames out of them."""
