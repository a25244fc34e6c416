"""Models that read into a cache with exact rows of the newest tokens: their logits, and keys for scorers."""

from __future__ import annotations

import numpy as np

from sp.models import Cache, load_model, prefill
from sp.scoring.attention.attention import unrotated_keys
from sp.session import embedded


def test_keys_without_rotary_embedding_are_those_of_their_tokens() -> None:
    model = load_model(embedded("drafter"))
    positions, ids = np.arange(90), np.arange(90) + 300
    unrotated = list[np.ndarray]()
    for kv in ("f16", "4bit"):
        cache = model.new_cache(90, kv)
        prefill(model, ids, positions, cache)
        unrotated.append(unrotated_keys(cache.stored(1), positions, model, 1).keys())
    assert np.square(unrotated[1] - unrotated[0]).mean() < 0.02 * np.square(unrotated[0]).mean()


def test_logits_are_nearer_to_exact_ones_than_without_exact_rows(monkeypatch) -> None:
    model = load_model(embedded("target"))
    ids = np.random.default_rng(1).integers(0, model.config.vocab, 240)

    def logits(kv: str) -> np.ndarray:
        cache, found = model.new_cache(len(ids), kv), []
        for start in range(0, len(ids), 8):
            at = np.arange(start, start + 8)
            found.append(prefill(model, ids[at], at, cache).astype(np.float64))
        return np.array(found) - np.logaddexp.reduce(found, axis=1)[:, None]

    exact = logits("f16")

    def divergence(kv: str) -> float:
        return float((np.exp(exact) * (exact - logits(kv))).sum(1).mean())

    kept = divergence("4bit")
    five = divergence("5bit")
    monkeypatch.setattr(Cache, "_new_rings", lambda *_: {})
    assert kept < 0.5 * divergence("4bit")
    assert kept < five
