"""A grammar of frames: a sentence is put together from parts, and the parts from parts.

A list of frames, however long, is learned as a list: its words are only met in the sentences that were written down.
Here every word of meaning stands in many constructions, and every construction takes many words.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from .echo import echoes

PART = re.compile(r"<(\w+)>")
ASKED = re.compile(r"\b((?:can|could|do|does) (?:you|we|somebody) [^.?!]*)\.$")
"""A request in the form of a question, which ends with the mark of one."""
BEGINS = re.compile(r"^[a-z]|(?<=[.?!] )[a-z]")
Made = Callable[[random.Random], str]


class Grammar:
    """Rules by name: of each, what it may become, with `<name>` for a part; slots in braces stay as they are.

    `rules`: one entry after another is equally likely; an entry that stands twice is twice as likely.

    Examples
    --------
    >>> Grammar({"told": ["{who} <ran>"], "ran": ["ran"]}).draw("told", random.Random(0))
    '{who} ran'
    """

    def __init__(self, rules: Mapping[str, Sequence[str] | Made]) -> None:
        self.rules: dict[str, list[list[tuple[bool, str]]]] = {}
        self.made: dict[str, Made] = {}
        for name, rule in rules.items():
            if callable(rule):
                self.made[name] = rule
                continue
            cut = [PART.split(one) for one in rule]
            self.rules[name] = [[(at % 2 == 1, text) for at, text in enumerate(one) if text] for one in cut]
        named = {text for rule in self.rules.values() for one in rule for part, text in one if part}
        if missing := named - {*self.rules, *self.made}:
            raise ValueError(f"no rule for {sorted(missing)}")

    def draw(self, name: str, rng: random.Random) -> str:
        """A sentence or part, with its blanks and marks in order."""
        out: list[str] = []
        waiting = [(True, name)]
        while waiting:
            is_part, text = waiting.pop()
            if not is_part:
                out.append(text)
            elif text in self.made:
                out.append(self.made[text](rng))
            else:
                waiting += reversed(rng.choice(self.rules[text]))
        return tidy("".join(out))

    def forms(self, name: str) -> int:
        """In how many ways it can be put together; what functions make counts once.

        Examples
        --------
        >>> Grammar({"a": ["<b> <b>", "x"], "b": ["y", "z"]}).forms("a")
        5
        """
        if name in self.made:
            return 1
        return sum(prod(self.forms(text) for part, text in one if part) for one in self.rules[name])


def tidy(text: str) -> str:
    """Single blanks, none before a mark, and the article and the mark at the end as they must be.

    Examples
    --------
    >>> tidy("so ,  it is ?"), tidy("can you say a end.")
    ('so, it is?', 'can you say an end?')
    """
    text = re.sub(r"\s+([,;:.?!])", r"\1", " ".join(text.split()))
    text = re.sub(r"\ba (?=[aeiou])", "an ", re.sub(r",(?=[,;:.?!])", "", text))
    return ASKED.sub(r"\1?", text)


def sentence(text: str) -> str:
    """With a capital letter wherever a sentence begins, unless it begins with a slot.

    Examples
    --------
    >>> sentence("see {name}. what is it? {key} is.")
    'See {name}. What is it? {key} is.'
    """
    return BEGINS.sub(lambda found: found.group().upper(), text)


def drawn(grammar: Grammar, name: str, rng: random.Random, many: int) -> tuple[str, ...]:
    """So many different frames, none of which echoes a held-out one; fewer if the grammar gives no more."""
    found: dict[str, None] = {}
    for _ in range(6 * many):
        frame = grammar.draw(name, rng)
        if not echoes(frame):
            found.setdefault(frame)
        if len(found) == many:
            break
    return tuple(found)


def of_fields(grammar: Grammar, fields: Mapping[str, Any], rng: random.Random, many: Mapping[str, int]) -> Any:
    """Frames for fields of phrases: `fields` names the rule of each, or the rules of each kind."""
    return {
        field: {kind: drawn(grammar, one, rng, many.get(field, 12)) for kind, one in rule.items()}
        if isinstance(rule, Mapping)
        else drawn(grammar, rule, rng, many.get(field, 12))
        for field, rule in fields.items()
    }
