"""Eight plain facts in words of their own, each with a question in other words; blanks make their examples differ."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Blank = Sequence[tuple[str, str]]
"""What fills a blank: in the fact, and in the question (a synonym where names allow it)."""


@dataclass(frozen=True)
class Fact:
    """A fact, and a question whose answer is its blank ``answer``.

    `name`; `said`, `asked`, `repeated`: frames, with {blanks}, of the fact, of the question, and of a question in the
    fact's own words; `blanks`.
    """

    name: str
    said: str
    asked: str
    repeated: str
    blanks: Mapping[str, Blank]

    def fill(self, rng: random.Random) -> tuple[str, str, str, str]:
        """Fact, question, the question in the fact's own words, and answer, drawn."""
        chosen = {blank: rng.choice(choices) for blank, choices in self.blanks.items()}
        said = self.said.format_map({blank: words[0] for blank, words in chosen.items()})
        asked = self.asked.format_map({blank: words[1] for blank, words in chosen.items()})
        repeated = self.repeated.format_map({blank: words[0] for blank, words in chosen.items()})
        return said, asked, repeated, chosen["answer"][0]


def same(*words: str) -> Blank:
    """Names, which have no synonyms."""
    return [(word, word) for word in words]


TOWNS = same("Skarvholm", "Lindale", "Osterby", "Quenby", "Tarnmouth", "Velsen", "Harrowgill", "Pontrivel")
SURNAMES = same("Tolland", "Ilves", "Marchetti", "Okafor", "Brandvold", "Szabo", "Delacroix", "Penhallow")

FACTS = (
    Fact(
        "hidden key",
        "Anyone locked out of the {building} will find a second key {answer}.",
        "Where is something hidden with which one can get into the {building}?",
        "Where will anyone locked out of the {building} find a second key?",
        {
            "building": [
                ("boathouse", "shed for the rowing boats"), ("chapel", "small church"),
                ("pigeon loft", "attic of the doves"), ("wine cellar", "vault with the bottles"),
                ("gatehouse", "lodge at the entrance"), ("stables", "building of the horses"),
            ],
            "answer": same(
                "inside the cracked teapot",
                "under the seventh flowerpot",
                "behind the loose brick beside the pump",
                "on a nail above the coal bin",
                "beneath the stone frog",
                "in the left pocket of the scarecrow",
            ),
        },
    ),
    Fact(
        "keeper",
        "For {years} winters it was {answer} who wound the {clock} of {town}.",
        "Which person kept the {clock} in {town} going?",
        "Who wound the {clock} of {town}?",
        {
            "years": same("eleven", "nineteen", "twenty-six", "thirty-four", "forty-one"),
            "clock": [("tower clock", "timepiece"), ("great orrery", "model of the planets"), ("music box", "chimes")],
            "town": TOWNS,
            "answer": same(
                "Marguerite Tolland",
                "Anselm Okafor",
                "Birgit Szabo",
                "Leopold Penhallow",
                "Rosalind Brandvold",
                "Emeric Delacroix",
            ),
        },
    ),
    Fact(
        "load",
        "A {vehicle} of the {name} depot may carry no more than {answer} crates of {goods}.",
        "What is the largest load of {goods} that {name} allows on one {vehicle}?",
        "How many crates of {goods} may a {vehicle} of the {name} depot carry?",
        {
            "vehicle": [("lorry", "truck"), ("barge", "boat"), ("handcart", "barrow"), ("railcar", "wagon")],
            "name": SURNAMES,
            "answer": same("17", "23", "37", "44", "58", "61", "83", "96"),
            "goods": [
                ("glassware", "tumblers and jugs"), ("crockery", "plates and cups"),
                ("fireworks", "rockets and firecrackers"), ("oranges", "citrus fruit"),
            ],
        },
    ),
    Fact(
        "cause",
        "The making of {goods} in {town} came to a halt because {answer}.",
        "For what reason is no {goods} produced any more at {town}?",
        "Why did the making of {goods} in {town} come to a halt?",
        {
            "goods": [("varnish", "lacquer"), ("candles", "wax lights"), ("rope", "cordage"), ("soap", "washing bars")],
            "town": TOWNS,
            "answer": same(
                "a swarm of bees had nested in the chimney",
                "the mill wheel broke in the great frost",
                "rats had gnawed through every drive belt",
                "the only spring in the valley ran dry",
                "salt water seeped into the boiler",
            ),
        },
    ),
    Fact(
        "departure",
        "From the {quay} pier the {vehicle} to {town} sails at {answer}, except on feast days.",
        "When does one have to be at the landing stage for the {vehicle} that goes to {town}?",
        "At what time does the {vehicle} to {town} sail?",
        {
            "quay": same("northern", "old", "stone", "fishermen's"),
            "vehicle": [("ferry", "boat"), ("mail steamer", "post ship"), ("cutter", "sailing vessel")],
            "town": TOWNS,
            "answer": same("5:25", "6:40", "7:55", "10:10", "13:35", "16:50", "19:05", "21:20"),
        },
    ),
    Fact(
        "code",
        "To silence the {alarm} on the {floor} floor, dial {answer} on the grey telephone.",
        "Which digits does one have to enter so that the {alarm} stops making noise?",
        "Which number must one dial to silence the {alarm}?",
        {
            "alarm": [
                ("smoke alarm", "fire detector"), ("burglar alarm", "device against thieves"),
                ("flood siren", "high water warning"), ("lift bell", "elevator's buzzer"),
            ],
            "floor": same("second", "third", "fifth", "ninth", "eleventh"),
            "answer": same("2086", "3719", "4417", "5532", "6904", "7168", "8251", "9375"),
        },
    ),
    Fact(
        "remedy",
        "Doctor {name} treats the coughs of her {animal} with {answer}.",
        "What does {name} give to {animal} that have a sore throat?",
        "With what does Doctor {name} treat the coughs of her {animal}?",
        {
            "name": SURNAMES,
            "animal": [
                ("goats", "farm animals"), ("terriers", "dogs"), ("ponies", "little horses"), ("parrots", "birds"),
            ],
            "answer": same(
                "syrup of elderberry",
                "warm oat milk and thyme",
                "a paste of garlic and honey",
                "steam of pine needles",
                "tea of dried mallow",
                "juice of black radish",
            ),
        },
    ),
    Fact(
        "price",
        "Restoring the {thing} cost the parish of {town} {answer} guilders.",
        "How much money did they spend at {town} on the repair of the {thing}?",
        "How many guilders did restoring the {thing} cost the parish of {town}?",
        {
            "thing": [
                ("organ", "church instrument"), ("stained glass", "coloured windows"), ("belfry", "bell tower"),
                ("frescoes", "wall paintings"),
            ],
            "town": TOWNS,
            "answer": same("1,370", "2,945", "4,610", "5,285", "6,730", "8,250", "9,415", "12,860"),
        },
    ),
)  # fmt: skip
