"""The models of a run: opened, put under one budget, given what was measured of them and a draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from sp.errors import ConfigError, ModelError, plain
from sp.kernels.device import pick_device
from sp.models import AskedScaling, Cards, Draft, load_draft
from sp.models.model import Device
from sp.models.shards.shared_model import SharedModel
from sp.parallel.nccl import NcclGroup, group_of
from sp.pipeline.cards.draft import draft_on_cards
from sp.pipeline.load import Loaded, Where, embedded, load
from sp.pipeline.measured import BreakEven, known_break_evens
from sp.pipeline.options import RunOptions
from sp.pipeline.pair import load_pair, spread, to_score
from sp.pipeline.residency import Residency
from sp.pipeline.result import Reporter
from sp.pipeline.sizes import format_bytes
from sp.quant import Math
from sp.scoring import SCORERS, Scorer
from sp.scoring.calibration.measure import TOKENS
from sp.scoring.calibration.use import known_retrieval, made_retrieval, makes_one

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


@dataclass(frozen=True)
class Opened:
    """A target and, for compression, its drafter, which share a device; for speculative decoding a draft besides.

    Parameters
    ----------
    target : Loaded
    drafter : Loaded, optional
    residency : Residency
        Who is on the device, and what it may take there.
    draft : Draft, optional
    break_evens : tuple of BreakEven
        What was measured of this pair.
    beside : ThreadPoolExecutor
        Tokenises for the target while the device scores.
    cards : Cards, optional
        Where the drafter reads together with its like.
    """

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

    def __repr__(self) -> str:
        models = {"target": self.target, "drafter": self.drafter, "draft": self.draft}
        told = {role: plain(one.path.name) for role, one in models.items() if one is not None}
        told |= {"device": self.target.model.device}
        told |= {"vram": size} if (size := format_bytes(self.residency.budget)) else {}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in told.items())})"

    @classmethod
    def open(
        cls,
        target: str | Path | None = None,
        drafter: str | Path | None = None,
        *,
        device: Where = "auto",
        vram: int | None = None,
        target_rope: AskedScaling | None = None,
        drafter_rope: AskedScaling | None = None,
        math: str = Math.BF16,
        drafter_math: str = Math.BF16,
        cards: int = 1,
        target_cards: int | None = None,
        scorers: Sequence[Scorer] = (),
        reporter: Reporter | None = None,
    ) -> Self:
        """Open two GGUF files; the embedded ones where a path is left out.

        `vram` is for both, `math` the target's. On several `cards` the drafter reads together with copies of itself,
        and they share the target, or `target_cards` do. Where `scorers` are given, the drafter is for these alone. The
        rest and errors as for `load`.
        """
        group = sharing(cards, target_cards, pick_device(device), vram)
        how: dict[str, Any] = {"rope": target_rope, "room": vram, "math": math, "group": group}
        return cls.assemble(
            lambda where: load(target or embedded("target"), device=where, **how),
            lambda where: load(
                drafter or embedded("drafter"),
                extrapolate=True,
                device=where,
                rope=drafter_rope,
                math=drafter_math,
                scorers=scorers,
                reporter=reporter,
            ),
            device=device,
            vram=vram,
            cards=cards,
        )

    @classmethod
    def assemble(
        cls,
        target: Callable[[Device], Loaded],
        drafter: Callable[[Device], Loaded],
        *,
        device: Where = "auto",
        vram: int | None = None,
        cards: int = 1,
    ) -> Self:
        """Load two models by functions of the device, for example by `load` or `synthetic`; see `load_pair`.

        The drafter is loaded on each of `cards` GPUs, the target where its function loads it: see `sharing`.
        """
        if cards > 1 and vram is not None:
            raise ConfigError(OF_ONE_CARD)
        drafter, group = to_score(drafter), group_of(cards, pick_device(device))
        pair = load_pair(target, drafter, device=device, vram=vram)
        return cls(*pair, cards=None if group is None else spread(pair[1], group, drafter))

    @property
    def on_cards(self) -> bool:
        """Whether several cards read for the drafter together, or share the target."""
        return self.cards is not None or isinstance(self.target.model, SharedModel)

    def ready(self, options: RunOptions, reporter: Reporter | None = None) -> None:
        """Make the drafter ready for a scorer: with its file's calibration, if that is asked for.

        One that is not known is made, which may take a minute; `reporter` is told of it.

        Raises
        ------
        ConfigError
            Layers that the scorer needs were not loaded, as the pair was opened for others.
        """
        scorer, drafter = options.scorer, self.drafter
        if drafter is None or not scorer.drafts or options.compress == "off":
            return
        model, path = drafter.model, drafter.path
        if scorer.retrieves and model.config.retrieval is None:
            found = known_retrieval(path, model.config, [scorer])
            if found is None and makes_one([scorer]) and path.is_file():
                model.check_loaded(model.config.layers)
                with self.residency.using("drafter", TOKENS):
                    found = made_retrieval(path, model, drafter.tokenizer, drafter.template, reporter)
            for each in (model, *(self.cards.models if self.cards else ())):
                each.config = replace(each.config, retrieval=found)
        depth = scorer.reading_depth(model.config)
        try:
            model.check_loaded(depth)
        except ModelError as error:
            raise ConfigError(
                f"scorer {SCORERS.name_of(scorer)}: {error}; open {plain(path.name)} for this scorer too"
            ) from None

    def within(self, vram: int | None) -> Self:
        """The same pair under another budget of device memory in bytes; None for all there is."""
        if vram is not None and self.target.model.device == "cpu":
            raise ConfigError("a budget of GPU memory means nothing to models on the CPU; leave it out")
        if vram is not None and self.on_cards:
            raise ConfigError(OF_ONE_CARD)
        return replace(self, residency=self.residency.within(vram))

    def with_break_evens(self, records: Path | None = None) -> Self:
        """The same pair, deciding by what was measured of it on this machine, where that is known.

        Parameters and errors as for `known_break_evens`.
        """
        if self.drafter is None:
            return self
        count, model = 1 if self.cards is None else self.cards.group.size, self.target.model
        cards = count, model.shards.group.size if isinstance(model, SharedModel) else 1
        found = known_break_evens(records, self.target, self.drafter, self.residency.budget, cards)
        return self if found is None else replace(self, break_evens=found)

    def with_draft(self, path: str | Path) -> Self:
        """The same pair with a draft of its target, for the speculative ways of decoding; see `load_draft`.

        Examples
        --------
        >>> from sp.decode import DDTree
        >>> from sp.pipeline import Pipeline
        >>> pair = Pipeline.open().with_draft(embedded("draft"))  # doctest: +SKIP
        >>> pair.run(prompt, RunOptions(decode=DDTree(budget=22))).answer.passes  # doctest: +SKIP
        (8,)
        """
        model = self.target.model
        if isinstance(model, SharedModel):
            return replace(self, draft=draft_on_cards(path, model))
        if model.device == "cpu":
            return replace(self, draft=load_draft(path, model))
        return replace(self, draft=self.residency.hold("draft", lambda: load_draft(path, model)))

    def _reader(self, options: RunOptions) -> tuple[str, Loaded]:
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

    def _cards(self, role: str) -> Cards | None:
        """Where who scores may read together with its like."""
        return self.cards if role == "drafter" else None

    def _drafts_ahead(self, options: RunOptions) -> bool:
        """Whether the drafter may begin before the target's tokens are known.

        On the device it leaves the host free for them. What they decide, `compress` must have settled.
        """
        drafter, target = self.drafter, self.target.tokenizer
        if drafter is None or drafter.model.device == "cpu" or not options.scorer.drafts:
            return False
        return options.compress == "always" and not drafter.tokenizer.same_as(target)
