"""Words put together from the tokens of the vocabulary, so that every token is met where its letters must be known.

A word in running text begins with a blank and an answer does not: ` nurse` is one token, and said as an answer it is
`n`, `urse`. Of the 1,829 tokens that are a blank and letters only 356 stand in the vocabulary without the blank, and
the rest are copied rightly only by a model that knows how they are spelt. Held-out words are neither made nor used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sp.evals import TASKS
from sp.evals.story import StoryTask
from sp.evals.text import tables as words

from .expand import held

VOCABULARY = Path(__file__).resolve().parents[1] / "start" / "vocabulary.json"
BLANK = "\u0120"
"""What stands for a blank in a vocabulary of bytes."""
ENDS = ("", "", "s", "er", "ing", "ton", "ley", "man", "y", "ed", "field", "wood", "er", "en", "le", "by", "ford")


@cache
def held_words() -> frozenset[str]:
    """Every held-out string of one word, and every part of a held-out name; in small letters."""
    found = {*words.ADJECTIVES, *words.NOUNS, *words.VERBS, *words.NAMES, *words.SURNAMES, *words.TOWNS}
    for name in TASKS:
        task = TASKS.class_of(name)
        if issubclass(task, StoryTask):
            for phrases in filter(None, (task.held_out, task.fresh)):
                for text in held(phrases):
                    if "{" not in text and len(text.split()) == 1:
                        found.update(re.findall("[A-Za-z]+", text))
    return frozenset(one.lower() for one in found)


@cache
def pieces() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tokens that begin a word behind a blank, without it, and tokens of small letters that go on."""
    tokens = json.loads(VOCABULARY.read_text())["model"]["vocab"]
    taken = held_words()
    heads = [one[1:] for one in tokens if re.fullmatch(f"{BLANK}[A-Za-z][a-z]+", one) and one[1:].lower() not in taken]
    tails = [one for one in tokens if re.fullmatch("[a-z]{2,5}", one)]
    return tuple(heads), tuple(tails)


@cache
def heads_of(capital: bool | None) -> tuple[str, ...]:
    """Heads that are written so; a name may begin with any word, whose capital form is spelt in other tokens."""
    heads = pieces()[0]
    if capital:
        return (*filter(str.istitle, heads), *(one.capitalize() for one in heads if one.islower()))
    return heads if capital is None else tuple(filter(str.islower, heads))


class Spelt(Sequence[str]):
    """Words of a head and up to two further tokens: as many as one likes, each of them the same at every look.

    `capital`: whether words begin with a capital letter; None leaves every head as it is; `plain`: whether a head may
    stand alone.

    Examples
    --------
    >>> names = Spelt(capital=True)
    >>> names[5] == names[5] != names[6], names[7].istitle()
    (True, True)
    """

    def __init__(self, capital: bool | None = None, plain: bool = True) -> None:
        self.plain, self.taken = plain, held_words()
        self.heads, self.tails = heads_of(capital), pieces()[1]

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, at: int) -> str:  # type: ignore[override]
        at %= len(self)
        while True:
            rest, head = divmod(at, len(self.heads))
            rest, end = divmod(rest, len(ENDS))
            rest, tail = divmod(rest, len(self.tails))
            word = self.heads[head]
            sort = rest % 4
            if sort == 0 or not self.plain:
                word += self.tails[tail]
            elif sort == 1:
                word += self.tails[tail] + ENDS[end]
            elif sort == 2:
                word += ENDS[end]
            if len(word) > 3 and word.lower() not in self.taken:
                return word
            at = at * 6364136223846793005 % len(self) + 1442695
