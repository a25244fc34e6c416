"""What is hidden in a text for a calibration, and how it is asked for: phrasings of our own that share few words."""

from __future__ import annotations

import random
from typing import NamedTuple


class Phrasing(NamedTuple):
    """A needle and the question for it, with slots such as {who}; see `SLOTS`."""

    needle: str
    question: str


PHRASINGS = (
    Phrasing("To open the strongroom in {place}, dial {code}.", "Which combination does the vault at {place} need?"),
    Phrasing("{who} was appointed keeper of the {thing} last spring.", "Who looks after the {thing} nowadays?"),
    Phrasing("The ferry to {place} was cancelled because {cause}.", "Why did no boat sail to {place}?"),
    Phrasing(
        "Mending the {thing} came to {number} crowns in the end.", "How much was paid to get the {thing} repaired?"
    ),
    Phrasing(
        "Anyone who wants to rent the {thing} has to write to {who}.", "Whom does one contact to hire the {thing}?"
    ),
    Phrasing("The access key for the {place} gateway is {code}.", "What is the access key for the {place} gateway?"),
    Phrasing("{who} grew up in {place} and left it at twenty.", "Where did {who} spend childhood?"),
    Phrasing("The {thing} spoils when stored above {degrees} degrees.", "At what temperature does the {thing} go bad?"),
    Phrasing(
        "By order of the mayor, the bridge at {place} closes in {month}.", "When is the crossing near {place} shut?"
    ),
    Phrasing("The {thing} runs on a motor built by {who} and Sons.", "Which firm made the engine of the {thing}?"),
    Phrasing("The serial number stamped on the {thing} reads {code}.", "Give the serial number of the {thing}."),
    Phrasing("{who} lost the lawsuit since {cause}.", "For what reason did the court decide against {who}?"),
    Phrasing("A ticket from {place} costs children {number} pence.", "What do kids pay for a ride out of {place}?"),
    Phrasing("The spare {thing} lies {spot}.", "Where would one look for a second {thing}?"),
    Phrasing("After the merger the office at {place} kept {number} clerks.", "How many people still work in {place}?"),
    Phrasing("In the play it is {who} who poisons the duke.", "Which character murders the nobleman on stage?"),
)
"""The first half and the second half are never judged by what was chosen on themselves."""

SLOTS: dict[str, tuple[str, ...]] = {
    "who": (
        "Odalys Brandt", "Tiberius Kwan", "Marguerite Solheim", "Ignatius Okafor", "Philippa Veldkamp",
        "Rashid Monclair", "Henrike Abara", "Cornelius Ito", "Saoirse Lindqvist", "Bartholomew Nez", "Yevgenia Prato",
        "Lucian Achterberg",
    ),
    "place": (
        "Harrowmere", "Port Adelin", "Kestrel Bay", "Upper Wendle", "Saltmarsh", "Greyfriars", "Thornecombe", "Valdora",
        "Quillfield", "Nether Ashby", "Cape Morrow", "Ostenburg",
    ),
    "thing": (
        "brass theodolite", "copper still", "weather balloon", "pipe organ", "printing press", "diving bell",
        "harvest wagon", "carousel", "telescope", "seed drill", "steam launch", "glass kiln",
    ),
    "cause": (
        "the harbour had frozen over", "a witness withdrew", "the pilot fell ill", "nobody had signed the papers",
        "the cargo was too heavy", "a storm tore the cables", "the deadline had passed", "the seal was broken",
    ),
    "spot": (
        "under the chapel stairs", "in the blue cabinet", "behind the boiler", "on top of the clock tower",
        "inside the old well", "below the stage", "next to the stables", "in the attic of the mill",
    ),
    "month": ("January", "March", "April", "June", "July", "September", "October", "November"),
}  # fmt: skip
"""Words of the slots; `code`, `number` and `degrees` are drawn as digits."""


def fill(phrasings: tuple[Phrasing, ...], rng: random.Random) -> list[Phrasing]:
    """Needles and questions of one text, no two of which share a word of a slot where there are enough."""
    words = {name: rng.sample(known, len(known)) for name, known in SLOTS.items()}
    filled = []
    for index, phrasing in enumerate(phrasings):
        slots = {name: known[index % len(known)] for name, known in words.items()}
        code = f"{rng.choice('BDFGKLMPRTVX')}{rng.randrange(10, 100)}-{rng.randrange(100, 1000)}"
        slots |= {"code": code, "number": str(rng.randrange(120, 980)), "degrees": str(rng.randrange(31, 79))}
        filled.append(Phrasing(phrasing.needle.format(**slots), phrasing.question.format(**slots)))
    return filled
