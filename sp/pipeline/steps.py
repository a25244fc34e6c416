"""The steps of a run, for whoever shares one scoring between selections: tokenise, score, select, read."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from sp.arrays import Bools, Floats
from sp.models.drafts.dflash import Draft
from sp.pipeline import stages
from sp.pipeline.load import Loaded
from sp.pipeline.options import RunOptions
from sp.pipeline.residency import Residency
from sp.pipeline.result import Answer, Reporter, Scored, silent
from sp.prompt import Prompt, TokenisedPrompt
from sp.selection import Selection, check_budget, token_budget
from sp.trace import Trace


@dataclass(frozen=True)
class Steps:
    """A target and, for compression, its drafter, which share a device; for speculative decoding a draft besides."""

    target: Loaded
    drafter: Loaded | None = None
    residency: Residency = field(default_factory=Residency, compare=False)
    draft: Draft | None = None

    def __post_init__(self) -> None:
        self.residency.add("target", self.target.model)
        if self.drafter is not None:
            self.residency.add("drafter", self.drafter.model)

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
            ExitStack() as stack,
        ):
            importance = self.residency.attempt(
                stack, role, len(drafted), lambda: stages.score(reader, drafted, options, progress, by_head)
            )
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
                begun = self.residency.attempt(
                    stack,
                    "target",
                    len(given.ids),
                    lambda: stages.begin(self.target, given, options, progress, self.draft, self.residency.slots),
                )
            ttft = trace.seconds
            with trace.stage("decode") as stage:
                tokens = stages.decode(self.target, begun, on_token)
                stage.tokens = len(tokens)
        text = self.target.tokenizer.decode(tokens).strip()
        return Answer(text, tuple(tokens), ttft, trace, begun.densities, tuple(begun.passes))
