"""Text in which people are called as a story's people are: by a first name that several share, now and then in full.

Examples of `sp eval` are like that: in 128K tokens a first name comes fifty times. Where no filler of training spoke of
a story's people, models found who was asked for and stopped behind the first name: what they had read it from was not
told apart from all else that followed that name.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from bank import line
from words import ADJECTIVES, NOUNS, split_words

from sp.evals.text.filler import Sentence

TOWNS = 20


def mentions(rng: random.Random, first: Sequence[str], last: Sequence[str]) -> Iterator[Sentence]:
    """Lines without end, in the grammar of the bank's training text.

    Examples
    --------
    >>> text = next(mentions(random.Random(5), ["Ada"], ["Bell"])).text
    >>> "Ada" in text
    True
    """
    adjectives, nouns = split_words(ADJECTIVES)[0], split_words(NOUNS)[0]
    towns = [f"{noun.capitalize()}ton" for noun in rng.sample(nouns, TOWNS)]
    while True:
        yield Sentence(line(rng, adjectives, nouns, towns, first, last), True)
