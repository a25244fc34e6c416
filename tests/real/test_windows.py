"""Evidence far beyond a real drafter's window ranks first with the YaRN that a prompt needs, and not without."""

from __future__ import annotations

import json
import random
from copy import copy
from dataclasses import replace

import numpy as np

from sp.ops.attention.importance import HEAT_CHUNK
from sp.prompt import Prompt
from sp.scoring import SCORERS, ScoreRequest
from sp.session import Loaded
from sp.session.request import score_request

LINES, TOKENS, BLOCK = 50, 48_000, 64
NEEDLE = '{"id": 9999, "user": "quinn", "event": "rotate-key", "vault": "ash-417"}'
QUESTION = "Which vault did quinn rotate the key of?"
SCORER = SCORERS.build(
    "tail", {"rotary": "none", "queries": "question", "over_queries": "max", "depth": 18, "layers": (17,), "pool": 1}
)


def test_a_fact_at_almost_six_times_the_window(loaded_smollm2: Loaded) -> None:
    """Blocks of a short text stand as far apart as in one of 48,000 tokens, which would take minutes to read."""
    drafter = reaching(loaded_smollm2)
    assert drafter.trained == 8192
    request = score_request(drafter, prompt(drafter).tokenise(drafter.tokenizer))
    n, steps = len(request.ids), np.arange(len(request.ids)) // BLOCK
    spread = np.arange(n) + steps * ((TOKENS - n) // int(steps[-1]))
    scaled = drafter.for_prompt(TOKENS)
    assert str(scaled.needed) == "yarn:8"
    assert rank(replace(request, model=scaled.model, positions=spread)) == 0
    assert rank(replace(request, positions=spread)) >= n // HEAT_CHUNK // 10, "extrapolated it is not among the best"


def reaching(loaded: Loaded) -> Loaded:
    """The same model, allowed to read beyond its window, as drafters are."""
    model = copy(loaded.model)
    model.config = replace(model.config, context=1 << 20)
    return replace(loaded, model=model)


def prompt(drafter: Loaded) -> Prompt:
    """A log of JSON lines with one that answers the question, after a quarter."""
    rng = random.Random(1)
    people, events = ("ann", "bob", "cy", "dee"), ("login", "logout", "upload", "delete")
    lines = [
        json.dumps({"id": i, "user": rng.choice(people), "event": rng.choice(events), "ms": rng.randrange(999)})
        for i in range(LINES)
    ]
    lines.insert(LINES // 4, NEEDLE)
    return Prompt.from_document("\n".join(lines), QUESTION, drafter.template, needle=NEEDLE)


def rank(request: ScoreRequest) -> int:
    """How many chunks of the document score higher than the best one of the needle."""
    scores = np.where(request.protected, -np.inf, SCORER.score(request).scores)
    chunks = [scores[start : start + HEAT_CHUNK].max() for start in range(0, len(scores), HEAT_CHUNK)]
    first, last = (int(at) // HEAT_CHUNK for at in np.flatnonzero(request.needle)[[0, -1]])
    return sum(chunk > max(chunks[first : last + 1]) for chunk in chunks)
