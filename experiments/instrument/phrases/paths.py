"""A grammar of questions for nested records: the record, the group and the field in any order and relation.

Held-out questions join group and field by a few words whose direction must be understood. So both directions are said
in many constructions here: a field that lies in its group, a group that has its field, one thing after another, roles
that are named, and a pronoun that stands for what was said before.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sp.evals.story import Story, StoryQuestion
from sp.evals.text.tables import table

from .grammar import Grammar, drawn, sentence

TABLES = table(__file__)

MARK = "\x1f"
"""Between the parts of a question that is only taken apart again."""

RULES: dict[str, list[str]] = TABLES["RULES"]


GRAMMAR = RECORD = Grammar(RULES | {"thing": ["record", "record", "item"]})
GROUP = Grammar(RULES | {"thing": ["group", "group", "section"]})


def parts(text: str) -> tuple[str, str, str]:
    """Record, group and field of a question that was asked in marks."""
    name, group, key = text.split(MARK)
    return name, group, key


def asking(phrases: Any, rng: random.Random, asks: int) -> tuple[Any, Callable[[Story], Story]]:
    """Phrases whose questions are asked in this grammar, and what a story must be sent through before it is told."""
    frames = tuple(map(sentence, drawn(GRAMMAR, "ask", rng, asks)))
    asked = replace(
        phrases,
        paths=((MARK, False),),
        asks=(f"{{name}}{MARK}{{path}}",),
        asks_top=tuple(map(sentence, drawn(GRAMMAR, "top", rng, asks // 4))),
        asks_record=tuple(map(sentence, drawn(RECORD, "owner", rng, asks // 4))),
        asks_group=tuple(map(sentence, drawn(GROUP, "owner", rng, asks // 4))),
    )

    def said(one: StoryQuestion) -> StoryQuestion:
        if one.kind != "path":
            return one
        name, group, key = parts(one.text)
        return replace(one, text=rng.choice(frames).format(name=name, group=group, key=key))

    return asked, lambda story: replace(story, questions=tuple(map(said, story.questions)))
