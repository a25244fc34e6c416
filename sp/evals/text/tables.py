"""Tables of words from YAML files in this folder, and random keys made of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent


def table(module: str | Path) -> dict[str, Any]:
    """Load the YAML file with the name of a module (its ``__file__``), every list in it as a tuple."""
    text = Path(module).with_suffix(".yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # safe for our own files; the one in C is ten times as fast
    return {name: _fixed(value) for name, value in yaml.load(text, loader).items()}


def _fixed(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_fixed, value))
    return {key: _fixed(item) for key, item in value.items()} if isinstance(value, dict) else value


# Our own words; none is in a training key of the embedded pair.
WORDS = {name: list(words) for name, words in table(HERE / "words").items()}
ADJECTIVES, NOUNS, VERBS = (WORDS[name] for name in ("adjectives", "nouns", "verbs"))
NAMES, SURNAMES, TOWNS, SYLLABLES = (WORDS[name] for name in ("names", "surnames", "towns", "syllables"))


def pseudo_word(rng: random.Random, syllables: int = 3) -> str:
    """Draw a word that is in no list, with a number of syllables."""
    return "".join(rng.choice(SYLLABLES) for _ in range(syllables))


def compound_key(rng: random.Random) -> str:
    """Draw a key `adjective-noun`, as RULER does."""
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def uuid(rng: random.Random) -> str:
    """Draw 32 random hexadecimal digits in the groups of a UUID."""
    digits = f"{rng.getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


BLIND = table(HERE / "blind")
"""Frames that were written without knowledge of a model or of its training data.

They were written from the one-line descriptions of the tasks in `docs/evaluation.md` alone, by someone who had read
neither the training grammar nor the phrases of the tasks (for `session_*` and the tools, dishes and firms of
`nolima_*`: who had read the held-out frames, but not the grammar). Slots were fitted to the tasks; no word was changed
after a model had read one. A test found frames that the training phrases have too, and these were removed. Words, names
and layouts of documents are those of the held-out set, in `json` of the fresh one.
"""
