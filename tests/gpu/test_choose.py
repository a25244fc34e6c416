"""Sampled and constrained decoding on the device: the distribution, the twin's tokens, what is told of them."""

from __future__ import annotations

import numpy as np
import pytest
from device_models import case
from sampling_reference import LEAST, agree, shares

from sp.decode import Chooser, SamplingDecoder
from sp.decode.base import GraphDecoder, generate
from sp.models import prefill
from sp.ops.sampling.biased import Penalties, PenaltyState
from sp.ops.sampling.sample import Sampling, allowed_logits

START, NEW = 120, 40  # crosses a page border
FILTERS = [
    {},
    {"temperature": 1.7, "min_p": 0.1},
    {"top_k": 7},
    {"top_p": 0.8},
    {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 3.0, "top_p": 0.6, "min_p": 0.001},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("vocab", [40, 30_000])
def test_draws_follow_the_distribution(filters, vocab) -> None:
    import cupy

    row = (3 * np.random.default_rng(5).standard_normal((1, vocab))).astype(np.float32)
    logits, chooser = cupy.asarray(row), SamplingDecoder(**filters).chooser(17)
    found = cupy.concatenate([chooser.choose(logits) for _ in range(4000)]).get().tolist()
    assert agree(found, shares(row[0], **filters)) > LEAST


MORE = [{}, {"top_k": 20, "top_p": 0.8}, {"top_p": 0.9}, {"temperature": 3.0, "top_k": 30_000}]


@pytest.mark.parametrize("vocab", [1, 1000, 248320])
@pytest.mark.parametrize("min_p", [1e-12, 0.001, 0.05, 1.0])
@pytest.mark.parametrize("more", MORE, ids=str)
def test_min_p_draws_the_twins_tokens(vocab, min_p, more) -> None:
    import cupy

    row = (3 * np.random.default_rng(7).standard_normal((1, vocab))).astype(np.float32)
    options = SamplingDecoder(min_p=min_p, **more)
    host, device = options.chooser(5), options.chooser(5)
    logits = cupy.asarray(row)
    pairs = [(int(host.choose(row)[0]), int(device.choose(logits).get()[0])) for _ in range(20)]
    assert sum(a != b for a, b in pairs) <= 1, "only a draw at the very edge of a token's share may differ"


@pytest.mark.parametrize(("vocab", "bits"), [(1, 32), (33, 64), (100, 96), (151_936, 151_680)])
def test_bits_of_tokens(vocab, bits, guarded) -> None:
    rng = np.random.default_rng(vocab)
    words = rng.integers(0, 1 << 32, bits // 32, dtype=np.uint32)
    row = rng.standard_normal((1, vocab)).astype(np.float32)
    np.testing.assert_array_equal(
        allowed_logits(guarded(row.shape, np.float32, row), words).get(), allowed_logits(row, words)
    )


@pytest.mark.parametrize(("vocab", "said"), [(1, 1), (100, 7), (151_936, 300), (151_936, 30_000)])
def test_bias_and_penalties_are_the_twins(vocab, said, guarded) -> None:
    rng = np.random.default_rng(vocab)
    row = rng.standard_normal((1, vocab)).astype(np.float32)
    prompt, bias = rng.integers(0, vocab, said).tolist(), {int(t): 3.0 for t in rng.integers(0, vocab, 5)}
    found = PenaltyState(Penalties(0.3, 0.7, 1.3, bias=bias, prompt=lambda: prompt))
    for token in rng.integers(0, vocab, 40).tolist():
        found.take(token)
    np.testing.assert_array_equal(found.apply(guarded(row.shape, np.float32, row)).get(), found.apply(row))


def read(model, ids):
    cache = model.new_cache(START + NEW, "f16")
    return prefill(model, ids[:START], np.arange(START), cache), cache


@pytest.mark.no_sanitizer
@pytest.mark.parametrize("name", ["target", "drafter", "tiny-qwen35:q8_0"])
def test_sampled_in_a_graph_as_launch_by_launch(name) -> None:
    c, found = case(name), {}
    for eager in (True, False):
        logits, cache = read(c.gpu, c.ids)
        decoder = GraphDecoder(c.gpu, cache, NEW, eager=eager)
        found[eager] = list(decoder.tokens(logits, START, NEW, SamplingDecoder(1.2, top_k=50).chooser(3)))
        assert cache.tokens == START + NEW - 1
    assert found[True] == found[False]
    assert len(found[True]) == NEW


@pytest.mark.no_sanitizer
def test_greedy_and_sampled_answers_share_a_decoder_and_what_is_told_is_true() -> None:
    c = case("target")
    logits, cache = read(c.gpu, c.ids)
    alone = list(generate(c.gpu, logits, START, cache, limit=NEW))
    told: list = []
    logits, cache = read(c.gpu, c.ids)
    watched = Chooser(None, 0, on_choice=told.append, top=20)
    found = list(generate(c.gpu, logits, START, cache, limit=NEW, chooser=watched))
    assert found == alone == [each.token for each in told]
    for each in told:
        assert each.tokens[0] == each.token
        assert each.logprob == pytest.approx(each.logprobs[0], abs=1e-5)
        assert (np.diff(each.logprobs) <= 0).all()


class Low:
    """Tokens below 64, never the one before."""

    def __init__(self) -> None:
        self.last = 0

    def allowed(self) -> np.ndarray:
        words = np.full(2, 0xFFFFFFFF, np.uint32)
        words[self.last // 32] &= ~np.uint32(1 << self.last % 32)
        return words

    def take(self, token: int) -> None:
        assert token < 64
        assert token != self.last
        self.last = token


@pytest.mark.no_sanitizer
@pytest.mark.parametrize("sampling", [None, Sampling(2.0)], ids=str)
def test_a_constraint_is_kept(sampling) -> None:
    c = case("target")
    logits, cache = read(c.gpu, c.ids)
    found = list(generate(c.gpu, logits, START, cache, limit=NEW, chooser=Chooser(sampling, 1, constraint=Low())))
    assert len(found) == NEW
    assert len(set(found)) > 1
