"""Score by late interaction: each asking token looks for the most similar token of every chunk, in a learnt space."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from sp.arrays import Floats
from sp.models import Cache, Model, ModelConfig
from sp.models.config import first_layers
from sp.ops.array_module import array_module, on_host
from sp.ops.attention.paged_kv import PagedKV
from sp.ops.attention.unrotate import unrotate
from sp.scoring.attention.attention import MOST_QUESTION_TOKENS, read_on
from sp.scoring.attention.calibrated import LAST_QUERIES
from sp.scoring.base import Importance, ScoreRequest, register_scorer
from sp.scoring.reading import ReadingScorer, densities
from sp.scoring.trained.scoring_head import ScoringHead, head_for

CHUNK = 32
"""Tokens of a chunk, as the head learnt them."""
LEAD = 2
"""Tokens before the question, of the blank line, that ask with it, as the head learnt it."""
SLICE = 1 << 16
"""Tokens that are projected at once, whole chunks: a bound on memory."""


@register_scorer("late_interaction")
@dataclass(frozen=True)
class LateInteractionScorer(ReadingScorer):
    """Similarity of the question's tokens to a chunk's, in a space that was trained for one drafter.

    A token is a row ``x``: what the drafter's layers have as its un-rotated keys and values; an asking token is a row
    ``q`` of their un-rotated queries. With `key` B, `query` A and `gate` g of a `ScoringHead`, a chunk c is worth

        ``sum_i softmax_i(q_i g) max_(j in c) cos(q_i A, x_j B)``

    over asking tokens i: those of the question, of the blank line before it and of the markup behind it, and only the
    last 64 of them; where a prompt names no question, its last 32 tokens. A token of the document is worth what its
    chunk is, an asking one nothing. Layers behind the head's last are not run.

    Parameters
    ----------
    attention, alpha, density, blocks
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
        rows = min(n - start, MOST_QUESTION_TOKENS)
        space = Space(model, head, n, rows, model.place(request.positions))

        def watch(layer: int, q: Floats, cache: Cache) -> None:
            space.add(layer, q[-rows:], cache.stored(layer))

        # Of several cards the first reads alone: what a head needs is loaded and allocated where its layers begin, when
        # cards already wait for each other (`FIRST_STEPS` of `sp.parallel.nccl_card`), and they might wait for ever.
        read_on(replace(request, cards=None), watch, attend=attend, rows=rows, depth=head.depth)
        worth = space.worth()
        scores = np.repeat(worth, CHUNK)[:n]
        scores[start:] = 0
        return Importance(scores, by_layer=worth[None], densities=densities(attend))


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


@dataclass
class Space:
    """Tokens of a prompt in the space of a head, gathered layer by layer; only the sums over layers are held.

    Parameters
    ----------
    model : Model
    head : ScoringHead
    tokens, rows : int
        Of the prompt, and its last ones that ask.
    positions : int64 (tokens,)
        Where the model is.
    """

    model: Model
    head: ScoringHead
    tokens: int
    rows: int
    positions: Any
    document: Any = None
    asking: Any = None
    gates: Any = field(default=0.0)
    weights: dict[tuple[str, int], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Place all weights before anything is read: a copy between launches would make the host wait."""
        xp, head = array_module(self.positions), self.head
        for name, part in (("query", head.query), ("key", head.key), ("gate", head.gate)):
            self.weights |= {(name, layer): xp.asarray(array) for layer, array in part.items()}

    def add(self, layer: int, q: Floats, at: PagedKV) -> None:
        """Take a layer's queries (rows, heads, d) of the last tokens, rotated, and all its keys and values."""
        xp, config = array_module(q), self.model.config
        if layer in self.head.query:
            flat = _flat(unrotate(q.copy(), self.positions[-self.rows :], config.rope))
            found = flat @ self.weights["query", layer]
            self.asking = found if self.asking is None else self.asking + found
            self.gates = self.gates + flat @ self.weights["gate", layer]
        if layer in self.head.key:
            if self.document is None:
                self.document = xp.zeros((self.tokens, self.head.rank), np.float32)
            keys, values = xp.split(self.weights["key", layer], 2)
            k, v = replace(at, tokens=self.tokens).gather()
            k = unrotate(k, self.positions, config.rope)
            for first in range(0, self.tokens, SLICE):
                part = slice(first, first + SLICE)
                self.document[part] += _flat(k[part]) @ keys + _flat(v[part]) @ values

    def worth(self) -> Floats:
        """Of every chunk, from 0 to 2, float32 (chunks,); waits for the device."""
        xp = array_module(self.document)
        asking = _unit_length(self.asking)
        weights = xp.exp(self.gates - self.gates.max())
        weights /= weights.sum()
        found = []
        for first in range(0, self.tokens, SLICE):
            alike = _unit_length(self.document[first : first + SLICE]) @ asking.T  # (tokens, rows)
            whole = xp.full((-(-len(alike) // CHUNK) * CHUNK, self.rows), -1, np.float32)
            whole[: len(alike)] = alike
            found.append(whole.reshape(-1, CHUNK, self.rows).max(axis=1) @ weights)
        worth: Floats = np.asarray(on_host(1 + xp.concatenate(found)), np.float32)
        return worth


def _flat(rows: Any) -> Any:
    """Heads (n, heads, d) side by side as float32 (n, heads x d)."""
    return rows.reshape(len(rows), -1).astype(np.float32)


def _unit_length(rows: Any) -> Any:
    """Rows (n, rank) scaled to length one."""
    xp = array_module(rows)
    return rows / xp.sqrt((rows * rows).sum(axis=1, keepdims=True) + np.float32(1e-12))
