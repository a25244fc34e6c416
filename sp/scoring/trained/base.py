"""Trained scorers: their files of weights, how units are chosen, and what all of them share."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sp.arrays import Doubles, Floats, Ints
from sp.config import from_mapping
from sp.errors import ConfigError, ModelError, plain
from sp.models import Model
from sp.models.file.safetensors_file import SafetensorsFile
from sp.ops.array_module import array_module, on_host
from sp.scoring.attention.attention import padded, without_markup
from sp.scoring.attention.heads import model_key
from sp.scoring.base import SCORERS, Importance, ReadingScorer, ScoreRequest
from sp.scoring.trained.attention_features import Asking, Pool, document_units, unit_of_token
from sp.trace import write_atomic
from sp.values import shown

SCHEMA = "sp-scorer/1"
EMBEDDED_SCORER = Path(str(files("sp") / "assets" / "scorer.safetensors"))
MOST_BYTES = 64 << 20  # of a file; the largest head on a drafter of 0.6B takes a hundredth


@dataclass(frozen=True)
class ScorerFile:
    """Weights and where they came from. `made`: how it was trained: tasks, tasks left out, labels, seed, date; for
    people and tables.
    """

    kind: str  # name of the scorer they are for
    model: str  # `model_key` of the drafter whose attention or hidden states they weigh
    arrays: Mapping[str, Floats]
    options: Mapping[str, Any]  # the scorer's options of learning, in force again when it scores
    made: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the file in one piece: what stood there before stays until the new one is complete."""
        from safetensors.numpy import save

        told = {"kind": self.kind, "model": self.model}
        objects = {name: json.dumps(dict(getattr(self, name)), sort_keys=True) for name in ("options", "made")}
        arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in self.arrays.items()}
        write_atomic(path, save(arrays, {"schema": SCHEMA, **told, **objects}))

    @classmethod
    def load(cls, path: Path) -> ScorerFile:
        """Read a file that `save` wrote. ConfigError: if it is missing, too large, damaged, or no trained scorer of
        this version.
        """
        from safetensors import SafetensorError, safe_open

        try:
            size = path.stat().st_size
            if size > MOST_BYTES:
                raise ConfigError(f"{path}: {size:,} bytes are too many for a trained scorer; is it a model?")
            with safe_open(path, framework="numpy") as opened:
                told = opened.metadata() or {}
            if told.get("schema") != SCHEMA:
                found = f"schema {shown(told['schema'])}" if "schema" in told else "no schema"
                raise ConfigError(f"{path}: no trained scorer ({found}, not {SCHEMA!r}); make one with sp train scorer")
            stored = SafetensorsFile.open(path)
            arrays = {name: stored.weight(name).dense().copy() for name in sorted(stored.tensors)}
            options, made = (json.loads(told[name]) for name in ("options", "made"))
            if not (isinstance(options, dict) and isinstance(made, dict)):
                raise ValueError
            if not all(np.isfinite(array).all() for array in arrays.values()):
                raise ConfigError(f"{path}: holds weights that are no numbers; make it anew with sp train scorer")
            return cls(told["kind"], told["model"], arrays, options, made)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or 'cannot be read'}; make one with sp train scorer") from None
        except (SafetensorError, ModelError, ValueError, KeyError, RecursionError) as error:
            raise ConfigError(
                f"{path}: no trained scorer ({type(error).__name__}); make one with sp train scorer"
            ) from None

    def check(self, path: Path, kind: str, model: Model) -> None:
        """ConfigError unless the file is of a kind and belongs to a model."""
        own, here = plain(self.kind, 40), self.model == model_key(model)
        if self.kind == kind and here:
            return
        train = f"train some for this drafter with sp train scorer (kind: {kind}) and name them: scorer.weights=FILE"
        instead = f", or use --scorer {own}" if here else ""
        if path == EMBEDDED_SCORER and self.kind != kind:
            raise ConfigError(f"scorer {kind} comes without weights; {train}{instead}")
        if path == EMBEDDED_SCORER:
            raise ConfigError(f"scorer {kind} comes with weights for the embedded drafter alone; {train}")
        if self.kind != kind:
            raise ConfigError(f"{path}: weights of scorer {own}, not {kind}; {train}{instead}")
        other = f"{plain(self.model, 60)}, not {model_key(model)}"
        raise ConfigError(f"{path}: trained for another drafter ({other}); {train}")


def shipped(kind: str) -> str:
    """Whether weights for a trained scorer come with `sp`, and for which drafter, in a sentence."""
    if EMBEDDED_SCORER.exists() and ScorerFile.load(EMBEDDED_SCORER).kind == kind:
        return "With weights for the embedded drafter."
    return "Without weights: sp train scorer makes some."


NEWTON_STEPS, CG_STEPS = 50, 200
ENOUGH = 1e-7  # decrease of the loss that a Newton step must promise to be taken
CONSTANT = 1e-6  # variance up to which a feature says nothing and gets no weight: scaled up it would be rounding


class Choice(NamedTuple):
    """Features of one prompt's units, (units, f), and how the choice is shared among them, (units,), summing to one."""

    features: Floats
    shares: Floats


@dataclass(frozen=True)
class Choices:
    """Prompts as one problem, where their arrays lie. `x` float32 (all units, f); `shares` float64 (all units,);
    `mean`, `scale` float64 (f,): features less `mean` times `scale` have mean 0 and deviation 1: those are what weights
    are of here.
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
        """The loss that `fit_choice` makes small, and the probability of every unit."""
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
    """Conditional logistic regression: which units of a prompt are chosen, against the others of the same prompt.

    With ``p = softmax(X w)`` over the units of one prompt and target shares ``t`` that sum to one, the loss is the mean
    over prompts of ``- sum_u t_u log p_u``, plus ``l2 / 2 |w|^2``. It is convex and has no intercept, so prompts of any
    length weigh alike and only the order within a prompt is learnt (McFadden, "Conditional logit analysis of
    qualitative choice behavior", 1974). Newton's method finds it, its steps by conjugate gradients, so that memory and
    time grow with the number of features and not with its square. Weights (f,) are for features as they are given;
    these are standardised inside, where `l2` is meant.
    """
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
    """Along the last axis."""
    weights = array_module(logits).exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


Progress = Callable[[int], None]


@dataclass(frozen=True)
class TrainedScorer(ReadingScorer):
    """Base of them; one class learns and scores, so that both see the same numbers.

    Parameters
    ----------
    sparse
        See `ReadingScorer`.
    weights : str
        File that ``sp train scorer`` made for this drafter; left empty, the embedded one.

    Attributes
    ----------
    learning : type
        Dataclass of the options of learning, which the file carries on to scoring.
    """

    weights: str = ""

    learning: ClassVar[type[Any]]

    @abstractmethod
    def sample(self, request: ScoreRequest, labels: Floats, options: Any) -> Any:
        """What one prompt teaches, or None if none of its document is labelled. `request`: without marks of thinking,
        see `without_markup`; `labels` float (n,): importance of each token as it should be, zero for most.
        """

    @abstractmethod
    def fit(self, samples: Sequence[Any], options: Any, seed: int, progress: Progress) -> dict[str, Floats]:
        """Weights by name from what prompts taught; progress counts to `rounds`."""

    @abstractmethod
    def rounds(self, options: Any) -> int:
        """Steps that `fit` tells of, at most."""

    @abstractmethod
    def shapes(self, model: Model, options: Any) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the weights for a drafter."""

    @abstractmethod
    def weigh(self, request: ScoreRequest, weights: Mapping[str, Floats], options: Any) -> Importance:
        """Importance by weights of those shapes."""

    def score(self, request: ScoreRequest) -> Importance:
        """Open the file, let the drafter read the prompt once, and weigh what it shows."""
        path = Path(self.weights) if self.weights else EMBEDDED_SCORER
        found = self.opened(path, request.model)
        options = self.options(found.options, str(path))
        asking = without_markup(request)
        scored = self.weigh(asking, found.arrays, options)
        return scored if asking is request else padded(scored, len(request.ids))

    def opened(self, path: Path, model: Model) -> ScorerFile:
        """The file, if it is of this kind and for this drafter; ConfigError otherwise."""
        kind = SCORERS.name_of(self)
        if path == EMBEDDED_SCORER and not path.exists():
            raise ConfigError(
                f"no trained scorer is embedded; train one with sp train scorer and name it: --set scorer.weights=FILE "
                f"(--scorer {kind})"
            )
        found = ScorerFile.load(path)
        found.check(path, kind, model)
        wanted = self.shapes(model, self.options(found.options, str(path)))
        shapes = {name: array.shape for name, array in found.arrays.items()}
        if shapes != wanted:
            raise ConfigError(
                f"{path}: weights of shapes {shown(shapes)}, where its options ask for {shown(wanted)}; train it anew"
            )
        return found

    @classmethod
    def options(cls, given: Mapping[str, Any], where: str) -> Any:
        """Options of learning from a mapping, checked; `where` is for messages, which are short whatever is given."""
        try:
            return from_mapping(cls.learning, given, where)
        except ConfigError as error:
            raise ConfigError(plain(str(error), len(where) + 240)) from None


def unit_shares(labels: Floats, bounds: Ints, asking: Asking) -> Doubles | None:
    """How labels (n,) of the document's tokens are shared among its units, summing to one; None if all are zero.

    >>> asking = Asking(4, 2, slice(0, 2), slice(0, 2))
    >>> unit_shares(np.array([0.0, 0, 1, 1, 1, 1]), np.array([0, 2, 4, 6]), asking).tolist()
    [0.0, 1.0]
    """
    last = document_units(bounds, asking).stop
    shares = np.add.reduceat(labels.astype(np.float64), bounds[:-1])[:last]
    total = float(shares.sum())
    shares /= max(total, 1e-300)
    return shares if total > 0 else None


def spread_over(logits: Any, bounds: Ints, asking: Asking) -> Floats:
    """Softmax of the logits (units,) of the document's units, at each of their tokens; zero at those that ask."""
    last = document_units(bounds, asking).stop
    shares = np.zeros(len(bounds) - 1, np.float32)
    shares[:last] = on_host(softmax(logits[:last]))
    spread: Floats = shares[unit_of_token(bounds)]
    return spread
