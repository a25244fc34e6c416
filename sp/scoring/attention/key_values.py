"""Base of scorers that get the queries, keys and values of each attention layer, with one method and no options."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from sp.arrays import Floats
from sp.errors import ConfigError
from sp.models import ModelConfig
from sp.models.run.hooks import counts_on_host
from sp.ops.attention.importance import attention_rows, chunk_means
from sp.ops.attention.kv_pages import PagedKV
from sp.scoring.attention.attention import LayerSet, Rotary, TailScorer, padded, unrotated_keys, unrotated_queries
from sp.scoring.attention.heads import up_to_question
from sp.scoring.base import HEATMAP_CHUNK, SCORERS, Importance, ReadingScorer, ScoreRequest, densities


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """Queries, keys and values of one attention layer, in NumPy, or in CuPy where the drafter runs on a GPU.

    Query head h attends to key and value head ``h // group``. The cache holds one layer at a time: arrays are read from
    it when they are first used, which must be before `KeyValueScorer.score_layer` returns.

    Parameters
    ----------
    layer : int
        Number of the layer, from 0.
    rows : array (queries, heads, head_dim)
        Queries of the last tokens up to the end of the question.
    scored_keys, stored : PagedKV
        The cache of the layer with the keys that `rows` are compared with, and the cache that has the values.
    """

    layer: int
    rows: Floats
    scored_keys: PagedKV
    stored: PagedKV

    @cached_property
    def queries(self) -> Floats:
        """Queries, float32 (queries, heads, head_dim)."""
        return self.rows.astype(np.float32)

    @cached_property
    def keys(self) -> Floats:
        """Keys of all tokens, float32 (tokens, kv_heads, head_dim)."""
        return self.scored_keys.model_keys().astype(np.float32)

    @cached_property
    def values(self) -> Floats:
        """Values of all tokens, float32 (tokens, kv_heads, head_dim)."""
        return self.stored.model_rows()[1].astype(np.float32)

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return int(self.rows.shape[1]) // self.scored_keys.kv_heads

    def weights(self) -> Floats:
        """Return the causal softmax weights of the queries over all tokens, float32 (heads, queries, tokens)."""
        return attention_rows(self.rows, self.scored_keys)


@dataclass(frozen=True)
class KeyValueScorer(ReadingScorer):
    """Base of scorers by queries, keys and values: a subclass writes `score_layer`, and nothing else is required.

    The queries are those of the question's tokens, at most the last 64 of them; where a prompt names no question, those
    of its last 32 tokens. Tokens behind the question, such as marks of thinking, are not read and score zero. The
    importance of a token is the mean over the layers of what `score_layer` returns, whose means over chunks of 32
    tokens are the heat maps.

    Parameters
    ----------
    sparse
        See `ReadingScorer`.

    Attributes
    ----------
    layers : tuple of int, or "middle", "last_half", "every_second", optional
        Layers that are scored, see `AttentionScorer`; layers behind the last of them are not run.
    rotary : {"post", "none"}
        Queries and keys with rotary embedding, as the drafter attends, or without it.
    """

    keeps: ClassVar[bool] = True
    layers: ClassVar[tuple[int, ...] | LayerSet | None] = None
    rotary: ClassVar[Rotary] = "post"

    @abstractmethod
    def score_layer(self, inputs: AttentionInputs) -> Floats:
        """Return the importance of every token by one layer: (tokens,), or (heads, tokens), whose mean counts."""

    def tail_scorer(self) -> TailScorer:
        """Return the scorer whose pass over the prompt is used."""
        return TailScorer(sparse=self.sparse, queries="question", layers=self.layers)

    def reading_depth(self, config: ModelConfig) -> int | None:
        """Return the number of layers up to the last one that is scored."""
        return self.tail_scorer().reading_depth(config)

    def score(self, request: ScoreRequest) -> Importance:
        """Run the drafter once over the prompt and average what `score_layer` returns."""
        asking, model = up_to_question(request), request.model
        tokens = len(asking.ids)
        by_layer: list[Floats] = []
        by_head: list[Floats] = []
        total: list[Floats] = []  # one array (tokens,), the sum over layers, which stays on the device

        def add_layer(layer: int, q: Floats, keys: PagedKV) -> None:
            rows, scored_keys = q, keys
            if self.rotary == "none":
                rows = unrotated_queries(q, asking.positions[-len(q) :], model, layer)
                scored_keys = unrotated_keys(keys, asking.positions, model, layer)
            scores = self.score_layer(AttentionInputs(layer, rows, scored_keys, keys)).astype(np.float32)
            if scores.ndim not in (1, 2) or scores.shape[-1] != tokens:
                raise ConfigError(
                    f"scorer {SCORERS.name_of(self)}: score_layer must return (tokens,) or (heads, tokens) for "
                    f"{tokens} tokens, not an array of shape {scores.shape}"
                )
            if scores.ndim == 2:
                if request.by_head:
                    by_head.append(chunk_means(scores, HEATMAP_CHUNK))
                scores = scores.mean(axis=0)
            by_layer.append(chunk_means(scores, HEATMAP_CHUNK))
            total[:] = [total[0] + scores] if total else [scores]

        attend = self.tail_scorer().visit_layers(asking, add_layer)
        [summed] = counts_on_host(total)
        scores = (summed / np.float32(len(by_layer))).astype(np.float32)
        if not np.isfinite(scores).all():
            raise ConfigError(f"scorer {SCORERS.name_of(self)}: score_layer returned numbers that are not finite")
        importance = Importance(
            scores,
            np.stack(counts_on_host(by_layer)),
            by_head=np.stack(counts_on_host(by_head)) if by_head else None,
            densities=densities(attend),
        )
        return padded(importance, len(request.ids))
