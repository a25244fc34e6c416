"""The distribution that filters leave, from their definitions in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import chisquare

LEAST = 1e-3
"""Of the p-values of chi-square tests; seeds are fixed, so none fails by chance."""


def shares(
    logits: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> np.ndarray:
    """Probability of every token (vocab,): temperature, then min-p, then top-k, then top-p, ties to the lowest id."""
    p = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    p[p < min_p * p.max()] = 0
    order = sorted(range(len(p)), key=lambda i: (-logits[i], i))
    if top_k:
        p[order[top_k:]] = 0
    p /= p.sum()
    reached = 0.0
    for rank, token in enumerate(order):
        reached += p[token]
        if reached >= top_p:
            p[order[rank + 1 :]] = 0
            break
    return p / p.sum()


def agree(tokens: list[int], expected: np.ndarray) -> float:
    """The p-value of draws under a distribution; rare tokens are counted together, impossible ones must not occur."""
    counts = np.bincount(tokens, minlength=len(expected)).astype(float)
    assert not counts[expected == 0].any(), "a token was drawn that the filters drop"
    wanted = expected * len(tokens)
    often = wanted >= 5
    observed = [*counts[often], counts[~often].sum()]
    expecting = [*wanted[often], wanted[~often].sum()]
    if expecting[-1] < 1e-9:
        observed, expecting = observed[:-1], expecting[:-1]
    return 1.0 if len(expecting) < 2 else float(chisquare(observed, expecting).pvalue)


def penalised(logits: np.ndarray, given: dict[str, Any], prompt: Sequence[int], answer: Sequence[int]) -> np.ndarray:
    """Logits (vocab,) under bias and penalties, token by token, as OpenAI and llama.cpp's `repeat` define them."""
    said, last = [*prompt, *answer], given.get("last", -1)
    reach, found = said if last < 0 else said[len(said) - min(last, len(said)) :], logits.astype(np.float64)
    for token in range(len(found)):
        found[token] += given.get("bias", {}).get(token, 0)
        if token in reach:
            repeat = given.get("repeat", 1)
            found[token] = found[token] / repeat if found[token] > 0 else found[token] * repeat
        count = list(answer).count(token)
        found[token] -= given.get("frequency", 0) * count + given.get("presence", 0) * (count > 0)
    return found
