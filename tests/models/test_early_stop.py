"""A model of which only the first layers are loaded, for whoever reads no further."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sp.errors import ConfigError, ModelError
from sp.models import Hooks, load_model, prefill, prefill_layer_major, read_layer_major
from sp.scoring import SCORERS, ScoreRequest
from sp.scoring.attention.heads import model_key
from sp.session.loaded import embedded


@pytest.fixture(scope="module")
def path() -> Path:
    return embedded("drafter")


@pytest.fixture(scope="module")
def whole(path):
    return load_model(path)


def score(model, name: str, options=None) -> np.ndarray:
    ids, question = np.random.default_rng(1).integers(100, 900, 500), np.arange(500) >= 480
    request = ScoreRequest(model, ids, np.arange(500), question, np.zeros(500, bool))
    return SCORERS.build(name, options or {}).score(request).scores


@pytest.mark.parametrize(
    ("name", "options"),
    [("calibrated", {}), ("mid_layer", {}), ("tail", {"layers": [1]}), ("tail", {}), ("embedding", {"depth": 2})],
    ids=str,
)
def test_scores_are_the_same_to_the_bit_and_less_is_held(path, whole, name, options) -> None:
    depth = SCORERS.build(name, options).reading_depth(whole.config)
    model = load_model(path, depth=depth)
    assert (model.depth, model.config) == (depth, whole.config)
    assert model.weights.output is None
    held = len(model.weights.blocks) < len(whole.weights.blocks)
    assert model.nbytes < whole.nbytes if held else model.nbytes == whole.nbytes  # the head is the embedding
    np.testing.assert_array_equal(score(model, name, options), score(whole, name, options))


def test_tensors_behind_it_are_never_touched(path, monkeypatch) -> None:
    from sp.gguf import GGUFFile

    file, read = GGUFFile.open(path), []
    weight = type(file).weight
    monkeypatch.setattr(type(file), "weight", lambda self, name: read.append(name) or weight(self, name))
    load_model(file, depth=2)
    assert {name.split(".")[1] for name in read if name.startswith("blk.")} == {"0", "1"}
    assert not any(name.startswith("output.") for name in read)


def test_what_needs_more_says_so(path) -> None:
    model, ids = load_model(path, depth=2), np.arange(40)
    for needs in (prefill, prefill_layer_major):
        with pytest.raises(ModelError, match=r"only the first 2 layers .* all \d and the head are needed"):
            needs(model, ids, ids, model.new_cache(40))
    with pytest.raises(ModelError, match=r"only the first 2 layers .* 3 are needed"):
        read_layer_major(model, ids, ids, model.new_cache(40, layers=1), Hooks(), depth=3)
    with pytest.raises(ModelError, match="only the first 2 layers"):
        score(model, "tail")


def test_all_layers_without_the_head(path, whole) -> None:
    model = load_model(path, depth=whole.config.layers)
    model.check_loaded(whole.config.layers)
    with pytest.raises(ModelError, match="and the head"):
        model.check_loaded()


@pytest.mark.parametrize("depth", [0, 99])
def test_a_depth_that_a_file_has_not_is_refused(path, depth) -> None:
    with pytest.raises(ConfigError, match=f"depth is {depth}; the model has layers 1 to"):
        load_model(path, depth=depth)


def test_it_is_told_apart_as_the_same_model(path, whole) -> None:
    assert model_key(load_model(path, depth=1)) == model_key(whole)
