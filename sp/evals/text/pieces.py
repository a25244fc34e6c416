"""What the look-alike pieces of `mrcr` are made of: kinds, first and closing lines, prose, and questions."""

from __future__ import annotations

from dataclasses import dataclass

from sp.evals.text.tables import table
from sp.evals.text.words import NAMES, SURNAMES, SYLLABLES

TABLES = table(__file__)


@dataclass(frozen=True)
class MrcrPhrases:
    """Words and frames of pieces.

    Parameters
    ----------
    kinds, topics, people, times : tuple of str
        Kinds begin with a consonant.
    headers : tuple of str
        Frames with {kind} and {topic}, and {who} and {when} if they like.
    closings : tuple of str
        Frames with {code}.
    asks, asks_only, asks_final : tuple of str
        Frames with {nth}, {kind} and {topic}; with {kind} and {topic}; and without any, for the last piece of all.
    prose : tuple of tuples of str
        Beginnings, middles and ends of the sentences of a body.
    syllables : tuple of str
        What codes are made of, where they are no numbers.
    """

    kinds: tuple[str, ...]
    topics: tuple[str, ...]
    people: tuple[str, ...]
    times: tuple[str, ...]
    headers: tuple[str, ...]
    closings: tuple[str, ...]
    asks: tuple[str, ...]
    asks_only: tuple[str, ...]
    asks_final: tuple[str, ...]
    prose: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    syllables: tuple[str, ...]


HELD_OUT = MrcrPhrases(**TABLES["held_out"], people=tuple(NAMES), syllables=tuple(SYLLABLES))

FRESH = MrcrPhrases(**TABLES["fresh"], people=tuple(SURNAMES), syllables=tuple(SYLLABLES))
"""A second set, written later and without sight of what was trained: no part up to 15 can have been trained towards it.
Who wrote the later parts had seen it; a filter keeps its frames out of them."""
