"""RULER's aggregation tasks: the most frequent words of a long list, and of a coded text.

Templates as in github.com/NVIDIA/RULER (Apache-2.0); the words are our own. Every part of the text counts a little, so
any selection is a sample of it: even spreading should beat attention here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from string import ascii_lowercase

from sp.config import check_fields
from sp.errors import ConfigError
from sp.evals.base import MARKUP, Count, Example, Task, answer_room, register_task
from sp.evals.text.haystack import largest_fit
from sp.evals.text.words import ADJECTIVES, NOUNS, pseudo_word

CWE_HEADER = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n"
)
CWE_QUESTION = "Question: What are the 10 most common words in the above list?"
CWE_PREFIX = " Answer: The top 10 words that appear most often in the list are:"
COMMON = 10

FWE_HEADER = (
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. "
)
FWE_QUESTION = (
    "Question: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?"
)
FWE_PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"


@register_task("cwe", suite="ruler")
@dataclass(frozen=True)
class CommonWords(Task):
    """The ten common words among many rare ones: 30 against 3 times, below 4096 tokens 6 against 1.

    Parameters
    ----------
    shots : int
        Worked examples before the list, 0 or 1; RULER has one.
    """

    shots: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        if self.shots not in (0, 1):
            raise ConfigError(f"shots must be 0 or 1, not {self.shots}")

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`; RULER generates 120 tokens, this at least so many."""
        rng = self.rng(index, tokens)
        often, seldom = (30, 3) if tokens >= 4096 else (6, 1)
        room = tokens - MARKUP - count(CWE_QUESTION) - count(CWE_PREFIX)
        words = list(distinct_words(room // 3 + 6 * COMMON, rng))
        shot = ""
        if self.shots:
            shown, words = words[: 4 * COMMON], words[4 * COMMON :]
            listed = numbered_list(shown[:COMMON], shown[COMMON:], 10, 3, 0)
            shot = f"{CWE_HEADER}{listed}\n{CWE_QUESTION}{CWE_PREFIX} {numbered(shown[:COMMON])}\n\n"
        common, rare, order = words[:COMMON], words[COMMON:], rng.getrandbits(64)

        def build(size: int) -> str:
            return shot + CWE_HEADER + numbered_list(common, rare[:size], often, seldom, order)

        document = largest_fit(build, room, count, room // (8 * seldom))
        return Example(
            id=self.example_id(index, tokens),
            task=self.name,
            document=document,
            question=CWE_QUESTION,
            answer_prefix=CWE_PREFIX,
            answers=tuple(common),
            tokens=tokens,
            max_new_tokens=answer_room(120, common, count),
        )


@register_task("fwe", suite="ruler")
@dataclass(frozen=True)
class FrequentWords(Task):
    """Coded words whose frequency falls with their rank to the power of `-alpha`; dots stand for the first of them.

    Parameters
    ----------
    alpha : float
        Above 1; the larger, the easier.
    """

    alpha: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        if not 1 < self.alpha <= 8:
            raise ConfigError(f"alpha must be above 1 and at most 8, not {self.alpha:g}")

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`; RULER generates 50 tokens, this at least so many."""
        rng = self.rng(index, tokens)
        coded: dict[str, None] = {}
        while len(coded) < max(tokens // 50, 8):
            coded.setdefault("".join(rng.choices(ascii_lowercase, k=6)))
        words = ["...", *coded]
        weights = [rank**-self.alpha for rank in range(1, len(words) + 1)]
        zeta = sum(rank**-self.alpha for rank in range(1, 10_000))
        room = tokens - MARKUP - count(FWE_QUESTION) - count(FWE_PREFIX)
        order = rng.getrandbits(64)

        def build(size: int) -> str:
            drawn = [word for word, w in zip(words, weights, strict=True) for _ in range(int(size * w / zeta))]
            random.Random(order).shuffle(drawn)
            return FWE_HEADER + " ".join(drawn)

        document = largest_fit(build, room, count, room // 3, least=64)
        return Example(
            id=self.example_id(index, tokens),
            task=self.name,
            document=document,
            question=FWE_QUESTION,
            answer_prefix=FWE_PREFIX,
            answers=tuple(words[1:4]),
            tokens=tokens,
            max_new_tokens=answer_room(50, words[1:4], count),
        )


def distinct_words(amount: int, rng: random.Random) -> dict[str, None]:
    """So many different words, listed ones first."""
    found = dict.fromkeys(rng.sample([*ADJECTIVES, *NOUNS], min(amount, len(ADJECTIVES) + len(NOUNS))))
    while len(found) < amount:
        found.setdefault(pseudo_word(rng))
    return found


def numbered_list(common: list[str], rare: list[str], often: int, seldom: int, order: int) -> str:
    """Both kinds of words as often as said, shuffled and numbered."""
    listed = common * often + rare * seldom
    random.Random(order).shuffle(listed)
    return numbered(listed)


def numbered(words: list[str]) -> str:
    """Words with their numbers.

    Examples
    --------
    >>> numbered(["red", "fox"])
    '1. red 2. fox'
    """
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))
