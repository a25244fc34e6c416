"""The calibration of a real drafter: what ships for it, what it finds, and that stopping early changes nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sp.prompt import Prompt, TokenisedPrompt
from sp.scoring import chunk_means
from sp.scoring.attention.heads import CalibratedScorer, rule_of_thumb
from sp.scoring.calibration.reading import KINDS, PHRASINGS, make_text
from sp.scoring.calibration.record import file_sha256, shipped
from sp.session.loaded import Loaded, load
from sp.session.request import score_request

SMOLLM2 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@pytest.fixture(scope="module")
def cut(loaded_smollm2: Loaded) -> Loaded:
    """SmolLM2-135M-Instruct, loaded for the scorer alone."""
    return load(loaded_smollm2.path, extrapolate=True, device="cpu", scorers=[CalibratedScorer()])


def asked(loaded: Loaded, kind: str, number: int, tokens: int = 600) -> TokenisedPrompt:
    """A text of a kind with eight facts, and the question for one of them."""

    def count(text: str) -> int:
        return len(loaded.tokenizer.encode(text).ids)

    text = make_text(kind, PHRASINGS[number // 8 * 8 :][:8], tokens, count, random.Random(f"{kind} {number} held out"))
    needle, question = text.needles[number % 8]
    return Prompt.from_document(text.document, question, loaded.template, needle=needle).tokenise(loaded.tokenizer)


def test_what_ships_belongs_to_the_file(loaded_smollm2: Loaded) -> None:
    found = shipped()[SMOLLM2]
    assert file_sha256(loaded_smollm2.path) == SMOLLM2
    assert (sorted(found.heads), found.rotary, found.depth) == ([17, 18], "none", 19)
    assert found.top_5_percent > 0.9
    assert rule_of_thumb(loaded_smollm2.model.config).layers == (17, 18)  # what works untrained is the same here


def test_eleven_layers_and_the_head_are_not_loaded_and_scores_are_the_same(loaded_smollm2: Loaded, cut: Loaded) -> None:
    assert (cut.model.depth, loaded_smollm2.model.depth) == (19, 30)
    assert cut.model.weights.output is None
    assert cut.model.nbytes < 0.8 * loaded_smollm2.model.nbytes
    prompt = asked(loaded_smollm2, "prose", 0, 300)
    one, other = (CalibratedScorer().score(score_request(loaded, prompt)).scores for loaded in (loaded_smollm2, cut))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fact_is_found(cut: Loaded, kind: str) -> None:
    ranks = []
    for number in (1, 14):  # of each half of the phrasings
        prompt = asked(cut, kind, number)
        scores = chunk_means(CalibratedScorer().score(score_request(cut, prompt)).scores, 32)
        held = np.bincount(np.flatnonzero(prompt.mask("needle")) // 32, minlength=len(scores))
        best = scores[held >= held.max() / 2].max()
        ranks.append((scores[1:] > best).sum() / len(scores))  # the first chunk holds the sink
    assert max(ranks) <= 0.1
