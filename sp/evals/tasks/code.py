"""Task `code`: the number that a function of a generated code base returns, which is defined elsewhere in it.

The idea, that code has to be followed and not matched, is that of RepoQA (arXiv 2406.06025; github.com/evalplus/repoqa,
Apache-2.0) and LongCodeU (arXiv 2503.04359); modules and languages are invented.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from sp.evals.base import register_task
from sp.evals.story import Story, StoryQuestion, StoryTask
from sp.evals.text.filler import Sentence
from sp.evals.text.tables import ADJECTIVES, BLIND, NOUNS, VERBS, table

TABLES = table(__file__)

FURTHER = 15  # questions of a story besides the first
NEAR = 2  # least distance, in passages, between a function and what it refers to, where possible
MOST_LINES = 2  # most lines of a body besides the one that returns


@dataclass(frozen=True)
class CodePhrases:
    """Words and frames of code.

    `functions` are frames with {name}, {value}, {body} (whole lines) and optionally {arg}; braces are doubled.
    `function_names` and `constant_names` join two words to a name: {a} {b} in small letters, {A} {B} with a capital,
    {AA} {BB} in capitals. `asks`, `asks_constant`, `asks_uses` and `asks_calls` are frames of questions with {name}:
    for the value that a function returns, for a constant's value, for the constant that a function uses, and for the
    function that it calls.
    """

    functions: tuple[str, ...]
    constants: tuple[str, ...]  # frames with {name} and {value}
    statements: tuple[str, ...]  # lines of a body, with {a} and {b} (local names) and {n} (a small number)
    remarks: tuple[str, ...]  # lines between definitions, with {a} and {b}, words
    calls: tuple[str, ...]  # frames with {name}
    function_names: tuple[str, ...]
    constant_names: tuple[str, ...]
    verbs: tuple[str, ...]  # verbs, objects, qualities, things: words of functions' names and of constants'
    objects: tuple[str, ...]
    qualities: tuple[str, ...]
    things: tuple[str, ...]
    others: tuple[str, ...]  # words in place of objects and things in the text between the passages
    locals: tuple[str, ...]
    indent: str  # in front of every line of a body
    asks: tuple[str, ...]
    asks_constant: tuple[str, ...]
    asks_uses: tuple[str, ...]
    asks_calls: tuple[str, ...]

    def function(self, rng: random.Random, name: str, value: str) -> str:
        """Write a function, with some irrelevant lines in its body."""
        choose = rng.choice
        body = ""
        for _ in range(rng.randint(0, MOST_LINES)):
            line = choose(self.statements)
            body += self.indent
            body += line.format(a=choose(self.locals), b=choose(self.locals), n=rng.randrange(2, 100))
            body += "\n"
        return choose(self.functions).format(name=name, value=value, body=body, arg=choose(self.locals))

    def constant(self, rng: random.Random, name: str, value: str) -> str:
        """Write a constant in one line."""
        return rng.choice(self.constants).format(name=name, value=value)

    def function_name(self, rng: random.Random, verb: str, objects: tuple[str, ...]) -> str:
        """Draw a name from a verb and one of the objects."""
        return _join(rng.choice(self.function_names), verb, rng.choice(objects))

    def constant_name(self, rng: random.Random, things: tuple[str, ...]) -> str:
        """Draw a name from a quality and one of the things."""
        return _join(rng.choice(self.constant_names), rng.choice(self.qualities), rng.choice(things))


HELD_OUT = CodePhrases(
    **TABLES["held_out"],
    verbs=tuple(VERBS),
    objects=tuple(NOUNS[0::3]),
    qualities=tuple(ADJECTIVES),
    things=tuple(NOUNS[1::3]),
    others=tuple(NOUNS[2::3]),
    indent="  ",
)


@dataclass(frozen=True)
class Link:
    """A function, and the function or constant with the value it returns; texts as in their passages."""

    name: str
    text: str
    target: str
    target_text: str
    value: str
    calls: bool


@register_task("code", suite="unmatched")
@dataclass(frozen=True)
class Code(StoryTask):
    """The number that a function returns, through a constant or a function that is defined elsewhere.

    Half of the passages are such functions, the other half what they refer to; the text between them is similar code.
    """

    held_out: ClassVar[CodePhrases] = HELD_OUT
    blind: ClassVar[CodePhrases] = replace(HELD_OUT, constants=BLIND["code_constants"], asks=BLIND["code_questions"])
    spacing: ClassVar[int] = 160
    most: ClassVar[int] = 240

    def story(self, rng: random.Random, phrases: CodePhrases, facts: int) -> Story:
        """Draw functions and what they refer to: at least two passages, and an even number of them."""
        links = draw_links(rng, phrases, max(1, facts // 2))
        passages = [text for link in links for text in (link.text, link.target_text)]
        rng.shuffle(passages)
        place = {text: index for index, text in enumerate(passages)}
        apart = [link for link in links if abs(place[link.text] - place[link.target_text]) > NEAR]
        judged = rng.choice(apart or links)

        def follow(link: Link) -> StoryQuestion:
            evidence = tuple(sorted((link.text, link.target_text), key=place.__getitem__))
            text = rng.choice(phrases.asks).format(name=link.name)
            return StoryQuestion(
                text, (link.value,), evidence, kind="through a call" if link.calls else "through a constant"
            )

        def refer(link: Link) -> StoryQuestion:
            asks = phrases.asks_calls if link.calls else phrases.asks_uses
            return StoryQuestion(
                rng.choice(asks).format(name=link.name), (link.target,), (link.text,), kind="reference"
            )

        def value(link: Link) -> StoryQuestion:
            asks = phrases.asks if link.calls else phrases.asks_constant
            return StoryQuestion(
                rng.choice(asks).format(name=link.target), (link.value,), (link.target_text,), kind="value"
            )

        further = [(ask, link) for link in links for ask in (follow, refer, value)]
        rng.shuffle(further)
        return Story(tuple(passages), (follow(judged), *(ask(link) for ask, link in further[:FURTHER])))

    def filler(self, rng: random.Random, phrases: CodePhrases) -> Iterator[Sentence]:
        """Yield other functions, constants and remarks, without names of a story."""
        while True:
            drawn, number = rng.random(), str(rng.randrange(1000, 1_000_000))
            if drawn < 0.2:
                words = (rng.choice(phrases.others), rng.choice(phrases.others))
                text = rng.choice(phrases.remarks).format(a=words[0], b=words[1])
            elif drawn < 0.5:
                text = phrases.constant(rng, phrases.constant_name(rng, phrases.others), number)
            else:
                kind, call = rng.random(), rng.choice(phrases.calls)
                value = number
                if kind < 0.3:
                    value = phrases.constant_name(rng, phrases.others)
                elif kind < 0.6:
                    value = call.format(name=phrases.function_name(rng, rng.choice(phrases.verbs), phrases.others))
                text = phrases.function(
                    rng, phrases.function_name(rng, rng.choice(phrases.verbs), phrases.others), value
                )
            yield Sentence(text, True)


def draw_links(rng: random.Random, phrases: CodePhrases, amount: int) -> list[Link]:
    """Draw functions and what they refer to; all names and numbers differ, and names of a link share no verb."""
    used: set[str] = set()

    def name(verb: str) -> str:
        while True:
            if verb:
                drawn = phrases.function_name(rng, verb, phrases.objects)
            else:
                drawn = phrases.constant_name(rng, phrases.things)
            if drawn not in used:
                used.add(drawn)
                return drawn

    links = []
    for number in rng.sample(range(1000, 1_000_000), amount):
        verb, other = rng.sample(phrases.verbs, 2)
        calls, value, user = rng.random() < 0.5, str(number), name(verb)
        target = name(other if calls else "")
        if calls:
            text = phrases.function(rng, user, rng.choice(phrases.calls).format(name=target))
            target_text = phrases.function(rng, target, value)
        else:
            text = phrases.function(rng, user, target)
            target_text = phrases.constant(rng, target, value)
        links.append(Link(user, text, target, target_text, value, calls))
    return links


def _join(frame: str, first: str, second: str) -> str:
    return frame.format(
        a=first, b=second, A=first.capitalize(), B=second.capitalize(), AA=first.upper(), BB=second.upper()
    )
