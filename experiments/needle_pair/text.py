"""What is hidden and what is asked: keys, values, needle sentences, questions, answer prefixes.

Pure Python, independent of any tokenizer. A phrase is a template with the slots ``{key}``, ``{value}``, ``{kind}``
(number, word or uuid); slots are always preceded by a space, so that a phrase can be tokenised piece by piece
(:mod:`pieces`). The RULER phrasings are those of the benchmark's ``niah`` and ``variable_tracking`` tasks
(Hsieh et al. 2024, arXiv:2404.06654); the rest is our own.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, field

from words import ADJECTIVES, FIRST_NAMES, LAST_NAMES, NOUNS, SYLLABLES, split_words

RULER_NEEDLE = "One of the special magic {kind}s for {key} is: {value}."
NEEDLES = [
    RULER_NEEDLE,
    "The special magic {kind} for {key} is: {value}.",
    "The special magic {key} {kind} is {value}.",
    "The special magic {key} {kind} is: {value}.",
    "The magic {kind} for {key} is {value}.",
    "The secret {kind} of {key} is {value}.",
    "The access code for {key} is {value}.",
    "Remember that the {kind} for {key} is {value}.",
    "Note that {key} has the {kind} {value}.",
    "The {kind} assigned to {key} is {value}.",
    "The password for {key} is now {value}.",
    "According to the register, {key} is listed under {value}.",
    "Please keep in mind: the {kind} of {key} is {value}.",
    "The pass key of {key} is {value}. Remember it.",
    "For {key} the {kind} is {value}.",
    "The record of {key} shows the {kind} {value}.",
]
LINE_NEEDLES = [
    RULER_NEEDLE,
    RULER_NEEDLE,
    "The {kind} for {key} is {value}.",
    "line {key}: REGISTER_CONTENT is {value}.",
]
SHORT_NEEDLES = ["For {key}: {value}.", "The {key} is {value}.", "The {kind} for {key} is: {value}."]

RULER_QUESTION = "What is the special magic {kind} for {key} mentioned in the provided text?"
QUESTIONS = [
    RULER_QUESTION,
    RULER_QUESTION,
    "What is the special magic {key} {kind}?",
    "What is the special magic {kind} for {key}?",
    "What is the {kind} for {key}?",
    "Which {kind} belongs to {key}?",
    "What is the secret {kind} of {key}?",
    "Tell me the {kind} of {key}.",
    "What is the access code for {key}?",
    "What does the text say about {key}? Give the {kind} only.",
    "Find the {kind} assigned to {key} in the text above.",
    "What was noted for {key}?",
    "The {kind} for {key}?",
]
RULER_PLURAL = "What are all the special magic {kind}s for {key} mentioned in the provided text?"
PLURAL_QUESTIONS = [RULER_PLURAL, RULER_PLURAL, "What are all the {kind}s for {key}?", "List the {kind}s of {key}."]

RULER_PREFIX = " The special magic {kind} for {key} mentioned in the provided text is"
RULER_PLURAL_PREFIX = " The special magic {kind}s for {key} mentioned in the provided text are"
PREFIXES = [
    RULER_PREFIX,
    RULER_PREFIX,
    " The {kind} for {key} is",
    " The special magic {key} {kind} is",
    " It is",
    " The answer is",
]

RULER_HEADER = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n"
)
RULER_PLURAL_HEADER = (
    "Some special magic {kind}s are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind}s afterwards.\n"
)
HEADERS = ["", "", "", RULER_HEADER, RULER_PLURAL_HEADER, "Read the following text carefully.\n"]
VT_HEADER = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
VT_QUESTION = "Question: Find all variables that are assigned the value {value} in the text above."
VT_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the"
    " value {value}, they are:"
)
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
KINDS = ("number", "word", "uuid")


@dataclass
class Needle:
    """One hidden fact. ``chain`` holds the variable names of a variable-tracking chain (else empty)."""

    key: str
    value: str
    kind: str
    template: str


@dataclass
class Turn:
    """One question: the needles it asks for (in answer order), its text, its answer prefix ('' = direct)."""

    question: str
    prefix: str
    needles: list[int]
    names: list[str] = field(default_factory=list)


class Source:
    """Random keys and values; ``held_out`` draws words that training never uses."""

    def __init__(self, rng: random.Random, held_out: bool = False, extra: list[str] | None = None) -> None:
        self.rng = rng
        self.extra = extra or []
        part = 1 if held_out else 0
        self.adjectives = split_words(ADJECTIVES)[part]
        self.nouns = split_words(NOUNS)[part]
        self.held_out = held_out

    def uuid(self) -> str:
        h = f"{self.rng.getrandbits(128):032x}"
        return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"

    def pseudo_word(self) -> str:
        """A word in no list, so that matching must work on spelling."""
        return "".join(self.rng.choice(SYLLABLES) for _ in range(self.rng.choice((2, 3, 3))))

    def key(self, style: str) -> str:
        r = self.rng
        if style == "adjective-noun":
            return f"{r.choice(self.adjectives)}-{r.choice(self.nouns)}"
        if style == "word":
            return r.choice(self.nouns if r.random() < 0.5 else self.adjectives)
        if style == "pseudo":
            w = self.pseudo_word()
            return w if r.random() < 0.5 else f"{w}-{self.pseudo_word()}"
        if style == "two-words":
            return f"{r.choice(self.adjectives)} {r.choice(self.nouns)}"
        if style == "name":
            return f"{r.choice(FIRST_NAMES)} {r.choice(LAST_NAMES)}"
        return self.uuid()

    def near(self, key: str, style: str) -> str:
        """A hard negative: shares half of ``key``."""
        r = self.rng
        other = self.key(style)
        first = r.random() < 0.5
        if style == "uuid":
            a, b = key.split("-"), other.split("-")
            return "-".join(a[:3] + b[3:] if first else b[:2] + a[2:])
        for sep in ("-", " "):
            if sep in key and sep in other:
                a, b = key.split(sep), other.split(sep)
                return sep.join([a[0], b[1]] if first else [b[0], a[1]])
        return other

    def value(self, kind: str) -> str:
        if kind == "number":
            return str(self.rng.randrange(1_000_000, 10_000_000))
        if kind == "word":
            r = self.rng
            x = r.random()
            if self.extra and x < 0.75:  # many spellings, so that copying is learned and not a list of words
                return (
                    r.choice(self.extra)
                    if x < 0.45
                    else "".join(r.choices(string.ascii_lowercase, k=r.randrange(3, 9)))
                )
            return r.choice(self.nouns) if r.random() < 0.6 else self.pseudo_word()
        return self.uuid()

    def keys(self, count: int, style: str, hard: float) -> list[str]:
        """``count`` distinct keys, about a share ``hard`` of them hard negatives of an earlier one."""
        seen: dict[str, None] = {}
        tries = 0
        while len(seen) < count:
            tries += 1
            k = self.key(style)
            if seen and self.rng.random() < hard:
                k = self.near(self.rng.choice(list(seen)) if len(seen) < 64 else next(reversed(seen)), style)
            if tries > 20 * count:  # a small word list is exhausted: fall back to names that cannot run out
                k = f"{self.pseudo_word()}-{self.pseudo_word()}"
            seen.setdefault(k)
        return list(seen)

    def variable(self, letters: int = 5) -> str:
        return "".join(self.rng.choice(string.ascii_uppercase) for _ in range(letters))


def join_keys(keys: list[str]) -> str:
    """RULER's enumeration: ``a``, ``a, and b``, ``a, b, and c``."""
    return keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + ", and " + keys[-1]
