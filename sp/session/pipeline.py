"""Pipeline: a target and its drafter, opened under one budget, and what is done with them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from sp.arrays import Bools, Floats
from sp.chat.answer import AnswerText, calling_of
from sp.decode import Speculative
from sp.errors import ConfigError, ModelError, SpWarning, plain
from sp.kernels.device import pick_device
from sp.keywords import check_keywords, present_names
from sp.models import Model, load_draft
from sp.models.cache.kv_type import USUAL, known_kv
from sp.models.network.arithmetic import scoring
from sp.models.network.model import Device
from sp.models.shards.shards import SharedModel
from sp.parallel.nccl import group_of
from sp.prompt import Prompt, Span, TokenisedPrompt
from sp.prompt.prompt import Message, as_prompt
from sp.quant.cached import K5
from sp.scoring import SCORERS, Scorer
from sp.scoring.base import ModelFreeScorer
from sp.scoring.calibration.measure import TOKENS, known_retrieval, made_retrieval, makes_one
from sp.selection import Selection
from sp.session import request
from sp.session.answer import needed
from sp.session.decision import Pair, check_scoring, settle
from sp.session.device_memory import Where, format_bytes
from sp.session.key_bases import FileBases
from sp.session.loaded import OF_ONE_GPU, Loaded, default_drafter, draft_on_gpus, embedded, load, sharing, spread
from sp.session.measured import known_break_evens
from sp.session.options import Compress, ModelOptions, PlaceOptions, RunOptions, takes_options
from sp.session.residency import Residency
from sp.session.result import Answer, OnToken, RunResult, Scored
from sp.session.stream import AsyncStream, Stream, Work
from sp.trace import OnProgress, Reporter, Trace, peak_bytes, reporting, silent

NOT_NAMED = "the best drafter that is here, as none was named"


@dataclass(frozen=True)
class Pipeline(Pair):
    """A target and, for compression, its drafter, which share a device; for speculative decoding a draft besides.

    `run` does it all; `tokenise`, `score`, `select` and `read` are for whoever shares one scoring between selections.

    Parameters
    ----------
    target : Loaded
    drafter : Loaded, optional
    residency : Residency
        Who is on the device, and what it may take there.
    speculator : Draft, optional
    break_evens : tuple of BreakEven
        What was measured of this pair.
    beside : ThreadPoolExecutor
        Tokenises for the target while the device scores.
    gpus : ContextParallel, optional
        Where the drafter reads together with its like.

    Examples
    --------
    >>> pair = Pipeline(load(embedded("target")), load(embedded("drafter")))  # doctest: +SKIP
    >>> prompt = Prompt.from_document(document, question, pair.target.template)  # doctest: +SKIP
    >>> pair.run(prompt, RunOptions(keep_ratio=0.1)).answer.text  # doctest: +SKIP
    '8301947.'
    """

    def __repr__(self) -> str:
        models = {"target": self.target, "drafter": self.drafter, "draft": self.speculator}
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
        scorers: Sequence[Scorer] | None = None,
        reporter: Reporter | None = None,
        **options: Any,
    ) -> Self:
        """Open two GGUF files, by path or known name; the embedded target if left out, and as drafter its own.

        Without a `drafter` another target has that of `default_drafter`. Where `scorers` are given, the drafter is for
        these alone. All other keywords are fields of `ModelOptions` and `PlaceOptions`: `vram`, in bytes, is for both
        models; on several `gpus` the drafter reads together with copies of itself, and they share the target, or
        `target_gpus` do. `reporter` and errors as for `load`; TypeError for another keyword.
        """
        places, known = [one.name for one in fields(PlaceOptions)], [one.name for one in fields(ModelOptions)]
        options = present_names(options, [*known, *places])
        check_keywords("open", options, [*known, *places, "scorers", "reporter"])
        own = {name: options.pop(name) for name in places if name in options}
        place, models = PlaceOptions(**own), ModelOptions(target, drafter, **options)  # type: ignore[arg-type]
        group = sharing(place.gpus, place.target_gpus, pick_device(place.device), place.vram)
        how: dict[str, Any] = {
            "rope": models.target_rope,
            "room": place.vram,
            "precision": models.precision,
            "group": group,
        }
        how |= {"reporter": reporter}
        small = drafter or default_drafter(target, None if scorers is None else map(type, scorers))
        chosen = NOT_NAMED if not drafter and small != embedded("drafter") else ""
        drafting: dict[str, Any] = {
            "extrapolate": True,
            "rope": models.drafter_rope,
            "precision": models.drafter_precision,
        }
        drafting |= {"scorers": scorers or (), "reporter": reporter}
        opened: list[Loaded] = []  # the target, whose file may be the drafter's too

        def heavy(where: Device) -> Loaded:
            opened.append(load(target or embedded("target"), device=where, **how))
            return opened[0]

        def light(where: Device) -> Loaded:
            beside = opened[0] if models.precision == models.drafter_precision else None
            return replace(load(small, device=where, beside=beside, **drafting), chosen=chosen)

        pair = cls.assemble(
            heavy,
            light,
            device=place.device,
            vram=place.vram,
            gpus=place.gpus,
        )
        return pair if place.break_even is None else pair.with_break_evens(place.break_even)

    @classmethod
    def assemble(
        cls,
        target: Callable[[Device], Loaded],
        drafter: Callable[[Device], Loaded],
        *,
        device: Where = "auto",
        vram: int | None = None,
        gpus: int = 1,
    ) -> Self:
        """Load two models by functions of the device, for example by `load` or `synthetic`, under one budget.

        The drafter is loaded on each of `gpus` GPUs, the target where its function loads it: see `sharing`.

        Raises
        ------
        ConfigError
            A budget for models on the CPU, or for several GPUs.
        DeviceError
            The budget is too small to load them.
        """
        where = pick_device(device)
        if gpus > 1 and vram is not None:
            raise ConfigError(OF_ONE_GPU)

        def to_score(where: Device) -> Loaded:
            found = drafter(where)
            model = found.model
            model.arithmetic = scoring(model.arithmetic, model.device, model.config.head_dim)
            return found

        group = group_of(gpus, where)
        if where == "cpu":
            if vram is not None:
                raise ConfigError("vram is a budget of GPU memory, but the models run on the CPU; leave it out")
            return cls(target(where), to_score(where))
        residency = Residency(vram)
        heavy = residency.load("target", lambda: target(where))
        small = residency.load("drafter", lambda: to_score(where))
        return cls(heavy, small, residency, gpus=None if group is None else spread(small, group, to_score))

    @property
    def on_gpus(self) -> bool:
        """Whether several GPUs read for the drafter together, or share the target."""
        return self.gpus is not None or isinstance(self.target.model, SharedModel)

    def ready(self, options: RunOptions, reporter: Reporter | None = None, *, keys: str = USUAL) -> None:
        """Make the drafter ready for a scorer, with its file's calibration if that is asked for, and both for their
        caches, with the bases of their keys; `keys` is the format of the drafter's where a conversation keeps them.

        What is not known is made, which may take a minute; `reporter` is told of a calibration, and of bases the one
        that `open` was given.

        Raises
        ------
        ConfigError
            Layers that the scorer needs were not loaded, as the pair was opened for others.
        """
        if options.kv.k is K5:
            self._measure_keys("target", self.target.model, options.kv)
        scorer, drafter = options.scorer, self.drafter
        if drafter is None or not scorer.drafts or options.compress == "off":
            return
        model, path = drafter.model, drafter.path
        if keys != USUAL and known_kv(keys).k is K5:
            self._measure_keys("drafter", model, keys)
        if scorer.retrieves and model.config.retrieval is None:
            found = known_retrieval(path, model.config, [scorer])
            if found is None and makes_one([scorer]) and path.is_file():
                model.check_loaded(model.config.layers)
                with self.residency.using("drafter", TOKENS):
                    found = made_retrieval(path, model, drafter.tokenizer, drafter.template, reporter)
            for each in (model, *(self.gpus.models if self.gpus else ())):
                each.config = replace(each.config, retrieval=found)
        depth = scorer.reading_depth(model.config)
        try:
            model.check_loaded(depth)
        except ModelError as error:
            raise ConfigError(
                f"scorer {SCORERS.name_of(scorer)}: {error}; open {plain(path.name)} for this scorer too"
            ) from None

    def _measure_keys(self, name: str, model: Model, kv: str) -> None:
        if isinstance(model.key_bases, FileBases) and not model.key_bases.knows(model, kv):
            with self.residency.using(name, TOKENS):  # not while a stage is shown and timed that needs them
                model.bases_for(kv)

    def within(self, vram: int | None) -> Self:
        """The same pair under another budget of device memory in bytes; None for all there is."""
        if vram is not None and self.target.model.device == "cpu":
            raise ConfigError("a budget of GPU memory means nothing to models on the CPU; leave it out")
        if vram is not None and self.on_gpus:
            raise ConfigError(OF_ONE_GPU)
        return replace(self, residency=self.residency.within(vram))

    def with_break_evens(self, records: Path | None = None) -> Self:
        """The same pair, deciding by what was measured of it on this machine, where that is known.

        Parameters and errors as for `known_break_evens`.
        """
        if self.drafter is None:
            return self
        count, model = 1 if self.gpus is None else self.gpus.group.size, self.target.model
        gpus = count, model.shards.group.size if isinstance(model, SharedModel) else 1
        found = known_break_evens(records, self.target, self.drafter, self.residency.budget, gpus)
        return self if found is None else replace(self, break_evens=found)

    def with_speculator(self, path: str | Path) -> Self:
        """Return the same pair with a draft model of its target, for speculative decoding; see `load_draft`.

        Examples
        --------
        >>> from sp.decode import DDTree
        >>> pair = Pipeline.open().with_speculator(embedded("draft"))  # doctest: +SKIP
        >>> pair.run(prompt, RunOptions(decode=DDTree(budget=22))).answer.passes  # doctest: +SKIP
        (8,)
        """
        model = self.target.model
        if isinstance(model, SharedModel):
            return replace(self, speculator=draft_on_gpus(path, model))
        if model.device == "cpu":
            return replace(self, speculator=load_draft(path, model))
        return replace(self, speculator=self.residency.hold("draft", lambda: load_draft(path, model)))

    def with_draft(self, path: str | Path) -> Self:
        """Call `with_speculator`, whose former name this is."""
        warnings.warn("with_draft is now with_speculator; the old name still works", SpWarning, 2)
        return self.with_speculator(path)

    def warm_up(self, tokens: int = 1024, options: RunOptions | None = None) -> None:
        """Answer a prompt of about `tokens` tokens, all of them kept, so that one-time costs fall on no measured run.

        Threads start, weights and heap are paged in, kernels are loaded. Whichever run came first would pay otherwise.
        """
        unit = "the lazy dog sleeps. "
        count = max(1, min(tokens, self.target.model.config.context // 2) // len(self.target.tokenizer.encode(unit)))
        prompt = Prompt(unit * count, (Span("plain", 0, len(unit) * count),))
        compress: Compress = "always" if self.drafter else "off"
        whole = replace(options or RunOptions(), keep_ratio=1.0, max_new_tokens=4, compress=compress)
        self.run(prompt, whole, full=False)

    @takes_options
    def run(
        self,
        prompt: Prompt | str | Sequence[Message],
        options: RunOptions | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        full: bool = False,
        reporter: Reporter = silent,
        progress: OnProgress | None = None,
        on_token: OnToken | None = None,
        by_head: bool = False,
    ) -> RunResult:
        """Answer the prompt, compressed if that pays or nothing else fits; with `full` once more by a full prefill.

        A text stands for `Prompt.from_text` of it, messages of a chat for what `sp.prompt.prompt.prompt_of` makes of
        them, and no options for those of `RunOptions()`.

        Parameters
        ----------
        prompt : Prompt, str or messages
        options : RunOptions, optional
        tools : sequence of mapping, optional
            That the model may call, as OpenAI describes them, beside messages. `Answer.calls` has what it calls.
        full : bool
        reporter : Reporter
        progress : callable, optional
            Called with a stage, how much of it is done, and of how much: layer by layer, or chunk by chunk. What it
            raises ends the run there, and comes out of this call; the pipeline is as before.
        on_token : callable, optional
            Called with each token of the answer as it is decoded; ends it by returning True.
        by_head : bool
            Keep the importance map of every head of the drafter.

        Raises
        ------
        PromptError
            The prompt fits the context, or a budget of device memory, neither whole nor compressed; messages are none.
        ConfigError
            Without the draft that the options' way of decoding needs.
        """
        asked = as_prompt(prompt, self.target, tools or ())
        calling = calling_of(self.target.template, tools) if tools else None
        reporter = reporter if progress is None else reporting(progress, reporter)
        options = options or RunOptions()
        if isinstance(options.decode, Speculative):
            needed(self.speculator)
        self.ready(options, reporter)
        done = request.answer(self, asked, options, full=full, reporter=reporter, on_token=on_token, by_head=by_head)
        scored, settled = done.scored, done.settled
        return RunResult(
            done.prompt,
            settled.decision,
            done.answer.with_calls(calling),
            done.full and done.full.with_calls(calling),
            scored.importance if scored else None,
            done.scores,
            done.selection,
            peak_bytes(),
            None if scored is None or isinstance(settled.options.scorer, ModelFreeScorer) else scored.drafted,
            settled.options,
        )

    @takes_options
    def stream(
        self,
        prompt: Prompt | str | Sequence[Message],
        options: RunOptions | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        progress: OnProgress | None = None,
    ) -> Stream[RunResult]:
        """What `run` answers, as pieces of text that come while it is decoded; see `Stream`. `progress` is called in
        the thread that works.

        Examples
        --------
        >>> for piece in Pipeline.open().stream(messages):  # doctest: +SKIP
        ...     print(piece, end="", flush=True)
        """
        return Stream(*self._work(prompt, options, tools), reporting(progress))

    @takes_options
    def astream(
        self,
        prompt: Prompt | str | Sequence[Message],
        options: RunOptions | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        progress: OnProgress | None = None,
    ) -> AsyncStream[RunResult]:
        """`stream` for an async loop: ``async for piece in pipeline.astream(...)``; see `AsyncStream`."""
        return AsyncStream(*self._work(prompt, options, tools), reporting(progress))

    def _work(
        self,
        prompt: Prompt | str | Sequence[Message],
        options: RunOptions | None,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> tuple[Work[RunResult], AnswerText]:
        asked, calling = as_prompt(prompt, self.target, tools or ()), calling_of(self.target.template, tools)
        return partial(self.run, asked, options, tools=tools), AnswerText(self.target.tokenizer, asked.thinks, calling)

    def check(
        self, prompt: Prompt | str | Sequence[Message], options: RunOptions | None = None, *, full: bool = False
    ) -> None:
        """Raise what `run` would raise before it lets a model read, and do nothing else; arguments as for `run`.

        Examples
        --------
        >>> pair = Pipeline.open(device="cpu")
        >>> pair.check("The sky is blue.", RunOptions(max_new_tokens=200_000))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        sp.errors.TooLongError: the prompt has 6 tokens and the answer up to 200000, but target.gguf has a context ...
        """
        prompt, options = as_prompt(prompt, self.target), options or RunOptions()
        if isinstance(options.decode, Speculative):
            needed(self.speculator)
        self.ready(options)
        tokenised = self.tokenise(prompt)
        if settle(self, tokenised, options, full).decision.activated:
            reader = self.scoring_model(options)[1]
            drafted = request.tokenise_for_drafter(prompt, reader.tokenizer, self.target.tokenizer, Trace(), tokenised)
            if (budget := self.residency.budget) is not None:
                check_scoring(reader, len(drafted), options.scorer, budget)

    def score(
        self,
        tokenised: TokenisedPrompt,
        options: RunOptions,
        reporter: Reporter = silent,
        by_head: bool = False,
        drafted: TokenisedPrompt | None = None,
    ) -> Scored:
        """Let the drafter, or whom the scorer asks for, read the prompt.

        Only `scorer` and `seed` of the options matter. `drafted` is the prompt in the vocabulary of the model that
        reads it, where an earlier scoring made it; its trace then has no stage for that.
        """
        self.ready(options, reporter)
        return request.score(self, tokenised, options, reporter, by_head, drafted)

    def select(
        self, scored: Scored, tokenised: TokenisedPrompt, options: RunOptions, trace: Trace | None = None
    ) -> tuple[Floats, Selection]:
        """Scores of the target's tokens, and the tokens to keep; as often as wanted for one scoring."""
        scores, selection = request.select(scored, tokenised, options, trace or Trace())
        assert selection is not None
        return scores, selection

    def read(
        self,
        tokenised: TokenisedPrompt,
        kept: Bools | Selection,
        options: RunOptions,
        trace: Trace | None = None,
        reporter: Reporter = silent,
        what: str = "target prefill",
        on_token: OnToken | None = None,
    ) -> Answer:
        """Prefill the kept tokens and decode; `trace` is a new one if none is given, `what` the progress is called.

        The time to first token is that of all stages of the trace, those before this one among them, until then.
        """
        return request.read(
            self, tokenised, kept, options, Trace() if trace is None else trace, reporter, what, on_token
        )
