"""Short scenes in plain words, and questions and second tellings of them: the vocabulary of relations by itself.

Every word that names a thing or a person is used in one scene of a document, so that a question has one answer; words
are ordinary ones or put together from tokens, so that no answer is guessed.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple

from sp.evals.story import Story, StoryQuestion

from . import kin, moving, ordered, paths
from .echo import echoes
from .grammar import sentence
from .names_b import PLACES, QUALITIES, THINGS
from .scenes import GRAMMAR, RELATIONS, RULES, WEIGHTS, Relation
from .spelling import Spelt, held_words
from .wide import JOBS

SLOT = re.compile(r"\{(\w)\}")
ORDINARY = 0.5
"""Of words for things and places, those of a list."""
BEFORE = (
    "I hear that", "it is known that", "we saw that", "they say that", "you should know that", "it is true that",
    "somebody wrote that", "note that", "it was found that", "I am told that", "as far as I know,", "nowadays",
    "for once,", "as everybody sees,", "in our house", "yesterday I learned that",
)  # fmt: skip
WRAPPED = 0.25
"""Of statements, those with something before them."""
ASKS = (
    ("Q: ", "\nA:"), ("", ""), ("", "\n-"), ("Question: ", "\nAnswer:"), ("- ", "\n  -"), ("", " -"), ("? ", "\n! "),
    ("Ask: ", "\nSay:"), ("> ", "\n"), ("", "\n"),
)  # fmt: skip
"""What stands before a question and before its answer in plain lines."""
AGAIN = ("In other words:", "That is to say,", "Or:", "Said otherwise,", "Which means:", "That is,", "The same again:")
"""What a second telling begins with."""
SAID = {
    word
    for rules in (RULES, kin.RULES, paths.RULES, moving.RULES, ordered.RULES)
    for rule in rules.values()
    if not callable(rule)
    for one in rule
    for word in re.findall("[a-z]+", one.lower())
}
"""Words of the grammars, which name nothing."""


class Scene(NamedTuple):
    """A relation, what stands in its slots, and how it was told."""

    relation: Relation
    slots: dict[str, str]
    text: str


class Source:
    """Words of a document, none of them twice."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.used = rng, set[str]()
        self.small, self.large = Spelt(capital=False, plain=False), Spelt(capital=True, plain=False)

    def word(self, sort: str) -> str:
        """A word of a sort that shares no word with one drawn before."""
        while True:
            found = self._draw(sort)
            words = found.lower().split()
            if self.used.isdisjoint(words) and SAID.isdisjoint(words) and held_words().isdisjoint(words):
                self.used.update(words)
                return found

    def _draw(self, sort: str) -> str:
        rng = self.rng
        ordinary = rng.random() < ORDINARY
        if sort == "value":
            return str(rng.randrange(10, 10 ** rng.choice((3, 4, 5, 5))))
        if sort in ("person", "name"):
            first = self.large[rng.getrandbits(39)]
            return f"{first} {self.large[rng.getrandbits(39)]}" if rng.random() < 0.4 else first
        if sort == "job":
            return JOBS[rng.getrandbits(39)] if ordinary else self.small[rng.getrandbits(39)]
        noun = rng.choice(PLACES if sort == "place" else THINGS) if ordinary else self.small[rng.getrandbits(39)]
        return f"{rng.choice(QUALITIES)} {noun}" if rng.random() < 0.1 else noun


def frame(rule: str, rng: random.Random) -> str:
    """A frame of a rule that echoes nothing held out."""
    while True:
        found = GRAMMAR.draw(rule, rng)
        if not echoes(found):
            return found


def told(relation: Relation, slots: dict[str, str], rng: random.Random) -> Scene:
    """A scene as it is told once."""
    text = frame(relation.told, rng)
    if rng.random() < WRAPPED and "?" not in text:
        text = f"{rng.choice(BEFORE)} {text}"
    return Scene(relation, slots, sentence(text).format(**slots))


def scenes(rng: random.Random, many: int) -> list[Scene]:
    """So many scenes or one more, in random order, without a word in common but for those told against each other."""
    source, found = Source(rng), []
    while len(found) < many:
        [relation] = rng.choices(RELATIONS, WEIGHTS)
        slots = {slot: source.word(sort) for slot, sort in relation.slots.items()}
        found.append(told(relation, slots, rng))
        if relation.mirrored:
            turned = {"a": slots["b"], "b": slots["a"], "v": source.word("value")}
            found.append(told(relation, turned, rng))
    rng.shuffle(found)
    return found


def asked(scene: Scene, rng: random.Random) -> StoryQuestion:
    """A question for one of its slots."""
    rule, slot = rng.choice(scene.relation.asks)
    text = sentence(frame(rule, rng)).format(**scene.slots)
    return StoryQuestion(text, (scene.slots[slot],), (scene.text,), kind=scene.relation.told)


def language_story(rng: random.Random, facts: int) -> Story:
    """Scenes as passages and a question for each, more for some."""
    found = scenes(rng, max(2, facts))
    questions = [asked(one, rng) for one in found] + [asked(rng.choice(found), rng) for _ in range(len(found) // 2)]
    once = {one.text: one for one in questions}
    rng.shuffle(shown := list(once.values()))
    return Story(tuple(one.text for one in found), tuple(shown[:40]))


def again(scene: Scene, rng: random.Random) -> list[tuple[str, bool]]:
    """A second telling, whose last slot is what the reader must know."""
    text = frame(scene.relation.told, rng)
    last = list(SLOT.finditer(text))[-1]
    before = sentence(f"{rng.choice(AGAIN)} {text[: last.start()]}").format(**scene.slots)
    blank = " " if before.endswith(" ") else ""
    return [
        (before.rstrip(), False),
        (blank + scene.slots[last[1]], True),
        (text[last.end() :].format(**scene.slots) + "\n", False),
    ]


def lines(rng: random.Random) -> list[tuple[str, bool]]:
    """Scenes, then questions with their answers and second tellings: text, and whether it is to be known."""
    found = scenes(rng, rng.choice((1, 2, 3, 4, 6, 8, 12)))
    before, behind = rng.choice(ASKS)
    between = rng.choice((" ", "\n"))
    out = [(between.join(one.text for one in found) + "\n", False)]
    order = [*found, *found[: len(found) // 2]]
    rng.shuffle(order)
    known: set[str] = set()
    for scene in order:
        if rng.random() < 0.2:
            out += again(scene, rng)
            continue
        one = asked(scene, rng)
        if one.text in known:
            continue
        known.add(one.text)
        blank = "" if behind.endswith(("\n", " ")) else " "
        out += [(f"{before}{one.text}{behind}", False), (f"{blank}{one.answers[0]}", True), (".\n", False)]
    return out
