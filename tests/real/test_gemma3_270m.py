"""Gemma 3 270M as `sp` runs it on the CPU, against transformers in float64; the windows of 512 tokens are crossed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sp.hub import KNOWN, fetched
from sp.models import prefill
from sp.session import Loaded, load

REFERENCE = json.loads(Path(__file__).with_name("gemma3.json").read_text("utf-8"))
N = len(REFERENCE["ids"])
POSITIONS = {"plain": np.arange(N), "gapped": np.cumsum(1 + 40 * (np.arange(N) % 97 == 5))}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    path = fetched(KNOWN["gemma-3-270m"])
    if path is None:
        pytest.skip("Gemma 3 is not here; sp get gemma-3-270m")
    return load(path, device="cpu")


@pytest.mark.parametrize(
    ("how", "kv", "most"), [("plain", "f32", 1e-5), ("gapped", "f32", 1e-5), ("gapped", "f16", 2e-3)]
)
def test_logits_are_those_of_float64(loaded: Loaded, how: str, kv: str, most: float) -> None:
    wanted, ids = REFERENCE[how], np.array(REFERENCE["ids"])
    found = prefill(loaded.model, ids, POSITIONS[how], loaded.model.new_cache(N, kv))
    logits = np.array(wanted["logits"])
    assert np.sqrt(((found[wanted["at"]] - logits) ** 2).mean() / (logits**2).mean()) < most
    assert found.argmax() == wanted["best"]


@pytest.mark.parametrize("how", ["plain", "gapped"])
def test_tokens_that_come_one_by_one_give_the_same(loaded: Loaded, how: str) -> None:
    wanted, ids, positions = REFERENCE[how], np.array(REFERENCE["ids"]), POSITIONS[how]
    cache, start = loaded.model.new_cache(N, "f32"), 0
    for end in (N - 60, N - 30, N - 22, *range(N - 21, N + 1)):
        found = prefill(loaded.model, ids[start:end], positions[start:end], cache)
        start = end
    logits = np.array(wanted["logits"])
    assert np.sqrt(((found[wanted["at"]] - logits) ** 2).mean() / (logits**2).mean()) < 1e-5


def test_a_document_is_read_as_text_is(loaded: Loaded) -> None:
    """Line ends, tabs and runs of spaces are tokens of their own in what strangers wrote, too."""
    text = Path(__file__).read_text("utf-8") + "\n\n\n\ttabs  and   spaces\n"
    whole = loaded.tokenizer.encode(text).ids
    np.testing.assert_array_equal(loaded.tokenizer.encode(text, [(0, len(text.encode()))]).ids, whole)
    assert len(whole) < 0.45 * len(text)
