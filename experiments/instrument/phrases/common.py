"""What training sentences may begin and end with, whatever they tell."""

# ruff: noqa: E501
from __future__ import annotations

from .expand import sprinkled
from .names import NOUNS, PLACES

THING = f"[a|a|a|the|some|one|no|this] [{'|'.join((*NOUNS, *PLACES))}]"
"""What may end a sentence and is no answer."""

_before = sprinkled(
    11,
    800,
    (
        "[as|like] [everyone|anyone|somebody|nobody|the neighbours|the twins] [knows|says|insists|remembers|heard], ",
        "[by|on|after|since|before] [noon|Friday|spring|lunch|winter|Sunday|all accounts|the war|the flood] ",
        "[oddly|strangely|luckily|sadly|sure|fair] enough, ", "[it seems|they say|we heard|I hear|word is] that ",
        "[these days|nowadays|lately|at present|for years|once more|as a rule|so far|of late] ",
        f"[as|with|for|in|like|without|after] {THING}, ",
        "[perhaps|indeed|apparently|in fact|by the way|to be sure], ", "[no|small|little] wonder: ", "[note|news|fact]: ",
    ),
    lambda words: f"{words}, ",
)  # fmt: skip
_after = sprinkled(
    12,
    1200,
    (
        f"[for|as|like|with|in|after|despite|without|over|to|against|from] {THING}",
        f"[for|as|like|with|in|after] {THING}",
        f", [for|as|like|with|quite|not] {THING}",
        "[again|as before|for now|at last|in the end|too|as well|for good|with care|in secret|every day|by and by]",
        "[, or so|, as|, and so] [it is said|they say|the twins insist|the neighbours think|I was told|we hear]",
        "[come|, come] [rain or shine|what may|summer or winter]", "[and|but] [makes no secret of it|tells nobody|that is all]",
        "[since|until|after|before] [the spring|last year|the fair|the rain|Monday|the wedding|that day]",
        "[to the|much to the] [surprise|joy|dismay] of [all|nobody|the neighbours]",
    ),
    lambda words: f" {words}",
)  # fmt: skip
BEFORE = tuple(one and f"{one.strip()} " for one in _before)
AFTER = tuple(one if one[:1] in ("", ",") else f" {one.strip()}" for one in _after)
