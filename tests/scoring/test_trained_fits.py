"""What the fits of trained scorers find: planted heads, optima another library finds, gradients by differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from sp.prompt.spans import chunk_bounds
from sp.scoring.trained.attention_features import UnitPool, unit_of_token
from sp.scoring.trained.base import ChoiceProblem, LabelledUnits, fit_choice
from sp.scoring.trained.cross_attention import PromptStates, fit_head, loss_and_gradient, start_params, unit_rows
from sp.studies.training import auc

HEADS = 12


def planted(prompts: int, seed: int, units: int = 100) -> list[LabelledUnits]:
    """Noise in which head 7 alone tells, half a deviation at a time, which two units hold the evidence."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(prompts):
        features = rng.standard_normal((units, HEADS)).astype(np.float32)
        features[:, 3] *= 40  # loud, and says nothing
        chosen = rng.choice(units, 2, replace=False)
        features[chosen, 7] += 3
        shares = np.zeros(units)
        shares[chosen] = 0.5
        found.append(LabelledUnits(features, shares))
    return found


def test_a_planted_head_is_found() -> None:
    weight = fit_choice(planted(40, seed=0), l2=1e-3)
    assert np.abs(weight * np.array([1, 1, 1, 40] + [1] * 8)).argmax() == 7
    areas = [auc(one.features @ weight, one.shares > 0) for one in planted(20, seed=1)]
    assert np.mean(areas) > 0.95
    nothing = [auc(np.delete(one.features, 7, 1) @ np.delete(weight, 7), one.shares > 0) for one in planted(20, seed=1)]
    assert np.mean(nothing) < 0.6


def test_the_optimum_is_the_one_scipy_finds() -> None:
    prompts = planted(6, seed=2, units=30)
    rows = np.concatenate([one.features for one in prompts]).astype(np.float64)
    mean, scale = rows.mean(axis=0), 1 / rows.std(axis=0)

    def loss(w: np.ndarray) -> float:
        total = 0.0
        for one in prompts:
            logits = (one.features - mean) * scale @ w
            total -= one.shares @ (logits - np.log(np.exp(logits).sum()))
        return float(total / len(prompts) + 0.05 / 2 * w @ w)

    best = minimize(loss, np.zeros(HEADS), tol=1e-10)
    got = fit_choice(prompts, l2=0.05) / scale
    np.testing.assert_allclose(got, best.x, atol=2e-3)
    assert loss(got) < best.fun + 1e-6
    assert ChoiceProblem.of(prompts, 0.05).loss(got)[0] == pytest.approx(loss(got), rel=1e-5)


def test_slopes_and_curvature_are_those_of_differences() -> None:
    problem, rng = ChoiceProblem.of(planted(3, seed=4, units=20), 0.1), np.random.default_rng(0)
    w, direction = rng.standard_normal((2, HEADS))
    ahead, behind = (problem.loss(w + sign * 1e-2 * direction) for sign in (1, -1))
    _, p = problem.loss(w)
    assert problem.gradient(w, p) @ direction == pytest.approx((ahead[0] - behind[0]) / 2e-2, rel=2e-3)
    slopes = [problem.gradient(w + sign * 1e-2 * direction, p) for sign, (_, p) in ((1, ahead), (-1, behind))]
    np.testing.assert_allclose(problem.curve(p, direction), (slopes[0] - slopes[1]) / 2e-2, rtol=2e-2, atol=2e-3)


def test_a_constant_feature_does_no_harm() -> None:
    prompts = [one._replace(features=np.concatenate([one.features, np.ones((100, 1))], 1)) for one in planted(10, 3)]
    assert np.isfinite(fit_choice(prompts, l2=1e-3)).all()


@pytest.mark.parametrize(
    ("scores", "labels", "want"),
    [([1, 2, 3, 4], [0, 0, 1, 1], 1), ([4, 3, 2, 1], [0, 0, 1, 1], 0), ([5, 5, 5, 5], [0, 1, 0, 1], 0.5)],
)
def test_areas(scores: list[float], labels: list[int], want: float) -> None:
    assert auc(np.array(scores, float), np.array(labels, bool)) == want


def test_the_area_is_the_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 9, 80).astype(np.float32), rng.random(80) < 0.2
    pairs = [(a > b) + (a == b) / 2 for a in scores[labels] for b in scores[~labels]]
    assert auc(scores, labels) == pytest.approx(np.mean(pairs))
    assert np.isnan(auc(scores, np.zeros(80, bool)))


def seen(seed: int, width: int = 6, tokens: int = 11) -> PromptStates:
    """A prompt in float64 whose last unit is shorter."""
    rng = np.random.default_rng(seed)
    bounds = chunk_bounds(tokens, 4)
    shares = np.array([0.25, 0, 0.75])
    asking, document = (unit_rows(rng.standard_normal((n, width))) for n in (3, tokens))
    return PromptStates(asking, document, UnitPool.of(bounds, document), unit_of_token(bounds), shares)


@pytest.mark.parametrize("name", ["query", "key", "gate"])
def test_the_gradient_is_that_of_differences(name: str) -> None:
    one, rng = seen(0), np.random.default_rng(1)
    params = {key: rng.standard_normal(value.shape) / 2 for key, value in start_params(6, 2, 0).items()}
    _, gradient = loss_and_gradient(params, one)
    step, wanted = 1e-6, np.zeros_like(params[name])
    for place in np.ndindex(wanted.shape):
        moved = {sign: {**params, name: params[name].copy()} for sign in (1, -1)}
        for sign, changed in moved.items():
            changed[name][place] += sign * step
        wanted[place] = (loss_and_gradient(moved[1], one)[0] - loss_and_gradient(moved[-1], one)[0]) / (2 * step)
    np.testing.assert_allclose(gradient[name], wanted, rtol=1e-5, atol=1e-8)
    assert np.abs(wanted).max() > 1e-3


def test_the_loss_by_hand() -> None:
    """Two tokens, one query: with weights of one half each the mass of a token is a half, whatever the gate."""
    document = np.array([[1.0, 0.0], [1.0, 0.0]])
    one = PromptStates(
        np.ones((1, 2)), document, UnitPool.of(np.arange(3), document), np.arange(2), np.array([1.0, 0.0])
    )
    loss, _ = loss_and_gradient({"query": np.ones((2, 1)), "key": np.ones((2, 1)), "gate": np.ones(2)}, one)
    assert loss == pytest.approx(np.log(2))


def test_a_head_learns_what_belongs_together() -> None:
    """The answer's direction is a fixed rotation of the question's: only a trained pair of projections sees it."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((16, 16)))[0]

    def prompts(count: int) -> list[PromptStates]:
        made = []
        for _ in range(count):
            document, asking = rng.standard_normal((40, 16)), rng.standard_normal((2, 16))
            place = rng.integers(10)
            document[place * 4 + 1] = asking[0] @ turn
            bounds, shares = chunk_bounds(40, 4), np.eye(10)[place]
            rows = unit_rows(document).astype(np.float32)
            made.append(
                PromptStates(
                    unit_rows(asking).astype(np.float32), rows, UnitPool.of(bounds, rows), unit_of_token(bounds), shares
                )
            )
        return made

    def loss(params, found) -> float:
        return float(np.mean([loss_and_gradient(params, one)[0] for one in found]))

    told: list[int] = []
    begin, held_out = start_params(16, 16, 0), prompts(30)
    how = {"epochs": 15, "batch": 8, "rate": 0.02, "decay": 0.0, "seed": 0, "progress": told.append}
    lessons = prompts(120)
    found = fit_head(lessons, begin, **how)
    assert sum(told) == 15
    assert loss(begin, held_out) > 2 > 1.2 > loss(found, held_out)
    again = fit_head(lessons, begin, **how)
    np.testing.assert_array_equal(again["query"], found["query"])
