"""SmolLM2 as `sp` runs it on the CPU, against what `make_reference.py` recorded of it in float64 without `sp`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sp.models import decode_step, prefill
from sp.session import Loaded

HERE = Path(__file__).parent
TEXTS = json.loads((HERE / "texts.json").read_text("utf-8"))
REFERENCE: dict[str, Any] = json.loads((HERE / "reference.json").read_text("utf-8"))


def test_tokens_are_those_of_the_published_tokenizer(loaded_smollm2: Loaded) -> None:
    encode = loaded_smollm2.tokenizer.encode
    texts = [*TEXTS["texts"], TEXTS["passage"], TEXTS["chat"]]
    wanted = [*REFERENCE["texts"], REFERENCE["passage"], REFERENCE["chat"]]
    wrong = [text for text, ids in zip(texts, wanted, strict=True) if encode(text).ids.tolist() != ids]
    assert not wrong
    assert len(texts) == 42


def test_plain_texts_come_back_from_their_tokens(loaded_smollm2: Loaded) -> None:
    tokenizer = loaded_smollm2.tokenizer
    for text in [*TEXTS["texts"], TEXTS["passage"]]:
        if "<|" not in text:
            assert tokenizer.decode(tokenizer.encode(text).ids) == text


def read(loaded: Loaded, kv: str, at_once: int) -> list[np.ndarray]:
    """Logits of the recorded positions: one prompt, read in pieces that end there, of so many tokens at most."""
    ids, found, start = np.array(REFERENCE["passage"]), [], 0
    cache = loaded.model.new_cache(len(ids), kv)
    for row in REFERENCE["rows"]:
        while start <= row["position"]:
            end = min(start + at_once, row["position"] + 1)
            logits = prefill(loaded.model, ids[start:end], np.arange(start, end), cache)
            start = end
        found.append(np.asarray(logits, np.float64))
    return found


F32, F16 = ("f32", 1e-4, 1e-5), ("f16", 3e-2, 2e-3)
READINGS = [*((*F32, n) for n in (1, 5, 30, 10**6)), *((*F16, n) for n in (1, 5, 10**6))]  # 30 rows attend as 10**6 do


@pytest.mark.parametrize(("kv", "most", "rms", "at_once"), READINGS)
def test_logits_are_those_of_float64(loaded_smollm2: Loaded, kv: str, most: float, rms: float, at_once: int) -> None:
    """Of each position: the largest ones, some of the whole vocabulary, and the logarithm of the sum of all."""
    apart = []
    for row, logits in zip(REFERENCE["rows"], read(loaded_smollm2, kv, at_once), strict=True):
        assert np.sqrt(np.mean((logits[row["ids"]] - row["logits"]) ** 2) / np.mean(np.square(row["logits"]))) < rms
        total = float(logits.max() + np.log(np.exp(logits - logits.max()).sum()))
        apart += [np.abs(logits[row["ids"]] - row["logits"]).max(), abs(total - row["log_sum"])]
        best = row["ids"][int(np.argmax(row["logits"]))]
        assert int(logits.argmax()) == best
    assert max(apart) < most


def test_an_answer_is_that_of_float64(loaded_smollm2: Loaded) -> None:
    ids = np.array(REFERENCE["chat"])
    model, cache = loaded_smollm2.model, loaded_smollm2.model.new_cache(len(ids) + 16, "f16")
    logits, answer = prefill(model, ids, np.arange(len(ids)), cache), []
    for position in range(len(ids), len(ids) + len(REFERENCE["answer"])):
        answer.append(int(np.argmax(logits)))
        logits = decode_step(model, answer[-1], position, cache)
    assert answer == REFERENCE["answer"]
    assert REFERENCE["answer_text"] == "The capital of France is Paris."
