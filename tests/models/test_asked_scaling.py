"""RoPE scaling that is asked for: its spelling, what it makes of a file's own, and what the model then computes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import rewritten

from sp.errors import ConfigError
from sp.models import load_model, prefill
from sp.models.families.llama import FrequencyFactors
from sp.models.file.rope_keys import RopeScaling
from sp.models.synthetic.shapes import find_shape
from sp.ops.rope import LinearScaling, Rope, YarnScaling

FIXTURES = Path(__file__).parents[1] / "fixtures"
CONFIG = find_shape("qwen3-0.6b").config  # 40,960 positions
MSCALE = 1 + 0.1 * math.log(4)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("none", RopeScaling("none")),
        ("linear:2", RopeScaling("linear", 2.0)),
        ("yarn:4", RopeScaling("yarn", 4.0)),
        ("yarn:2.5", RopeScaling("yarn", 2.5)),
    ],
)
def test_spelling(text, want) -> None:
    found = RopeScaling.parse(text, "--drafter-rope")
    assert found == want
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    ["", "yarn", "yarn:", "yarn:x", "yarn:1", "yarn:0.5", "yarn:-4", "yarn:nan", "yarn:inf", "yarn:1e9", "none:2",
     "longrope:4", "YARN:4", "linear 2", "linear:2:3"],
)  # fmt: skip
def test_bad_spelling_is_one_line_with_an_example(text) -> None:
    with pytest.raises(ConfigError, match=r"--target-rope.* as in yarn:4") as caught:
        RopeScaling.parse(text, "--target-rope")
    assert "\n" not in str(caught.value)


def own(scaling: object, magnitude: float = 1.0, context: int = 40960):
    return replace(CONFIG, rope=Rope(1e6, 128, scaling=scaling, magnitude=magnitude), context=context)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "config", "scaling", "magnitude", "context"),
    [
        ("none", own(None), None, 1.0, 40960),
        ("linear:2", own(None), LinearScaling(2.0), 1.0, 81920),
        ("yarn:4", own(None), YarnScaling(4.0, 40960), MSCALE, 163840),
        ("none", own(YarnScaling(4.0, 32768), MSCALE, 131072), None, 1.0, 32768),
        ("yarn:2", own(YarnScaling(4.0, 32768), MSCALE, 131072), YarnScaling(2.0, 32768), 1 + 0.1 * math.log(2), 65536),
        ("linear:8", own(YarnScaling(4.0, 32768), 1.0, 131072), LinearScaling(8.0), 1.0, 262144),
        ("none", own(LinearScaling(4.0), 1.5, 16384), None, 1.0, 16384),
    ],
)
def test_it_takes_the_place_of_the_files_own(asked, config, scaling, magnitude, context) -> None:
    found = RopeScaling.parse(asked, "--drafter-rope").applied(config)
    assert found.rope == Rope(1e6, 128, scaling=scaling, magnitude=pytest.approx(magnitude))
    assert found.context == context


def test_frequencies_of_a_tensor_are_not_replaced() -> None:
    for asked in ("none", "yarn:4"):
        with pytest.raises(ConfigError, match="a tensor of its file scales the frequencies"):
            RopeScaling.parse(asked, "--target-rope").applied(own(FrequencyFactors((1.0,) * 64)))


def test_a_model_that_is_asked_for_yarn_is_the_one_whose_file_says_so(tmp_path) -> None:
    source, ids = FIXTURES / "parity-qwen3.gguf", np.arange(60) % 97
    told = {"qwen3.rope.scaling.type": "yarn", "qwen3.rope.scaling.factor": 4.0}
    said = load_model(rewritten(source, tmp_path / "said.gguf", {}, **told))
    asked = load_model(source, rope=RopeScaling("yarn", 4.0))
    assert asked.config.context == 4 * said.config.context == 4 * 4096
    positions = np.arange(60) * 60
    logits = [prefill(model, ids, positions, model.new_cache(60, "f32")) for model in (said, asked)]
    np.testing.assert_array_equal(*logits)
    plain = load_model(tmp_path / "said.gguf", rope=RopeScaling("none"))
    of_file = load_model(source)
    logits += [prefill(model, ids, positions, model.new_cache(60, "f32")) for model in (plain, of_file)]
    np.testing.assert_array_equal(*logits[2:])
    assert np.abs(logits[0] - logits[2]).max() > 0.1
