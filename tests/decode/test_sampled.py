"""Sampled speculation draws from the target's own distribution, whatever the draft."""

from __future__ import annotations

import numpy as np
import pytest
from models.tiny_models import KEYS, random_tensors, rewritten, write_tiny
from scipy.stats import chisquare

from sp.decode.dflash import DFlash
from sp.decode.speculate import Tree, speculate
from sp.errors import ConfigError
from sp.models import load_model, prefill
from sp.models.run.tree import TreePass
from sp.ops.sampling.sample import draw_tokens, softmax, token_shares

RUNS = 1_200
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


class KeepAll(DFlash):
    """A wrong rule, which the test must see."""

    def accept(self, tree, guessed, seen, rng):
        token = draw_tokens(seen.logits[len(guessed) :], 1.0, rng.random(1))
        return np.arange(len(guessed) + 1), int(token[0])


def logits_of(shares: np.ndarray) -> np.ndarray:
    """Logits whose softmax at temperature 1 is `shares`."""
    with np.errstate(divide="ignore"):
        return np.log(shares).astype(np.float32)


def seen(p: np.ndarray) -> TreePass:
    """What a target makes of a chain whose distributions are p."""
    return TreePass(logits_of(p), p.argmax(axis=-1), np.empty((len(p), 0), np.float32))


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("rule", [DFlash, KeepAll])
def test_accepted_and_replaced_guesses_follow_the_target(name, rule) -> None:
    guessed, decoder = logits_of(DRAFTS[name]), rule(temperature=1.0)
    rng, counts = np.random.default_rng(8), np.zeros((WORDS,) * 3)
    table = {prefix: conditional(prefix) for n in range(3) for prefix in np.ndindex((WORDS,) * n)}
    for _ in range(RUNS):
        tree = decoder.propose(0, guessed, rng)
        p = np.stack([table[tuple(tree.tokens[1 : n + 1].tolist())] for n in range(3)])
        path, token = decoder.accept(tree, guessed, seen(p), rng)
        drawn = [*tree.tokens[path[1:]].tolist(), token]
        while len(drawn) < 3:
            drawn.append(int(rng.choice(WORDS, p=table[tuple(drawn)])))
        counts[tuple(drawn)] += 1
    likely = chisquare(counts.ravel(), RUNS * joint(3)).pvalue
    assert likely > LEAST if rule is DFlash else likely < 1e-9


def test_a_perfect_draft_is_never_refused() -> None:
    rng, decoder = np.random.default_rng(1), DFlash(temperature=0.8)
    logits = rng.standard_normal((6, 9)).astype(np.float32)
    same = TreePass(logits, logits.argmax(axis=1), np.empty((6, 0), np.float32))
    for _ in range(200):
        path, _ = decoder.accept(decoder.propose(0, logits[:5], rng), logits[:5], same, rng)
        assert len(path) == 6
    certain = np.array([[0.0, 1.0], [0.5, 0.5]])
    tree = Tree(np.array([0, 0]), np.array([-1, 0]))
    path, token = DFlash(temperature=1.0).accept(tree, logits_of(np.array([[1.0, 0.0]])), seen(certain), rng)
    assert (path.tolist(), token) == ([0], 1)


def test_draws_are_where_their_numbers_fall() -> None:
    """Against the cumulative sums of a plain softmax in float64."""
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.ones(50), 3), rng.dirichlet(np.ones(50), 3)
    numbers = rng.random(3)
    for less, weights in ((None, p), (logits_of(q), np.maximum(p - q, 0))):
        found = draw_tokens(logits_of(p), 1.0, numbers, less)
        for token, row, number in zip(found, weights / weights.sum(axis=1, keepdims=True), numbers, strict=True):
            assert row[:token].sum() <= number + 1e-6
            assert number <= row[: token + 1].sum() + 1e-6
    np.testing.assert_allclose(token_shares(logits_of(p), 1.0, np.array([3, 1, 4])), p[range(3), [3, 1, 4]], rtol=1e-5)


class Biased:
    """A draft with opinions of its own, the same at every place."""

    block_size, layers = 3, ()

    def __init__(self, logits: np.ndarray) -> None:
        self._logits = logits.astype(np.float32)

    def remember(self, features, positions) -> None:
        assert len(features) == len(positions)

    def guess(self, token, position, depth):
        return np.repeat(self._logits[None], depth, axis=0)

    def end(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("arch", ["qwen3", "qwen35"])
def test_a_model_sampled_with_a_draft_is_the_model_sampled(arch, tmp_path) -> None:
    """Three tokens of a model with five words, against their probabilities as plain decoding has them."""
    source = write_tiny(tmp_path / "m.gguf", arch, block_count=3)
    with_words = {"token_embd.weight": 5} | ({"output.weight": 5} if arch == "qwen35" else {})
    tensors = random_tensors(arch, {**KEYS[arch], "block_count": 3}, 0)
    few = {name: 0.4 * tensors[name][:words] for name, words in with_words.items()}
    model = load_model(rewritten(source, tmp_path / "few.gguf", few))
    ids, runs, temperature = np.array([1, 4, 2]), 200, 1.3

    def read(more: list[int]):
        cache, given = model.new_cache(12, "f32"), np.array([*ids, *more])
        return prefill(model, given, np.arange(len(given)), cache), cache

    first = read([])[0]
    expected = np.zeros((5, 5))
    for a, pa in enumerate(softmax(first[None], temperature)[0]):
        expected[a] = pa * softmax(read([a])[0][None], temperature)[0]
    counts, passes = np.zeros((5, 5)), []
    guesser, decoder = Biased(np.array([1.0, 0.2, -0.5, 0.0, 0.7])), DFlash(temperature=temperature)
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
        DFlash(temperature=temperature)
