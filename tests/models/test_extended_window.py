"""Which YaRN a prompt beyond a model's window needs, and that only one model of the same weights has it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sp.models import (
    Hooks,
    ModelConfig,
    RopeScaling,
    describe_window,
    load_model,
    needed_scaling,
    read_layer_major,
    unscalable,
)
from sp.models.cache.cache import Cache
from sp.models.families.llama import FrequencyFactors
from sp.models.synthetic.shapes import find_shape
from sp.ops.rope import LinearScaling, Scaling, YarnScaling
from sp.session import embedded

DENSE, HYBRID = find_shape("qwen3-0.6b").config, find_shape("qwen3.6-27b").config


def of(scaling: Scaling | None, context: int = 8192) -> ModelConfig:
    return replace(DENSE, rope=replace(DENSE.rope, scaling=scaling), context=context)


@pytest.mark.parametrize(
    ("scaling", "context", "tokens", "want"),
    [
        (None, 8192, 1, None),
        (None, 8192, 8192, None),
        (None, 8192, 8193, "yarn:2"),
        (None, 8192, 16384, "yarn:2"),
        (None, 8192, 16385, "yarn:4"),
        (None, 8192, 60_000, "yarn:8"),
        (None, 8192, 120_000, "yarn:16"),
        (None, 512, 512 * 4096, "yarn:4096"),
        (None, 512, 512 * 4096 + 1, None),
        (YarnScaling(4.0, 2048), 8192, 8192, None),
        (YarnScaling(4.0, 2048), 8192, 8193, "yarn:8"),
        (YarnScaling(2.5, 2048, beta_fast=16.0), 5120, 5121, "yarn:4"),
        (LinearScaling(2.0), 8192, 9000, None),
        (FrequencyFactors((1.0,) * 64), 8192, 9000, None),
    ],
)  # fmt: skip
def test_the_smallest_factor_of_the_ladder_that_covers_a_prompt(
    scaling: Scaling | None, context: int, tokens: int, want: str | None
) -> None:
    found = needed_scaling(of(scaling, context), tokens)
    assert (found and str(found)) == want
    if found is not None:
        assert found.applied(of(scaling, context)).context >= tokens


def test_models_that_are_left_as_they_are_say_why() -> None:
    assert needed_scaling(HYBRID, 10 * HYBRID.context) is None
    assert unscalable(HYBRID) == "it has recurrent layers"
    assert unscalable(of(LinearScaling(2.0))) == "its file scales RoPE linearly"
    assert unscalable(of(FrequencyFactors((1.0,) * 64))) == "a tensor of its file scales RoPE"
    assert unscalable(of(None)) is unscalable(of(YarnScaling(4.0, 2048))) is None


@pytest.mark.parametrize(
    ("config", "tokens", "want"),
    [
        (of(None), None, "; longer prompts are read with YaRN: x2 to 16,384, x4 to 32,768, ..."),
        (of(YarnScaling(4.0, 2048)), None, "; longer prompts are read with YaRN: x8 to 16,384, x16 to 32,768, ..."),
        (of(None), 131072, "; 131,072 are read with YaRN x16"),
        (of(None), 8192, ""),
        (of(LinearScaling(2.0)), None, "; longer prompts are extrapolated, because its file scales RoPE linearly"),
        (of(LinearScaling(2.0)), 9000, "; 9,000 are extrapolated, because its file scales RoPE linearly"),
        (of(None), 1 << 30, "; 1,073,741,824 are extrapolated"),
        (of(YarnScaling(2.0, 1), 8192), None, "; longer prompts are extrapolated"),
    ],
)
def test_a_line_says_how_longer_prompts_are_read(config: ModelConfig, tokens: int | None, want: str) -> None:
    assert describe_window(config, tokens) == f"window 8,192 tokens{want}"


def test_models_of_the_same_weights_differ_in_rope_alone() -> None:
    model = load_model(embedded("drafter"))
    scaled = RopeScaling("yarn", 4.0).applied(model.config).rope
    other, asked = model.with_rope(scaled), load_model(embedded("drafter"), rope=RopeScaling("yarn", 4.0))
    assert model.with_rope(model.config.rope) is model
    assert (other.config.rope, model.config.rope.scaling) == (scaled, None)
    assert other.placement is model.placement
    ids = np.arange(200, 330)

    def keys(reader) -> list[np.ndarray]:
        seen = list[np.ndarray]()

        def watch(layer: int, q: np.ndarray, cache: Cache) -> None:
            seen.extend((q.copy(), cache.keys(layer).copy()))

        # of the last layer fewer rows than tokens: keys and queries are then turned one by one
        read_layer_major(reader, ids, np.arange(130), reader.new_cache(130, layers=1), Hooks(watch), rows=8, depth=3)
        return seen

    plain = keys(model)
    for mine, theirs, unscaled in zip(keys(other), keys(asked), plain, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert np.abs(mine - unscaled).max() > 1e-3
    for one, again in zip(plain, keys(model), strict=True):
        np.testing.assert_array_equal(one, again)


def test_weights_that_move_do_so_for_all_models_of_them() -> None:
    model = load_model(embedded("drafter"))
    other = model.with_rope(replace(model.config.rope, scaling=LinearScaling(2.0)))
    found = model.weights.memoized(lambda weights: [weights])
    model.weights = replace(model.weights)
    assert other.weights is model.weights is not found[0]
    other.weights = found[0]
    assert model.weights is found[0]
