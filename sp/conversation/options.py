"""What a conversation remembers and brings back, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from sp.config import Option, Tokens, check_fields
from sp.decode import Speculative
from sp.errors import ConfigError
from sp.models import ModelConfig
from sp.models.cache.pages import KVType
from sp.pipeline import Loaded, RunOptions
from sp.scoring import SCORERS
from sp.scoring.base import ModelFreeScorer

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

    group: ClassVar[str] = "Memory"

    recall: Recall = "auto"
    recall_ratio: float = 0.05
    recall_tokens: Annotated[Tokens, Option(least=1)] = 384
    keys: Annotated[KVType, Option(flags=("--keys", "--session-keys"))] = "f16"
    snapshots: Annotated[int, Option(least=1)] = 8

    def __post_init__(self) -> None:
        check_fields(self, "conversation")
        if not 0 < self.recall_ratio <= 1:
            raise ConfigError(f"recall_ratio must be above 0 and at most 1, not {self.recall_ratio:g}")


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
