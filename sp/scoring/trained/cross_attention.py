"""Score by one trained cross-attention head on the drafter's hidden states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sp.arrays import Floats
from sp.config import check_fields
from sp.errors import ConfigError
from sp.models import Hooks, Model, stream_by_layer
from sp.ops.array_module import array_module, on_host
from sp.prompt.sentences import chunk_bounds
from sp.scoring.attention.attention import MOST_QUESTION_TOKENS
from sp.scoring.base import Importance, ScoreRequest, register_scorer
from sp.scoring.reading import densities
from sp.scoring.trained.attention_features import Asking
from sp.scoring.trained.base import Progress, TrainedScorer, unit_shares
from sp.scoring.trained.cross_head import Seen, attended, fit_head, start_params, unit_rows
from sp.scoring.trained.units import Pool, unit_of_token

MOST_RANK = 256


@dataclass(frozen=True)
class CrossLearning:
    """How the head learns.

    Parameters
    ----------
    rank : int
        Width of its queries and keys.
    depth : int, optional
        Layers of the drafter behind which hidden states are taken; all by default.
    chunk_size : int
        Tokens whose weights are summed, in the loss and in the scores.
    queries : int
        Last tokens that ask, besides the question's.
    epochs, batch, rate, decay
        See `fit_head`.
    most_tokens : int
        Of a longer document so many tokens are learnt from: all chunks with evidence, others drawn at random.
    """

    rank: int = 32
    depth: int | None = None
    chunk_size: int = 32
    queries: int = 8
    epochs: int = 20
    batch: int = 8
    rate: float = 3e-3
    decay: float = 1e-2
    most_tokens: int = 8192

    def __post_init__(self) -> None:
        check_fields(self, "options")
        limits = {
            "rank": MOST_RANK, "chunk_size": 4096, "queries": MOST_QUESTION_TOKENS, "epochs": 10_000,
            "batch": 4096, "most_tokens": 1 << 20,
        }  # fmt: skip
        for name, most in limits.items():
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be from 1 to {most}, not {getattr(self, name)}")
        if self.depth is not None and self.depth < 1:
            raise ConfigError(f"depth must be at least 1, not {self.depth}")
        for name in ("rate", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be from 0 to 1, not {getattr(self, name):g}")


@register_scorer("cross_attention")
@dataclass(frozen=True)
class CrossAttentionScorer(TrainedScorer):
    """Weight that one trained head of low rank gives a chunk, from the question's hidden states to the prompt's.

    Notes
    -----
    LongAttnComp (arXiv 2606.01336) trains one cross-attention layer; here it is a single head, see `cross_head`.
    """

    learning: ClassVar[type[Any]] = CrossLearning

    def hidden(self, request: ScoreRequest, options: Any) -> tuple[Any, Any, Asking, tuple[float, ...]]:
        """Hidden states of the asking tokens (m, d) and of the document (n, d), who asks, and densities."""
        model, n, attend = request.model, len(request.ids), self.attend(request)
        x = stream_by_layer(
            model, request.ids, request.positions, model.new_cache(n, layers=1),
            attend=attend, depth=options.depth, hooks=Hooks(progress=request.progress),
        )  # fmt: skip
        asking = Asking.of(request, options.queries)
        rows = unit_rows(x[n - asking.rows :])
        chosen = sorted({*range(*asking.question.indices(asking.rows)), *range(*asking.tail.indices(asking.rows))})
        return rows[array_module(rows).asarray(chosen)], x[: max(asking.start, 1)], asking, densities(attend)

    def sample(self, request: ScoreRequest, labels: Floats, options: Any) -> Seen | None:
        """See `TrainedScorer`; hidden states stay where the model is, in float16."""
        asking_rows, document, _, _ = self.hidden(request, options)
        n, xp = len(document), array_module(document)
        bounds = chunk_bounds(n, options.chunk_size)
        shares = unit_shares(labels[:n], bounds, Asking(n, 1, slice(0, 1), slice(0, 1)))
        if shares is None:
            return None
        kept = shares > 0
        free = max(options.most_tokens // options.chunk_size - int(kept.sum()), 1)
        others = np.flatnonzero(~kept)
        kept[np.random.default_rng(request.seed).permutation(others)[:free]] = True
        unit = unit_of_token(bounds)
        index = np.flatnonzero(kept[unit])
        number = (np.cumsum(kept) - 1)[unit[index]]
        rows = unit_rows(document[xp.asarray(index)])
        ends = np.append(0, np.cumsum(np.diff(bounds)[kept]))
        half = asking_rows.astype("float16"), rows.astype("float16")
        return Seen(*half, Pool.of(ends, document), xp.asarray(number), xp.asarray(shares[kept]))

    def fit(self, samples: Sequence[Seen], options: Any, seed: int, progress: Progress) -> dict[str, Floats]:
        """See `fit_head`."""
        begin = start_params(samples[0].document.shape[1], options.rank, seed)
        how = {name: getattr(options, name) for name in ("epochs", "batch", "rate", "decay")}
        found = fit_head(samples, begin, **how, seed=seed, progress=progress)
        return {name: on_host(value) for name, value in found.items()}

    def rounds(self, options: Any) -> int:
        """One an epoch."""
        return int(options.epochs)

    def shapes(self, model: Model, options: Any) -> dict[str, tuple[int, ...]]:
        """Two projections and a gate."""
        width = model.config.hidden
        return {"gate": (width,), "key": (width, options.rank), "query": (width, options.rank)}

    def weigh(self, request: ScoreRequest, weights: Mapping[str, Floats], options: Any) -> Importance:
        """See `TrainedScorer`."""
        asking_rows, document, _, density = self.hidden(request, options)
        xp = array_module(document)
        placed = {name: xp.asarray(value) for name, value in weights.items()}
        _, _, probabilities, gates = attended(placed, asking_rows, unit_rows(document))
        bounds = chunk_bounds(len(document), options.chunk_size)
        mass = Pool.of(bounds, document).sums((gates @ probabilities)[None])[0]
        scores = np.zeros(len(request.ids), np.float32)
        scores[: len(document)] = on_host(mass)[unit_of_token(bounds)]
        return Importance(scores, densities=density)
