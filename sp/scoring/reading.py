"""ReadingScorer: what all scorers share that let a model read the whole prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from sp.config import check_fields
from sp.errors import ConfigError
from sp.models import LayerAttention, ModelConfig, SparseAttention, dense_attention, flops
from sp.ops.sparse.block_budget import BlockBudget, read_rule
from sp.ops.sparse.expected_density import expected_density
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity
from sp.scoring.base import SCORERS, Scorer, ScoreRequest

SPARSE_TOKENS = 16384
"""From here on sparse attention saves a drafter on the GPU more than choosing costs. At alpha 0.1 it lost none of the
needles that dense attention kept, up to 128K tokens (results/nvidia-h200/flashprefill_quality.jsonl)."""

DRAFTING = ("scorer", "attention", "alpha", "density", "blocks")
"""Of a record's configuration: how the drafter read, which decides what it cost; see `drafting`."""


@dataclass(frozen=True)
class ReadingScorer(Scorer):
    """How a model attends while it reads the prompt for a scorer.

    Parameters
    ----------
    attention : {"dense", "flashprefill", "auto"}
        To everything, or to the blocks FlashPrefill selects; or that on the GPU from `SPARSE_TOKENS` on.
    alpha : float
        FlashPrefill's threshold; lower reads more.
    density : float, optional
        In place of the threshold: share of the blocks that FlashPrefill's strongest fill up.
    blocks : str, optional
        In place of both: how many of the strongest blocks, by rule: ``constant:64``, ``sqrt:64`` (so many of 32K
        tokens), ``energy:0.9`` (the fewest that hold this share of a query block's energy).
    """

    attention: Literal["dense", "flashprefill", "auto"] = "dense"
    alpha: float = 0.1
    density: float | None = None
    blocks: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, "scorer")
        if self.attention == "dense" and self.density is not None:
            raise ConfigError("density is for attention='flashprefill'")
        if self.attention == "dense" and self.blocks is not None:
            raise ConfigError("blocks is for attention='flashprefill'")
        if self.density is not None and self.blocks is not None:
            raise ConfigError("density and blocks both say how many blocks are read; give one")
        self.choice()

    def settled(self, device: str, tokens: int) -> ReadingScorer:
        """With `auto` decided."""
        if self.attention != "auto":
            return self
        if device == "cuda" and tokens >= SPARSE_TOKENS:
            return replace(self, attention="flashprefill")
        return replace(self, attention="dense", density=None, blocks=None)

    def selector(self) -> FlashPrefill | TopDensity | BlockBudget | None:
        """Which blocks attention reads; None for all, and where `auto` is not decided."""
        return self.choice() if self.attention == "flashprefill" else None

    def choice(self) -> FlashPrefill | TopDensity | BlockBudget:
        """Which blocks attention reads where it is sparse."""
        if self.blocks is not None:
            return read_rule(self.blocks, "blocks")
        return FlashPrefill(self.alpha) if self.density is None else TopDensity(self.density)

    def attend(self, request: ScoreRequest) -> LayerAttention:
        """What attends in the model's layers; a sparse one is fresh, with nothing counted."""
        selector = self.settled(request.model.device, len(request.ids)).selector()
        return dense_attention if selector is None else SparseAttention(selector)

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Predicted operations of one reading, at the density that is expected of its attention."""
        selector = self.selector()
        return flops(config, tokens, density=1.0 if selector is None else expected_density(selector, tokens))


def by_length(scorer: Scorer) -> Scorer:
    """The scorer with its attention left to device and prompt length, if it attends at all and densely so far."""
    dense = isinstance(scorer, ReadingScorer) and scorer.attention == "dense"
    return replace(scorer, attention="auto") if dense else scorer  # type: ignore[type-var]


def drafting(scorer: Scorer) -> dict[str, Any]:
    """How a scorer makes the drafter read, as records have it.

    Examples
    --------
    >>> import sp.scoring
    >>> drafting(SCORERS.build("tail", {"attention": "flashprefill", "alpha": 0.2}))
    {'scorer': 'tail', 'attention': 'flashprefill', 'alpha': 0.2, 'density': None, 'blocks': None}
    """
    told = {name: getattr(scorer, name, None) for name in DRAFTING[1:]}
    if told["attention"] != "flashprefill" or told["density"] is not None or told["blocks"] is not None:
        told["alpha"] = None
    return {"scorer": SCORERS.name_of(scorer), **told}


def attending(config: Mapping[str, Any]) -> str:
    """How sparsely a drafter was to read, of a configuration that has some of `DRAFTING`; nothing where densely.

    Examples
    --------
    >>> attending({"density": 0.05}), attending({"blocks": "sqrt:64", "alpha": None})
    ('density 0.05', 'blocks sqrt:64')
    """
    given = ((name, config.get(name)) for name in ("blocks", "density", "alpha"))
    return next((f"{n} {v if isinstance(v, str) else format(v, 'g')}" for n, v in given if v is not None), "")


def densities(attend: LayerAttention) -> tuple[float, ...]:
    """Share of the blocks each layer read; empty if that was all of them. Waits for the device."""
    return attend.densities() if isinstance(attend, SparseAttention) else ()
