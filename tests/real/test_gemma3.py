"""Gemma 3 270M as `sp` runs it on the CPU, against float64 by formulas; the windows of 512 tokens are crossed."""

from __future__ import annotations

import json
from pathlib import Path

import gemma3_reference
import numpy as np
import pytest

from sp.hub import KNOWN, fetched
from sp.models import prefill
from sp.session import load

TEXT = json.loads(Path(__file__).with_name("texts.json").read_text("utf-8"))["passage"]
N = 700


@pytest.fixture(scope="module")
def path() -> Path:
    found = fetched(KNOWN["gemma-3-270m"])
    if found is None:
        pytest.skip("Gemma 3 is not here; sp get gemma-3-270m")
    return found


@pytest.mark.parametrize("gaps", [False, True])
def test_logits_are_those_of_float64(path: Path, gaps: bool) -> None:
    loaded = load(path, device="cpu")
    ids = np.resize(loaded.tokenizer.encode(TEXT).ids, N - 1)
    ids = np.concatenate([[loaded.tokenizer.bos_id], ids])
    positions = np.cumsum(1 + 40 * (np.arange(N) % 97 == 5)) if gaps else np.arange(N)
    [wanted] = gemma3_reference.logits(path, ids, positions, 1)
    for kv, most in (("f32", 1e-5), ("f16", 2e-3)):
        found = prefill(loaded.model, ids, positions, loaded.model.new_cache(N, kv))
        assert np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()) < most
        assert found.argmax() == wanted.argmax()
