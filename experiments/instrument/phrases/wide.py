"""Names by the thousand, put together from parts as English puts them; none is in the held-out lists.

Where a name ends must be read off the text, so there are short and long ones, of one word and of three.
"""

# ruff: noqa: E501, SIM905
from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from sp.evals.tasks.multi_session import HELD_OUT as SESSIONS
from sp.evals.text import tables as words
from sp.evals.text.tables import table

from .expand import held
from .names import ADJECTIVES, FIRST, LAST, NOUNS, ODD, PAST, PLACES, TOWNS, ours

TABLES = table(__file__)

STEMS = list(TABLES["STEMS"])
ENDS = list(TABLES["ENDS"])
BEGINS = list(TABLES["BEGINS"])
FINISHES = list(TABLES["FINISHES"])
WORK = list(TABLES["WORK"])
DOES = """ ist er or ier man woman smith wright maker seller keeper monger dealer hand master worker cutter grower carrier driver fitter painter teller
tender dresser binder picker boy clerk breaker""".split()


class Spliced(Sequence[str]):
    """Some words, as often as not; else the head of one of them and the tail of another: 10^9 and more, none held out.

    Examples
    --------
    >>> words = Spliced(("Harbour", "Lantern"), ())
    >>> len({words[at] for at in range(64)}) > 8
    True
    """

    def __init__(self, words: Sequence[str], taken: Collection[str]) -> None:
        self.words, self.taken = words, taken
        self.whole = [one for one in words if one.isalpha() and len(one) > 2]

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, at: int) -> str:  # type: ignore[override]
        at, splice = divmod(at % len(self), 2)
        plain = self.words[at % len(self.words)]
        if not splice:
            return plain
        at, a = divmod(at, len(self.whole))
        at, b = divmod(at, len(self.whole))
        head, tail = self.whole[a], self.whole[b].lower()
        word = head[: 2 + at % (len(head) - 1)] + tail[-(1 + at // 8 % (len(tail) - 1)) :]
        return plain if word.lower() in self.taken else word


def joined(
    seed: int, amount: int, begins: Sequence[str], ends: Sequence[str], taken: Collection[str]
) -> tuple[str, ...]:
    """So many words of a beginning and an end; none of `taken` (in lower case), none shorter than three letters."""
    rng, found = random.Random(seed), dict[str, None]()
    while len(found) < amount:
        word = rng.choice(begins) + rng.choice(ends)
        if len(word) > 2 and word.lower() not in taken:
            found.setdefault(word)
    return ours(list(found))


def free(words: Sequence[str]) -> Spliced:
    """The words spliced, less all that is held out anywhere."""
    return Spliced(words, TAKEN)


TAKEN = {one.lower() for one in (*held(SESSIONS), *words.NAMES, *words.SURNAMES, *words.NOUNS, *words.TOWNS)}
PLAIN = tuple(
    one.capitalize() for one in (*ADJECTIVES, *NOUNS, *PAST, *PLACES, *WORK, *ODD) if one.lower() not in TAKEN
)
"""Ordinary words as names."""
WORDS = free((*(one.lower() for one in PLAIN), *PLAIN, *ODD))
"""Words as values and aliases."""
GIVEN = free((*FIRST[:150], *joined(51, 2500, STEMS, ENDS, TAKEN), *ours(list(PLAIN))))
"""First names."""
_plain = (*LAST[:150], *joined(52, 2500, BEGINS, FINISHES, TAKEN), *ours(list(PLAIN)))
_rng = random.Random(53)
FAMILY = free(
    (
        *_plain,
        *(f"{_rng.choice(('van', 'de', 'von', 'St', 'la', 'di', 'Mac'))} {_rng.choice(_plain)}" for _ in range(250)),
        *(f"{_rng.choice(('Mc', 'O', 'Fitz', 'Mac'))}{_rng.choice(_plain)}" for _ in range(150)),
        *(f"{_rng.choice(_plain)}{_rng.choice((' ', '-'))}{_rng.choice(_plain)}" for _ in range(300)), *("",) * 700,
    )
)  # fmt: skip
"""Surnames: of one word, of two, or none at all."""
PLACE_NAMES = free(
    (
        *TOWNS,
        *joined(54, 900, BEGINS, FINISHES, TAKEN),
        *ours(list(PLAIN[:400])),
        *(
            f"{_rng.choice(('Great', 'Little', 'Upper', 'Lower', 'New', 'Port', 'Mount', 'Lake'))} {one}"
            for one in _plain[150:450]
        ),
    )
)
"""Towns."""
JOBS = free(
    (
        *joined(55, 900, WORK, DOES, TAKEN), *(f"{_rng.choice(WORK)} {_rng.choice(DOES[5:])}" for _ in range(300)),
        *(f"{_rng.choice(NOUNS)} {_rng.choice(('maker', 'seller', 'driver', 'painter'))}" for _ in range(150)),
        *(one for one in (*NOUNS, *WORK) if one not in TAKEN), *(f"{one}er" for one in ODD[:150]),
    )
)  # fmt: skip
"""Trades, of one word or two."""
