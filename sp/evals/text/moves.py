"""How people's moves, and what they do with things, are told and asked for in examples."""

from __future__ import annotations

from dataclasses import dataclass

from sp.evals.text.words import ADJECTIVES, NOUNS, SYLLABLES, TOWNS

HELD_OUT_ROOMS = (
    "avenue", "bunker", "depot", "foundry", "gazebo", "hostel", "kennel", "kiosk", "moat", "pavilion", "pasture",
    "porch",
    "ranch", "rooftop", "vineyard", "warehouse", "wharf", "workshop", "brewery", "aquarium", "burrow", "dam",
)  # fmt: skip


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
    people=tuple(sorted({f"{a}{b}".capitalize() for a, b in zip(SYLLABLES, SYLLABLES[7:] + SYLLABLES[:7], strict=True)}
                        | {f"{a}{b}".capitalize() for a,
                        b in zip(SYLLABLES, SYLLABLES[19:] + SYLLABLES[:19], strict=True)})),
    things=tuple(f"{a} {b}" for a,
    b in zip(ADJECTIVES[::2], [one for one in NOUNS if one not in HELD_OUT_ROOMS], strict=False)),
    places=(*HELD_OUT_ROOMS, *(f"{town} {kind}" for town, kind in zip(TOWNS, ("annex", "terrace") * 11, strict=True))),
    ways=(
        "with a limp", "in spite of the drizzle", "humming", "as the clock struck", "without a word to anyone",
        "for once on time", "in borrowed boots", "much to our surprise", "because of a wager", "ahead of the crowd",
        "under a parasol", "on tiptoe", "with both hands full", "not long ago", "two hours late", "by mistake",
        "after a short nap", "between two showers", "against all advice", "in a sour temper", "with the dog",
        "as agreed by post", "for the second time", "once the dust had settled", "to the sound of an accordion",
    ),
    moves=(
        "{how}, {who} walked over to the {place}.",
        "It is said that {who} headed for the {place} {how}.",
        "To the {place}, {how}, went {who}.",
        "{who}, {how}, made a journey to the {place}.",
        "Nobody saw how {who} travelled to the {place} {how}.",
        "{who} left at once and arrived, {how}, at the {place}.",
        "The {place} was where {who} went next, {how}.",
    ),
    takes=(
        "{how}, {who} picked up the {what}.",
        "The {what} was taken, {how}, by {who}.",
        "{who}, {how}, got hold of the {what}.",
        "It is said that {who} grabbed the {what} {how}.",
        "Nobody saw how {who} took the {what} {how}.",
        "{who} bent down and collected, {how}, the {what}.",
    ),
    drops=(
        "{how}, {who} put down the {what}.",
        "The {what} was dropped, {how}, by {who}.",
        "{who}, {how}, left the {what} behind.",
        "It is said that {who} discarded the {what} {how}.",
        "Nobody saw how {who} let go of the {what} {how}.",
        "{who} bent down and laid aside, {how}, the {what}.",
    ),
    gives=(
        "{how}, {who} handed the {what} over to {whom}.",
        "The {what} was given, {how}, to {whom} by {who}.",
        "{who}, {how}, passed {whom} the {what}.",
        "It is said that {whom} got the {what} from {who} {how}.",
        "Nobody saw how {whom} received, {how}, the {what} from {who}.",
        "{who} turned round and gave {whom}, {how}, the {what}.",
    ),
    asks_thing=(
        "Where would one find the {what} now?",
        "In the end, where is the {what}?",
        "The {what}: name its place.",
        "Where has the {what} ended up?",
        "Which place is the {what} in by now?",
    ),
    asks_holder=(
        "Who is holding the {what} in the end?",
        "In whose hands is the {what} by now?",
        "The {what}: name its holder.",
        "Who would have the {what} with them now?",
    ),
    asks_person=(
        "Where would one find {who} now?",
        "In the end, where is {who}?",
        "Which place is {who} in by now?",
        "{who}: name the place.",
    ),
    asks_before=(
        "Where was {who} just before that last place?",
        "Name the place {who} was in before the present one.",
        "Before the last move, where was {who}?",
        "Which place did {who} leave last?",
    ),
)  # fmt: skip

FRESH = BabiPhrases(
    people=tuple(sorted({f"{a}{b}".capitalize() for a, b in zip(SYLLABLES, SYLLABLES[12:] + SYLLABLES[:12], strict=True)
                         if a != b})),
    things=tuple(f"{a} {b}" for a,
    b in zip(ADJECTIVES[1::2], [one for one in reversed(NOUNS) if one not in HELD_OUT_ROOMS], strict=False)),
    places=(*HELD_OUT_ROOMS, *(f"{town} {kind}" for town, kind in zip(TOWNS, ("quay", "lodge") * 11, strict=True))),
    ways=(
        "whistling a hymn", "before anyone woke", "by torchlight", "with an aching back", "in the thick of the fog",
        "as a favour", "for no clear reason", "wearing a straw hat", "when the music stopped", "quite out of breath",
        "against the wind", "in plain sight", "with muddy hands", "after a long argument",
        "as rehearsed", "during a thunderstorm", "in spite of a sore knee", "to nobody's surprise", "under protest",
    ),
    moves=(
        "{who} turned up at the {place} {how}.",
        "Word came that {who} had reached the {place} {how}.",
        "{how}, the {place} welcomed {who}.",
        "What {who} did next was to enter the {place} {how}.",
        "Into the {place}, {how}, came {who}.",
        "{who} set out {how} and did not stop short of the {place}.",
    ),
    takes=(
        "{who} slipped the {what} into a bag {how}.",
        "Word came that {who} had secured the {what} {how}.",
        "{how}, the {what} was scooped up by {who}.",
        "What {who} did next was to lift the {what} {how}.",
        "Into the hands of {who}, {how}, came the {what}.",
        "{who} saw the {what} and {how} made off with it.",
    ),
    drops=(
        "{who} set the {what} on the floor {how}.",
        "Word came that {who} had abandoned the {what} {how}.",
        "{how}, the {what} was unloaded by {who}.",
        "What {who} did next was to lay down the {what} {how}.",
        "Out of the hands of {who}, {how}, slid the {what}.",
        "{how}, {who} would carry the {what} no further.",
    ),
    gives=(
        "{who} entrusted {whom} with the {what} {how}.",
        "Word came that {whom} had accepted the {what} from {who} {how}.",
        "{how}, the {what} changed hands from {who} to {whom}.",
        "What {who} did next was to present {whom} with the {what} {how}.",
        "Out of the hands of {who}, {how}, {whom} accepted the {what}.",
        "{who} had no more use for the {what} and {how} let {whom} have it.",
    ),
    asks_thing=(
        "Someone wants the {what}. To which place should they turn?",
        "Tell me the whereabouts of the {what}.",
        "Where does the story leave the {what}?",
        "At the close of all this, which place holds the {what}?",
        "To reach the {what}, one would go where?",
    ),
    asks_holder=(
        "Someone wants the {what}. Whom should they turn to?",
        "Tell me who carries the {what} at the close.",
        "With whom does the story leave the {what}?",
        "To get the {what}, one would ask whom?",
    ),
    asks_person=(
        "Someone wants to see {who}. To which place should they turn?",
        "Tell me the whereabouts of {who}.",
        "Where does the story leave {who}?",
        "To meet {who}, one would go where?",
    ),
    asks_before=(
        "Tell me the last place but one of {who}.",
        "From which place did {who} come to the final one?",
        "Where had {who} been until moving for the final time?",
        "Someone wants to know where {who} was, not at the close but one place earlier.",
    ),
)  # fmt: skip
"""A second set, written later and without sight of what was trained: no part up to 15 can have been trained towards it.
Who wrote the later parts had seen it; a filter keeps its frames out of them."""
