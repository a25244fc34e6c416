"""Pipeline: a target and its drafter, loaded under one budget, and the operations on them."""

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
from sp.quant.cached import IN_BASIS
from sp.scoring import SCORERS, Scorer
from sp.scoring.base import ModelFreeScorer
from sp.scoring.calibration.measure import TOKENS, known_retrieval, made_retrieval, makes_one
from sp.selection import Selection
from sp.session import request
from sp.session.answer import required_draft
from sp.session.decision import ModelPair, check_scoring, plan_request
from sp.session.device.memory_manager import MemoryManager
from sp.session.device_memory import Where, format_bytes
from sp.session.key_bases import FileBases
from sp.session.loaded import OF_ONE_GPU, Loaded, default_drafter, draft_on_gpus, embedded, load, replicated, sharing
from sp.session.measured import known_break_evens
from sp.session.options import Compress, ModelOptions, PlaceOptions, RunOptions, takes_options
from sp.session.result import Answer, OnToken, RunResult, Scored
from sp.session.stream import AnswerCall, AsyncStream, Stream
from sp.trace import OnProgress, Reporter, Trace, peak_bytes, reporting, silent

NOT_NAMED = "the best drafter found locally, as none was specified"


@dataclass(frozen=True)
class Pipeline(ModelPair):
    """A target and, for compression, its drafter, which share a device; for speculative decoding a draft besides.

    `run` does everything; `tokenise`, `score`, `select` and `read` are its steps, for callers that share one scoring
    between selections.

    Parameters
    ----------
    target : Loaded
    drafter : Loaded, optional
    memory_manager : MemoryManager
        Manages the device memory of the models.
    speculator : Draft, optional
    break_evens : tuple of BreakEven
        Measurements of this pair.
    executor : ThreadPoolExecutor
        Tokenises for the target while the device scores.
    gpus : ContextParallel, optional
        The drafter's copies on several GPUs, if they read together.

    Examples
    --------
    >>> pair = Pipeline(load(embedded("target")), load(embedded("drafter")))  # doctest: +SKIP
    >>> prompt = Prompt.from_document(document, question, pair.target.template)  # doctest: +SKIP
    >>> pair.run(prompt, RunOptions(keep_ratio=0.1)).answer.text  # doctest: +SKIP
    '8301947.'
    """

    def __repr__(self) -> str:
        models = {"target": self.target, "drafter": self.drafter, "draft": self.speculator}
        facts = {role: plain(model.path.name) for role, model in models.items() if model is not None}
        facts |= {"device": self.target.model.device}
        facts |= {"vram": size} if (size := format_bytes(self.memory_manager.budget)) else {}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in facts.items())})"

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
        """Open two GGUF files, by path or known name; by default the embedded target and its own drafter.

        Without a `drafter` another target gets that of `default_drafter`. With `scorers` the drafter is loaded for
        these only. All other keywords are fields of `ModelOptions` and `PlaceOptions`: `vram`, in bytes, is for both
        models; on several `gpus` the drafter reads together with copies of itself, and they share the target, or
        `target_gpus` do. `reporter` and errors as for `load`; TypeError for another keyword.
        """
        places, known = [field.name for field in fields(PlaceOptions)], [field.name for field in fields(ModelOptions)]
        options = present_names(options, [*known, *places])
        check_keywords("open", options, [*known, *places, "scorers", "reporter"])
        own = {name: options.pop(name) for name in places if name in options}
        place, models = PlaceOptions(**own), ModelOptions(target, drafter, **options)  # type: ignore[arg-type]
        group = sharing(place.gpus, place.target_gpus, place.device, place.vram)
        target_options: dict[str, Any] = {
            "rope": models.target_rope,
            "room": place.vram,
            "precision": models.precision,
            "group": group,
        }
        target_options |= {"reporter": reporter}
        # Path or known name.
        small = drafter or default_drafter(target, None if scorers is None else map(type, scorers))
        chosen = NOT_NAMED if not drafter and small != embedded("drafter") else ""
        drafter_options: dict[str, Any] = {
            "extrapolate": True,
            "rope": models.drafter_rope,
            "precision": models.drafter_precision,
        }
        drafter_options |= {"scorers": scorers or (), "reporter": reporter}
        opened: list[Loaded] = []  # the target, whose file may be the drafter's, too

        def heavy(where: Device) -> Loaded:
            opened.append(load(target or embedded("target"), device=where, **target_options))
            return opened[0]

        def light(where: Device) -> Loaded:
            beside = opened[0] if models.precision == models.drafter_precision else None
            return replace(load(small, device=where, beside=beside, **drafter_options), chosen=chosen)

        pair = cls.assemble(heavy, light, device=place.device, vram=place.vram, gpus=place.gpus)
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
            For a budget with models on the CPU, or on several GPUs.
        DeviceError
            If the budget is too small to load them.
        """
        where = pick_device(device)
        if gpus > 1 and vram is not None:
            raise ConfigError(OF_ONE_GPU)

        def to_score(where: Device) -> Loaded:
            loaded = drafter(where)
            model = loaded.model
            model.arithmetic = scoring(model.arithmetic, model.device, model.config)
            return loaded

        group = group_of(gpus, device)
        if where == "cpu":
            if vram is not None:
                raise ConfigError("vram limits GPU memory, but the models run on the CPU; omit it")
            return cls(target(where), to_score(where))
        memory_manager = MemoryManager(vram)
        heavy = memory_manager.load("target", lambda: target(where))
        small = memory_manager.load("drafter", lambda: to_score(where))
        return cls(heavy, small, memory_manager, gpus=None if group is None else replicated(small, group, to_score))

    @property
    def on_gpus(self) -> bool:
        """True if several GPUs read for the drafter together, or share the target."""
        return self.gpus is not None or isinstance(self.target.model, SharedModel)

    def ready(self, options: RunOptions, reporter: Reporter | None = None, *, keys: str = USUAL) -> None:
        """Prepare the drafter for a scorer, with its file's calibration if needed, and both models for their caches.

        Missing calibrations and bases of keys are computed, which may take a minute; `reporter` shows a calibration,
        and the one passed to `open` shows bases. `keys`: format of the drafter's keys that a conversation keeps.

        Raises
        ------
        ConfigError
            If layers that the scorer needs were not loaded, because the pair was opened for others.
        """
        if options.kv.k in IN_BASIS:
            self._measure_keys("target", self.target.model, options.kv)
        scorer, drafter = options.scorer, self.drafter
        if drafter is None or not scorer.drafts or options.compress == "off":
            return
        model, path = drafter.model, drafter.path
        if keys != USUAL and known_kv(keys).k in IN_BASIS:
            self._measure_keys("drafter", model, keys)
        if scorer.retrieves and model.config.retrieval is None:
            retrieval = known_retrieval(path, model.config, [scorer])
            if retrieval is None and makes_one([scorer]) and path.is_file():
                model.check_loaded(model.config.layers)  # a calibration needs all layers
                with self.memory_manager.using("drafter", TOKENS):
                    retrieval = made_retrieval(path, model, drafter.tokenizer, drafter.template, reporter)
            for copy in (model, *(self.gpus.models if self.gpus else ())):
                copy.config = replace(copy.config, retrieval=retrieval)
        depth = scorer.reading_depth(model.config)
        try:
            model.check_loaded(depth)
        except ModelError as error:
            raise ConfigError(
                f"scorer {SCORERS.name_of(scorer)}: {error}; open {plain(path.name)} for this scorer too"
            ) from None

    def _measure_keys(self, name: str, model: Model, kv: str) -> None:
        if isinstance(model.key_bases, FileBases) and not model.key_bases.knows(model, kv):
            with self.memory_manager.using(name, TOKENS):  # now, and not within a timed stage that needs them
                model.bases_for(kv)

    def within(self, vram: int | None) -> Self:
        """Return the same pair under another budget of device memory in bytes; None for all there is."""
        if vram is not None and self.target.model.device == "cpu":
            raise ConfigError("vram limits GPU memory, but the models are on the CPU; omit it")
        if vram is not None and self.on_gpus:
            raise ConfigError(OF_ONE_GPU)
        return replace(self, memory_manager=self.memory_manager.within(vram))

    def with_break_evens(self, records: Path | None = None) -> Self:
        """Return the same pair, deciding by measurements of it on this machine, if there are any.

        Parameters and errors as for `known_break_evens`.
        """
        if self.drafter is None:
            return self
        count, model = 1 if self.gpus is None else self.gpus.group.size, self.target.model
        gpus = count, model.shards.group.size if isinstance(model, SharedModel) else 1
        measured = known_break_evens(records, self.target, self.drafter, self.memory_manager.budget, gpus)
        return self if measured is None else replace(self, break_evens=measured)

    def with_speculator(self, path: str | Path) -> Self:
        """Return the same pair with a draft of its target, for speculative decoding; see `load_draft`.

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
        return replace(self, speculator=self.memory_manager.hold("draft", lambda: load_draft(path, model)))

    def with_draft(self, path: str | Path) -> Self:
        """Call `with_speculator`, whose former name this is."""
        warnings.warn("with_draft is now with_speculator; the old name still works", SpWarning, 2)
        return self.with_speculator(path)

    def warm_up(self, tokens: int = 1024, options: RunOptions | None = None) -> None:
        """Answer a prompt of about `tokens` tokens, all of them kept, so that no measured run pays for one-time costs.

        Threads start, weights and heap are paged in, kernels are loaded.
        """
        unit = "the lazy dog sleeps. "
        count = max(2, min(tokens, self.target.model.config.context // 2) // len(self.target.tokenizer.encode(unit)))
        end = len(unit) * count
        prompt = Prompt(unit * count, (Span("plain", 0, end), Span("question", end - len(unit), end)))
        # So that the drafter and its kernels are warmed up, too.
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

        A text is converted by `Prompt.from_text`, messages of a chat by `sp.prompt.prompt.prompt_of`; without options
        those of `RunOptions()` hold.

        Parameters
        ----------
        prompt : Prompt, str or messages
        options : RunOptions, optional
        tools : sequence of mapping, optional
            Tools that the model may call, as in OpenAI's API; only with messages. `Answer.calls` has the calls.
        full : bool
        reporter : Reporter
        progress : callable, optional
            Called with the name of a stage, the amount done, and the total: layer by layer, or chunk by chunk. An
            exception that it raises ends the run and is raised by this call; the pipeline is unchanged.
        on_token : callable, optional
            Called with each token of the answer as it is decoded; ends it by returning True.
        by_head : bool
            Keep the importance map of every head of the drafter.

        Raises
        ------
        PromptError
            If the prompt fits the context, or a budget of device memory, neither whole nor compressed; for invalid
            messages.
        ConfigError
            If the options' decoder needs a draft and there is none.
        """
        source = as_prompt(prompt, self.target, tools or ())
        calling = calling_of(self.target.template, tools) if tools else None
        reporter = reporter if progress is None else reporting(progress, reporter)
        options = options or RunOptions()
        if isinstance(options.decode, Speculative):
            required_draft(self.speculator)
        self.ready(options, reporter)
        done = request.answer(self, source, options, full=full, reporter=reporter, on_token=on_token, by_head=by_head)
        scored, plan = done.scored, done.plan
        return RunResult(
            done.prompt,
            plan.decision,
            done.answer.with_calls(calling),
            done.full and done.full.with_calls(calling),
            scored.importance if scored else None,
            done.scores,
            done.selection,
            peak_bytes(),
            None if scored is None or isinstance(plan.options.scorer, ModelFreeScorer) else scored.drafted,
            plan.options,
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
        """Answer like `run`, as pieces of text while it is decoded; see `Stream`.

        `progress` is called in the working thread.

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
        """Answer like `stream`, for an async loop: ``async for piece in pipeline.astream(...)``; see `AsyncStream`."""
        return AsyncStream(*self._work(prompt, options, tools), reporting(progress))

    def _work(
        self,
        prompt: Prompt | str | Sequence[Message],
        options: RunOptions | None,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> tuple[AnswerCall[RunResult], AnswerText]:
        source, calling = as_prompt(prompt, self.target, tools or ()), calling_of(self.target.template, tools)
        text = AnswerText(self.target.tokenizer, source.thinks, calling)
        return partial(self.run, source, options, tools=tools), text

    def check(
        self, prompt: Prompt | str | Sequence[Message], options: RunOptions | None = None, *, full: bool = False
    ) -> None:
        """Raise what `run` would raise before a model reads, and do nothing else; arguments as for `run`.

        Examples
        --------
        >>> pair = Pipeline.open(device="cpu")
        >>> pair.check("The sky is blue.", RunOptions(max_new_tokens=200_000))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        sp.errors.TooLongError: the prompt has 6 tokens and the answer up to 200000, but target.gguf has a context ...
        """
        prompt, options = as_prompt(prompt, self.target), options or RunOptions()
        if isinstance(options.decode, Speculative):
            required_draft(self.speculator)
        self.ready(options)
        tokenised = self.tokenise(prompt)
        if plan_request(self, tokenised, options, full).decision.activated:
            reader = self.scoring_model(options)[1]
            drafted = request.tokenise_for_drafter(prompt, reader.tokenizer, self.target.tokenizer, Trace(), tokenised)
            if (budget := self.memory_manager.budget) is not None:
                check_scoring(reader, len(drafted), options.scorer, budget)

    def score(
        self,
        tokenised: TokenisedPrompt,
        options: RunOptions,
        reporter: Reporter = silent,
        by_head: bool = False,
        drafted: TokenisedPrompt | None = None,
    ) -> Scored:
        """Score the prompt with the drafter, or the model that the scorer needs.

        Only `scorer` and `seed` of the options matter. `drafted` is the prompt in the vocabulary of the scoring model,
        if an earlier scoring computed it; the trace then has no stage for that.
        """
        self.ready(options, reporter)
        return request.score(self, tokenised, options, reporter, by_head, drafted)

    def select(
        self, scored: Scored, tokenised: TokenisedPrompt, options: RunOptions, trace: Trace | None = None
    ) -> tuple[Floats, Selection]:
        """Return the scores of the target's tokens, and the tokens to keep; repeatable for one scoring."""
        scores, selection = request.select(scored, tokenised, options, trace or Trace())
        assert selection is not None
        return scores, selection

    def read(
        self,
        tokenised: TokenisedPrompt,
        selected: Bools | Selection,
        options: RunOptions,
        trace: Trace | None = None,
        reporter: Reporter = silent,
        label: str = "target prefill",
        on_token: OnToken | None = None,
    ) -> Answer:
        """Prefill the selected tokens and decode; `trace` is a new one by default, `label` the name of the progress.

        The time to first token includes all stages of the trace so far.
        """
        return request.read(
            self, tokenised, selected, options, Trace() if trace is None else trace, reporter, label, on_token
        )
