"""How many words a question shares with its evidence: what tells questions that word matching finds from the others."""

from __future__ import annotations

import re

HARD = 0.34
"""Largest overlap of a question that counts as hard."""
WORD = re.compile(r"[a-z0-9]+")
_STOP = (
    "a about after again all also an and any are as at be because been before being between both but by can cannot "
    "could did do does doing down during each even ever few for from further get had has have having he her here hers "
    "him his how i if in into is it its itself just let like made make many may me might more most much must my no "
    "nor not now of off on once one only or other our out over own rather s same shall she should so some still such "
    "t than that the their them then there these they this those through to too under until up upon us use used using "
    "very was we were what when where which while who whom whose why will with would yes yet you your"
)
STOP_WORDS = frozenset(_STOP.split())
PLURALS = (("ies", "y"), ("ss", "ss"), ("s", ""))
ENDINGS = (("ied", "y"), ("ingly", ""), ("edly", ""), ("ing", ""), ("ed", ""), ("ly", ""))
SILENT = (("e", ""),)
STEM = 3
"""Fewest letters that are left of a word whose suffix is taken off."""


def content_words(text: str) -> frozenset[str]:
    """Words of a text in lower case, stop words left out, common suffixes taken off.

    Examples
    --------
    >>> sorted(content_words("Which settings were changed, and by whom?"))
    ['chang', 'sett']
    """
    return frozenset(stem(word) for word in WORD.findall(text.lower()) if word not in STOP_WORDS)


def stem(word: str) -> str:
    """A word without its plural, common endings and a silent e; of each group the first that fits is taken off.

    Examples
    --------
    >>> [stem(word) for word in ("copies", "copied", "copying", "settings", "setting", "used", "class", "is")]
    ['copy', 'copy', 'copy', 'sett', 'sett', 'used', 'class', 'is']
    """
    for group in (PLURALS, ENDINGS, SILENT):
        for suffix, instead in group:
            left = word.removesuffix(suffix) + instead
            if word.endswith(suffix) and len(left) >= STEM:
                word = left
                break
    return word


def overlap(question: str, evidence: str) -> float:
    """Share of the content words of a question that its evidence has too; 0 for a question without any.

    Examples
    --------
    >>> overlap("Which port does the server use?", "The default port is 8080.")
    0.5
    """
    asked = content_words(question)
    return len(asked & content_words(evidence)) / len(asked) if asked else 0.0
