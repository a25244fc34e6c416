"""ReadingScorer: what all scorers share that let a model read the whole prompt."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sp.config import check_fields
from sp.errors import ConfigError, SpWarning
from sp.models import LayerAttention, ModelConfig, SparseAttention, dense_attention, flops
from sp.ops.sparse.block_budget import RULES, BlockBudget, read_rule
from sp.ops.sparse.expected_density import expected_density
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity
from sp.scoring.base import SCORERS, Scorer, ScoreRequest
from sp.values import shown

SPARSE_TOKENS = 16384
"""From here on sparse attention saves a drafter on the GPU more than choosing costs. At alpha 0.1 it lost none of the
needles that dense attention kept, up to 128K tokens (results/nvidia-h200/flashprefill_quality.jsonl)."""

AUTO = "alpha:0.1"
"""How `auto` reads where it reads sparsely."""
DRAFTING = ("scorer", "attention", "alpha", "density", "blocks")
"""Of a record's configuration: how the drafter read, which decides what it cost; see `drafting`."""


Rule = FlashPrefill | TopDensity | BlockBudget
WRITTEN = "off, auto, alpha:THRESHOLD, density:SHARE, blocks:COUNT, sqrt:COUNT[:TOKENS] or energy:SHARE[:LEAST[:MOST]]"


def rule_of(text: str, option: str) -> Rule:
    """A rule as it is written: its name and its numbers, colons between them; ConfigError for anything else.

    >>> rule_of("blocks:64", "--sparse").count, rule_of("alpha:0.1", "--sparse").window
    (64, 4)
    """
    name, _, number = text.partition(":")
    try:
        if name in ("alpha", "density"):
            return FlashPrefill(float(number)) if name == "alpha" else TopDensity(float(number))
        if name.replace("blocks", "constant") in RULES and number.replace(":", "").replace(".", "").isdigit():
            return read_rule(text.replace("blocks:", "constant:", 1), option)
    except ValueError:
        pass
    raise ConfigError(f"{option} takes {WRITTEN}, as in alpha:0.1, not {text[:40]!r}")


class Sparse(str):
    """Which key blocks attention reads: ``off`` (all), ``auto``, or a rule, see `rule_of`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str, option: str) -> Sparse:
        """Read it; ConfigError, naming the option, for anything else."""
        if text not in ("off", "auto"):
            rule_of(text, option)
        return cls(text.replace("constant:", "blocks:", 1))

    @property
    def rule(self) -> Rule | None:
        """What selects blocks; None for all, and where `auto` is not decided."""
        return None if self in ("off", "auto") else rule_of(self, "sparse")

    def recorded(self) -> dict[str, Any]:
        """As records have it, in the words of before there was one value.

        >>> Sparse("blocks:64").recorded()
        {'attention': 'flashprefill', 'alpha': None, 'density': None, 'blocks': 'constant:64'}
        """
        name, _, number = self.partition(":")
        told: dict[str, Any] = dict.fromkeys(DRAFTING[1:])
        told["attention"] = {"off": "dense", "auto": "auto"}.get(name, "flashprefill")
        if name in told:
            told[name] = f"constant:{number}" if name == "blocks" else float(number)
        elif number:
            told["blocks"] = str(self)
        return told


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a scorer whose reading may be said in old words, in today's; a warning says which."""
    rest = {name: value for name, value in values.items() if name not in DRAFTING[1:]}
    old = {name: value for name, value in values.items() if name not in rest and value is not None}
    if not old:
        return rest
    kept = old.get("attention", "flashprefill")
    if kept not in ("dense", "flashprefill", "auto"):
        raise ConfigError(f"attention is {shown(kept)}, not dense, flashprefill or auto; write sparse={AUTO}, say")
    number = next((name for name in ("density", "alpha") if name in old), None)
    rule = (
        old["blocks"].replace("constant", "blocks")
        if "blocks" in old
        else f"{number}:{old[number]:g}"
        if number
        else AUTO
    )
    told = {"dense": "off", "auto": "auto" if number is None else rule}.get(kept, rule)
    if told == "off" and old.keys() & {"density", "blocks"}:
        raise ConfigError("attention dense reads all blocks; leave it out, or density and blocks")
    warnings.warn(f"{' and '.join(old)} of a scorer: an old spelling; write sparse={told}", SpWarning, stacklevel=2)
    return rest | {"sparse": told}


@dataclass(frozen=True)
class ReadingScorer(Scorer):
    """How a model attends while it reads the prompt for a scorer.

    Parameters
    ----------
    sparse : str
        Which key blocks attention reads: off (all), auto (alpha:0.1 on the GPU from 16K tokens on); alpha:0.1, a
        threshold of FlashPrefill, lower reads more; density:0.05, that share of the blocks, the strongest; or how many
        by rule: blocks:64, sqrt:64 (so many of 32K tokens), energy:0.9 (the fewest that hold this share of a query
        block's energy).
    """

    sparse: Sparse = Sparse("off")  # noqa: RUF009  a text

    renamed = staticmethod(renamed)

    def __post_init__(self) -> None:
        check_fields(self, "scorer")

    def settled(self, device: str, tokens: int) -> ReadingScorer:
        """With `auto` decided."""
        if self.sparse != "auto":
            return self
        return replace(self, sparse=Sparse(AUTO if device == "cuda" and tokens >= SPARSE_TOKENS else "off"))

    def selector(self) -> Rule | None:
        """Which blocks attention reads; None for all, and where `auto` is not decided."""
        return self.sparse.rule

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
    dense = isinstance(scorer, ReadingScorer) and scorer.sparse == "off"
    return replace(scorer, sparse=Sparse("auto")) if dense else scorer  # type: ignore[type-var]


def drafting(scorer: Scorer) -> dict[str, Any]:
    """How a scorer makes the drafter read, as records have it."""
    how = scorer.sparse.recorded() if isinstance(scorer, ReadingScorer) else dict.fromkeys(DRAFTING[1:])
    return {"scorer": SCORERS.name_of(scorer), **how}


def recorded(scorer: Scorer) -> dict[str, Any]:
    """`drafting` without `blocks` where there are none: records of before there were rules say nothing of them."""
    return {name: value for name, value in drafting(scorer).items() if name != "blocks" or value is not None}


def attending(config: Mapping[str, Any]) -> str:
    """How sparsely a drafter was to read, of a configuration that has some of `DRAFTING`; nothing where densely."""
    given = ((name, config.get(name)) for name in ("blocks", "density", "alpha"))
    return next((f"{n} {v if isinstance(v, str) else format(v, 'g')}" for n, v in given if v is not None), "")


def densities(attend: LayerAttention) -> tuple[float, ...]:
    """Share of the blocks each layer read; empty if that was all of them. Waits for the device."""
    return attend.densities() if isinstance(attend, SparseAttention) else ()
