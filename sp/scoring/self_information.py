"""Score by how surprising each token is to the drafter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.models import Hooks, stream_by_layer
from sp.ops.array_module import array_module, on_host
from sp.scoring.base import Importance, ScoreRequest, register_scorer
from sp.scoring.reading import ReadingScorer, densities

ROWS = 512
"""Tokens whose logits are held at once: with a vocabulary of 150,000, 0.3 GB."""


@register_scorer("self_information")
@dataclass(frozen=True)
class SelfInformationScorer(ReadingScorer):
    """``-log p(token | tokens before it)`` in nats; zero for the first token. It knows of no question.

    Notes
    -----
    Selective Context (arXiv 2304.12102), whose unit is the phrase: take the selector `sentence` or `top_chunks`.
    """

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and look up each token in the prediction before it."""
        model, n, attend = request.model, len(request.ids), self.attend(request)
        x = stream_by_layer(
            model, request.ids, request.positions, model.new_cache(n, layers=1),
            attend=attend, hooks=Hooks(progress=request.progress),
        )  # fmt: skip
        scores = np.zeros(n, np.float32)
        xp, ids = array_module(x), model.place(request.ids)
        for start in range(0, n - 1, ROWS):
            stop = min(start + ROWS, n - 1)
            logits = model.head(x[start:stop])
            most = logits.max(axis=-1, keepdims=True)
            total = xp.log(xp.exp(logits - most).sum(axis=-1)) + most[:, 0]
            scores[start + 1 : stop + 1] = on_host(total - logits[xp.arange(stop - start), ids[start + 1 : stop + 1]])
        return Importance(scores, densities=densities(attend))
