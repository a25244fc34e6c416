"""argmax and sample on the device: the same tokens as the NumPy twin, the right shares, replayed graphs."""

from __future__ import annotations

import numpy as np
import pytest
from captured import capture

from sp.ops.sampling.sample import Sampling, argmax, arrivals, sample, top_logprobs

VOCAB = 248320


def logits_of(seed: int, vocab: int = VOCAB, spread: float = 3.0) -> np.ndarray:
    return (spread * np.random.default_rng(seed).standard_normal((1, vocab))).astype(np.float32)


def device_draws(row: np.ndarray, options: Sampling, seed: int, count: int) -> list[int]:
    import cupy

    logits, key, step = cupy.asarray(row), cupy.asarray([seed], dtype=np.int64), cupy.zeros(1, np.int64)
    tokens = [sample(logits, options, key, step) for _ in range(count)]
    assert step.get().item() == count
    return [int(token.get().item()) for token in tokens]


@pytest.mark.parametrize("vocab", [1, 2, 100, 32768, VOCAB])
def test_argmax(vocab, guarded) -> None:
    for seed in range(3):
        row = logits_of(seed, vocab)
        assert argmax(guarded(row.shape, np.float32, row)).get().item() == row.argmax()


@pytest.mark.parametrize("values", [[0.0, -1.0], [-5.0, -2.0, -2.0, -3.0], [1.0, 7.0, 7.0], [-np.inf, 3.0, np.inf]])
def test_argmax_takes_the_lowest_of_equals(values, guarded) -> None:
    row = np.resize(np.float32(-9), (1, 5000))
    row[0, 4000 : 4000 + len(values)] = values
    assert argmax(guarded(row.shape, np.float32, row)).get().item() == 4000 + int(np.argmax(values))


@pytest.mark.parametrize(("rows", "vocab"), [(1, VOCAB), (2, 100), (15, VOCAB), (23, 4097), (64, VOCAB)])
def test_argmax_and_best_tokens_of_rows(rows, vocab, guarded) -> None:
    logits = logits_of(rows, rows * vocab).reshape(rows, vocab)
    logits[rows // 2, 3:90] = 20  # ties
    logits[0, : vocab // 2] = -np.inf
    device = guarded(logits.shape, np.float32, logits)
    np.testing.assert_array_equal(argmax(device).get(), logits.argmax(axis=1))
    for k in (1, 8, 16):
        tokens, log_probs = top_logprobs(device, k)
        want_tokens, want_log_probs = top_logprobs(logits, k)
        np.testing.assert_array_equal(tokens.get(), want_tokens)
        np.testing.assert_allclose(log_probs.get(), want_log_probs, rtol=2e-6, atol=2e-6)
        again = top_logprobs(device, k)
        np.testing.assert_array_equal(log_probs.get(), again[1].get())
    assert not arrivals(0).any()


def test_best_tokens_of_few_and_of_equal_logits() -> None:
    import cupy

    for row in ([[1.0, 3.0, 2.0]], [[0.0, -0.0, 0.0]], [[-np.inf, 2.0, -np.inf]]):
        logits = np.array(row, np.float32)
        tokens, log_probs = top_logprobs(cupy.asarray(logits), 3)
        want_tokens, want_log_probs = top_logprobs(logits, 3)
        np.testing.assert_array_equal(tokens.get(), want_tokens)
        np.testing.assert_allclose(log_probs.get(), want_log_probs, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("vocab", [1, 1000, VOCAB])
@pytest.mark.parametrize(
    "options",
    [
        Sampling(),
        Sampling(0.7, top_k=20, top_p=0.8),
        Sampling(1.5, top_k=1000),
        Sampling(1.0, top_p=0.95),
        Sampling(0.6, top_k=5),
        Sampling(2.0, top_k=1),
        Sampling(1.0, top_p=1e-9),
        Sampling(3.0, top_k=8000),
        Sampling(2.0, top_k=20000),  # more candidates than are sorted
        Sampling(3.0, top_p=0.9),
        Sampling(3.0, top_k=30000, top_p=0.9),
    ],
    ids=str,
)
def test_draws_equal_the_twin(options, vocab) -> None:
    row, count = logits_of(7, vocab), 20
    step = np.zeros(1, np.int64)
    want = [int(sample(row, options, np.array([11]), step).item()) for _ in range(count)]
    got = device_draws(row, options, 11, count)
    differing = sum(a != b for a, b in zip(got, want, strict=True))
    assert differing <= 1, "only a draw at the very edge of a token's share may differ"


@pytest.mark.parametrize("top_k", [1, 3, 10])
def test_ties_at_the_cut_fall_to_the_lowest_ids(top_k) -> None:
    row = np.zeros((1, 40000), np.float32)
    assert set(device_draws(row, Sampling(top_k=top_k), 1, 60)) <= set(range(top_k))
    assert set(device_draws(row, Sampling(top_p=top_k / 40000), 1, 60)) <= set(range(top_k + 1))


def test_shares() -> None:
    shares = np.array([0.5, 0.25, 0.125, 0.125])
    row = np.full((1, 2000), -50.0, np.float32)
    row[0, [3, 700, 1999, 1024]] = np.log(shares)
    draws = device_draws(row, Sampling(), 5, 2000)
    found = np.array([draws.count(i) for i in (3, 700, 1999, 1024)]) / 2000
    np.testing.assert_allclose(found, shares, atol=0.04)


def test_replayed_graph_draws_what_single_calls_draw() -> None:
    import cupy

    row, options = logits_of(3), Sampling(1.0, top_k=50, top_p=0.9)
    want = device_draws(row, options, 2, 5)
    logits, seed, step = cupy.asarray(row), cupy.asarray([2], dtype=np.int64), cupy.zeros(1, np.int64)
    found = []
    graph = capture(lambda: sample(logits, options, seed, step))
    for _ in want:
        graph.replay()
        found.append(int(graph.made.get().item()))
    assert found == want
