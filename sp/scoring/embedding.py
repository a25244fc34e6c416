"""Score by how near a chunk's hidden states are to the question's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.errors import ConfigError
from sp.models import Hooks, ModelConfig, stream_by_layer
from sp.models.config import first_layers
from sp.ops.array_module import array_module, on_host
from sp.scoring.attention.attention import question_start
from sp.scoring.base import Importance, ScoreRequest, register_scorer
from sp.scoring.reading import ReadingScorer, densities


@register_scorer("embedding")
@dataclass(frozen=True)
class EmbeddingScorer(ReadingScorer):
    """Cosine of a chunk's mean hidden state and the question's: retrieval by embeddings, with the drafter as encoder.

    Parameters
    ----------
    chunk_size : int
        Tokens of a chunk; all score alike.
    centred : bool
        Take the mean hidden state of all chunks away first, for hidden states of one text point much the same way.
    depth : int, optional
        Run only so many of the drafter's layers.
    """

    chunk_size: int = 32
    centred: bool = True
    depth: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_size < 1:
            raise ConfigError(f"chunk_size must be at least 1, not {self.chunk_size}")
        if self.depth is not None and self.depth < 1:
            raise ConfigError(f"depth must be at least 1, not {self.depth}")

    def reading_depth(self, config: ModelConfig) -> int | None:
        """Those whose stream is compared."""
        return config.layers if self.depth is None else self.depth

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Predicted operations of the layers that are run."""
        return super().flops(first_layers(config, self.depth), tokens)

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and compare chunks with the question."""
        model, n, attend = request.model, len(request.ids), self.attend(request)
        question_start(request)
        x = stream_by_layer(
            model, request.ids, request.positions, model.new_cache(n, layers=1),
            attend=attend, depth=self.depth, hooks=Hooks(progress=request.progress),
        )  # fmt: skip
        asked = x[model.place(request.question.nonzero()[0])].mean(axis=0)
        chunks = _row_means(x, self.chunk_size)
        centre = chunks.mean(axis=0) if self.centred else 0
        chunks, asked = chunks - centre, asked - centre
        lengths = (chunks**2).sum(axis=1) * (asked**2).sum()
        cosine = (chunks * asked).sum(axis=1) / (lengths + np.float32(1e-20)) ** 0.5
        scores = np.repeat(on_host(cosine).astype(np.float32), self.chunk_size)[:n]
        return Importance(scores, densities=densities(attend))


def _row_means(x: Any, size: int) -> Any:
    """Means over `size` rows of x (n, hidden) at a time; the last over those that are left."""
    xp, whole = array_module(x), len(x) // size
    parts = [x[: whole * size].reshape(whole, size, x.shape[1]).mean(axis=1)]
    if len(x) % size:
        parts.append(x[whole * size :].mean(axis=0)[None])
    return xp.concatenate(parts)
