"""Mixtures of experts in everything a target does besides a plain prefill: trees, sparse reading, pairs, drafts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sp.models import Model, decode_step, load_model, prefill, prefill_sparse
from sp.models.run.tree import TreeReader
from sp.models.synthetic.synthetic import write_synthetic
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.prompt import Prompt
from sp.session import Conversation, Pipeline, RunOptions, load

PARENTS = np.array([-1, 0, 0, 1, 1, 2, 5, 3])
DEPTHS = np.array([0, 1, 1, 2, 2, 2, 3, 3])
N = 300
IDS = np.random.default_rng(4).integers(0, 2000, N + len(PARENTS))


@pytest.fixture(scope="module", params=["tiny-qwen3moe", "tiny-qwen35moe"])
def path(request, tmp_path_factory) -> Path:
    """A file of either family, in int8 or fp8: formats of fewer are not told apart by what is tested here."""
    return write_synthetic(tmp_path_factory.mktemp("m") / "m.gguf", request.param, "q8_0", seed=2)


@pytest.fixture(scope="module")
def model(path) -> Model:
    return load_model(path)


def near(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize("nodes", [[0, 1, 3, 7], [0, 2, 5, 6]])
def test_a_path_of_a_tree_is_the_path_read_alone(model, nodes) -> None:
    cache = model.new_cache(N + 20, "f32")
    prefill(model, IDS[:N], np.arange(N), cache)
    read = TreeReader(model, cache, most=16).read_tree(IDS[N:], PARENTS, N + DEPTHS)
    alone = model.new_cache(N + 20, "f32")
    prefill(model, IDS[:N], np.arange(N), alone)
    for node in nodes:
        want = decode_step(model, int(IDS[N + node]), N + int(DEPTHS[node]), alone)
        assert near(read.logits[node], want) < 1e-4


def test_chunks_change_nothing(model) -> None:
    want = prefill(model, IDS[:N], np.arange(N), model.new_cache(N, "f32"))
    got = prefill(model, IDS[:N], np.arange(N), model.new_cache(N, "f32"), chunk=37)
    assert near(got, want) < 1e-4


def test_sparse_reading_of_every_block_is_dense(model) -> None:
    want = prefill(model, IDS[:N], np.arange(N), model.new_cache(N, "f32"))
    got, densities = prefill_sparse(model, IDS[:N], np.arange(N), model.new_cache(N, "f32"), FlashPrefill(0.0))
    assert set(densities) <= {1.0}  # the one layer of the hybrid that attends is its last, read for one row
    assert near(got, want) < 1e-4


def test_a_pair_compresses_and_keeps_all_at_ratio_one(path) -> None:
    pair = Pipeline(load(path, device="cpu"), load(path, device="cpu"))
    prompt = Prompt.from_document("A line of words that say little. " * 30, "What is said?", pair.target.template)
    full = pair.run(prompt, RunOptions(compress="off", max_new_tokens=6), full=False)
    whole = pair.run(prompt, RunOptions(1.0, compress="always", max_new_tokens=6), full=False)
    assert whole.answer.tokens == full.answer.tokens
    part = pair.run(prompt, RunOptions(0.2, compress="always", max_new_tokens=6), full=False)
    assert part.decision.activated
    assert part.kept_tokens < 0.3 * len(part.prompt)
    assert len(part.answer.tokens) == 6


def test_a_conversation_goes_on(path) -> None:
    pair = Pipeline(load(path, device="cpu"), load(path, device="cpu"))
    talk = Conversation(pair, RunOptions(0.5, compress="always", max_new_tokens=3))
    messages = [{"role": "user", "content": "A line of words that say little. " * 24 + "What is said?"}]
    first = talk.ask(messages)
    messages += [{"role": "assistant", "content": first.answer.text}, {"role": "user", "content": "And what else?"}]
    again = talk.ask(messages)
    assert first.answer.tokens
    assert again.answer.tokens
    assert again.usage.cached > 0
