"""Sampled speculation draws from the target's own distribution, whatever the draft."""

from __future__ import annotations

import numpy as np
import pytest
from models.tiny_models import KEYS, random_tensors, rewritten, write_tiny
from scipy.stats import chisquare

from sp.decode.dflash import DFlash, accept_sampled, draw, softmax
from sp.decode.speculate import speculate
from sp.errors import ConfigError
from sp.models import load_model, prefill

RUNS = 6_000
WORDS = 4
LEAST = 1e-3  # of all chi-square tests here; seeds are fixed, so this cannot fail by chance


def conditional(prefix: tuple[int, ...]) -> np.ndarray:
    """The toy target: a distribution over four tokens for every prefix."""
    rng = np.random.default_rng([3, *prefix])
    return softmax(rng.standard_normal((1, WORDS)).astype(np.float32), 0.7)[0]


def joint(tokens: int) -> np.ndarray:
    """Probability of every sequence of the toy target."""
    found = np.ones((WORDS,) * tokens)
    for index in np.ndindex(found.shape):
        for at in range(tokens):
            found[index] *= conditional(index[:at])[index[at]]
    return found.ravel()


DRAFTS = {
    "unlike the target": np.array([[0.7, 0.1, 0.1, 0.1], [0.05, 0.05, 0.05, 0.85]]),
    "sure of itself": np.array([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]),
    "flat": np.full((2, WORDS), 0.25),
}


def keep_all(guesses, p, q, rng) -> tuple[int, int]:
    """A wrong rule, which the test must see."""
    return len(guesses), draw(p[-1], rng)


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("rule", [accept_sampled, keep_all])
def test_accepted_and_replaced_guesses_follow_the_target(name, rule) -> None:
    q, rng, counts = DRAFTS[name], np.random.default_rng(8), np.zeros((WORDS,) * 3)
    table = {prefix: conditional(prefix) for n in range(3) for prefix in np.ndindex((WORDS,) * n)}
    for _ in range(RUNS):
        guesses = [draw(row, rng) for row in q]
        p = np.stack([table[tuple(guesses[:n])] for n in range(3)])
        kept, token = rule(np.array(guesses), p, q, rng)
        drawn = [*guesses[:kept], token]
        while len(drawn) < 3:
            drawn.append(draw(table[tuple(drawn)], rng))
        counts[tuple(drawn)] += 1
    likely = chisquare(counts.ravel(), RUNS * joint(3)).pvalue
    assert likely > LEAST if rule is accept_sampled else likely < 1e-9


def test_a_perfect_draft_is_never_refused() -> None:
    rng = np.random.default_rng(1)
    p = softmax(rng.standard_normal((6, 9)).astype(np.float32), 1.0)
    for _ in range(200):
        assert accept_sampled(np.array([draw(row, rng) for row in p[:5]]), p, p[:5], rng)[0] == 5
    with np.errstate(all="raise"):
        assert accept_sampled(np.array([0]), np.array([[0.0, 1.0], [0.5, 0.5]]), np.array([[1.0, 0.0]]), rng) == (0, 1)


class Biased:
    """A draft with opinions of its own, the same at every place."""

    block_size, layers = 3, ()

    def __init__(self, logits: np.ndarray) -> None:
        self._logits = logits.astype(np.float32)

    def remember(self, features, positions) -> None:
        assert len(features) == len(positions)

    def guess(self, token, position, depth):
        return np.repeat(self._logits[None], depth, axis=0)


@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_a_model_sampled_with_a_draft_is_the_model_sampled(arch, tmp_path) -> None:
    """Three tokens of a model with five words, against their probabilities as plain decoding has them."""
    source = write_tiny(tmp_path / "m.gguf", arch, block_count=3)
    with_words = {"token_embd.weight": 5} | ({"output.weight": 5} if arch == "qwen35" else {})
    tensors = random_tensors(arch, {**KEYS[arch], "block_count": 3}, 0)
    few = {name: 0.4 * tensors[name][:words] for name, words in with_words.items()}
    model = load_model(rewritten(source, tmp_path / "few.gguf", few))
    ids, runs, temperature = np.array([1, 4, 2]), 250, 1.3

    def read(more: list[int]):
        cache, given = model.new_cache(12, "f32"), np.array([*ids, *more])
        return prefill(model, given, np.arange(len(given)), cache), cache

    first = read([])[0]
    expected = np.zeros((5, 5))
    for a, pa in enumerate(softmax(first[None], temperature)[0]):
        expected[a] = pa * softmax(read([a])[0][None], temperature)[0]
    counts, passes = np.zeros((5, 5)), []
    guesser, decoder = Biased(np.array([1.0, 0.2, -0.5, 0.0, 0.7])), DFlash(temperature)
    for seed in range(runs):
        logits, cache = read([])
        stream = speculate(model, guesser, decoder, logits, 3, cache, limit=4, seed=seed, on_pass=passes.append)
        a, b, *_ = stream
        counts[a, b] += 1
    assert expected.min() * runs > 3
    assert chisquare(counts.ravel(), runs * expected.ravel()).pvalue > LEAST
    assert {1, 2} <= set(passes), "guesses were accepted and refused"


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf")])
def test_senseless_temperatures(temperature) -> None:
    with pytest.raises(ConfigError, match="temperature is"):
        DFlash(temperature)
