"""What the nested records of `json` are made of: layouts, words, and questions."""

from __future__ import annotations

from dataclasses import dataclass

from sp.evals.text.tables import table
from sp.evals.text.words import ADJECTIVES, NOUNS

TABLES = table(__file__)


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
