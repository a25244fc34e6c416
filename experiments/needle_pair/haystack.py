"""Pre-tokenised haystack text with its safe cuts, and what a sample is."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import text as T  # noqa: N812
from numpy.typing import NDArray
from tokenizer import Encoder
from words import ADJECTIVES, NOUNS, split_words

Ints = NDArray[np.int64]


class Bank:
    """Pre-tokenised haystack text with its safe cuts."""

    def __init__(self, encoder: Encoder, texts: dict[str, str]) -> None:
        self.kinds: dict[str, tuple[Ints, Ints, Ints, Ints]] = {}
        held_out = set(split_words(NOUNS)[1]) | set(split_words(ADJECTIVES)[1])
        found = set(re.findall(r"\b[a-z]{4,10}\b", texts["prose"])) - held_out
        self.words = sorted(found)  # values of kind word in training
        vocab = {i: t for t, i in encoder.tokenizer.get_vocab().items()}
        ends_line = np.zeros(encoder.size, bool)
        starts_line = np.zeros(encoder.size, bool)
        starts_word = np.zeros(encoder.size, bool)
        ends_sentence = np.zeros(encoder.size, bool)
        for i, t in vocab.items():
            ends_line[i], starts_line[i] = t.endswith("Ċ"), t.startswith("Ċ")
            starts_word[i] = t.startswith("Ġ") and t[1:2].isalpha() and t[1:2].isascii()
            ends_sentence[i] = t.endswith(".")
        for kind, body in {**texts, "noise": T.NOISE * 400}.items():
            ids = np.array(encoder.tokenizer.encode(body, add_special_tokens=False).ids)
            a, b = ids[:-1], ids[1:]
            lines = 1 + np.flatnonzero(ends_line[a] & ~starts_line[b])
            words = 1 + np.flatnonzero(starts_word[b] & ~ends_line[a])
            stops = 1 + np.flatnonzero(starts_word[b] & ends_sentence[a])
            self.kinds[kind] = (ids, np.concatenate([[0], lines]), words, stops)

    @classmethod
    def load(cls, encoder: Encoder, path: Path | str, part: str) -> Bank:
        return cls(encoder, json.loads(Path(path).read_text())[part])


@dataclass
class Recipe:
    """What to draw. ``turns``/``needles`` are (low, high); ``haystack`` maps kind -> weight ('lines' = all needles)."""

    length: int
    needles: tuple[int, int] = (1, 8)
    turns: tuple[int, int] = (1, 4)
    tasks: dict[str, float] = field(default_factory=lambda: {"key": 1.0})
    haystack: dict[str, float] = field(
        default_factory=lambda: {"grammar": 0.4, "prose": 0.2, "code": 0.2, "noise": 0.2}
    )
    styles: dict[str, float] = field(default_factory=lambda: {"adjective-noun": 1.0})
    kinds: dict[str, float] = field(default_factory=lambda: {"number": 1.0})
    hard: float = 0.3
    prefix: float = 0.4
    short: float = 0.0  # share of terse needles (dense early stages)
    ruler: float = 0.3  # share of samples in RULER's own phrasing throughout
    held_out: bool = False
    depth: tuple[float, float] = (0.0, 1.0)
    tail: int = 0  # rows before the answer that are also shown the needle (drafter: its last prompt tokens score)


@dataclass
class Sample:
    """Tokens and supervision. Row r predicts token r + 1; ``source`` is the needle token it copies (-1: none)."""

    ids: list[int]
    rows: list[int]
    source: list[int]
    first: list[int]  # 1 / 2: first content token of a value asked in the first / a later turn; -1: a tail row; else 0
    turn: list[int]
    document: tuple[int, int]  # token span of the document
    spans: list[tuple[int, int]]  # token spans of the needles
    asked: list[int]  # needles of the first turn
    turns: list[T.Turn]
    needles: list[T.Needle]
    prompt_end: int  # tokens up to the first answer row (generation prompt and prefix included)


def pick(rng: random.Random, weights: dict[str, float]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]
