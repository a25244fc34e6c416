"""Score by late interaction: asking tokens look for the most similar one of a sentence or window, in a learnt space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from sp.arrays import Floats, Ints
from sp.models import Cache, Hooks, ModelConfig
from sp.models.config import first_layers
from sp.ops.attention.reduction import chunk_means
from sp.prompt.sentences import chunk_bounds, sentence_bounds
from sp.scoring.attention.attention import MOST_QUESTION_TOKENS, Fold, Reduction, read_on, unrotated_keys
from sp.scoring.attention.calibrated import LAST_QUERIES
from sp.scoring.base import HEATMAP_CHUNK, Importance, ScoreRequest, register_scorer
from sp.scoring.reading import ReadingScorer, densities
from sp.scoring.trained.scoring_head import ScoringHead, head_for
from sp.scoring.trained.space import Space

LONGEST = 64
"""Tokens of a sentence, at most, that is compared as one."""
ATTENTION = 0.25
"""How much attention counts, of three parts with the same spread; see ``experiments/scoring_head``."""
POOL = 13
"""Tokens over which attention is averaged."""
LOOKED_AT = Reduction("queries,heads,pool", "max", "max", POOL)
FINENESS = 16
"""Tokens of a chunk that scores can tell from the next."""
LEAD = 2
"""Tokens before the question, of the blank line, that ask with it, as the head learnt it."""


@register_scorer("late_interaction")
@dataclass(frozen=True)
class LateInteractionScorer(ReadingScorer):
    """Similarity of the question's tokens to a text's, in a space that was trained for one drafter, and its attention.

    A token is a row ``x``: what the drafter's layers have as its un-rotated keys and values; an asking token is a row
    ``q`` of their un-rotated queries. With `key` B, `query` A and `gate` g of a `ScoringHead`, a unit u of tokens has

        ``sum_i softmax_i(q_i g) max_(j in u) cos(q_i A, x_j B)``

    over asking tokens i: those of the question, of the blank line before it and of the markup behind it, and only the
    last 64 of them; where a prompt names no question, its last 32 tokens. A token is worth

        ``z(its sentence's) + z(the best of the windows of 64 tokens that hold it) + 0.25 z(a)``

    where z takes the mean from the tokens before the question and divides by their standard deviation, and a is the
    largest un-rotated attention of any asking token and head of the head's last layer, as a mean over 13 tokens. A
    sentence tells facts apart, a window finds what is said in several. Asking tokens are worth least. Layers behind
    the head's last are not run.

    Parameters
    ----------
    sparse
        See `ReadingScorer`.
    weights : str
        File of a head; left empty, that which ships for the drafter's file.

    Notes
    -----
    The sum of maxima is that of ColBERT (arXiv 2004.12832); how the head was trained: ``experiments/scoring_head``.
    """

    retrieves: ClassVar[bool] = True
    calibrate: ClassVar[str] = "never"
    """A head is looked up by the file alone; no measurement would bring one."""

    weights: str = ""

    def head(self, config: ModelConfig) -> ScoringHead:
        """The head, checked against the model; ConfigError if there is none for it."""
        return head_for(config, self.weights)

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Predicted operations of the layers that are run; those of the head are few."""
        return super().flops(first_layers(config, self.head(config).depth), tokens)

    def kept_layers(self, config: ModelConfig) -> ModelConfig | None:
        """All that are run."""
        return first_layers(config, self.head(config).depth)

    def reading_depth(self, config: ModelConfig) -> int | None:
        """Up to the head's last layer."""
        return self.head(config).depth

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter's first layers once over the prompt, and compare; ConfigError if there is no head for it."""
        model, n = request.model, len(request.ids)
        head, attend = self.head(model.config), self.attend(request)
        start = first_asking(request)
        rows, last = min(n - start, MOST_QUESTION_TOKENS), max(head.query)
        space, fold = Space(model, head, n, rows, model.place(request.positions)), Fold(LOOKED_AT)

        def show(layer: int, q: Floats, cache: Cache) -> None:
            at = cache.stored(layer)
            space.add(layer, q[-rows:], at)
            if layer == last and start:
                keys = unrotated_keys(at, space.positions[:start], model)  # which lie where the model is
                fold.add_layer(space.unrotated(q[-rows:]), keys, causal=False)

        # Of several cards the first reads alone: what a head needs is loaded and allocated where its layers begin, when
        # cards already wait for each other (`FIRST_STEPS` of `sp.parallel.nccl_card`), and they might wait for ever.
        read_on(replace(request, cards=None), Hooks(show), attend=attend, rows=rows, depth=head.depth)
        scores = np.zeros(n, np.float32)
        if start:
            bounds = units_of(request, start)
            sentences = np.repeat(space.of_units(bounds), np.diff(bounds))
            scores[:start] = joined((sentences, space.of_windows(start), fold.result()), (1, 1, ATTENTION))
        return Importance(
            scores, by_layer=chunk_means(scores[None], HEATMAP_CHUNK), densities=densities(attend), fineness=FINENESS
        )


def units_of(request: ScoreRequest, tokens: int) -> Ints:
    """Bounds (units + 1,) of sentences in the first so many tokens; of chunks where the text is not known."""
    if request.spans is None:
        return chunk_bounds(tokens, FINENESS)
    return sentence_bounds(request.text, request.spans[:tokens], LONGEST)


def joined(parts: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """Weighted sum of parts (n,), each with mean 0 and standard deviation 1, from 0 for the least on; float32.

    Examples
    --------
    >>> joined([np.array([0, 2]), np.array([5, 5]), np.array([3, 1])], (1, 1, 0.25)).tolist()
    [0.0, 1.5]
    """
    total = np.zeros(len(parts[0]))
    for part, weight in zip(parts, weights, strict=True):
        spread = float(part.std(dtype=np.float64))
        if spread > 0:
            total += weight * (part - part.mean(dtype=np.float64)) / spread
    found: Floats = np.asarray(total - total.min(), np.float32)
    return found


def first_asking(request: ScoreRequest) -> int:
    """The first token that asks: the question's, with the blank line before it; without one, of the last tokens.

    Examples
    --------
    >>> none, ids = np.zeros(9, bool), np.arange(9)
    >>> [first_asking(ScoreRequest(None, ids, ids, question, none)) for question in (ids >= 6, none)]
    [4, 0]
    """
    if not request.question.any():
        return max(0, len(request.ids) - LAST_QUERIES)
    return max(0, int(request.question.argmax()) - LEAD)
