"""Speculative prefill from text to answer, with the full prefill of the same prompt beside it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sp.arrays import Bools, Floats
from sp.errors import ConfigError
from sp.kernels.device import pick_device
from sp.kernels.machine import machine_facts, machine_slug
from sp.models import prefill
from sp.pipeline import stages
from sp.pipeline.break_even import BreakEven, find_break_even, read_break_evens
from sp.pipeline.load import Loaded, Where, embedded, load
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
    was not active.
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

    @classmethod
    def open(
        cls, target: str | Path | None = None, drafter: str | Path | None = None, *, device: Where = "auto"
    ) -> Pipeline:
        """Open two GGUF files; the embedded ones where a path is left out. `device` and errors as for `load`."""
        where = pick_device(device)
        return cls(
            load(target or embedded("target"), device=where),
            load(drafter or embedded("drafter"), extrapolate=True, device=where),
        )

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
        found = read_break_evens(path, self.target.path.name, self.drafter.path.name, machine, None)
        if records is not None and not found:
            raise ConfigError(
                f"{path} tells of no full and compressed prefill by {self.target.path.name} and "
                f"{self.drafter.path.name} on {machine}; make some with sp bench ttft --record"
            )
        return replace(self, break_evens=found)

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
        trace = Trace()
        with trace.stage("tokenise") as stage:
            tokenised = self.tokenise(prompt)
            stage.tokens = len(tokenised)
        first = trace.stages[0]
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
        scored, scores, selection = None, None, None
        everything = np.ones(len(tokenised), bool)
        if decision.activated:
            scored = self.score(tokenised, options, reporter, by_head)
            trace.stages += scored.trace.stages
            scores, selection = self.select(scored, tokenised, options, trace)
        kept = everything if selection is None else selection.kept
        answer = self.read(tokenised, kept, options, trace, reporter, "target prefill", on_token)
        baseline = answer if full else None
        if full and selection is not None:
            baseline = self.read(tokenised, everything, options, Trace(stages=[first]), reporter, "full prefill")
        importance = scored.importance if scored else None
        drafted = scored.drafted if scored else None
        return RunResult(tokenised, decision, answer, baseline, importance, scores, selection, peak_bytes(), drafted)

    def tokenise(self, prompt: Prompt) -> TokenisedPrompt:
        """The prompt in the target's vocabulary."""
        return prompt.tokenise(self.target.tokenizer)

    def score(
        self, tokenised: TokenisedPrompt, options: RunOptions, reporter: Reporter = silent, by_head: bool = False
    ) -> Scored:
        """Let the drafter, or whom the scorer asks for, read the prompt.

        Only `keep_ratio`, `scorer` and `seed` of the options matter.

        Raises
        ------
        PromptError
            The protected text alone exceeds the budget of `keep_ratio`.
        """
        reader = self.target if options.scorer.reads_target else self.drafter
        assert reader is not None, "score needs a drafter"
        check_budget(tokenised.mask("protected"), token_budget(options.keep_ratio, len(tokenised)))
        trace = Trace()
        with trace.stage("tokenise for drafter") as stage:
            drafted = tokenised if reader is self.target else tokenised.prompt.tokenise(reader.tokenizer)
            stage.tokens = len(drafted)
        work = len(drafted) * reader.model.config.layers
        with trace.stage("score", len(drafted)), reporter("scoring", work) as progress:
            importance = stages.score(reader, drafted, options, progress, by_head)
        return Scored(drafted, importance, trace)

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
        with trace.stage("target prefill", len(given.ids)), reporter(what, len(given.ids)) as progress:
            begun = stages.begin(self.target, given, options, progress)
        ttft = trace.seconds
        with trace.stage("decode") as stage:
            tokens = stages.decode(self.target, begun, on_token)
            stage.tokens = len(tokens)
        text = self.target.tokenizer.decode(tokens).strip()
        return Answer(text, tuple(tokens), ttft, trace, begun.densities)
