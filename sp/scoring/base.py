"""Scorers: what they are given, what they give, and what those share that run a model."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, ClassVar, Literal

from sp.arrays import Bools, Floats, Ints
from sp.config import Registry, check_fields
from sp.errors import ConfigError, SpWarning
from sp.models import Cards, LayerAttention, Model, ModelConfig, SparseAttention, Trail, dense_attention, flops
from sp.models.config import first_layers
from sp.ops.attention.importance import HEAT_CHUNK
from sp.ops.attention.importance import chunk_means as chunk_means
from sp.ops.sparse.block_budget import RULES, BlockBudget, read_rule
from sp.ops.sparse.expected_density import expected_density
from sp.ops.sparse.flashprefill import FlashPrefill, TopDensity
from sp.values import shown

HEATMAP_CHUNK = HEAT_CHUNK  # tokens of a chunk of heat maps


@dataclass(frozen=True)
class KeptKeys:
    """What a model holds of the beginning of a prompt, from prompts before.

    Parameters
    ----------
    trail : Trail
        Of the layers that `Scorer.kept_layers` names; its tokens are the prompt's first ones. A scorer reads the rest
        into it.
    stops : tuple of int
        Where, in tokens of the prompt, a snapshot of recurrent states is worth its room.
    """

    trail: Trail
    stops: tuple[int, ...] = ()


@dataclass(frozen=True)
class ScoreRequest:
    """A tokenised prompt and the model that reads it.

    Parameters
    ----------
    model : Model
        The drafter; the target for scorers that say so.
    ids, positions : arrays (n,)
        Prompt tokens in the model's vocabulary and their positions.
    question, needle : boolean arrays (n,)
        Tokens of the question (any scorer may use it) and of the needle (only the oracle control does).
    eos_ids : frozenset of int
        Tokens that end a generation, for scorers that look ahead.
    seed : int
        For scorers that draw random numbers.
    progress : callable, optional
        Called with the number of token-layers done since the last call.
    by_head : bool
        Keep a heat map of every head, not only of every layer.
    asked : int, optional
        Tokens up to the last one that asks, where marks of thinking follow. All by default.
    text : bytes
        The prompt in UTF-8, for scorers that look at its lines; empty if it is not known.
    spans : array (n, 2), optional
        Byte range of each token in `text`.
    protected : boolean array (n,), optional
        Tokens that are kept whatever their importance. Those of the question by default.
    keys : KeptKeys, optional
        For scorers that can go on from there. The importance is that of a first reading, within rounding.
    cards : Cards, optional
        With a copy of the model on each of them, `model` itself on the first. Scorers of the prompt's own attention let
        them read together, where no keys are kept; for all others `model` reads alone.
    """

    model: Model
    ids: Ints
    positions: Ints
    question: Bools
    needle: Bools
    eos_ids: frozenset[int] = frozenset()
    seed: int = 0
    progress: Callable[[int], None] | None = None
    by_head: bool = False
    asked: int | None = None
    text: bytes = b""
    spans: Ints | None = None
    protected: Bools | None = None
    keys: KeptKeys | None = None
    cards: Cards | None = None

    def __post_init__(self) -> None:
        if self.cards is not None and self.cards.models[0] is not self.model:
            raise ConfigError("the first of the cards must hold the model that reads")
        if self.keys is not None and self.keys.trail.config.rope != self.model.config.rope:
            raise ConfigError("keys were kept with another RoPE than the model reads with now; read the prompt again")

    @property
    def kept(self) -> Bools:
        """Tokens that are kept whatever their importance, (n,)."""
        return self.question if self.protected is None else self.protected


@dataclass(frozen=True)
class Importance:
    """What a scorer found.

    Parameters
    ----------
    scores : array (n,)
        Importance of each prompt token; only the order matters to selection.
    by_layer : array (layers, chunks), optional
        Importance of each scored attention layer over 32-token chunks, for heatmaps.
    generated : tuple of int
        Tokens the scorer generated to look ahead.
    by_head : array (layers, heads, chunks), optional
        The same head by head, if it was asked for.
    densities : tuple of float
        Share of the causal blocks each layer's attention read; empty where that was dense.
    weighing : float
        Seconds that the queries' weights over all tokens took, of those the model read; 0 where they are not known.
    fineness : int
        Tokens of the chunks that scores can tell from each other: those of a chunk where a selector is not told.
    """

    scores: Floats
    by_layer: Floats | None = None
    generated: tuple[int, ...] = ()
    by_head: Floats | None = None
    densities: tuple[float, ...] = ()
    weighing: float = 0.0
    fineness: int = 32

    def __repr__(self) -> str:
        maps = "" if self.by_layer is None else f", {len(self.by_layer)} layers"
        return f"Importance({len(self.scores):,} tokens{maps})"


class Scorer(ABC):
    """Base of all scorers; subclasses are frozen dataclasses, registered under a name.

    Attributes
    ----------
    reads_target : bool
        The request must hold the target in place of the drafter.
    oracle : bool
        Knows what nobody can know before the target has answered: the evidence, or that answer. Tables show it apart,
        as an upper reference of what other scorers could reach.
    retrieves : bool
        Asks for the calibration of the drafter's file, `ModelConfig.retrieval`.
    drafts : bool
        The drafter reads the prompt for it; not where the target does.
    """

    reads_target: ClassVar[bool] = False
    oracle: ClassVar[bool] = False
    retrieves: ClassVar[bool] = False
    drafts: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        cls.drafts = cls.drafts and not cls.reads_target

    @abstractmethod
    def score(self, request: ScoreRequest) -> Importance:
        """Importance of every prompt token."""

    def settled(self, device: str, tokens: int) -> Scorer:
        """The scorer with every option that is left to device and prompt length decided; most have none."""
        return self

    def chosen(self, config: ModelConfig) -> Scorer:
        """The scorer that scores with a model: itself, unless it chooses one by the model's file."""
        return self

    def kept_layers(self, config: ModelConfig) -> ModelConfig | None:
        """The model's first layers, whose keys of old tokens let `score` read new ones alone; None if none do."""
        return None

    def reading_depth(self, config: ModelConfig) -> int | None:
        """Layers that `score` lets the model run, without its head: none else are loaded; None for all and the head."""
        return None

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Predicted floating-point operations of `score`; unless a scorer knows better, one reading by the drafter."""
        return flops(config, tokens)


class ModelFreeScorer(Scorer):
    """Base of scorers that run no model: the controls, which tables show after everything else.

    Attributes
    ----------
    place : int
        Where among the controls, which stand by place and then by name.
    """

    drafts: ClassVar[bool] = False
    place: ClassVar[int] = 6

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """None worth counting."""
        return 0.0


SCORERS: Registry[Scorer] = Registry("scorer", "sp.scoring")
register_scorer = SCORERS.register


SPARSE_TOKENS = 16384
"""From here on sparse attention saves a drafter on the GPU more than choosing costs. At alpha 0.1 it lost none of the
needles that dense attention kept, up to 128K tokens (results/nvidia-h200/flashprefill_quality.jsonl)."""

AUTO = "alpha:0.1"  # how `auto` reads where it reads sparsely
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

    @classmethod
    def parse(cls, text: str, option: str) -> Sparse:
        """Read it; ConfigError, naming the option, for anything else."""
        if text not in ("off", "auto"):
            rule_of(text, option)
        return cls(text.replace("constant:", "blocks:", 1))

    @cached_property
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

    keeps: ClassVar[bool] = False  # whether `score` can go on from keys of old tokens, of the layers that are run
    renamed = staticmethod(renamed)

    def __post_init__(self) -> None:
        check_fields(self, "scorer")

    def settled(self, device: str, tokens: int) -> ReadingScorer:
        """With `auto` decided."""
        if self.sparse != "auto":
            return self
        return replace(self, sparse=Sparse(AUTO if device == "cuda" and tokens >= SPARSE_TOKENS else "off"))

    def attend(self, request: ScoreRequest) -> LayerAttention:
        """What attends in the model's layers; a sparse one is fresh, with nothing counted."""
        rule = self.settled(request.model.device, len(request.ids)).sparse.rule
        return dense_attention if rule is None else SparseAttention(rule)

    def kept_layers(self, config: ModelConfig) -> ModelConfig | None:
        return first_layers(config, self.reading_depth(config)) if self.keeps else None

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Predicted operations of the layers that are run, at the density that is expected of their attention."""
        rule, run = self.sparse.rule, first_layers(config, self.reading_depth(config))
        return flops(run, tokens, density=1.0 if rule is None else expected_density(rule, tokens))


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


def question_start(request: ScoreRequest) -> int:
    """Index of the question's first token; ConfigError if the prompt names no question."""
    if not request.question.any():
        raise ConfigError("this scorer needs a prompt with a known question; give one with --question")
    return int(request.question.argmax())


CALIBRATED = "calibrated"  # what is taken where nothing is known of a file


@register_scorer("auto")
@dataclass(frozen=True)
class AutoScorer(ReadingScorer):
    """The scorer that the calibration of the drafter's file names; `calibrated` where there is none.

    That is a trained head where one ships for the file, and attention of the layers that retrieve for others. The
    report says which scorer it was.

    Parameters
    ----------
    sparse
        See `ReadingScorer`.
    calibrate : {"auto", "never"}
        Whether a file that has no calibration gets one when it is first used.
    """

    retrieves: ClassVar[bool] = True

    calibrate: Literal["auto", "never"] = "auto"

    def chosen(self, config: ModelConfig) -> Scorer:
        """The scorer for a model, with these options of reading. ConfigError: the calibration names none that reads
        with a drafter.
        """
        return _chosen(config.retrieval.scorer if config.retrieval else CALIBRATED, self.sparse)

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Those of the scorer."""
        return self.chosen(config).flops(config, tokens)

    def kept_layers(self, config: ModelConfig) -> ModelConfig | None:
        """Those of the scorer."""
        return self.chosen(config).kept_layers(config)

    def reading_depth(self, config: ModelConfig) -> int | None:
        """That of the scorer."""
        return self.chosen(config).reading_depth(config)

    def score(self, request: ScoreRequest) -> Importance:
        """What the scorer says."""
        return self.chosen(request.model.config).score(request)


@cache
def _chosen(name: str, sparse: Sparse) -> ReadingScorer:
    kind = SCORERS.class_of(name) if name in SCORERS else None
    if kind is None or not issubclass(kind, ReadingScorer) or kind.reads_target or kind is AutoScorer:
        raise ConfigError(
            f"the calibration of the drafter's file names scorer {shown(name)}, which is none that reads with a "
            "drafter; make it anew with sp calibrate, or name one with --scorer"
        )
    return kind(sparse)
