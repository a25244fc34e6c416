"""Conditional logistic regression: which units of a prompt are chosen, against the others of the same prompt.

With ``p = softmax(X w)`` over the units of one prompt and target shares ``t`` that sum to one, the loss is

    mean over prompts of ``- sum_u t_u log p_u``, plus ``l2 / 2 |w|^2``.

It is convex and has no intercept, so prompts of any length weigh alike and only the order within a prompt is learnt
(McFadden, "Conditional logit analysis of qualitative choice behavior", 1974). Fitted by Newton's method, its steps
found by conjugate gradients, so that memory and time grow with the number of features and not with its square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sp.arrays import Doubles, Floats
from sp.ops.array_module import array_module, on_host
from sp.scoring.trained.units import Pool, unit_of_token

NEWTON_STEPS, CG_STEPS = 50, 200
ENOUGH = 1e-7
"""Decrease of the loss that a Newton step must promise to be taken."""
CONSTANT = 1e-6
"""Variance up to which a feature says nothing and gets no weight: scaled up it would be rounding."""


class Choice(NamedTuple):
    """Features of one prompt's units, (units, f), and how the choice is shared among them, (units,), summing to one."""

    features: Floats
    shares: Floats


@dataclass(frozen=True)
class Choices:
    """Prompts as one problem, where their arrays lie.

    `x` float32 (all units, f); `shares` float64 (all units,); `mean`, `scale` float64 (f,): features less `mean` times
    `scale` have mean 0 and deviation 1: those are what weights are of here.
    """

    x: Any
    shares: Any
    pool: Pool  # units of each prompt
    owner: Any  # prompt of each unit
    mean: Any
    scale: Any
    l2: float

    @classmethod
    def of(cls, prompts: Sequence[Choice], l2: float) -> Choices:
        """Join prompts."""
        xp = array_module(prompts[0].features)
        bounds = np.cumsum([0, *(len(one.features) for one in prompts)])
        x = xp.concatenate([one.features for one in prompts]).astype(xp.float32)
        mean = x.mean(axis=0, dtype=xp.float64)
        variance = sum(((one.features - mean) ** 2).sum(axis=0) for one in prompts) / len(x)
        scale = xp.where(variance > CONSTANT, 1 / xp.sqrt(xp.maximum(variance, CONSTANT)), 0)
        shares = xp.concatenate([xp.asarray(one.shares, xp.float64) for one in prompts])
        return cls(x, shares, Pool.of(bounds, x), xp.asarray(unit_of_token(bounds)), mean, scale, l2)

    @property
    def prompts(self) -> int:
        """How many there are."""
        return len(self.pool.index)

    def logits(self, w: Any) -> Any:
        """Of every unit, for weights (f,)."""
        scaled = self.scale * w
        return self.x @ scaled.astype("float32") - self.mean @ scaled

    def back(self, values: Any) -> Any:
        """The transpose of `logits`: (f,) from a value a unit."""
        return self.scale * (values.astype("float32") @ self.x - self.mean * values.sum())

    def loss(self, w: Any) -> tuple[float, Any]:
        """The loss of the module's head, and the probability of every unit."""
        xp, z = array_module(self.x), self.logits(w)
        top = self.pool.largest(z[None])[0]
        norm = top + xp.log(self.pool.sums(xp.exp(z - top[self.owner])[None])[0])
        value = float(norm.sum() - self.shares @ z) / self.prompts + self.l2 / 2 * float(w @ w)
        return value, xp.exp(z - norm[self.owner])

    def gradient(self, w: Any, p: Any) -> Any:
        """Of the loss, (f,), at weights that give the probabilities `p`."""
        return self.back(p - self.shares) / self.prompts + self.l2 * w

    def curve(self, p: Any, direction: Any) -> Any:
        """The Hessian times a direction, (f,)."""
        change = self.logits(direction)
        expected = self.pool.sums((p * change)[None])[0]
        return self.back(p * (change - expected[self.owner])) / self.prompts + self.l2 * direction


def fit_choice(prompts: Sequence[Choice], l2: float) -> Doubles:
    """Weights (f,) for features as they are given; they are standardised inside, where `l2` is meant."""
    all_of = Choices.of(prompts, l2)
    w = array_module(all_of.x).zeros(all_of.x.shape[1])
    loss, p = all_of.loss(w)
    for _ in range(NEWTON_STEPS):
        gradient = all_of.gradient(w, p)
        step = _solve(all_of, p, gradient)
        promised, size = float(gradient @ step), 1.0
        while promised > ENOUGH and size > 1e-4:
            tried, tried_p = all_of.loss(w - size * step)
            if tried < loss - 1e-4 * size * promised:
                break
            size /= 2
        else:
            break
        w, loss, p = w - size * step, tried, tried_p
    found: Doubles = on_host(w * all_of.scale)
    return found


def _solve(all_of: Choices, p: Any, gradient: Any) -> Any:
    """Where the Hessian leads to the gradient, by conjugate gradients to a thousandth."""
    xp = array_module(gradient)
    found, left = xp.zeros_like(gradient), gradient.copy()
    direction, now = left.copy(), float(left @ left)
    goal = now * 1e-6
    for _ in range(CG_STEPS):
        if now <= goal or now == 0:
            break
        curved = all_of.curve(p, direction)
        pace = now / float(direction @ curved)
        found += pace * direction
        left -= pace * curved
        before, now = now, float(left @ left)
        direction = left + now / before * direction
    return found


def softmax(logits: Any) -> Any:
    """Of a vector."""
    weights = array_module(logits).exp(logits - logits.max())
    return weights / weights.sum()
