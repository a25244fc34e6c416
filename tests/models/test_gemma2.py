"""Gemma 2's keys and what follows from them: windows in every other layer, bounds, and how scores are scaled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import rewritten

from sp.errors import ModelError
from sp.gguf import GGUFFile
from sp.models import load_model
from sp.models.families.base import find_architecture, read_config
from sp.models.file.metadata_keys import Keys
from sp.models.synthetic.shapes import find_shape
from sp.planning.inspect import inspect_file

FIXTURES = Path(__file__).parents[1] / "fixtures"
SMALL, LARGE = FIXTURES / "parity-gemma2.gguf", FIXTURES / "parity-gemma2-large.gguf"


@pytest.mark.parametrize("path", [SMALL, LARGE], ids=lambda path: path.stem)
def test_keys_come_back(path: Path) -> None:
    file = GGUFFile.open(path)
    config, record = read_config(file), find_architecture("gemma2")
    assert config.windows[:4] == (24, None, 24, None)
    assert (config.attention_softcap, config.final_softcap) == (4, 20)
    assert record.config(Keys("gemma2", record.keys(config), "again"), file) == config


def test_files_that_do_not_say_have_what_the_family_has(tmp_path: Path) -> None:
    silent = dict.fromkeys(
        (
            "gemma2.attention.sliding_window", "gemma2.attn_logit_softcapping", "gemma2.final_logit_softcapping",
            "gemma2.rope.freq_base",
        )
    )  # fmt: skip
    config = read_config(GGUFFile.open(rewritten(SMALL, tmp_path / "m.gguf", {}, **silent)))
    assert (config.attention_softcap, config.final_softcap, config.windows[0]) == (50, 30, 4096)
    assert config.rope.base == 1e4


def test_flags_say_which_layers_have_a_window(tmp_path: Path) -> None:
    keys = {"gemma2.attention.sliding_window_pattern": [True, True, False, False, True]}
    config = read_config(GGUFFile.open(rewritten(SMALL, tmp_path / "m.gguf", {}, **keys)))
    assert config.windows == (24, 24, None, None, 24)


def test_the_largest_divides_scores_by_another_root() -> None:
    spec = find_architecture("gemma2").spec
    assert spec(find_shape("gemma-2-27b").config, 0).scale == pytest.approx(144**-0.5)
    assert spec(find_shape("gemma-2-9b").config, 0).scale is None
    assert spec(load_model(LARGE).config, 1).scale == 0.5
    assert {spec(find_shape(f"gemma-2-{size}").config, 1).softcap for size in ("2b", "9b", "27b")} == {50.0}


def test_logits_stay_within_their_bound() -> None:
    model = load_model(SMALL)
    logits = model.head(1000 * np.random.default_rng(0).standard_normal((3, 48)).astype(np.float32))
    assert np.abs(logits).max() <= 20


def test_inspect_tells_of_the_windows() -> None:
    assert inspect_file(SMALL)["family"]["windows"] == {"tokens": 24, "layers": 3, "rope_base": 1e4}


@pytest.mark.parametrize("key", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_senseless_bounds_are_named(key: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=key):
        load_model(rewritten(SMALL, tmp_path / "m.gguf", {}, **{f"gemma2.{key}": -1.0}))
