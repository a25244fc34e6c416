"""Base of trained scorers, their files of weights, and the fit of a choice among units."""

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
from sp.scoring.trained.attention_features import Asking, UnitPool, document_units, unit_of_token
from sp.trace import write_atomic
from sp.values import preview

SCHEMA = "sp-scorer/1"
EMBEDDED_SCORER = Path(str(files("sp") / "assets" / "scorer.safetensors"))
MOST_BYTES = 64 << 20  # largest file; the largest head on a drafter of 0.6B has a hundredth of that


@dataclass(frozen=True)
class ScorerFile:
    """Weights of a trained scorer and their origin.

    Attributes
    ----------
    kind : str
        Name of the scorer.
    model : str
        `model_key` of the drafter on whose attention or hidden states the weights were trained.
    arrays : mapping of str to float32 array
        Weights by name.
    options : mapping
        Training options of the scorer, which apply again when it scores.
    made : mapping
        How it was trained, for people and tables: tasks, tasks left out, labels, seed, date.
    """

    kind: str
    model: str
    arrays: Mapping[str, Floats]
    options: Mapping[str, Any]
    made: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the file atomically: an older file is replaced only when the new one is complete."""
        from safetensors.numpy import save

        header = {"kind": self.kind, "model": self.model}
        objects = {name: json.dumps(dict(getattr(self, name)), sort_keys=True) for name in ("options", "made")}
        arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in self.arrays.items()}
        write_atomic(path, save(arrays, {"schema": SCHEMA, **header, **objects}))

    @classmethod
    def load(cls, path: Path) -> ScorerFile:
        """Read a file that `save` wrote.

        ConfigError: it is missing, too large, damaged, or not a trained scorer of this version.
        """
        from safetensors import SafetensorError, safe_open

        try:
            size = path.stat().st_size
            if size > MOST_BYTES:
                raise ConfigError(f"{path}: {size:,} bytes are too many for a trained scorer; pass a scorer's file")
            with safe_open(path, framework="numpy") as opened:
                header = opened.metadata() or {}
            if header.get("schema") != SCHEMA:
                problem = f"schema {preview(header['schema'])}" if "schema" in header else "no schema"
                raise ConfigError(
                    f"{path}: no trained scorer ({problem}, not {SCHEMA!r}); make one with sp train scorer"
                )
            stored = SafetensorsFile.open(path)
            arrays = {name: stored.weight(name).dense().copy() for name in sorted(stored.tensors)}
            options, provenance = (json.loads(header[name]) for name in ("options", "made"))
            if not (isinstance(options, dict) and isinstance(provenance, dict)):
                raise ValueError
            if not all(np.isfinite(array).all() for array in arrays.values()):
                raise ConfigError(f"{path}: some weights are not finite; make the file again with sp train scorer")
            return cls(header["kind"], header["model"], arrays, options, provenance)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or 'cannot be read'}; make one with sp train scorer") from None
        except (SafetensorError, ModelError, ValueError, KeyError, RecursionError) as error:
            raise ConfigError(
                f"{path}: no trained scorer ({type(error).__name__}); make one with sp train scorer"
            ) from None

    def check(self, path: Path, kind: str, model: Model) -> None:
        """Raise ConfigError unless the file is of a kind and belongs to a model."""
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
    """Return a sentence that says if weights of a trained scorer come with `sp`, and for which drafter."""
    if EMBEDDED_SCORER.exists() and ScorerFile.load(EMBEDDED_SCORER).kind == kind:
        return "With weights for the embedded drafter."
    return "Without weights: sp train scorer makes some."


NEWTON_STEPS, CG_STEPS = 50, 200
ENOUGH = 1e-7  # predicted decrease of the loss below which no further Newton step is made
CONSTANT = 1e-6  # variance up to which a feature is constant and gets no weight: scaled up it would be rounding errors


class LabelledUnits(NamedTuple):
    """Features of one prompt's units, (units, f), and their target shares, (units,), which sum to one."""

    features: Floats
    shares: Floats


@dataclass(frozen=True)
class ChoiceProblem:
    """The units of all prompts as one optimisation problem, on the device of their arrays.

    Attributes
    ----------
    x : float32 (all units, f)
        Features.
    shares : float64 (all units,)
        Target shares.
    pool : UnitPool
        Units of each prompt.
    owner : int (all units,)
        Prompt of each unit.
    mean, scale : float64 (f,)
        ``(x - mean) * scale`` has mean 0 and standard deviation 1; weights of the problem refer to these features.
    l2 : float
        Weight of the penalty.
    """

    x: Any
    shares: Any
    pool: UnitPool
    owner: Any
    mean: Any
    scale: Any
    l2: float

    @classmethod
    def of(cls, prompts: Sequence[LabelledUnits], l2: float) -> ChoiceProblem:
        """Join prompts to one problem."""
        xp = array_module(prompts[0].features)
        bounds = np.cumsum([0, *(len(prompt.features) for prompt in prompts)])
        x = xp.concatenate([prompt.features for prompt in prompts]).astype(xp.float32)
        mean = x.mean(axis=0, dtype=xp.float64)
        variance = sum(((prompt.features - mean) ** 2).sum(axis=0) for prompt in prompts) / len(x)
        scale = xp.where(variance > CONSTANT, 1 / xp.sqrt(xp.maximum(variance, CONSTANT)), 0)  # 0 drops the feature
        shares = xp.concatenate([xp.asarray(prompt.shares, xp.float64) for prompt in prompts])
        return cls(x, shares, UnitPool.of(bounds, x), xp.asarray(unit_of_token(bounds)), mean, scale, l2)

    @property
    def prompts(self) -> int:
        """Number of prompts."""
        return len(self.pool.index)

    def logits(self, w: Any) -> Any:
        """Return the logit of every unit for weights (f,)."""
        scaled = self.scale * w
        return self.x @ scaled.astype("float32") - self.mean @ scaled

    def back(self, values: Any) -> Any:
        """Apply the transpose of `logits`: return (f,) for values (all units,)."""
        return self.scale * (values.astype("float32") @ self.x - self.mean * values.sum())

    def loss(self, w: Any) -> tuple[float, Any]:
        """Return the loss that `fit_choice` minimises, and the probability of every unit."""
        xp, z = array_module(self.x), self.logits(w)
        top = self.pool.largest(z[None])[0]
        # The logarithm of the sum of exponentials in each prompt, shifted by its largest logit so that none overflows.
        norm = top + xp.log(self.pool.sums(xp.exp(z - top[self.owner])[None])[0])
        value = float(norm.sum() - self.shares @ z) / self.prompts + self.l2 / 2 * float(w @ w)
        return value, xp.exp(z - norm[self.owner])

    def gradient(self, w: Any, p: Any) -> Any:
        """Return the gradient of the loss, (f,), at weights `w` with the probabilities `p`."""
        return self.back(p - self.shares) / self.prompts + self.l2 * w

    def curve(self, p: Any, direction: Any) -> Any:
        """Return the product of the Hessian with a direction, (f,)."""
        change = self.logits(direction)
        expected = self.pool.sums((p * change)[None])[0]
        return self.back(p * (change - expected[self.owner])) / self.prompts + self.l2 * direction


def fit_choice(prompts: Sequence[LabelledUnits], l2: float) -> Doubles:
    """Fit a conditional logistic regression: the units of a prompt that are chosen against the others of the prompt.

    With ``p = softmax(X w)`` over the units of one prompt and target shares ``t`` that sum to one, the loss is the mean
    over prompts of ``- sum_u t_u log p_u``, plus ``l2 / 2 |w|^2``. It is convex and has no intercept, so prompts of any
    length have equal weight and only the order within a prompt is learnt (McFadden, "Conditional logit analysis of
    qualitative choice behavior", 1974). Newton's method with steps by conjugate gradients minimises it, so that memory
    and time grow with the number of features and not with its square. The returned weights (f,) are for features as
    passed in; the fit standardises them, and `l2` applies to the weights of standardised features.
    """
    problem = ChoiceProblem.of(prompts, l2)
    w = array_module(problem.x).zeros(problem.x.shape[1])
    loss, p = problem.loss(w)
    for _ in range(NEWTON_STEPS):
        gradient = problem.gradient(w, p)
        step = _solve(problem, p, gradient)
        promised, size = float(gradient @ step), 1.0
        # Halve the step until the loss falls by a part of what the gradient promises (Armijo's rule).
        while promised > ENOUGH and size > 1e-4:
            tried, tried_p = problem.loss(w - size * step)
            if tried < loss - 1e-4 * size * promised:
                break
            size /= 2
        else:
            break
        w, loss, p = w - size * step, tried, tried_p
    weights: Doubles = on_host(w * problem.scale)
    return weights


def _solve(problem: ChoiceProblem, p: Any, gradient: Any) -> Any:
    """Solve Hessian x = gradient by conjugate gradients, to a thousandth of the gradient's norm."""
    xp = array_module(gradient)
    solution, residual = xp.zeros_like(gradient), gradient.copy()
    direction, norm = residual.copy(), float(residual @ residual)
    goal = norm * 1e-6  # squared norms, so this is a thousandth
    for _ in range(CG_STEPS):
        if norm <= goal or norm == 0:
            break
        curved = problem.curve(p, direction)
        step = norm / float(direction @ curved)
        solution += step * direction
        residual -= step * curved
        previous, norm = norm, float(residual @ residual)
        direction = residual + norm / previous * direction
    return solution


def softmax(logits: Any) -> Any:
    """Return the softmax along the last axis."""
    weights = array_module(logits).exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


Progress = Callable[[int], None]


@dataclass(frozen=True)
class TrainedScorer(ReadingScorer):
    """Base of trained scorers; one class trains and scores, so that both use the same features.

    Parameters
    ----------
    sparse
        See `ReadingScorer`.
    weights : str
        File that ``sp train scorer`` made for this drafter; if empty, the embedded one.

    Attributes
    ----------
    learning : type
        Dataclass of the training options, which the file stores for scoring.
    """

    weights: str = ""

    learning: ClassVar[type[Any]]

    @abstractmethod
    def sample(self, request: ScoreRequest, labels: Floats, options: Any) -> Any:
        """Return the training sample of one prompt, or None if no token of its document has a label.

        `request` has no marks of thinking, see `without_markup`; `labels` float (n,) is the target importance of each
        token, zero for most.
        """

    @abstractmethod
    def fit(self, samples: Sequence[Any], options: Any, seed: int, progress: Progress) -> dict[str, Floats]:
        """Return weights by name, fitted to samples; progress counts to `rounds`."""

    @abstractmethod
    def rounds(self, options: Any) -> int:
        """Return the largest number of steps that `fit` reports."""

    @abstractmethod
    def shapes(self, model: Model, options: Any) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the weights for a drafter."""

    @abstractmethod
    def score_with(self, request: ScoreRequest, weights: Mapping[str, Floats], options: Any) -> Importance:
        """Return the importance by weights of those shapes."""

    def score(self, request: ScoreRequest) -> Importance:
        """Open the file, run the drafter once over the prompt, and score with the file's weights."""
        path = Path(self.weights) if self.weights else EMBEDDED_SCORER
        file = self.open_weights(path, request.model)
        options = self.options(file.options, str(path))
        shortened = without_markup(request)
        scored = self.score_with(shortened, file.arrays, options)
        return scored if shortened is request else padded(scored, len(request.ids))

    def open_weights(self, path: Path, model: Model) -> ScorerFile:
        """Return the file, if it is of this kind and for this drafter; ConfigError otherwise."""
        kind = SCORERS.name_of(self)
        if path == EMBEDDED_SCORER and not path.exists():
            raise ConfigError(
                f"no trained scorer is embedded; make one with sp train scorer and pass --set scorer.weights=FILE "
                f"(--scorer {kind})"
            )
        file = ScorerFile.load(path)
        file.check(path, kind, model)
        expected = self.shapes(model, self.options(file.options, str(path)))
        shapes = {name: array.shape for name, array in file.arrays.items()}
        if shapes != expected:
            raise ConfigError(
                f"{path}: weights have shapes {preview(shapes)}, but its options need {preview(expected)}; "
                "train it again"
            )
        return file

    @classmethod
    def options(cls, values: Mapping[str, Any], where: str) -> Any:
        """Return checked training options from a mapping; messages begin with `where` and have a bounded length."""
        try:
            return from_mapping(cls.learning, values, where)
        except ConfigError as error:
            raise ConfigError(plain(str(error), len(where) + 240)) from None


def unit_shares(labels: Floats, bounds: Ints, asking: Asking) -> Doubles | None:
    """Return the shares of labels (n,) among the document's units, which sum to one; None if all labels are zero.

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
    """Return the softmax of the logits (units,) over the document's units for each token; zero for query tokens."""
    last = document_units(bounds, asking).stop
    shares = np.zeros(len(bounds) - 1, np.float32)
    shares[:last] = on_host(softmax(logits[:last]))
    by_token: Floats = shares[unit_of_token(bounds)]
    return by_token
