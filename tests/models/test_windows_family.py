"""A family of windows, norms behind the halves, GELU and two RoPEs, from outside the package and in one record."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import windows_family as gull
from dry_walk import walked

from sp.errors import ConfigError
from sp.models import (
    Hooks,
    decode_step,
    load_model,
    load_shards,
    prefill,
    prefill_cost,
    prefill_layer_major,
    read_layer_major,
)
from sp.models.run.replay import _segments_of, pays, replay_refusal
from sp.models.run.tree import TreeReader
from sp.parallel.host import HostGroup
from sp.planning.inspect import inspect_file
from sp.quant import F32
from sp.session.report import launch_lines

N = 300  # windows of 70 end within pages and within runs of 64
TOLERANCE = 2e-5  # of the largest logit


@pytest.fixture(scope="module")
def prompt():
    """Ids, and positions with gaps."""
    rng = np.random.default_rng(4)
    return rng.integers(0, gull.VOCAB, N), np.cumsum(rng.integers(1, 5, N))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return gull.write(tmp_path_factory.mktemp("gull") / "gull.gguf", gull.tensors())


@pytest.fixture(scope="module")
def model(path):
    return load_model(path)


@pytest.fixture(scope="module")
def expected(prompt):
    return gull.logits(gull.tensors(), *prompt)


def all_logits(model, ids, positions) -> np.ndarray:
    rows, hooks = [], Hooks(after_layer=lambda layer, x: rows.append(x.copy()) if layer == gull.LAYERS - 1 else None)
    prefill(model, ids, positions, model.new_cache(len(ids), "f32"), chunk=90, rows=len(ids), hooks=hooks)
    return model.head(np.concatenate(rows))


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def test_logits_of_every_token(model, prompt, expected) -> None:
    assert distance(all_logits(model, *prompt), expected) < TOLERANCE


@pytest.mark.parametrize("change", gull.CHANGES)
def test_what_makes_the_family_matters(change, model, prompt) -> None:
    other = gull.logits(gull.tensors(), *prompt, without=change)
    assert distance(all_logits(model, *prompt), other) > 100 * TOLERANCE


@pytest.mark.parametrize("chunk", [40, 64, 1000])
@pytest.mark.parametrize("walk", [prefill, prefill_layer_major])
def test_prefill_then_decode(walk, chunk, model, prompt, expected) -> None:
    ids, positions = prompt
    cache = model.new_cache(N, "f32")
    assert distance(walk(model, ids[:-3], positions[:-3], cache, chunk=chunk), expected[-4]) < TOLERANCE
    for t in range(N - 3, N):
        assert distance(decode_step(model, int(ids[t]), int(positions[t]), cache), expected[t]) < TOLERANCE


def test_a_chain_of_guesses_in_one_pass(model, prompt, expected) -> None:
    ids, positions = prompt
    cache = model.new_cache(N, "f32")
    prefill(model, ids[:-16], positions[:-16], cache)
    found = TreeReader(model, cache, most=16).read_tree(ids[-16:], np.arange(16) - 1, positions[-16:])
    assert distance(found.logits, expected[-16:]) < TOLERANCE


def test_a_drafter_of_it_shows_its_queries(model, prompt) -> None:
    seen, ids = [], prompt[0]
    hooks = Hooks(on_attention=lambda layer, q, cache: seen.append((layer, len(q), cache.length(layer))))
    read_layer_major(model, *prompt, model.new_cache(N, layers=1), hooks, rows=20, depth=3)
    assert seen == [(0, N, N), (1, N, N), (2, 20, N)]
    assert len(ids) == N


def test_what_cannot_be_done_is_named(model, path) -> None:
    assert not pays(model.config, 100)
    assert replay_refusal(model) == "layer 0: its weights are not packed, as on the CPU"
    with pytest.raises(ConfigError, match="cannot share layers with post-norms"):
        load_shards(path, HostGroup(2))


def test_a_file_is_found_whole_and_its_cost_knows_windows(model, path) -> None:
    warnings = inspect_file(path)["warnings"]
    assert not [warning for warning in warnings if "tensor" in warning or "architecture" in warning]
    n, pair = 1000, 4 * gull.HEADS * gull.HEAD_DIM
    within = sum(min(t + 1, gull.WINDOW) for t in range(n))
    assert prefill_cost(model.config, n).attention == pair * (3 * within + n * (n + 1) / 2)


WALK = """
import sys
sys.path[:0] = sys.argv[1:3]
import dry_device
dry_device.install()
import numpy as np
import windows_family
from sp.kernels import forced_path
from sp.models import load_model, prefill, prefill_layer_major
from sp.models.run.graph import PrefillGraphs
from sp.models.run.replay import replay_refusal
from sp.models.run.tree import TreeReader
model, ids = load_model(sys.argv[3], device="cuda"), np.arange(200)
assert replay_refusal(model) == "layer 0 attends in a window, and other layers may not", replay_refusal(model)
for path in ("sm_90a", "portable"):
    with forced_path(path):
        for kv, rotate in (("f16", False), ("q4_0", True), ("q8_0", None), ("5bit", None), ("k=q8_0,v=q4_0", False)):
            cache = model.new_cache(220, kv, rotate=rotate)
            dry_device.launches.clear()
            prefill(model, ids, ids, cache, chunk=100)
            assert dry_device.launches["geglu"] == 2 * model.config.layers - 1, dry_device.launches
            reader = TreeReader(model, cache, most=16)
            assert len(reader.read_tree(ids[:16], ids[:16] - 1, ids[:16] + 200).choices) == 16
            reader.commit_path(ids[:3])
            cache.reset()
            prefill_layer_major(model, ids, ids, cache, chunk=100, rows=40)
"""


def test_every_launch_fits(tmp_path) -> None:
    path = gull.write(tmp_path / "gull.gguf", gull.tensors(), F32)
    walked(WALK, str(Path(__file__).parents[1]), str(path))


def test_a_run_names_what_is_not_repeated(model, prompt) -> None:
    """As if it were a drafter on the device, with a prompt that is short enough."""
    on_device = copy(model)
    on_device.device = "cuda"
    [line] = launch_lines(SimpleNamespace(model=on_device), N)
    assert line == "drafter: launches are prepared layer by layer: layer 0: its weights are not packed, as on the CPU"
    on_device.config = replace(model.config, hidden=1024)
    assert launch_lines(SimpleNamespace(model=on_device), 1 << 20) == []


def test_layers_with_a_window_are_not_recorded(model) -> None:
    """Attention is recorded in one layer for all; who builds the layers need not tell the configuration of windows."""
    assert _segments_of(model.weights) == []
    assert len(_segments_of(replace(model.weights, blocks=model.weights.blocks[2:3]))) == 1, "a layer without one"
