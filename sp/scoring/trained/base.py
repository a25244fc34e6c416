"""TrainedScorer: what scorers share that weigh what a drafter shows by weights from a file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sp.arrays import Doubles, Floats, Ints
from sp.config import from_mapping
from sp.errors import ConfigError, plain
from sp.models import Model
from sp.ops.array_module import on_host
from sp.scoring.attention.tail import padded, without_markup
from sp.scoring.base import SCORERS, Importance, ScoreRequest
from sp.scoring.reading import ReadingScorer
from sp.scoring.trained.attention_features import Asking, document_units
from sp.scoring.trained.choice import softmax
from sp.scoring.trained.units import unit_of_token
from sp.scoring.trained.weights_file import EMBEDDED_SCORER, ScorerFile
from sp.values import shown

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
        """What one prompt teaches, or None if none of its document is labelled.

        Parameters
        ----------
        request : ScoreRequest
            Without marks of thinking, see `prepared`.
        labels : float (n,)
            Importance of each token as it should be, zero for most.
        options : instance of `learning`
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
        asking = prepared(request)
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


def prepared(request: ScoreRequest) -> ScoreRequest:
    """The request up to its last token that asks."""
    return without_markup(request)


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
