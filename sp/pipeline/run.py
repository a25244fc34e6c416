"""Speculative prefill from text to answer, with the full prefill of the same prompt beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sp.arrays import Bools, Floats
from sp.errors import ConfigError
from sp.kernels.device import pick_device
from sp.kernels.machine import machine_facts, machine_slug
from sp.models.model import Device
from sp.pipeline import stages
from sp.pipeline.break_even import BreakEven, find_break_even, read_break_evens
from sp.pipeline.load import Loaded, Where, embedded, load
from sp.pipeline.options import Compress, RunOptions
from sp.pipeline.plan import Decision, decide
from sp.pipeline.residency import Residency, format_bytes
from sp.prompt import Prompt, Span, TokenisedPrompt
from sp.scoring import Importance
from sp.selection import Selection, check_budget, token_budget
from sp.trace import Stage, Trace, peak_bytes

Reporter = Callable[[str, int], AbstractContextManager[Callable[[int], None] | None]]
"""Opens a progress bar: (what, total) -> context that yields a callback taking increments."""


def silent(what: str, total: int) -> AbstractContextManager[None]:
    """A reporter that shows nothing."""
    return nullcontext()


@dataclass(frozen=True)
class Answer:
    """One pass of the target over a prompt; `densities` as in `stages.Begun`."""

    text: str
    tokens: tuple[int, ...]
    ttft_s: float
    trace: Trace
    densities: tuple[float, ...] = ()


@dataclass(frozen=True)
class Scored:
    """What the drafter found in a prompt, in its own vocabulary, and the stages that took."""

    drafted: TokenisedPrompt
    importance: Importance
    trace: Trace


@dataclass(frozen=True)
class RunResult:
    """Everything one run found; `full` is None when the full prefill was not asked for.

    `drafted` (the prompt as the drafter read it), `selection`, `scores` and `importance` are None when compression
    was not active. `peak_bytes` is memory of the host; what the device held is in the trace of the answer.
    """

    prompt: TokenisedPrompt
    decision: Decision
    answer: Answer
    full: Answer | None
    importance: Importance | None
    scores: Floats | None
    selection: Selection | None
    peak_bytes: int
    drafted: TokenisedPrompt | None = None

    @property
    def kept_tokens(self) -> int:
        """Tokens of the prompt the target read."""
        return len(self.prompt) if self.selection is None else int(self.selection.kept.sum())

    @property
    def needle_recall(self) -> float | None:
        """Share of the needle's tokens that were kept; None without a known needle."""
        needle = self.prompt.mask("needle")
        if not needle.any():
            return None
        return 1.0 if self.selection is None else float(self.selection.kept[needle].mean())


@dataclass(frozen=True)
class Pipeline:
    """A target and, for compression, its drafter.

    Examples
    --------
    >>> from sp.pipeline.load import embedded, load
    >>> pair = Pipeline(load(embedded("target")), load(embedded("drafter")))  # doctest: +SKIP
    >>> prompt = Prompt.from_document(document, question, pair.target.template)  # doctest: +SKIP
    >>> pair.run(prompt, RunOptions(keep_ratio=0.1)).answer.text  # doctest: +SKIP
    '8301947.'
    """

    target: Loaded
    drafter: Loaded | None = None
    break_evens: tuple[BreakEven, ...] = ()

    residency: Residency = field(default_factory=Residency, compare=False)

    def __post_init__(self) -> None:
        self.residency.add("target", self.target.model)
        if self.drafter is not None:
            self.residency.add("drafter", self.drafter.model)

    @classmethod
    def open(
        cls,
        target: str | Path | None = None,
        drafter: str | Path | None = None,
        *,
        device: Where = "auto",
        vram: int | None = None,
    ) -> Pipeline:
        """Open two GGUF files; the embedded ones where a path is left out. `device` and errors as for `load`."""
        return cls.assemble(
            lambda where: load(target or embedded("target"), device=where),
            lambda where: load(drafter or embedded("drafter"), extrapolate=True, device=where),
            device=device,
            vram=vram,
        )

    @classmethod
    def assemble(
        cls,
        target: Callable[[Device], Loaded],
        drafter: Callable[[Device], Loaded],
        *,
        device: Where = "auto",
        vram: int | None = None,
    ) -> Pipeline:
        """Load two models one after the other under a budget of device memory.

        Parameters
        ----------
        target, drafter : callable
            Load a model on the device they are given, for example by `load` or `synthetic`.
        device : {"auto", "cpu", "cuda"}
        vram : int, optional
            Bytes for models, caches and work together, see `Residency`; what the device has, if left out.

        Raises
        ------
        ConfigError
            A budget for models on the CPU.
        DeviceError
            The budget is too small to load them.
        """
        where = pick_device(device)
        if where == "cpu":
            if vram is not None:
                raise ConfigError("--vram is a budget of GPU memory, but the models run on the CPU; leave it out")
            return cls(target(where), drafter(where))
        residency = Residency(vram)
        heavy = residency.load("target", lambda: target(where))
        return cls(heavy, residency.load("drafter", lambda: drafter(where)), residency=residency)

    def within(self, vram: int | None) -> Pipeline:
        """The same pair under another budget of device memory in bytes; None for all there is."""
        if vram is not None and self.target.model.device == "cpu":
            raise ConfigError("a budget of GPU memory means nothing to models on the CPU; leave it out")
        return replace(self, residency=self.residency.within(vram))

    def with_break_evens(self, records: Path | None = None) -> Pipeline:
        """The same pair, deciding by what was measured of it on this machine, where that is known.

        Parameters
        ----------
        records : path, optional
            A file of `sp bench ttft --record`; ``results/<machine>/ttft.jsonl`` if that is there and none is named.

        Raises
        ------
        ConfigError
            The file cannot be read, or one was named that tells nothing of this pair on this machine.
        """
        if self.drafter is None:
            return self
        machine = machine_slug(machine_facts(self.target.model.device))
        path = records or Path("results") / machine / "ttft.jsonl"
        if records is None and not path.exists():
            return self
        limit = format_bytes(self.residency.budget)
        found = read_break_evens(path, self.target.path.name, self.drafter.path.name, machine, limit)
        if records is not None and not found:
            raise ConfigError(
                f"{path} tells of no full and compressed prefill by {self.target.path.name} and "
                f"{self.drafter.path.name} on {machine}{f' within {limit}' if limit else ''}; make some with "
                "sp bench ttft --record"
            )
        return replace(self, break_evens=found)

    def warm_up(self, tokens: int = 1024, options: RunOptions | None = None) -> None:
        """Answer a prompt of about `tokens` tokens, all of them kept, so that one-time costs fall on no measured run.

        Threads start, weights and heap are paged in, kernels are loaded. Whichever run came first would pay otherwise.
        """
        unit = "the lazy dog sleeps. "
        context = self.target.model.config.context
        count = max(1, min(tokens, context // 2) // len(self.target.tokenizer.encode(unit)))
        prompt = Prompt(unit * count, (Span("plain", 0, len(unit) * count),))
        compress: Compress = "always" if self.drafter else "off"
        whole = replace(options or RunOptions(), keep_ratio=1.0, max_new_tokens=4, compress=compress)
        self.run(prompt, whole, full=False)

    def run(
        self,
        prompt: Prompt,
        options: RunOptions,
        *,
        full: bool = True,
        reporter: Reporter = silent,
        on_token: stages.OnToken | None = None,
        by_head: bool = False,
    ) -> RunResult:
        """Answer the prompt, compressed if that pays, and with `full` also by a full prefill.

        `on_token` is called with each token of the answer as it is decoded, and ends it by returning True. `by_head`
        keeps the importance map of every head of the drafter.

        Raises
        ------
        PromptError
            The prompt does not fit the context, or its protected text does not fit the budget.
        """
        start, trace, scored = time.perf_counter(), Trace(), None
        if self._drafts_ahead(options):
            drafted = self._drafted(prompt, options, trace)  # by itself: it is what everything waits for
            with ThreadPoolExecutor(1, thread_name_prefix="sp-tokenise") as beside:
                waiting = beside.submit(_timed, self.tokenise, prompt)
                scored = self._scored(drafted, options, trace, reporter, by_head)
                with trace.stage("tokenise") as stage:
                    tokenised, took = waiting.result()
            stage.tokens, stage.beside = len(tokenised), max(0.0, took - stage.seconds)
        else:
            with trace.stage("tokenise") as stage:
                tokenised = self.tokenise(prompt)
                stage.tokens = len(tokenised)
        text = next(stage for stage in trace.stages if stage.name == "tokenise")
        options = replace(options, scorer=options.scorer.settled(self.target.model.device, len(tokenised)))
        stages.check_context(self.target, len(tokenised), options.max_new_tokens)
        decision = decide(
            self.target.model.config,
            self.drafter.model.config if self.drafter else None,
            tokens=len(tokenised),
            protected=int(tokenised.mask("protected").sum()),
            keep_ratio=options.keep_ratio,
            compress=options.compress,
            threshold=options.threshold,
            # Times were measured with a target that reads densely.
            measured=None if options.sparse else find_break_even(self.break_evens, options.keep_ratio, options.scorer),
            scorer=options.scorer,
            sparse=options.sparse,
        )
        scores, selection = None, None
        everything = np.ones(len(tokenised), bool)
        if decision.activated:
            if scored is None:
                scored = self.score(tokenised, options, reporter, by_head)
                trace.stages += scored.trace.stages
            ahead = time.perf_counter()  # copies run beside the selection
            if self.residency.prepare("target", token_budget(options.keep_ratio, len(tokenised))):
                trace.stages.append(Stage("unpark target", seconds=time.perf_counter() - ahead))
            scores, selection = self.select(scored, tokenised, options, trace)
        kept = everything if selection is None else selection.kept
        answer = self.read(tokenised, kept, options, trace, reporter, "target prefill", on_token)
        if held := self.residency.report(start):
            trace.facts["residency"] = held
        baseline = answer if full else None
        if full and selection is not None:
            alone = Stage("tokenise", text.tokens, text.seconds + text.beside)
            baseline = self.read(tokenised, everything, options, Trace(stages=[alone]), reporter, "full prefill")
        return RunResult(
            tokenised,
            decision,
            answer,
            baseline,
            scored.importance if scored else None,
            scores,
            selection,
            peak_bytes(),
            scored.drafted if scored else None,
        )

    def _drafts_ahead(self, options: RunOptions) -> bool:
        """Whether the drafter may begin before the target's tokens are known.

        On the device it leaves the host free for them. What they decide, `compress` must have settled.
        """
        drafter, target = self.drafter, self.target.tokenizer
        if drafter is None or drafter.model.device == "cpu" or options.scorer.reads_target:
            return False
        return options.compress == "always" and not drafter.tokenizer.same_as(target)

    def tokenise(self, prompt: Prompt) -> TokenisedPrompt:
        """The prompt in the target's vocabulary."""
        return prompt.tokenise(self.target.tokenizer)

    def score(
        self,
        tokenised: TokenisedPrompt,
        options: RunOptions,
        reporter: Reporter = silent,
        by_head: bool = False,
        drafted: TokenisedPrompt | None = None,
    ) -> Scored:
        """Let the drafter, or whom the scorer asks for, read the prompt.

        Only `keep_ratio`, `scorer` and `seed` of the options matter. `drafted` is the prompt in the vocabulary of the
        model that reads it, where an earlier scoring made it; its trace then has no stage for that.

        Raises
        ------
        PromptError
            The protected text alone exceeds the budget of `keep_ratio`.
        """
        check_budget(tokenised.mask("protected"), token_budget(options.keep_ratio, len(tokenised)))
        trace = Trace()
        if drafted is None:
            drafted = self._drafted(tokenised.prompt, options, trace, tokenised)
        return self._scored(drafted, options, trace, reporter, by_head)

    def _drafted(
        self, prompt: Prompt, options: RunOptions, trace: Trace, known: TokenisedPrompt | None = None
    ) -> TokenisedPrompt:
        """The prompt in the vocabulary of who scores it; the target's tokens may be `known`."""
        with trace.stage("tokenise for drafter") as stage:
            tokenizer = self._reader(options)[1].tokenizer
            same = known is not None and tokenizer.same_as(self.target.tokenizer)
            drafted = known if known is not None and same else prompt.tokenise(tokenizer)
            stage.tokens = len(drafted)
        return drafted

    def _scored(
        self, drafted: TokenisedPrompt, options: RunOptions, trace: Trace, reporter: Reporter, by_head: bool
    ) -> Scored:
        role, reader = self._reader(options)
        with (
            trace.stage("score", len(drafted)),
            reporter("scoring", len(drafted) * reader.model.config.layers) as progress,
            self.residency.using(role, len(drafted)),
            self.residency.metered(),
        ):
            importance = stages.score(reader, drafted, options, progress, by_head)
        return Scored(drafted, importance, trace)

    def _reader(self, options: RunOptions) -> tuple[str, Loaded]:
        """Who scores: the drafter, or whom the scorer asks for."""
        if options.scorer.reads_target:
            return "target", self.target
        assert self.drafter is not None, "score needs a drafter"
        return "drafter", self.drafter

    def select(
        self, scored: Scored, tokenised: TokenisedPrompt, options: RunOptions, trace: Trace | None = None
    ) -> tuple[Floats, Selection]:
        """Scores of the target's tokens, and the tokens to keep; as often as wanted for one scoring."""
        with (trace or Trace()).stage("select", len(tokenised)):
            return stages.select(scored.importance, scored.drafted, tokenised, options)

    def read(
        self,
        tokenised: TokenisedPrompt,
        kept: Bools,
        options: RunOptions,
        trace: Trace | None = None,
        reporter: Reporter = silent,
        what: str = "target prefill",
        on_token: stages.OnToken | None = None,
    ) -> Answer:
        """Prefill the kept tokens and decode.

        The time to first token is that of all stages of `trace`, those before this call among them, until the first
        token is known.
        """
        trace = Trace() if trace is None else trace
        whole = bool(kept.all())
        with trace.stage("compress", int(kept.sum())):
            given = stages.compress(
                tokenised,
                kept,
                self.target.tokenizer,
                "original" if whole else options.positions,
                "byte_span" if whole else options.mapping,
            )
        with ExitStack() as stack:
            with trace.stage("target prefill", len(given.ids)), reporter(what, len(given.ids)) as progress:
                stack.enter_context(self.residency.using("target", len(given.ids)))
                with self.residency.metered():
                    begun = stages.begin(self.target, given, options, progress)
            ttft = trace.seconds
            with trace.stage("decode") as stage:
                tokens = stages.decode(self.target, begun, on_token)
                stage.tokens = len(tokens)
        text = self.target.tokenizer.decode(tokens).strip()
        return Answer(text, tuple(tokens), ttft, trace, begun.densities)


def _timed(work: Callable[[Prompt], TokenisedPrompt], prompt: Prompt) -> tuple[TokenisedPrompt, float]:
    """What work on a prompt gives, and the seconds it took."""
    start = time.perf_counter()
    done = work(prompt)
    return done, time.perf_counter() - start
