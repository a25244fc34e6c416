"""Damaged files in every weight format bring a GGUFError or are read, fast; see `fuzz_formats.py`."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from fuzz_formats import VALID, attempt, mutation, read_all

from sp.quant import FORMATS


def test_the_valid_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(VALID)
    assert read_all(path) == 2 * len(FORMATS)


def test_mutations(tmp_path: Path) -> None:
    rng, outcomes = np.random.default_rng(0), []
    for _ in range(1500):
        content = mutation(rng)
        start = time.process_time()
        message = attempt(tmp_path / "m.gguf", content)
        assert time.process_time() - start < 1
        assert message is None or "\n" not in message
        outcomes.append(message is None)
    assert 0.05 < np.mean(outcomes) < 0.8, "both ends must be seen"
