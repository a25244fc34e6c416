"""Every scorer on the device: the same scores as in NumPy, nothing but NumPy returned, one layer's weights held."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import cupy
import numpy as np
import pytest
from compare import nmse
from device_models import case
from scorer_cases import MATRIX, random_head, with_map

from sp.evals import TASKS
from sp.evals.run import counter
from sp.models import Model
from sp.models.synthetic.random_store import random_model
from sp.scoring import SCORERS, Importance, Scorer, ScoreRequest
from sp.scoring.attention.key_values import AttentionInputs, KeyValueScorer
from sp.scoring.trained.base import TrainedScorer
from sp.session.loaded import embedded, load
from sp.studies.sample import sample

BOUND = 2e-4
N = 2009  # no whole number of pages
GENERATING = ("lookahead", "answer_attention", "leave_one_out")


@cache
def prompt(role: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of the end of the embedded document, and which of them are the question."""
    ids = np.asarray(load(embedded(role), device="cpu").tokenizer.encode(sample()[0]).ids)[-N:]
    return ids, np.arange(N) >= N - 20


@cache
def decided_prompt(role: str) -> tuple[np.ndarray, frozenset[int]]:
    """Tokens of the end of a prompt whose answer no rounding changes, and what ends an answer.

    Of both embedded models each token of it, as of the answer's end, leads the next best by 12 logits or more in NumPy.
    """
    read = load(embedded(role), device="cpu")
    example = TASKS.build("fact", {"form": 0}).example(2, 2400, counter(read.tokenizer))
    return np.asarray(example.prompt(read.template).tokenise(read.tokenizer).ids)[-N:], read.tokenizer.eos_ids


def score(model: Model, role: str, name: str, told: list[int] | None = None, **options: Any) -> Importance:
    ids, question = prompt(role)
    eos: frozenset[int] = frozenset()
    if name in GENERATING:
        ids, eos = decided_prompt(role)
    needle = np.arange(N) // 40 == 20
    progress = None if told is None else told.append
    request = ScoreRequest(model, ids, np.arange(N), question, needle, eos, progress=progress, by_head=True)
    return build(name, options, model).score(request)


@cache
def folder() -> Path:
    """Where weights are written."""
    return Path(tempfile.mkdtemp())


def build(name: str, options: dict[str, Any], model: Model) -> Scorer:
    """The scorer, with weights for the model where it has to be trained."""
    if name != "late_interaction" and not issubclass(SCORERS.class_of(name), TrainedScorer):
        return SCORERS.build(name, options)
    learnt = {key: value for key, value in options.items() if key == "weights"}
    return SCORERS.build(name, options | with_map(name, learnt, model, folder()))


def ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values, kind="stable"))


@pytest.mark.parametrize(("name", "options"), MATRIX, ids=str)
def test_the_scores_are_those_of_numpy(name, options) -> None:
    role = "target" if SCORERS.build(name).reads_target else "drafter"
    told: list[int] = []
    got = score(case(role).gpu, role, name, told, **options)
    want = score(case(role).cpu, role, name, **options)
    for part in ("scores", "by_layer", "by_head"):
        mine, theirs = getattr(got, part), getattr(want, part)
        assert type(mine) is type(theirs)
        if mine is not None:
            assert mine.shape == theirs.shape
            assert mine.dtype == theirs.dtype
            assert np.isfinite(mine).all()
    error = nmse(got.scores, want.scores)
    agreement = float(np.corrcoef(ranks(got.scores), ranks(want.scores))[0, 1])
    print(f"{name} {options}: nmse {error:.1e}, ranks {agreement:.4f}")
    assert got.generated == want.generated
    assert name in GENERATING or not got.generated
    sparse = "sparse" in options  # rounding moves blocks over the threshold
    if name == "leave_one_out":  # most chunks change nothing of an answer: what they differ by is rounding of logits
        assert np.abs(got.scores - want.scores).max() < 0.1 * np.ptp(want.scores)
    else:
        assert error < (50 if sparse else 1) * BOUND
        assert agreement > (0.9 if sparse else 0.99)
    again = score(case(role).gpu, role, name, **options)
    np.testing.assert_array_equal(again.scores, got.scores)
    assert sum(told) in (0, N * case(role).gpu.config.layers)


@dataclass(frozen=True)
class ValueNorm(KeyValueScorer):
    """Attention weights times the norm of each token's value."""

    def score_layer(self, inputs: AttentionInputs) -> Any:
        norms = abs(inputs.values).sum(axis=-1).repeat(inputs.group, axis=-1).T
        return inputs.weights().mean(axis=1) * norms


@dataclass(frozen=True)
class BareKeys(KeyValueScorer):
    """Products of un-rotated queries and keys."""

    rotary: ClassVar[Any] = "none"

    def score_layer(self, inputs: AttentionInputs) -> Any:
        keys = inputs.keys.repeat(inputs.group, axis=1)
        return (keys * inputs.queries.mean(axis=0)).sum(axis=-1).T


@pytest.mark.parametrize("scorer", [ValueNorm(), BareKeys()], ids=["values", "keys"])
def test_scorers_by_keys_and_values_are_those_of_numpy(scorer: KeyValueScorer) -> None:
    models, (ids, question) = case("drafter"), prompt("drafter")
    got, want = (
        scorer.score(ScoreRequest(model, ids, np.arange(N), question, ~question, by_head=True))
        for model in (models.gpu, models.cpu)
    )
    for part in ("scores", "by_layer", "by_head"):
        assert type(getattr(got, part)) is np.ndarray
        assert getattr(got, part).shape == getattr(want, part).shape
        assert nmse(getattr(got, part), getattr(want, part)) < BOUND


@pytest.mark.parametrize("rank", [96, 136])
@pytest.mark.parametrize(("tokens", "asking"), [(1, 0), (40, 7), (1283, 96), (N, 20), (N, 0)])
def test_late_interaction_is_that_of_numpy(tokens, asking, rank, tmp_path) -> None:
    """Of a head with outliers, trained for nothing; for any length, with a question and without."""
    models, ids = case("drafter"), prompt("drafter")[0][-tokens:]
    random_head(models.cpu.config, query=(1, 3), key=(0, 2, 3), rank=rank).save(tmp_path / "head.safetensors", {})
    scorer = SCORERS.build("late_interaction", {"weights": str(tmp_path / "head.safetensors")})
    question = np.arange(tokens) >= tokens - asking
    requests = [ScoreRequest(model, ids, np.arange(tokens), question, ~question) for model in (models.cpu, models.gpu)]
    want, got = (scorer.score(request) for request in requests)
    off, error = np.abs(got.scores - want.scores).max(), nmse(got.scores, want.scores)
    print(f"{tokens} tokens: off by {off:.1e}, squared error {error:.1e}")
    assert type(got.scores) is np.ndarray
    assert got.scores.dtype == want.scores.dtype
    # Parts are divided by their spread, which is small for a head that was trained for nothing: 5e-5 was seen.
    assert error < 5e-4 or not want.scores.any()
    assert not got.scores[question].any()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sink_masked", {}),
        ("snapkv", {}),
        ("head_vote", {}),
        ("entropy_weight", {}),
        ("gemfilter", {}),
        ("mid_layer", {}),
        ("tail", {"pooling": "max"}),
        ("self_information", {}),
        ("embedding", {}),
        ("probe", {}),
        ("cross_attention", {}),
        ("late_interaction", {}),
    ],
    ids=str,
)
def test_what_is_held_at_128k(name, options) -> None:
    model, n = long_drafter(), 131072
    ids = np.random.default_rng(0).integers(0, 150_000, n)
    request = ScoreRequest(model, ids, np.arange(n), np.arange(n) >= n - 20, np.zeros(n, bool))
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    found = build(name, {"sparse": "density:0.02"} | options, model).score(request)
    held = pool.total_bytes() - before
    print(f"{name}: {held / 1e9:.2f} GB")
    assert np.isfinite(found.scores).all()
    assert held < MOST_HELD.get(name, 3e9)


MOST_HELD = {"probe": 3.5e9}
"""Bytes beyond the drafter's weights: the probe looks with the question's rows too, and in both rotations (3.29e9)."""


@cache
def long_drafter() -> Model:
    """Random weights in the shape of the drafter of 0.6B."""
    from dataclasses import replace

    model = random_model("qwen3-0.6b", "bf16")
    model.config = replace(model.config, context=1 << 20)
    return model
