"""Ministral 3's queries that grow with their position, and a YaRN that leaves scores as loud as they were."""

from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import pytest
from tiny_models import rewritten

from sp.errors import ModelError
from sp.gguf import GGUFFile
from sp.models import RopeScaling, load_model, needed_scaling, prefill, prefill_layer_major
from sp.models.families.base import find_architecture, read_config
from sp.models.file.metadata_keys import Keys
from sp.ops.attention.position_scale import PositionScale
from sp.ops.rope import YarnScaling

FIXTURE = Path(__file__).parents[1] / "fixtures" / "parity-mistral3.gguf"


def changed(folder: Path, **keys: object) -> Path:
    named = {f"mistral3.{key.replace('__', '.')}": value for key, value in keys.items()}
    return rewritten(FIXTURE, folder / "m.gguf", {}, **named)


def test_keys_come_back() -> None:
    file = GGUFFile.open(FIXTURE)
    config, record = read_config(file), find_architecture("mistral3")
    assert config.query_growth == PositionScale(float(np.float32(0.1)), 32)
    assert config.rope.magnitude == 1
    keys = record.keys(config)
    assert keys["mistral3.rope.scaling.yarn_log_multiplier"] == 1
    assert record.config(Keys("mistral3", keys, "again"), file) == config


@pytest.mark.parametrize(("multiplier", "divisor"), [(None, 1.0), (0.5, 1 + 0.05 * log(16)), (1.0, 1 + 0.1 * log(16))])
def test_the_multiplier_says_how_loud_yarn_is(tmp_path: Path, multiplier: float | None, divisor: float) -> None:
    path = changed(tmp_path, rope__scaling__yarn_log_multiplier=multiplier)
    file = GGUFFile.open(path)
    config, record = read_config(file), find_architecture("mistral3")
    assert config.rope.magnitude == pytest.approx((1 + 0.1 * log(16)) / divisor)
    again = record.config(Keys("mistral3", record.keys(config), "again"), file)
    assert again.rope.magnitude == pytest.approx(config.rope.magnitude)


def test_a_key_of_its_own_says_the_length(tmp_path: Path) -> None:
    growth = read_config(GGUFFile.open(changed(tmp_path, attention__temperature_length=4096))).query_growth
    assert growth is not None
    assert growth.length == 4096


def test_without_a_scale_queries_stay(tmp_path: Path) -> None:
    path = changed(tmp_path, attention__temperature_scale=0.0)
    assert read_config(GGUFFile.open(path)).query_growth is None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("attention.temperature_scale", 99.0, "must be at most 16"),
        ("attention.temperature_scale", -1.0, "greater than 0"),
        ("rope.scaling.yarn_log_multiplier", 99.0, "must lie in"),
    ],
)
def test_senseless_values_are_named(tmp_path: Path, key: str, value: float, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        load_model(rewritten(FIXTURE, tmp_path / "m.gguf", {}, **{f"mistral3.{key}": value}))


def test_files_of_another_making_are_not_read_as_if_queries_stayed(tmp_path: Path) -> None:
    keys = {"mistral3.attention.temperature_scale": None, "mistral3.rope.scaling_beta": 0.1}
    with pytest.raises(ModelError, match="in files that Ollama converted; use a file that"):
        load_model(rewritten(FIXTURE, tmp_path / "m.gguf", {}, **keys))


def test_more_yarn_is_as_quiet_and_queries_grow_as_before() -> None:
    config = load_model(FIXTURE).config
    scaling = needed_scaling(config, 2 * config.context)
    assert scaling is not None
    longer = scaling.applied(config)
    assert longer.rope.magnitude == 1
    assert isinstance(longer.rope.scaling, YarnScaling)
    assert longer.rope.scaling.original_context == 32
    assert longer.query_growth == config.query_growth
    assert RopeScaling("none").applied(config).query_growth == config.query_growth


def test_the_last_tokens_alone_grow_as_all_do() -> None:
    model, expected = load_model(FIXTURE), np.load(FIXTURE.with_suffix(".npz"))
    ids, positions = expected["ids"][:70], expected["gapped"]
    seen = [
        walk(model, ids, positions, model.new_cache(70, "f32"), rows=rows, chunk=chunk)
        for walk in (prefill, prefill_layer_major)
        for rows, chunk in ((1, 70), (5, 70), (70, 16))
    ]
    for logits in seen:
        np.testing.assert_allclose(logits, expected["gapped_logits"][-1], atol=1e-4)
