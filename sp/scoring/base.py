"""Base classes of scorers, their requests and results, and the options of scorers that run a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal

from sp.arrays import Bools, Floats, Ints
from sp.config import Registry, check_fields
from sp.errors import ConfigError
from sp.models import (
    ContextParallel,
    LayerAttention,
    Model,
    ModelConfig,
    SessionCache,
    SparseAttention,
    dense_attention,
    flops,
)
from sp.models.config import first_layers
from sp.ops.attention.importance import HEAT_CHUNK
from sp.ops.attention.importance import chunk_means as chunk_means
from sp.scoring.sparse import AUTO, DRAFTING, Sparse, predicted_density, renamed
from sp.values import preview

HEATMAP_CHUNK = HEAT_CHUNK  # tokens of a chunk of heat maps


@dataclass(frozen=True)
class PrefixKeys:
    """Keys and values of the beginning of a prompt, computed for earlier prompts.

    Parameters
    ----------
    cache : SessionCache
        Cache of the layers that `Scorer.prefix_layers` returns, which holds the prompt's first tokens. A scorer appends
        the rest to it.
    stops : tuple of int
        Offsets in the prompt, in tokens, at which a snapshot of recurrent states is worth its memory.
    """

    cache: SessionCache
    stops: tuple[int, ...] = ()


@dataclass(frozen=True)
class ScoreRequest:
    """A tokenised prompt and the model that scores it.

    Parameters
    ----------
    model : Model
        The drafter, or the target for scorers with `Scorer.reads_target`.
    ids, positions : arrays (n,)
        Prompt tokens in the model's vocabulary and their positions.
    question, needle : boolean arrays (n,)
        Tokens of the question (any scorer may use it) and of the needle (only the oracle control does).
    eos_ids : frozenset of int
        Tokens that end a generation, for scorers that look ahead.
    seed : int
        Seed for scorers that draw random numbers.
    progress : callable, optional
        Called with the number of tokens times layers done since the last call.
    by_head : bool
        Return a heat map of every head, not only of every layer.
    content_end : int, optional
        Number of tokens up to the end of the question, where marks of thinking follow. All by default.
    text : bytes
        The prompt in UTF-8, for scorers that use its lines; empty if it is not known.
    spans : array (n, 2), optional
        Byte range of each token in `text`.
    protected : boolean array (n,), optional
        Tokens that are selected whatever their importance. Those of the question by default.
    keys : PrefixKeys, optional
        Keys of the first tokens, for scorers that can continue from them. The importance is that of a pass over the
        whole prompt, within rounding.
    gpus : ContextParallel, optional
        GPUs with a copy of the model each, `model` itself on the first. They share the pass of scorers by the prompt's
        own attention, where no token has prefix keys yet; for all others only `model` runs.
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
    content_end: int | None = None
    text: bytes = b""
    spans: Ints | None = None
    protected: Bools | None = None
    keys: PrefixKeys | None = None
    gpus: ContextParallel | None = None

    def __post_init__(self) -> None:
        if self.gpus is not None and self.gpus.models[0] is not self.model:
            raise ConfigError("the first of the GPUs must hold the scoring model")
        if self.keys is not None and self.keys.cache.config.rope != self.model.config.rope:
            raise ConfigError("the prefix keys have another RoPE than the model has now; score the whole prompt again")

    @property
    def protected_tokens(self) -> Bools:
        """Tokens that are selected whatever their importance, (n,)."""
        return self.question if self.protected is None else self.protected


@dataclass(frozen=True)
class Importance:
    """The result of a scorer.

    Parameters
    ----------
    scores : array (n,)
        Importance of each prompt token; only the order matters to selection.
    by_layer : array (layers, chunks), optional
        Importance of each scored attention layer over 32-token chunks, for heatmaps.
    generated : tuple of int
        Tokens the scorer generated to look ahead.
    by_head : array (layers, heads, chunks), optional
        The same for each head, if `ScoreRequest.by_head` is set.
    densities : tuple of float
        Share of the causal blocks that each layer's attention computed; empty where attention was dense.
    weighing : float
        Seconds spent on the queries' attention weights over all tokens, part of the time of the pass; 0 where unknown.
    fineness : int
        Resolution of the scores in tokens: the chunk size of a selector that has none of its own.
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
        True if `ScoreRequest.model` must be the target, not the drafter.
    oracle : bool
        True if the scorer uses what is known only after the target has answered: the evidence, or that answer. Tables
        show it apart, as an upper reference for other scorers.
    retrieves : bool
        True if the scorer needs the calibration of the drafter's file, `ModelConfig.retrieval`.
    drafts : bool
        True if the drafter runs on the prompt for this scorer; False where the target does.
    """

    reads_target: ClassVar[bool] = False
    oracle: ClassVar[bool] = False
    retrieves: ClassVar[bool] = False
    drafts: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        cls.drafts = cls.drafts and not cls.reads_target

    @abstractmethod
    def score(self, request: ScoreRequest) -> Importance:
        """Return the importance of every prompt token."""

    def resolve(self, tokens: int) -> Scorer:
        """Return the scorer with options such as `auto` decided for a prompt length in tokens."""
        return self

    def scorer_for(self, config: ModelConfig) -> Scorer:
        """Return the scorer that is used with a model: itself, unless it chooses one by the model's file."""
        return self

    def prefix_layers(self, config: ModelConfig) -> ModelConfig | None:
        """Return the first layers, whose cached keys let `score` process new tokens alone; None if it cannot."""
        return None

    def reading_depth(self, config: ModelConfig) -> int | None:
        """Return the number of layers that `score` runs, without the output head; None for all and the head.

        Other layers are not loaded.
        """
        return None

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Return the predicted floating-point operations of `score`: by default one pass of the drafter."""
        return flops(config, tokens)


class ModelFreeScorer(Scorer):
    """Base of scorers that run no model: the controls, which tables list after all other scorers.

    Attributes
    ----------
    place : int
        Rank among the controls, which are listed by place and then by name.
    """

    drafts: ClassVar[bool] = False
    place: ClassVar[int] = 6

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Return 0: the work is negligible next to that of any model."""
        return 0.0


SCORERS: Registry[Scorer] = Registry("scorer", "sp.scoring")
register_scorer = SCORERS.register


SPARSE_TOKENS = 16384
"""Prompt length from which sparse attention saves a drafter more time than choosing blocks costs, on the GPU as on two
CPU cores. At alpha 0.1 it lost none of the needles that dense attention kept, up to 128K tokens
(results/nvidia-h200/flashprefill_quality.jsonl)."""


@dataclass(frozen=True)
class ReadingScorer(Scorer):
    """Base of scorers that run a model over the prompt, with the attention that it uses.

    Parameters
    ----------
    sparse : str
        Key blocks that attention reads: off (all), auto (alpha:0.1 from 16K tokens on); alpha:0.1, a
        threshold of FlashPrefill, lower reads more; density:0.05, that share of the blocks, the strongest; or how many
        by rule: blocks:64, sqrt:64 (so many of 32K tokens), energy:0.9 (the fewest that hold this share of a query
        block's energy); skip:0.05, all scores, but not the values of tiles of little weight, of
        which no query loses more than this share.
    """

    sparse: Sparse = Sparse("off")  # noqa: RUF009  a text, which nothing can change

    keeps: ClassVar[bool] = False  # True if `score` can continue from cached keys of the layers that are run
    renamed = staticmethod(renamed)

    def __post_init__(self) -> None:
        check_fields(self, "scorer")

    def resolve(self, tokens: int) -> ReadingScorer:
        """Return the scorer with `auto` replaced by a rule, or by `off` where dense attention is faster."""
        if self.sparse != "auto":
            return self
        return replace(self, sparse=Sparse(AUTO if tokens >= SPARSE_TOKENS else "off"))

    def attend(self, request: ScoreRequest) -> LayerAttention:
        """Return the attention of the model's layers; a sparse one is new, so that it counts this request alone."""
        rule = self.resolve(len(request.ids)).sparse.rule
        return dense_attention if rule is None else SparseAttention(rule)

    def prefix_layers(self, config: ModelConfig) -> ModelConfig | None:
        """Return the layers that are run, if `keeps` is set."""
        return first_layers(config, self.reading_depth(config)) if self.keeps else None

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Return the predicted operations of the layers that are run, at the expected density of their attention."""
        rule, run = self.sparse.rule, first_layers(config, self.reading_depth(config))
        return flops(run, tokens, density=1.0 if rule is None else predicted_density(rule, tokens))


def by_length(scorer: Scorer) -> Scorer:
    """Return the scorer with `sparse` set to `auto` if it attends densely; any other scorer unchanged."""
    dense = isinstance(scorer, ReadingScorer) and scorer.sparse == "off"
    return replace(scorer, sparse=Sparse("auto")) if dense else scorer  # type: ignore[type-var]


def drafting(scorer: Scorer) -> dict[str, Any]:
    """Return the fields of a record that say how the drafter attends for a scorer."""
    reading = scorer.sparse.recorded() if isinstance(scorer, ReadingScorer) else dict.fromkeys(DRAFTING[1:])
    return {"scorer": SCORERS.name_of(scorer), **reading}


def recorded(scorer: Scorer) -> dict[str, Any]:
    """Return `drafting` without `blocks` where it is None, as records from before there were rules have it."""
    return {name: value for name, value in drafting(scorer).items() if name != "blocks" or value is not None}


def attending(config: Mapping[str, Any]) -> str:
    """Return the sparse rule of a configuration that has some fields of `DRAFTING`; empty for dense attention.

    >>> attending({"density": 0.05}), attending({"blocks": "sqrt:64"}), attending({"blocks": "skip:0.05"})
    ('density 0.05', 'blocks sqrt:64', 'skip 0.05')
    """
    if str(config.get("blocks")).startswith("skip:"):  # recorded there, as every rule without a field of its own
        return str(config["blocks"]).replace(":", " ")
    rules = ((name, config.get(name)) for name in ("blocks", "density", "alpha"))
    return next((f"{n} {v:g}" if isinstance(v, (int, float)) else f"{n} {v}" for n, v in rules if v is not None), "")


def densities(attend: LayerAttention) -> tuple[float, ...]:
    """Return the share of the blocks that each layer read; empty if that was all of them. Waits for the device."""
    return attend.densities() if isinstance(attend, SparseAttention) else ()


def question_start(request: ScoreRequest) -> int:
    """Return the index of the question's first token; ConfigError if the prompt names no question."""
    if not request.question.any():
        raise ConfigError("this scorer needs a prompt with a known question; pass one with --question")
    return int(request.question.argmax())


CALIBRATED = "calibrated"  # the scorer for files without a calibration


@register_scorer("auto")
@dataclass(frozen=True)
class AutoScorer(ReadingScorer):
    """The scorer that the calibration of the drafter's file names; `calibrated` where there is none.

    That is a trained head where one ships for the file, and attention of the layers that retrieve for other files. The
    report names the scorer.

    Parameters
    ----------
    sparse
        See `ReadingScorer`.
    calibrate : {"auto", "never"}
        Make the calibration of a file that has none when it is first used, or never.
    """

    retrieves: ClassVar[bool] = True

    calibrate: Literal["auto", "never"] = "auto"

    def scorer_for(self, config: ModelConfig) -> Scorer:
        """Return the scorer for a model, with `sparse` of this one.

        ConfigError: the calibration names no scorer that runs a drafter.
        """
        return _chosen(config.retrieval.scorer if config.retrieval else CALIBRATED, self.sparse)

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """Return the operations of the chosen scorer."""
        return self.scorer_for(config).flops(config, tokens)

    def prefix_layers(self, config: ModelConfig) -> ModelConfig | None:
        """Return the layers of the chosen scorer."""
        return self.scorer_for(config).prefix_layers(config)

    def reading_depth(self, config: ModelConfig) -> int | None:
        """Return the depth of the chosen scorer."""
        return self.scorer_for(config).reading_depth(config)

    def score(self, request: ScoreRequest) -> Importance:
        """Return the importance by the chosen scorer."""
        return self.scorer_for(request.model.config).score(request)


@cache
def _chosen(name: str, sparse: Sparse) -> ReadingScorer:
    kind = SCORERS.class_of(name) if name in SCORERS else None
    if kind is None or not issubclass(kind, ReadingScorer) or kind.reads_target or kind is AutoScorer:
        raise ConfigError(
            f"the calibration of the drafter's file names scorer {preview(name)}, which does not run a drafter; "
            "run sp calibrate again, or choose a scorer with --scorer"
        )
    return kind(sparse)
