"""A target and its drafter: which one where none is named, and how several cards share them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

from sp.errors import ConfigError, short
from sp.gguf import GGUFFile, Tokenizer
from sp.hub import best_drafter, model_path
from sp.models import Cards, Draft, load_draft, read_config
from sp.models.network.model import Device
from sp.models.shards.shards import SharedModel
from sp.parallel.nccl import NcclGroup, copies, group_of
from sp.prompt import Prompt, TokenisedPrompt
from sp.scoring.base import ModelFreeScorer, Scorer
from sp.session.load import Loaded, embedded
from sp.session.measured import BreakEven
from sp.session.options import RunOptions
from sp.session.residency import Residency

OF_ONE_CARD = "a budget of GPU memory is for one card; leave --vram away, or --cards and --target-cards"


def sharing(cards: int, target_cards: int | None, where: Device, vram: int | None) -> NcclGroup | None:
    """The GPUs that share a target, for `load`: as many as draft, unless another number is asked for; None for one.

    Raises
    ------
    ConfigError
        With a budget of memory, or on the CPU.
    DeviceError
        Where there are not so many, or no NCCL.
    """
    count = cards if target_cards is None else target_cards
    if vram is not None and max(cards, count) > 1:
        raise ConfigError(OF_ONE_CARD)
    return group_of(count, where, "--cards" if target_cards is None else "--target-cards")


def default_drafter(target: str | Path | None, scorers: Iterable[type[Scorer]] | None = None) -> Path:
    """The drafter of a target where none is named: its path, or the name of a known model.

    The embedded target has the embedded drafter. That one was trained for the texts of its own world, so any other
    target has the best known model that was fetched.

    If none of the classes of `scorers` that will be used runs a model, the embedded drafter will do, for it reads
    nothing.

    Raises
    ------
    ConfigError
        No such model was fetched.
    GGUFError, ModelError
        The same, of a target that cannot be opened, or is no model, either.

    Examples
    --------
    >>> default_drafter(None).name
    'drafter.gguf'
    >>> from sp.scoring import SCORERS
    >>> default_drafter("target.gguf", [SCORERS.class_of("bm25")]).name
    'drafter.gguf'
    """
    if target is None or model_path(target).resolve() == embedded("target").resolve():
        return embedded("drafter")
    if scorers is not None and all(issubclass(scorer, ModelFreeScorer) for scorer in scorers):
        return embedded("drafter")
    if (model := best_drafter()) is not None:
        return Path(model.name)
    with GGUFFile.open(target) as file:  # what is wrong with it comes first
        read_config(file)
        Tokenizer.from_gguf(file)
    raise ConfigError(
        f"{short(Path(target).name)} needs a drafter that scores prompts, and none is here; fetch one with: "
        "sp get smollm2-135m, or name one with --drafter"
    )


def spread(drafter: Loaded, group: NcclGroup, opened: Callable[[Device], Loaded]) -> Cards:
    """A drafter that lies on the first card of a group, and its like on the others.

    Raises
    ------
    ConfigError
        For one with recurrent layers.
    DeviceError
        With too little memory on a card.
    """
    if drafter.model.config.delta_layers:
        raise ConfigError(
            f"{drafter.path.name} has recurrent layers, whose state would go from card to card; leave --cards away, or "
            "take a drafter of attention layers"
        )
    return Cards(group, [drafter.model, *(one.model for one in copies(group, lambda: opened("cuda")))])


def cards_line(cards: Cards, together: bool) -> str:
    """The line of a report: whether the cards read together, or else why not.

    Examples
    --------
    >>> from sp.models import load_model
    >>> from sp.parallel.host import HostGroup
    >>> from sp.session.load import embedded
    >>> cards_line(Cards(HostGroup(2), [load_model(embedded("drafter"))] * 2), together=True)
    'drafter: read by 2 cards together'
    """
    count = cards.group.size
    if together:
        return f"drafter: read by {count} cards together"
    return f"drafter: read by the first of {count} cards alone, as short prompts, kept keys and some scorers are"


@dataclass(frozen=True, repr=False)
class DraftOnCards(Draft):
    """The draft of the first card, and those of the others."""

    others: tuple[Draft, ...] = ()


def draft_on_cards(path: str | Path, model: SharedModel) -> DraftOnCards:
    """`load_draft` for every card's share of the target."""
    drafts = []
    for part in model.shards.models:
        with model.shards.group.at(part.share.rank):
            drafts.append(load_draft(path, part))
    first = {field.name: getattr(drafts[0], field.name) for field in fields(Draft)}
    return DraftOnCards(**first, others=tuple(drafts[1:]))


def draft_of(draft: Draft | None, rank: int) -> Draft | None:
    """That of one card; none where there is none."""
    if not isinstance(draft, DraftOnCards):
        return draft
    return (draft, *draft.others)[rank]


@dataclass(frozen=True)
class Pair:
    """What a request reads with; `Pipeline` says what it consists of."""

    target: Loaded
    drafter: Loaded | None = None
    residency: Residency = field(default_factory=Residency, compare=False)
    draft: Draft | None = None
    break_evens: tuple[BreakEven, ...] = ()
    beside: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "sp-tokenise"), compare=False)
    cards: Cards | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        self.residency.add("target", self.target.model)
        if self.drafter is not None:
            self.residency.add("drafter", self.drafter.model)

    def scoring_model(self, options: RunOptions) -> tuple[str, Loaded]:
        """Who scores, by role: the drafter, or whom the scorer asks for; for one that runs no model, whose tokens.

        Those of the target are there already.
        """
        if options.scorer.reads_target and isinstance(self.target.model, SharedModel):
            raise ConfigError(
                "the scorer reads with the target, which cards share; add --target-cards 1, or take another"
            )
        if not options.scorer.drafts:
            return "target", self.target
        assert self.drafter is not None, "score needs a drafter"
        return "drafter", self.drafter

    def drafts_ahead(self, options: RunOptions) -> bool:
        """Whether the drafter may begin before the target's tokens are known.

        On the device it leaves the host free for them. What they decide, `compress` must have settled.
        """
        drafter, target = self.drafter, self.target.tokenizer
        if drafter is None or drafter.model.device == "cpu" or not options.scorer.drafts:
            return False
        return options.compress == "always" and not drafter.tokenizer.same_as(target)

    def tokenise(self, prompt: Prompt) -> TokenisedPrompt:
        """The prompt in the target's vocabulary."""
        return prompt.tokenise(self.target.tokenizer)
