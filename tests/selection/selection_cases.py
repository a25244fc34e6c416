"""Requests and configurations every selector is tried with; one without `CONFIGURATIONS` of its own has the shared."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from strategies import names_under_test

from sp.selection import SELECTORS, Constrained, SelectionRequest

PLAIN: dict[str, Any] = {"neighbours": 0, "sink": 0, "tail": 0}
CONSTRAINED: list[dict[str, Any]] = [
    {},
    PLAIN,
    {"neighbours": 2, "sink": 40, "tail": 9},
    {"neighbours": "by_length", "min_run": 24},
    {"backbone": 0.25, "min_run": 7, "sink": 5, "tail": 100},
    {"backbone": 0.9, "neighbours": 1, "tail": 0},
]

CONFIGURATIONS: dict[str, list[dict[str, Any]]] = {
    "top_chunks": [*CONSTRAINED, PLAIN | {"chunk_size": 1}, {"chunk_size": 7, "min_run": 20}],
    "top_tokens": [*CONSTRAINED, {"neighbours": 64}, {"min_run": 1000}],
    "token_budget": [*CONSTRAINED, {"tokens": 100, "chunk_size": 8}, PLAIN | {"tokens": 333}],
    "alpha": [*CONSTRAINED, {"alpha": 0.7}, {"of": "mean", "alpha": 1.5, "chunk_size": 8}],
    "top_p": [*CONSTRAINED, {"p": 0.1, "chunk_size": 8}, PLAIN | {"p": 1.0}],
    "zscore": [*CONSTRAINED, {"z": -1.0}, {"z": 1.0, "spread": "mad", "chunk_size": 8}],
    "adaptive": [*CONSTRAINED, {"rule": "entropy", "chunk_size": 8}, {"least": 0.2, "chunk_size": 8}],
    "lines": [*CONSTRAINED, PLAIN | {"longest": 5}, {"longest": 1000}],
    "json": [*CONSTRAINED, {"longest": 9, "min_run": 12}],
    "segments": [*CONSTRAINED, PLAIN | {"longest": 5}, {"longest": 20}],
    "sentence": [*CONSTRAINED, {"longest": 5}, PLAIN | {"longest": 1000}],
}
DOCUMENTED = tuple(CONFIGURATIONS)
"""Selectors that have a row in docs/selectors.md and are written the slow way in `selection_reference`."""

for _name in names_under_test(SELECTORS):
    CONFIGURATIONS.setdefault(_name, CONSTRAINED if issubclass(SELECTORS.class_of(_name), Constrained) else [{}])

WITH_CONSTRAINTS = [name for name in CONFIGURATIONS if issubclass(SELECTORS.class_of(name), Constrained)]
MATRIX = [(name, options) for name, several in CONFIGURATIONS.items() for options in several]

WORDS = ["the", "magic", "number", "3.14", "naïve", "e.g.", "dusk", "Zürich", "x"]
ENDINGS = [". ", "! ", "?\n", '." ', "…\n\n", "。", ", ", " ", " ", " ", "\n", ".", "..."]
PIECES = [word + ending for word in WORDS for ending in ENDINGS]
"""Each of two bytes at least."""


def make_text(rng: np.random.Generator, n: int) -> tuple[bytes, np.ndarray]:
    """Text in n tokens of one to six bytes, which may part characters, and their spans."""
    lengths = rng.integers(1, 7, n)
    size = int(lengths.sum())
    words, endings = rng.integers(0, [[len(WORDS)], [len(ENDINGS)]], (2, size))
    enough = (words * len(ENDINGS) + endings)[: size // 2 + 1].tolist()
    raw = "".join([PIECES[piece] for piece in enough]).encode()[:size].decode(errors="ignore").encode()
    raw += b"." * (size - len(raw))
    ends = np.cumsum(lengths)
    return raw, np.stack([ends - lengths, ends], 1)


def make_request(seed: int, n: int, keep: float, protected_share: float, kind: str) -> SelectionRequest:
    """A random request. Scores are whole, so that sums of float32 are exact in any order."""
    rng = np.random.default_rng(seed)
    scores = {
        "noise": lambda: rng.integers(0, 1000, n),
        "ties": lambda: rng.integers(0, 3, n),
        "zeros": lambda: np.zeros(n),
        "peaks": lambda: rng.integers(0, 5, n) + 2000 * (rng.random(n) < 0.01),
        "sink": lambda: np.where(np.arange(n) < 4, 4000, rng.integers(0, 9, n)),
        "negative": lambda: rng.integers(-500, 100, n),
    }[kind]()
    text, spans = make_text(rng, n)
    protected = rng.random(n) < protected_share
    return SelectionRequest(scores.astype(np.float32), protected, keep, text, spans)


REQUESTS = st.builds(
    make_request,
    seed=st.integers(0, 2**32 - 1),
    n=st.one_of(st.integers(1, 90), st.integers(1, 900)),
    keep=st.one_of(st.floats(0.01, 1.0), st.sampled_from([0.05, 0.3, 0.5, 0.999, 1.0])),
    protected_share=st.sampled_from([0.0, 0.01, 0.1]),
    kind=st.sampled_from(["noise", "ties", "zeros", "peaks", "sink", "negative"]),
)
