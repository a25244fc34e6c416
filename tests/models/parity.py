"""Files of `tests/fixtures/make_parity.py`, and how far a model's logits are from those of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sp.models import load_model, prefill

FIXTURES = Path(__file__).parents[1] / "fixtures"


def fixture(name: str) -> Path:
    """The file of a case."""
    return FIXTURES / f"parity-{name}.gguf"


def last_logits(path: Path, name: str) -> float:
    """Distance of the last logits of a file from those of a case, of the largest."""
    expected = np.load(fixture(name).with_suffix(".npz"))
    n, model = int(expected["prompt"]), load_model(path)
    found = prefill(model, expected["ids"][:n], np.arange(n), model.new_cache(n, "f32"))
    return float(np.abs(found - expected["logits"][-1]).max() / np.abs(expected["logits"][-1]).max())
