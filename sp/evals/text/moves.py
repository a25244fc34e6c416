"""How people's moves, and what they do with things, are told and asked for in examples."""

from __future__ import annotations

from dataclasses import dataclass

from sp.evals.text.tables import table
from sp.evals.text.words import ADJECTIVES, NOUNS, SYLLABLES, TOWNS

TABLES = table(__file__)

HELD_OUT_ROOMS = TABLES["held_out_rooms"]


@dataclass(frozen=True)
class BabiPhrases:
    """Words and frames of moves.

    Parameters
    ----------
    people, things, places : tuple of str
        Things and places without an article.
    ways : tuple of str
        What {how} stands for in any frame of a fact.
    moves, takes, drops : tuple of str
        Frames with {who}, and {place} or {what}.
    gives : tuple of str
        Frames with {who}, {what} and {whom}.
    asks_thing, asks_holder, asks_person, asks_before : tuple of str
        Frames with {what} or {who}: place of a thing, its holder, place of a person and the one before.
    around : tuple of str
        Frames with {who}, {what}, {place}, {other} (a place), {how} and {number}, of what stands between the facts and
        tells of nobody's place; without any, prose does.
    """

    people: tuple[str, ...]
    things: tuple[str, ...]
    places: tuple[str, ...]
    ways: tuple[str, ...]
    moves: tuple[str, ...]
    takes: tuple[str, ...]
    drops: tuple[str, ...]
    gives: tuple[str, ...]
    asks_thing: tuple[str, ...]
    asks_holder: tuple[str, ...]
    asks_person: tuple[str, ...]
    asks_before: tuple[str, ...]
    around: tuple[str, ...] = ()


HELD_OUT = BabiPhrases(
    **TABLES["held_out"],
    people=tuple(
        sorted(
            {f"{a}{b}".capitalize() for a, b in zip(SYLLABLES, SYLLABLES[7:] + SYLLABLES[:7], strict=True)}
            | {f"{a}{b}".capitalize() for a, b in zip(SYLLABLES, SYLLABLES[19:] + SYLLABLES[:19], strict=True)}
        )
    ),
    things=tuple(
        f"{a} {b}" for a, b in zip(ADJECTIVES[::2], [one for one in NOUNS if one not in HELD_OUT_ROOMS], strict=False)
    ),
    places=(*HELD_OUT_ROOMS, *(f"{town} {kind}" for town, kind in zip(TOWNS, ("annex", "terrace") * 11, strict=True))),
)

FRESH = BabiPhrases(
    **TABLES["fresh"],
    people=tuple(
        sorted(
            {f"{a}{b}".capitalize() for a, b in zip(SYLLABLES, SYLLABLES[12:] + SYLLABLES[:12], strict=True) if a != b}
        )
    ),
    things=tuple(
        f"{a} {b}"
        for a, b in zip(ADJECTIVES[1::2], [one for one in reversed(NOUNS) if one not in HELD_OUT_ROOMS], strict=False)
    ),
    places=(*HELD_OUT_ROOMS, *(f"{town} {kind}" for town, kind in zip(TOWNS, ("quay", "lodge") * 11, strict=True))),
)
"""A second set, written later and without sight of what was trained: no part up to 15 can have been trained towards it.
Who wrote the later parts had seen it; a filter keeps its frames out of them."""
