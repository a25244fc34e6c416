"""What a scorer is: a frozen dataclass with one pure method from a prompt to an importance per token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from sp.arrays import Bools, Floats, Ints
from sp.config import Registry
from sp.errors import ConfigError
from sp.models import Cards, Model, ModelConfig, Trail, flops
from sp.ops.attention.importance import HEAT_CHUNK as HEATMAP_CHUNK
from sp.ops.attention.reduction import chunk_means

__all__ = [
    "HEATMAP_CHUNK",
    "SCORERS",
    "Importance",
    "KeptKeys",
    "ModelFreeScorer",
    "ScoreRequest",
    "Scorer",
    "chunk_means",
    "register_scorer",
]


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
    """

    reads_target = False
    oracle: ClassVar[bool] = False
    retrieves: ClassVar[bool] = False

    @property
    def drafts(self) -> bool:
        """Whether the drafter reads the prompt for it."""
        return not self.reads_target

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

    place: ClassVar[int] = 6

    @property
    def drafts(self) -> bool:
        return False

    def flops(self, config: ModelConfig, tokens: int) -> float:
        """None worth counting."""
        return 0.0


SCORERS: Registry[Scorer] = Registry("scorer")
register_scorer = SCORERS.register
