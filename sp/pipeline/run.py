"""Speculative prefill from text to answer, with the full prefill of the same prompt beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from sp.errors import ConfigError
from sp.kernels.device import pick_device
from sp.kernels.machine import machine_facts, machine_slug
from sp.models.drafts.dflash import load_draft
from sp.models.model import Device
from sp.pipeline import stages
from sp.pipeline.break_even import BreakEven, find_break_even, read_break_evens
from sp.pipeline.load import Loaded, Where, embedded, load, repacked_lines
from sp.pipeline.options import Compress, RunOptions
from sp.pipeline.plan import decide
from sp.pipeline.residency import Residency
from sp.pipeline.result import Reporter, RunResult, silent
from sp.pipeline.sizes import format_bytes
from sp.pipeline.steps import Steps
from sp.prompt import Prompt, Span, TokenisedPrompt
from sp.selection import token_budget
from sp.trace import Stage, Trace, peak_bytes


@dataclass(frozen=True)
class Pipeline(Steps):
    """A target and, for compression, its drafter.

    Examples
    --------
    >>> from sp.pipeline.load import embedded, load
    >>> pair = Pipeline(load(embedded("target")), load(embedded("drafter")))  # doctest: +SKIP
    >>> prompt = Prompt.from_document(document, question, pair.target.template)  # doctest: +SKIP
    >>> pair.run(prompt, RunOptions(keep_ratio=0.1)).answer.text  # doctest: +SKIP
    '8301947.'
    """

    break_evens: tuple[BreakEven, ...] = ()
    beside: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "sp-tokenise"), compare=False)

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

    def with_draft(self, path: str | Path) -> Pipeline:
        """The same pair with a draft of its target, for the speculative ways of decoding; see `load_draft`.

        Examples
        --------
        >>> from sp.decode import DDTree
        >>> pair = Pipeline.open().with_draft(embedded("draft"))  # doctest: +SKIP
        >>> pair.run(prompt, RunOptions(decode=DDTree(budget=22))).answer.passes  # doctest: +SKIP
        (8,)
        """
        model = self.target.model
        if model.device == "cpu":
            return replace(self, draft=load_draft(path, model))
        return replace(self, draft=self.residency.hold("draft", lambda: load_draft(path, model)))

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
        ConfigError
            Without the draft that the options' way of decoding needs.
        """
        stages.check_draft(options, self.draft)
        start, trace, scored = time.perf_counter(), Trace(), None
        if self._drafts_ahead(options):
            drafted = self._drafted(prompt, options, trace)  # by itself: it is what everything waits for
            waiting = self.beside.submit(_timed, self.tokenise, prompt)
            scored = self._scored(drafted, options, trace, reporter, by_head)
            with trace.stage("tokenise") as stage:
                tokenised, took = waiting.result()
            stage.tokens, stage.beside = len(tokenised), max(0.0, took - stage.seconds)
        else:
            with trace.stage("tokenise") as stage:
                tokenised = self.tokenise(prompt)
                stage.tokens = len(tokenised)
        text = next(stage for stage in trace.stages if stage.name == "tokenise")
        scorer = options.scorer.settled(self.target.model.device, len(tokenised))
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
            measured=None if options.sparse else find_break_even(self.break_evens, options.keep_ratio, scorer),
            scorer=scorer,
            sparse=options.sparse,
        )
        scores, selection = None, None
        everything = np.ones(len(tokenised), bool)
        if decision.activated:
            if scored is None:
                scored = self.score(tokenised, replace(options, scorer=scorer), reporter, by_head)
                trace.stages += scored.trace.stages
            ahead = time.perf_counter()  # copies run beside the selection
            if self.residency.prepare("target", token_budget(options.keep_ratio, len(tokenised))):
                trace.stages.append(Stage("unpark target", seconds=time.perf_counter() - ahead))
            scores, selection = self.select(scored, tokenised, options, trace)
        kept = everything if selection is None else selection.kept
        answer = self.read(tokenised, kept, options, trace, reporter, "target prefill", on_token)
        if told := repacked_lines(self.target, self.drafter, self.draft):
            trace.facts["repacked"] = told
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


def _timed(work: Callable[[Prompt], TokenisedPrompt], prompt: Prompt) -> tuple[TokenisedPrompt, float]:
    """What work on a prompt gives, and the seconds it took."""
    start = time.perf_counter()
    done = work(prompt)
    return done, time.perf_counter() - start
