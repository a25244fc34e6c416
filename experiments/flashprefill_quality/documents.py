"""Documents with one needle each, made from the embedded sample; and what scorers that read no model make of them."""

from __future__ import annotations

import random
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sp.prompt import Prompt, TokenisedPrompt
from sp.scoring import SCORERS, Importance, ScoreRequest
from sp.session.load import Loaded, embedded, load
from sp.studies.sample import sample

sys.path.insert(0, str(Path(__file__).parents[1] / "needle_pair"))
from words import ADJECTIVES, NOUNS, split_words

NEEDLE = "One of the special magic numbers for {key} is: {value}."
QUESTION = "What is the special magic number for {key} mentioned in the provided text?"
CONTROLS = ("random", "lexical", "head_tail", "oracle")


@dataclass(frozen=True)
class Case:
    """A tokenised prompt, the tokens of its needle's value, and the scores of the controls by name."""

    prompt: TokenisedPrompt
    value: np.ndarray
    controls: dict[str, Importance]


@cache
def reader() -> Loaded:
    """The embedded drafter on the CPU: for its tokenizer and its template."""
    return load(embedded("drafter"), extrapolate=True, device="cpu")


@cache
def paragraphs() -> tuple[tuple[str, int], ...]:
    """The sample document without its needle, each paragraph with its tokens."""
    document, example = sample()
    parts = [part.strip() for part in document.replace(example.needle, "").split("\n") if part.strip()]
    return tuple((part, len(reader().tokenizer.encode(part).ids) + 1) for part in parts)


def make_case(tokens: int, distractors: int, seed: str) -> Case:
    """One document of about `tokens` tokens; its words are those that the pair was not trained on."""
    rng, drafter = random.Random(seed), reader()
    adjectives, nouns = split_words(ADJECTIVES)[1], split_words(NOUNS)[1]
    keys: list[str] = []
    while len(keys) < 1 + distractors:
        key = f"{rng.choice(adjectives)}-{rng.choice(nouns)}"
        if key not in keys:
            keys.append(key)
    values = [str(rng.randrange(10**6, 10**7)) for _ in keys]
    needles = [NEEDLE.format(key=key, value=value) for key, value in zip(keys, values, strict=True)]
    filling, pool, used = [], list(paragraphs()), 0
    room = tokens - 40 * (1 + len(needles))
    while used < room:
        rng.shuffle(pool)
        for part, size in pool:
            if used < room:
                filling.append(part)
                used += size
    for needle in needles:
        at = rng.randrange(len(filling))
        ends = [match.end() for match in re.finditer(r"\. ", filling[at])] or [0]
        cut = rng.choice(ends)
        filling[at] = f"{filling[at][:cut]}{needle} {filling[at][cut:]}"
    question = QUESTION.format(key=keys[0])
    text = "\n\n".join(filling)
    prompt = Prompt.from_document(text, question, drafter.template, needle=needles[0]).tokenise(drafter.tokenizer)
    start = prompt.prompt.text.encode().index(needles[0].encode()) + needles[0].index(values[0])
    first, last = prompt.bytes[:, 0], prompt.bytes[:, 1]
    value = (last > start) & (first < start + len(values[0]))
    seeded = rng.randrange(1 << 30)
    return Case(prompt, value, {name: score(drafter, prompt, name, seeded) for name in CONTROLS})


def score(drafter: Loaded, prompt: TokenisedPrompt, scorer: str, seed: int = 0, **options: Any) -> Importance:
    """Scores of one document."""
    request = ScoreRequest(
        drafter.model, prompt.ids, np.arange(len(prompt)), prompt.mask("question"), prompt.mask("needle"),
        drafter.tokenizer.eos_ids, seed,
    )  # fmt: skip
    return SCORERS.build(scorer, options).score(request)
