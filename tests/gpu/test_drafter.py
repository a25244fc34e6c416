"""The drafter on the device: scores as in NumPy, sparse attention, one layer's keys at a time, memory.

The device rounds activations to bf16 and attention operands to f16. Rounding alone, put into NumPy, gives squared
errors of 1e-6 (1e-5 without rotary embedding) of the scores.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import cupy
import numpy as np
import pytest
from compare import nmse
from device_models import case

from sp.bench.drafter import EACH_SECONDS, ScoringTrial, describe, run_scoring
from sp.bench.record import make_record
from sp.models import Hooks, SparseAttention, dense_attention, prefill_layer_major, read_layer_major
from sp.models.synthetic.random_store import random_model
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.scoring import SCORERS, Importance, ScoreRequest
from sp.scoring.attention.attention import Fold, Reduction
from sp.session.loaded import embedded, load
from sp.studies.sample import sample

BOUND = 1e-3
N = 3001  # no whole number of pages


@cache
def tokens() -> np.ndarray:
    """The sample document in the drafter's tokens."""
    return np.asarray(load(embedded("drafter"), device="cpu").tokenizer.encode(sample()[0]).ids[:N])


def score(device: str, scorer: str, by_head: bool = False, **options) -> Importance:
    c = case("drafter")
    model, ids = (c.gpu if device == "cuda" else c.cpu), tokens()
    mask = np.zeros(len(ids), bool)
    request = ScoreRequest(model, ids, np.arange(len(ids)), mask, mask, by_head=by_head)
    return SCORERS.build(scorer, options).score(request)


def agree(got: np.ndarray, want: np.ndarray) -> float:
    """Rank correlation."""
    ranks = [np.argsort(np.argsort(one)) for one in (got, want)]
    return float(np.corrcoef(*ranks)[0, 1])


@pytest.mark.parametrize("rotary", ["post", "none"])
def test_tail_is_that_of_numpy(rotary, path) -> None:
    got, want = (score(device, "tail", True, rotary=rotary) for device in ("cuda", "cpu"))
    print(f"nmse {nmse(got.scores, want.scores):.2e}, ranks {agree(got.scores, want.scores):.5f}")
    assert nmse(got.scores, want.scores) < BOUND
    assert agree(got.scores, want.scores) > 0.99
    assert nmse(got.by_layer, want.by_layer) < BOUND
    assert got.by_head is not None
    assert nmse(got.by_head, want.by_head) < BOUND


@pytest.mark.parametrize("options", [{"order": "heads,queries,pool"}, {"layers": [1]}, {"layers": [-1], "depth": 2}])
def test_options_of_the_tail(options) -> None:
    got, want = (score(device, "tail", **options) for device in ("cuda", "cpu"))
    assert got.by_layer.shape == want.by_layer.shape
    assert nmse(got.scores, want.scores) < BOUND


def test_lookahead_is_that_of_numpy() -> None:
    got, want = (score(device, "lookahead") for device in ("cuda", "cpu"))
    assert got.generated[0] == want.generated[0]
    if got.generated == want.generated:  # two tokens of nearly one probability may change places
        assert nmse(got.scores, want.scores) < BOUND


def test_alpha_zero_reads_every_block(path) -> None:
    dense = score("cuda", "tail")
    sparse = score("cuda", "tail", sparse="alpha:0.0")
    assert sparse.densities == (1.0,) * (case("drafter").gpu.config.layers - 1)
    assert nmse(sparse.scores, dense.scores) < 1e-4


@pytest.mark.parametrize("scorer", ["tail", "lookahead"])
def test_sparse_is_that_of_numpy(scorer) -> None:
    got, want = (score(d, scorer, sparse="alpha:0.1") for d in ("cuda", "cpu"))
    print(f"{scorer}: densities {got.densities} and {want.densities}, ranks {agree(got.scores, want.scores):.5f}")
    assert min(got.densities) < 1  # some layers of the pair look at all blocks
    np.testing.assert_allclose(got.densities, want.densities, atol=0.03)
    assert agree(got.scores, want.scores) > 0.95


@pytest.mark.parametrize("sparse", [False, True])
def test_streaming_equals_scoring_what_was_stored(sparse) -> None:
    model, ids, queries = case("drafter").gpu, tokens(), {}
    where = np.arange(len(ids))

    def attend():
        return SparseAttention(FlashPrefill(0.1)) if sparse else dense_attention

    def keep(layer, q, cache_) -> None:
        queries[layer] = q[-8:].copy()

    stored = model.new_cache(len(ids))
    prefill_layer_major(model, ids, where, stored, hooks=Hooks(keep), attend=attend(), rows=8)
    late, early = Fold(Reduction()), Fold(Reduction())
    for layer, q in queries.items():
        late.add_layer(q, stored.stored(layer), causal=True)

    def watch(layer, q, cache_) -> None:
        early.add_layer(q[-8:], cache_.stored(layer), causal=True)

    one = model.new_cache(len(ids), layers=1)
    read_layer_major(model, ids, where, one, Hooks(watch), attend=attend(), rows=8)
    assert one.peak_pages == -(-len(ids) // 128)
    assert nmse(early.result(), late.result()) < 1e-9


def test_timings_name_their_stages(path) -> None:
    drafts = [ScoringTrial(1500, {}), ScoringTrial(1500, {"sparse": "alpha:0.1"})]
    for timing, draft in zip(run_scoring(case("drafter").gpu, drafts, 2), drafts, strict=True):
        assert len(timing.seconds) >= 2
        assert sum(timing.seconds) >= 2 * EACH_SECONDS
        assert timing.peak_bytes > timing.weight_bytes > 0
        assert timing.limit_s < min(timing.seconds)
        sparse = bool(draft.options)
        assert (timing.stages["mean"] > 0) == (timing.stages["score_select"] > 0) == sparse
        assert min(timing.stages[name] for name in ("forward", "importance", "projections")) > 0
        entry = make_record(**describe(timing, "m", path, "random"))
        assert json.loads(json.dumps(entry)) == entry
        assert "importance.cu" in entry["kernels"]


@pytest.mark.parametrize("sparse", ["alpha:0.1", "off"])
def test_memory_is_that_of_one_layer(sparse) -> None:
    model = random_model("qwen3-0.6b", "bf16")
    model.config = replace(model.config, context=1 << 20)
    pool, peaks = cupy.get_default_memory_pool(), {}
    for n in (8192, 32768):
        ids = np.random.default_rng(0).integers(0, 150_000, n)
        mask = np.zeros(n, bool)
        pool.free_all_blocks()
        before = pool.total_bytes()
        found = SCORERS.build("tail", {"sparse": sparse}).score(ScoreRequest(model, ids, np.arange(n), mask, mask))
        assert np.isfinite(found.scores).all()
        peaks[n] = pool.total_bytes() - before
    print(f"{sparse}: {peaks}")
    c = model.config
    # The stream in f32; queries, outputs, keys and values of one layer in 16 bits.
    token_bytes = 4 * c.hidden + 2 * 2 * c.heads * c.head_dim + 2 * 2 * c.kv_heads * c.head_dim
    assert peaks[8192] < 8192 * token_bytes + (400 << 20)
    assert peaks[32768] < 32768 * token_bytes + (500 << 20)
    del model
    pool.free_all_blocks()
