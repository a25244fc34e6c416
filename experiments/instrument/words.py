"""Words of the text between stories, and which of them are held out."""

from __future__ import annotations

import random
from pathlib import Path

import yaml

WORDS: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
ADJECTIVES, NOUNS, FIRST_NAMES, LAST_NAMES = (
    WORDS[name] for name in ("ADJECTIVES", "NOUNS", "FIRST_NAMES", "LAST_NAMES")
)


def split_words(words: list[str], every: int = 6) -> tuple[list[str], list[str]]:
    """Training and held-out part of a list: each ``every``-th word of a fixed shuffle is held out."""
    order = sorted(words)
    random.Random(20).shuffle(order)
    return [w for i, w in enumerate(order) if i % every], order[::every]
