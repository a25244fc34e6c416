"""Sampled tokens follow the distribution that temperature and filters leave; constraints hold; what is told is true."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from models.tiny_models import write_tiny
from sampling_reference import LEAST, agree, shares

from sp.decode import Chooser, SamplingDecoder
from sp.decode.base import generate
from sp.errors import ConfigError
from sp.models import load_model, prefill
from sp.ops.sampling.sample import Sampling, allowed_logits

FILTERS = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7, "min_p": 0.1},
    {"top_k": 7},
    {"top_p": 0.8},
    {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.8, "top_p": 0.6, "min_p": 0.3},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_draws_follow_the_distribution(filters) -> None:
    logits = (2 * np.random.default_rng(5).standard_normal((1, 40))).astype(np.float32)
    chooser = SamplingDecoder(**filters).chooser(17)
    found = [int(chooser.choose(logits)[0]) for _ in range(1500)]
    assert agree(found, shares(logits[0], **filters)) > LEAST


def test_another_order_of_filters_would_be_seen() -> None:
    """Of what min-p leaves, top-p keeps a share; had it gone first, the second of three would be left."""
    logits = np.log(np.array([0.5, 0.3, 0.1, 0.1])).astype(np.float32)
    np.testing.assert_allclose(shares(logits, top_p=0.62, min_p=0.25), [1, 0, 0, 0])
    np.testing.assert_allclose(shares(logits, top_p=0.62), [0.625, 0.375, 0, 0], rtol=1e-6)
    drawn = SamplingDecoder(top_p=0.62, min_p=0.25).chooser(0)
    assert {int(drawn.choose(logits[None])[0]) for _ in range(200)} == {0}


@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_a_model_is_sampled_token_by_token(arch, tmp_path) -> None:
    """Second tokens behind the commonest first one, against the model's own logits there."""
    model = load_model(write_tiny(tmp_path / "m.gguf", arch, block_count=3))
    ids = np.array([1, 4, 2])

    def read(more: list[int]):
        cache, given = model.new_cache(12, "f32"), np.array([*ids, *more])
        return prefill(model, given, np.arange(len(given)), cache), cache

    logits, _ = read([])
    options = SamplingDecoder(0.5, top_k=4, min_p=0.01)
    first = int(logits.argmax())
    expected = shares(read([first])[0], 0.5, 4, 1.0, 0.01)
    seconds = []
    for seed in range(100):
        start, cache = read([])
        a, b = generate(model, start, 3, cache, limit=2, chooser=options.chooser(seed))
        seconds += [b] if a == first else []
    assert len(seconds) > 15
    assert agree(seconds, expected) > LEAST


def test_seeds() -> None:
    logits = np.zeros((1, 1000), np.float32)

    def drawn(options: SamplingDecoder, seed: int) -> list[int]:
        chooser = options.chooser(seed)
        return [int(chooser.choose(logits)[0]) for _ in range(8)]

    assert drawn(SamplingDecoder(), 3) == drawn(SamplingDecoder(), 3) == drawn(SamplingDecoder(seed=3), 9)
    assert drawn(SamplingDecoder(), 3) != drawn(SamplingDecoder(), 4)


class Even:
    """Only even tokens, the last of them no more once it was taken."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def allowed(self) -> np.ndarray:
        words = np.array([0x55555555, 0x1], np.uint32)  # 0, 2, ... 32
        for token in self.taken[-1:]:
            words[token // 32] &= ~np.uint32(1 << token % 32)
        return words

    def take(self, token: int) -> None:
        self.taken.append(token)


@pytest.mark.parametrize("sampling", [None, Sampling(3.0)], ids=str)
def test_a_constraint_is_kept_and_logprobs_are_the_models_own(sampling) -> None:
    logits = np.random.default_rng(2).standard_normal((1, 70)).astype(np.float32)
    rule, told = Even(), []
    chooser = Chooser(sampling, 1, constraint=rule, on_choice=told.append, top=20)
    found = [int(chooser.choose(logits)[0]) for _ in range(40)]
    assert found == rule.taken == [each.token for each in told]
    assert all(token % 2 == 0 and token <= 32 for token in found)
    assert all(a != b for a, b in pairwise(found))
    p = shares(logits[0])
    np.testing.assert_allclose([each.logprob for each in told], np.log(p[found]), rtol=1e-5)
    for each in told:
        assert each.tokens.tolist() == np.argsort(-p)[:20].tolist()
        np.testing.assert_allclose(each.logprobs, np.log(np.sort(p)[::-1][:20]), rtol=1e-5)


def test_bits_of_tokens() -> None:
    rng = np.random.default_rng(0)
    for vocab, bits in ((1, 32), (31, 32), (33, 64), (100, 96)):
        allowed = rng.random(bits) < 0.5
        words = np.array([sum(1 << j for j in range(32) if allowed[32 * i + j]) for i in range(bits // 32)], np.uint32)
        logits = rng.standard_normal((1, vocab)).astype(np.float32)
        found = allowed_logits(logits, words)[0]
        for token in range(vocab):
            assert found[token] == (logits[0, token] if token < bits and allowed[token] else -np.inf)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"temperature": 0.0}, "use decoder greedy"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"min_p": 1.1}, "min_p is 1.1"),
        ({"seed": -1}, "seed is -1"),
    ],
    ids=str,
)
def test_senseless_options(option, said) -> None:
    with pytest.raises(ConfigError, match=said):
        SamplingDecoder(**option)
