"""Speculative prefill from text to answer, with the full prefill of the same prompt beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from sp.arrays import Bools, Floats
from sp.models import prefill
from sp.pipeline import stages
from sp.pipeline.load import Loaded
from sp.pipeline.options import RunOptions
from sp.pipeline.plan import Decision, decide
from sp.prompt import Prompt, TokenisedPrompt
from sp.scoring import Importance
from sp.selection import Selection, check_budget, token_budget
from sp.trace import Trace, peak_bytes

Reporter = Callable[[str, int], AbstractContextManager[Callable[[int], None] | None]]
"""Opens a progress bar: (what, total) -> context that yields a callback taking increments."""


def silent(what: str, total: int) -> AbstractContextManager[None]:
    """A reporter that shows nothing."""
    return nullcontext()


@dataclass(frozen=True)
class Answer:
    """One pass of the target over a prompt."""

    text: str
    tokens: tuple[int, ...]
    ttft_s: float
    trace: Trace


@dataclass(frozen=True)
class RunResult:
    """Everything one run found; `full` is None when the full prefill was not asked for.

    `selection`, `scores` and `importance` are None when compression was not active.
    """

    prompt: TokenisedPrompt
    decision: Decision
    answer: Answer
    full: Answer | None
    importance: Importance | None
    scores: Floats | None
    selection: Selection | None
    peak_bytes: int

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

    def warm_up(self, tokens: int = 1024) -> None:
        """Run both models over `tokens` tokens, so that one-time costs fall on no measured pass.

        Threads start, weights and heap are paged in. Whichever pass came first would pay for them otherwise.
        """
        for loaded in (self.target, self.drafter):
            if loaded is not None:
                n = max(1, min(tokens, loaded.model.config.context))
                ids = np.arange(n, dtype=np.int64) % loaded.model.config.vocab
                prefill(loaded.model, ids, np.arange(n, dtype=np.int64), loaded.model.new_cache(n))

    def run(
        self,
        prompt: Prompt,
        options: RunOptions,
        *,
        full: bool = True,
        reporter: Reporter = silent,
        on_token: stages.OnToken | None = None,
    ) -> RunResult:
        """Answer the prompt, compressed if that pays, and with `full` also by a full prefill.

        `on_token` is called with each token of the answer as it is decoded, and ends it by returning True.

        Raises
        ------
        PromptError
            The prompt does not fit the context, or its protected text does not fit the budget.
        """
        trace = Trace()
        with trace.stage("tokenise") as stage:
            tokenised = prompt.tokenise(self.target.tokenizer)
            stage.tokens = len(tokenised)
        stages.check_context(self.target, len(tokenised), options.max_new_tokens)
        decision = decide(
            self.target.model.config,
            self.drafter.model.config if self.drafter else None,
            tokens=len(tokenised),
            protected=int(tokenised.mask("protected").sum()),
            keep_ratio=options.keep_ratio,
            compress=options.compress,
            threshold=options.threshold,
        )
        importance, scores, selection = None, None, None
        if decision.activated and self.drafter is not None:
            importance, scores, selection = self.choose(tokenised, options, trace, reporter)
        kept = np.ones(len(tokenised), bool) if selection is None else selection.kept
        answer = self.read(tokenised, kept, options, trace, reporter, "target prefill", on_token)
        baseline = None
        if full and selection is not None:
            everything = np.ones(len(tokenised), bool)
            baseline_trace = Trace(stages=[trace.stages[0]])
            baseline = self.read(tokenised, everything, options, baseline_trace, reporter, "full prefill")
        elif full:
            baseline = answer
        return RunResult(tokenised, decision, answer, baseline, importance, scores, selection, peak_bytes())

    def choose(
        self, tokenised: TokenisedPrompt, options: RunOptions, trace: Trace, reporter: Reporter
    ) -> tuple[Importance, Floats, Selection]:
        """Score with the drafter and select target tokens."""
        assert self.drafter is not None, "choose needs a drafter"
        check_budget(tokenised.mask("protected"), token_budget(options.keep_ratio, len(tokenised)))
        with trace.stage("tokenise for drafter") as stage:
            drafted = tokenised.prompt.tokenise(self.drafter.tokenizer)
            stage.tokens = len(drafted)
        work = len(drafted) * self.drafter.model.config.layers
        with trace.stage("score", len(drafted)), reporter("scoring", work) as progress:
            importance = stages.score(self.drafter, drafted, options, progress)
        with trace.stage("select", len(tokenised)):
            scores, selection = stages.select(importance, drafted, tokenised, options)
        return importance, scores, selection

    def read(
        self,
        tokenised: TokenisedPrompt,
        kept: Bools,
        options: RunOptions,
        trace: Trace,
        reporter: Reporter,
        what: str,
        on_token: stages.OnToken | None = None,
    ) -> Answer:
        """Prefill the kept tokens and decode; the time to first token is that of all stages up to the prefill."""
        whole = bool(kept.all())
        with trace.stage("compress", int(kept.sum())):
            given = stages.compress(
                tokenised,
                kept,
                self.target.tokenizer,
                "original" if whole else options.positions,
                "byte_span" if whole else options.mapping,
            )
        with trace.stage("target prefill", len(given.ids)), reporter(what, len(given.ids)) as progress:
            state = stages.prefill_target(self.target, given, options, progress)
        ttft = trace.seconds
        with trace.stage("decode") as stage:
            tokens = stages.decode(self.target, state, given.next_position, options, on_token)
            stage.tokens = len(tokens)
        return Answer(self.target.tokenizer.decode(tokens).strip(), tuple(tokens), ttft, trace)
