"""What the attention scorers share: which queries and layers count, how the drafter attends, and how to reduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp.arrays import Floats, Ints
from sp.config import check_fields
from sp.errors import ConfigError
from sp.kernels import is_device
from sp.models import LayerAttention, Model, ModelConfig, SparseAttention, dense_attention
from sp.models.pages import Stored
from sp.ops.flashprefill import FlashPrefill, TopDensity
from sp.ops.kv_pages import kv_gather, unpacked_pages
from sp.ops.unrotate import unrotate
from sp.quant import F16, F32
from sp.scoring.base import Importance, Scorer
from sp.scoring.reduction import Fold, Reduction

Rotary = Literal["post", "none"]


@dataclass(frozen=True)
class AttentionScorer(Scorer):
    """Options of scorers that reduce a drafter's attention.

    Parameters
    ----------
    queries : int
        Number of query tokens whose attention counts.
    rotary : {"post", "none"}
        Score with rotary embedding (as the drafter attends) or without it (position-free relevance).
    order, over_heads, over_queries, pool, edges
        The steps of `Reduction` and how each is done.
    attention : {"dense", "flashprefill"}
        How the drafter itself attends while it reads: to everything, or to the blocks FlashPrefill selects.
    alpha : float
        FlashPrefill's threshold; lower reads more.
    density : float, optional
        In place of the threshold: share of the blocks that FlashPrefill's strongest fill up.
    layers : tuple of int, optional
        Layers whose attention counts; negative ones count from the end of those that are run. All by default.
    depth : int, optional
        Run only so many of the drafter's layers.
    """

    queries: int = 8
    rotary: Rotary = "post"
    order: str = "pool,heads,queries"
    over_heads: Literal["max", "mean"] = "max"
    over_queries: Literal["mean", "max"] = "mean"
    pool: int = 13
    edges: Literal["renormalise", "zero"] = "renormalise"
    attention: Literal["dense", "flashprefill"] = "dense"
    alpha: float = 0.1
    density: float | None = None
    layers: tuple[int, ...] | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, "attention scorer")
        if self.queries < 1:
            raise ConfigError(f"queries must be at least 1, not {self.queries}")
        if self.depth is not None and self.depth < 1:
            raise ConfigError(f"depth must be at least 1, not {self.depth}")
        self.reduction()
        self.attend()

    def reduction(self) -> Reduction:
        """The reduction these options describe."""
        return Reduction(self.order, self.over_heads, self.over_queries, self.pool, self.edges)

    def attend(self) -> LayerAttention:
        """What attends in the drafter's layers; a sparse one is fresh, with nothing counted."""
        if self.attention == "dense":
            if self.density is not None:
                raise ConfigError("density is for attention='flashprefill'")
            return dense_attention
        return SparseAttention(FlashPrefill(self.alpha) if self.density is None else TopDensity(self.density))

    def scored_layers(self, config: ModelConfig) -> tuple[int, ...]:
        """Attention layers that count, ascending.

        Raises
        ------
        ConfigError
            For a layer that is not run or has no attention, or when none is left.
        """
        depth = config.layers if self.depth is None else self.depth
        if depth > config.layers:
            raise ConfigError(f"depth is {depth}, but the drafter has {config.layers} layers")
        there = [layer for layer in config.attention_layers if layer < depth]
        asked = there if self.layers is None else [layer + depth * (layer < 0) for layer in self.layers]
        for layer in asked:
            if layer not in there:
                raise ConfigError(f"layer {layer} is not among the attention layers that are run: {there}")
        if not asked:
            raise ConfigError(f"none of the first {depth} layers of the drafter has attention")
        return tuple(sorted(set(asked)))

    def rows(self, q: Floats, positions: Ints, model: Model) -> Floats:
        """Queries as they are scored; the ones given stay as they are."""
        if self.rotary == "post":
            return q
        turned: Floats = q.copy() if is_device(q) else q
        return unrotate(turned, model.place(positions), model.config.rope_base, model.config.rope_dim)

    def keys(self, at: Stored, positions: Ints, model: Model) -> Stored:
        """Keys of the first ``len(positions)`` tokens as they are scored."""
        at = at._replace(tokens=len(positions))
        return at if self.rotary == "post" else _unrotated(at, positions, model)


def importance_of(fold: Fold, attend: LayerAttention, generated: tuple[int, ...] = ()) -> Importance:
    """What a scorer returns; waits for the device."""
    densities = attend.densities() if isinstance(attend, SparseAttention) else ()
    return Importance(fold.result(), fold.heatmap(), generated, fold.head_maps(), densities)


def _unrotated(at: Stored, positions: Ints, model: Model) -> Stored:
    """The same keys without rotary embedding, as pages in order."""
    base, rope_dim = model.config.rope_base, model.config.rope_dim
    if is_device(at.k):
        pages = unpacked_pages(at.k, at.table, at.tokens, at.fmt)
        blocks, _, kv_heads, d = pages.shape
        unrotate(pages.reshape(-1, kv_heads, d)[: at.tokens], model.place(positions), base, rope_dim)
        return Stored(pages.view(np.uint8), at.v, model.place(np.arange(blocks), np.int32), at.tokens, F16)
    keys = unrotate(kv_gather(at.k, at.table, at.tokens, at.fmt), positions, base, rope_dim)
    return Stored(np.ascontiguousarray(keys).view(np.uint8)[None], at.v, np.zeros(1, np.int64), at.tokens, F32)
