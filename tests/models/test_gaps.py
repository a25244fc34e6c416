"""Recurrent states over gaps against pieces read one by one by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import VOCAB, write_tiny

from sp.models import Model, load_model, prefill

POSITIONS = np.concatenate([np.arange(20), np.arange(60, 75), np.arange(76, 80)])
IDS = np.random.default_rng(0).integers(0, VOCAB, len(POSITIONS))


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(write_tiny(Path(tmp_path_factory.mktemp("gaps")) / "m.gguf", "qwen35"))


def read(model: Model, gaps: str, chunk: int | None = None) -> np.ndarray:
    return prefill(model, IDS, POSITIONS, model.new_cache(len(IDS), "f32"), gaps=gaps, chunk=chunk)  # type: ignore[arg-type]


def by_hand(model: Model, gaps: str) -> np.ndarray:
    """Each run read by itself; between runs the states changed as the formula says."""
    cache, logits = model.new_cache(len(IDS), "f32"), None
    for start, stop, left_out in ((0, 20, 0), (20, 35, 40), (35, 39, 1)):
        for layer in model.config.delta_layers if left_out else ():
            state, params = cache.state(layer), model.weights.blocks[layer].mixer.params  # type: ignore[attr-defined]
            state.conv[:] = 0
            kept = np.exp(params.a * np.log1p(np.exp(params.dt_bias))) ** left_out
            state.recurrent[:] = state.recurrent * (0 if gaps == "reset" else kept[:, None, None])
        logits = prefill(model, IDS[start:stop], POSITIONS[start:stop], cache)
    assert logits is not None
    return logits


@pytest.mark.parametrize("gaps", ["reset", "decay"])
@pytest.mark.parametrize("chunk", [None, 7])
def test_runs_are_read_as_by_hand(hybrid: Model, gaps: str, chunk: int | None) -> None:
    got = read(hybrid, gaps, chunk)
    np.testing.assert_allclose(got, by_hand(hybrid, gaps), rtol=1e-4, atol=1e-4)
    assert np.abs(got - read(hybrid, "compact")).max() > 0.01


def test_without_gaps_or_without_recurrence_all_ways_agree(hybrid: Model, tmp_path: Path) -> None:
    plain = load_model(write_tiny(tmp_path / "m.gguf", "qwen3"))
    np.testing.assert_allclose(read(plain, "reset"), read(plain, "compact"), rtol=1e-4, atol=1e-5)
    where = np.arange(len(IDS))
    whole = [
        prefill(hybrid, IDS, where, hybrid.new_cache(len(IDS), "f32"), gaps=gaps)  # type: ignore[arg-type]
        for gaps in ("compact", "decay")
    ]
    np.testing.assert_array_equal(*whole)
