"""Training phrases of the task `fact`: a few thousand forms, none of which holds a held-out form."""

# ruff: noqa: E501
from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from sp.evals.tasks.fact import HELD_OUT, STYLES, FactForm, FactPhrases
from sp.evals.text.filler import Sentence
from sp.evals.text.tables import table

from .expand import NOISE, frames, held
from .names import ADJECTIVES, FIRST, NOUNS, ODD, PAST, PLACES, TOWNS, odd_word, prose
from .wide import WORDS

TABLES = table(__file__)

TAKEN = held(HELD_OUT)
KIND = "[number|code|value|figure|pin|total|size|address|result|price|count]"
PROSE = TABLES["PROSE"]
CODE = TABLES["CODE"]
JSON = TABLES["JSON"]
TABLE = TABLES["TABLE"]
YAML = TABLES["YAML"]
LOG = TABLES["LOG"]
ALIAS = TABLES["ALIAS"]
SYMBOLS = TABLES["SYMBOLS"]
PAIRS = TABLES["PAIRS"]


def random_form(rng: random.Random) -> str:
    """Key and value in either order, with odd words, symbols and brackets round and between them."""

    def stuff(most: int) -> str:
        parts = [rng.choice(SYMBOLS if rng.random() < 0.4 else NOISE) for _ in range(rng.randrange(most + 1))]
        return rng.choice((" ", " ", "")).join(parts)

    first, second = ("{key}", "{value}") if rng.random() < 0.6 else ("{value}", "{key}")
    (a, b), (c, d) = rng.choice(PAIRS), rng.choice(PAIRS)
    space = rng.choice((" ", " ", " ", ""))
    between = stuff(4) or rng.choice(SYMBOLS)
    if first == "{value}" and between[0].isdigit():
        between = f" {between}"
    text = f"{stuff(3)} {a}{first}{b}{space}{between}{space}{c}{second}{d} {stuff(2)}"
    return " ".join(text.split())


def build() -> tuple[FactForm, ...]:
    """All forms; none holds a held-out frame, whatever stands round it."""
    rng = random.Random(41)
    taken = {one.replace("{alias}", "{key}").strip().rstrip(".") for form in HELD_OUT.forms for one in form.frames}

    def free(*said: str) -> bool:
        return not any(one in frame.replace("{alias}", "{key}") for frame in said for one in taken)

    found = []
    sorts = (("prose", PROSE, 900, 0.3), ("code", CODE, 200, 0.1), ("json", JSON, 120, 0.0), ("table", TABLE, 60, 0.0),
             ("yaml", YAML, 60, 0.1), ("log", LOG, 200, 0.1))  # fmt: skip
    for seed, (name, patterns, amount, odd) in enumerate(sorts):
        for frame in frames(patterns, amount, seed, odd=odd):
            if free(frame):
                found.append(FactForm(name, (frame,), name, STYLES))
    while len(found) < 3000:
        frame = random_form(rng)
        if free(frame):
            found.append(FactForm("random", (frame,), rng.choice(list(FILLERS)), STYLES))
    plain = [one.frames[0] for one in found]
    for frame in frames(ALIAS, 300, 9, odd=0.2):
        second = rng.choice(plain).replace("{key}", "{alias}")
        if free(frame, second):
            found.append(FactForm("alias", (frame, second), "prose", STYLES))
    return tuple(found)


def line(rng: random.Random, kind: str) -> str:
    """A line of filler of a kind, in other shapes than those of `sp.evals.tasks.fact`."""
    choose = rng.choice
    a, b, adj, verb, number = choose(NOUNS), choose(NOUNS), choose(ADJECTIVES), choose(PAST), rng.randrange(2, 999)
    shapes: dict[str, Sequence[str]] = {
        "code": (
            f"fn {verb}_{a}({b}: &{adj.capitalize()}) {{", f"  if ({a}.{adj}() > {number}) {{ return {b}; }}", "}",
            f"  // {verb} by the {adj} {a}", f"  {a}->{verb}({b}, {number});", f"import {{ {a}, {b} }} from '{choose(PLACES)}';",
            f"  while (!{a}.{verb}) {b}++;", f"  let {a}{b.capitalize()} = new {a.capitalize()}({b});", f"public void {verb}(int {a})",
        ),
        "json": (
            f'{{"{a}": {{"{adj}": true, "in": "{choose(TOWNS)}"}}}}', f'["{a}", "{b}", "{adj}"]', f'{{"{verb}": [{number}, {number + 7}]}}',
            f'{{"who": "{choose(FIRST)}", "what": "{adj} {a}", "how_many": {number}}}', f'{{"place": "{choose(PLACES)}", "{a}": null}}',
        ),
        "table": (
            f"{a},{b},{adj},{number}", f"{choose(FIRST)};{choose(TOWNS)};{number}", f"| {a} | {number} | {b} | {adj} |", f"{a}\t{adj}\t{verb}",
            f"|{choose(PLACES)}|{a}|", "|---|---|",
        ),
        "yaml": (
            f"[{a}]", f"{adj}_{a} = {choose(('on', 'off', 'auto'))}", f"- {verb}: {b}", f"    {a}: {adj}", f"# {a} and {b}", f"<{a}>{adj}</{a}>",
            f"export {a.upper()}={choose(PLACES)}",
        ),
        "log": (
            f"[{number}] {verb} {a} in the {choose(PLACES)}", f"{choose(FIRST).lower()}@{choose(PLACES)}: {verb} {number} {a}s",
            f"ERROR: {adj} {a} was {verb}", f"{number} ms {a} {b}", f"May {number % 28 + 1} {a}[{number}]: {adj} {b} {verb}",
        ),
    }  # fmt: skip
    return choose(shapes[kind])


def prose_stream(rng: random.Random) -> Iterator[Sentence]:
    """Training prose without end, in paragraphs."""
    while True:
        for left in reversed(range(rng.randrange(1, 12))):
            yield Sentence(prose(rng), left == 0)


def line_stream(kind: str) -> Callable[[random.Random], Iterator[Sentence]]:
    """Lines of a kind without end."""

    def stream(rng: random.Random) -> Iterator[Sentence]:
        while True:
            yield Sentence(line(rng, kind), True)

    return stream


def odd_stream(rng: random.Random) -> Iterator[Sentence]:
    """Odd words, symbols and numbers without end."""
    while True:
        words = [
            rng.choice((rng.choice(ODD), rng.choice(NOUNS), rng.choice(SYMBOLS), str(rng.randrange(10**5))))
            for _ in range(rng.randrange(4, 16))
        ]
        yield Sentence(" ".join(words), rng.random() < 0.3)


FILLERS: dict[str, Callable[[random.Random], Iterator[Sentence]]] = {
    "prose": prose_stream,
    **{kind: line_stream(kind) for kind in ("code", "json", "table", "yaml", "log")},
    "odd": odd_stream,
}
ASK = TABLES["ASK"]
ASK_BACK = TABLES["ASK_BACK"]

TRAIN = FactPhrases(
    forms=build(),
    questions=frames(ASK, 300, 21, TAKEN),
    reversed=frames(ASK_BACK, 100, 22, TAKEN),
    adjectives=tuple(ADJECTIVES) + ODD[:150],
    nouns=tuple(NOUNS) + ODD[150:300],
    values=("number", "number", "number", "word"),
    invent=lambda rng: rng.choice((odd_word(rng, rng.choice((2, 3))), rng.choice(WORDS))),
    fillers=FILLERS,
)
