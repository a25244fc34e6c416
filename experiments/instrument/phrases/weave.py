"""Frames by the hundred: a core with its slots, other words before, behind and inside it, in a random but fixed order.

A model that is to read frames nobody showed it must have seen words of meaning in many surroundings, so the
surroundings are drawn, some of them from syllables without any sense.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

SLOT = re.compile(r"\{\w+\}")
SOUNDS = (
    "ar", "bel", "cro", "da", "el", "fo", "gri", "hen", "il", "jo", "ku", "lan", "mor", "ni", "os", "pra", "qui", "ren",
    "sto", "tha", "un", "ver", "wo", "yr", "za",
)  # fmt: skip
MARKS = ("...", "--", ";", ":", "~", "*", "/", "|", "#", "[ ]", "(!)", "<>", "=>", "&", "+")


def noise(rng: random.Random) -> str:
    """One to four words or marks without sense.

    Examples
    --------
    >>> noise(random.Random(1)) != noise(random.Random(2))
    True
    """
    return " ".join(
        rng.choice(MARKS) if rng.random() < 0.25 else "".join(rng.choices(SOUNDS, k=rng.randint(1, 3)))
        for _ in range(rng.randint(1, 4))
    )


def weave(
    cores: Sequence[str],
    many: int,
    seed: int,
    *,
    before: Sequence[str] = (),
    behind: Sequence[str] = (),
    noisy: float = 0.15,
    ends: Sequence[str] = (".", ".", ".", "!", ";", ""),
    avoid: Sequence[str] = (),
) -> tuple[str, ...]:
    """So many different frames, fewer if the cores give no more.

    `cores`: sentences with slots, without a mark at their end; their words of meaning; `many`, `seed`; `before`,
    `behind`: what may stand before a core (with its comma) and behind it; `noisy`: share of frames with senseless words
    before, behind, or before one of the slots; `ends`: marks that end a frame; `avoid`: frames that are held out.

    Examples
    --------
    >>> weave(["{who} ran"], 2, 0, before=["Today,"], ends=["."], noisy=0)
    ('{who} ran.', 'Today, {who} ran.')
    """
    rng = random.Random(seed)
    found: dict[str, None] = {}
    for _ in range(20 * many):
        text = rng.choice(cores)
        if before and rng.random() < 0.45:
            # A core is written as inside a sentence: small, but for "I" and slots, which know their own case.
            text = f"{rng.choice(before)} {text}"
        if behind and rng.random() < 0.5:
            text += f" {rng.choice(behind)}"
        if rng.random() < noisy:
            place = rng.random()
            if place < 0.3:
                text = f"{noise(rng)} {text}"
            elif place < 0.6:
                text = f"{text}, {noise(rng)}"
            else:
                text = _inside(text, rng)
        text = text[0].upper() + text[1:] + rng.choice(ends)
        if text not in avoid:
            found.setdefault(text)
        if len(found) == many:
            break
    return tuple(found)


def spread(pattern: str, **words: Sequence[str]) -> list[str]:
    """The pattern with every combination of words in its slots `<name>`; slots in braces stay.

    Examples
    --------
    >>> spread("{who} <go> <far>", go=["ran", "went"], far=["away"])
    ['{who} ran away', '{who} went away']
    """
    found = [pattern]
    for name, choices in words.items():
        if f"<{name}>" in pattern:
            found = [one.replace(f"<{name}>", choice) for one in found for choice in choices]
    return found


def several(draw: Callable[[random.Random], str], many: int, seed: int) -> tuple[str, ...]:
    """So many different strings that a function draws.

    Examples
    --------
    >>> len(set(several(noise, 5, 0)))
    5
    """
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < many:
        found.setdefault(draw(rng))
    return tuple(found)


def _inside(text: str, rng: random.Random) -> str:
    """Senseless words before one of the slots and its article, marked off; as it was if there is no such slot."""
    places = [one.start() for one in SLOT.finditer(text) if one.start() and text[one.start() - 1] == " "]
    if not places:
        return text
    at = rng.choice(places)
    if text[:at].endswith(" the "):
        at -= 4
    return f"{text[:at].rstrip()}{rng.choice((' -', ',', ';'))} {noise(rng)}, {text[at:]}"
