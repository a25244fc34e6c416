"""ReadingScorer: what all scorers share that let a model read the whole prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sp.config import check_fields
from sp.errors import ConfigError
from sp.models import LayerAttention, ModelConfig, SparseAttention, dense_attention, flops
from sp.ops.expected_density import expected_density
from sp.ops.flashprefill import FlashPrefill, TopDensity
from sp.scoring.base import Scorer


@dataclass(frozen=True)
class ReadingScorer(Scorer):
    """How a model attends while it reads the prompt for a scorer.

    Parameters
    ----------
    attention : {"dense", "flashprefill"}
        To everything, or to the blocks FlashPrefill selects.
    alpha : float
        FlashPrefill's threshold; lower reads more.
    density : float, optional
        In place of the threshold: share of the blocks that FlashPrefill's strongest fill up.
    """

    attention: Literal["dense", "flashprefill"] = "dense"
    alpha: float = 0.1
    density: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, "scorer")
        self.attend()

    def selector(self) -> FlashPrefill | TopDensity | None:
        """Which blocks attention reads; None for all."""
        if self.attention == "dense":
            if self.density is not None:
                raise ConfigError("density is for attention='flashprefill'")
            return None
        return FlashPrefill(self.alpha) if self.density is None else TopDensity(self.density)

    def attend(self) -> LayerAttention:
        """What attends in the model's layers; a sparse one is fresh, with nothing counted."""
        selector = self.selector()
        return dense_attention if selector is None else SparseAttention(selector)

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Predicted operations of one reading, at the density that is expected of its attention."""
        selector = self.selector()
        return flops(config, tokens, density=1.0 if selector is None else expected_density(selector, tokens))


def densities(attend: LayerAttention) -> tuple[float, ...]:
    """Share of the blocks each layer read; empty if that was all of them. Waits for the device."""
    return attend.densities() if isinstance(attend, SparseAttention) else ()


def first_layers(config: ModelConfig, depth: int | None) -> ModelConfig:
    """A model of only so many of the layers; all by default."""
    return replace(config, ffn=config.ffn[:depth], kinds=config.kinds[:depth])
