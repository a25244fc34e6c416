"""Damaged tokenizer keys give a tokenizer that works or a GGUFError of one line, and soon."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from tokenizer_mutations import KEY, try_many

from sp.gguf import Tokenizer


@pytest.mark.parametrize("seed", range(4))
def test_damaged_keys(seed: int) -> None:
    outcomes = try_many(150, seed)
    assert not outcomes.faults, str(outcomes)
    assert min(outcomes.read, outcomes.refused) > 25, str(outcomes)  # else the mutations are too weak or too strong


LETTERS = [chr(0x4E00 + i) for i in range(500)]


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_the_largest_vocabulary_costs_seconds(model: str) -> None:
    """A million tokens, about as many as the limits allow."""
    tokens = [a + b + end for a in LETTERS for b in LETTERS for end in ("", "x", "y", "z")]
    metadata: dict[str, Any] = {
        f"{KEY}model": model,
        f"{KEY}pre": "qwen2",
        f"{KEY}tokens": tokens,
        f"{KEY}merges": [],
        f"{KEY}scores": np.arange(len(tokens), dtype=np.float32),
        f"{KEY}token_type": np.ones(len(tokens), np.int32),
        f"{KEY}add_bos_token": False,
    }
    start = time.process_time()
    Tokenizer.from_metadata(metadata)
    assert time.process_time() - start < 20
