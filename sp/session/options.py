"""The options of a run and of a conversation, checked once, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from sp.config import Registry, Tokens, check_fields
from sp.decode import DECODERS, Decoder, Greedy, Speculative
from sp.errors import ConfigError
from sp.models import Gaps, ModelConfig
from sp.models.cache.pages import KVType, rotates
from sp.named import read_strategy
from sp.ops.sparse.flashprefill import FlashPrefill
from sp.scoring import SCORERS, Scorer
from sp.scoring.base import ModelFreeScorer
from sp.selection import SELECTORS, Selector, check_keep_ratio
from sp.session.load import Loaded

Compress = Literal["auto", "always", "off"]
Positions = Literal["original", "contiguous"]
Mapping = Literal["byte_span", "text_rejoin"]
BY_NAME: dict[str, Registry[Any]] = {"scorer": SCORERS, "selector": SELECTORS, "decode": DECODERS}
"""Options that are strategies, and where their names stand."""


@dataclass(frozen=True)
class RunOptions:
    """How a prompt is compressed and answered.

    Parameters
    ----------
    keep_ratio : float
        Share of the tokens that may be left out which the target reads, in (0, 1]; what is protected (question,
        system message, markup) is read on top of it.
    scorer, selector : Scorer, Selector or str
        Strategies, or their names with options as on the command line: ``"tail[queries=24]"``. By name a scorer is
        what `SCORERS.build` makes of it.
    compress : {"auto", "always", "off"}
        `auto` compresses when the predicted cost is lower than that of the full prefill.
    threshold : int
        With `auto`, shorter prompts (in tokens) are read whole whatever is predicted.
    positions : {"original", "contiguous"}
        Where kept tokens stand: where they stood in the prompt, or 0, 1, 2, ...; in a prompt that the target's window
        is too short for, contiguously in any case (see `sp.session.decide`).
    mapping : {"byte_span", "text_rejoin"}
        `byte_span` keeps the target tokens that share bytes with what the drafter found important;
        `text_rejoin` joins the kept text and encodes it anew, which implies contiguous positions
        (cross-family speculative prefill, arXiv 2603.02631).
    mark_omitted : bool
        Write `[... 212 lines ...]` where something was left out, never inside a JSON value. Marks come on top of the
        tokens that are kept, and stand at positions of what they stand for.
    kv : {"f16", "q4_0", "f32"}
        Format of the target's cached keys and values.
    rotate : bool, optional
        Hadamard rotation of cached keys and values. By default where `kv` is quantised, as llama.cpp has it.
    state_gaps : {"compact", "reset", "decay"}
        What the target's recurrent layers do where tokens were left out; see `sp.models.passes.gaps`.
    sparse : FlashPrefill, optional
        Lists the key blocks that the target's own attention layers read of a prompt; densely without it.
    decode : Decoder or str
        How the answer is decoded; by name as scorers are. The speculative ways need a pipeline with a draft, see
        `Pipeline.with_draft`.
    max_new_tokens : int
        Longest answer.
    seed : int
        For scorers that draw random numbers, and for sampled answers.

    Raises
    ------
    ConfigError
        For a value of the wrong type or out of range, an unknown name, or options that exclude each other.

    Examples
    --------
    >>> RunOptions(scorer="tail[queries=24]", selector="top_chunks", decode="greedy").scorer.queries
    24
    >>> RunOptions(max_new_tokens="2k").max_new_tokens
    2048
    """

    keep_ratio: float = 0.05
    scorer: Scorer = field(default_factory=lambda: SCORERS.build("auto"))
    selector: Selector = field(default_factory=lambda: SELECTORS.build("top_chunks"))
    compress: Compress = "auto"
    threshold: Tokens = 0
    positions: Positions = "original"
    mapping: Mapping = "byte_span"
    mark_omitted: bool = False
    kv: KVType = "f16"
    rotate: bool | None = None
    state_gaps: Gaps = "compact"
    sparse: FlashPrefill | None = None
    decode: Decoder = field(default_factory=Greedy)
    max_new_tokens: Tokens = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name, registry in BY_NAME.items():
            if isinstance(given := getattr(self, name), str):
                object.__setattr__(self, name, read_strategy(given, registry, name))  # frozen
        check_fields(self, "options")
        check_keep_ratio(self.keep_ratio)
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")
        if self.mapping == "text_rejoin" and self.positions == "original":
            raise ConfigError("text_rejoin loses the original positions; use it with positions contiguous")
        if self.sparse is not None and isinstance(self.decode, Speculative):
            raise ConfigError("a draft needs a target that attends densely; leave target.alpha out or decode greedily")
        if self.state_gaps != "compact" and (self.positions != "original" or self.sparse is not None):
            raise ConfigError(
                f"state_gaps {self.state_gaps} needs positions original and a target that attends densely"
            )

    @property
    def rotated(self) -> bool:
        """Whether the target's cached keys and values are rotated.

        Examples
        --------
        >>> RunOptions(kv="q4_0").rotated, RunOptions(kv="q4_0", rotate=False).rotated, RunOptions().rotated
        (True, False, False)
        """
        return rotates(self.kv, self.rotate)


Recall = Literal["auto", "append", "rewind", "off"]


@dataclass(frozen=True)
class ConversationOptions:
    """How the turns of a conversation share what was read before.

    Parameters
    ----------
    recall : {"auto", "append", "rewind", "off"}
        How spans come back that were left out and that a later question asks for: as an excerpt before the first new
        message, or where they stood, everything behind them read again. `auto` takes what has the target read fewer
        tokens.
    recall_ratio : float
        Share of the tokens left out that a turn may bring back, at most; of a short transcript 128 tokens.
    recall_tokens : int
        Tokens that a turn may bring back, at most.
    keys : {"f16", "q4_0", "f32"}
        Format of the drafter's keys and values, of the whole transcript.
    snapshots : int
        Copies of a model's recurrent states, in host memory, to go back to.

    Examples
    --------
    >>> from sp.config import from_mapping
    >>> from_mapping(ConversationOptions, {"recall": "append", "recall_tokens": 256}, "conversation").recall
    'append'
    """

    recall: Recall = "auto"
    recall_ratio: float = 0.05
    recall_tokens: Tokens = 384
    keys: KVType = "f16"
    snapshots: int = 8

    def __post_init__(self) -> None:
        check_fields(self, "conversation")
        if not 0 < self.recall_ratio <= 1:
            raise ConfigError(f"recall_ratio must be above 0 and at most 1, not {self.recall_ratio:g}")
        for name in ("recall_tokens", "snapshots"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")


def check_run(options: RunOptions, drafter: Loaded | None) -> ModelConfig | None:
    """The layers of the drafter whose keys are kept; None for a scorer that runs no model, or without a drafter.

    Raises
    ------
    ConfigError
        For what a conversation cannot do.
    """
    if isinstance(options.decode, Speculative):
        raise ConfigError("a conversation decodes without a draft so far; leave it out")
    if options.mapping != "byte_span":
        raise ConfigError(f"mapping {options.mapping} encodes the kept text anew each turn; take byte_span")
    if options.mark_omitted:
        raise ConfigError("a conversation marks nothing that it left out, as it may come back; leave mark_omitted off")
    if drafter is None or isinstance(options.scorer, ModelFreeScorer):
        return None
    name = SCORERS.name_of(options.scorer)
    if options.scorer.reads_target:
        raise ConfigError(f"scorer {name} has the target read everything; take one that reads with the drafter")
    layers = options.scorer.kept_layers(drafter.model.config)
    if layers is None:
        raise ConfigError(f"scorer {name} cannot go on from keys of earlier turns; take tail, or anchored")
    return layers
