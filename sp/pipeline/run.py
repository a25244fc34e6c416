"""Speculative prefill from text to answer, with the full prefill of the same prompt beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sp.arrays import Bools, Floats
from sp.pipeline import stages
from sp.pipeline.answer import check_draft
from sp.pipeline.beside import awaited, once_reading
from sp.pipeline.measured import find_break_even
from sp.pipeline.opened import Opened
from sp.pipeline.options import Compress, RunOptions
from sp.pipeline.plan import Decision, decide
from sp.pipeline.result import Answer, Reporter, RunResult, Scored, silent
from sp.pipeline.told import dropped_lines, told
from sp.pipeline.window import Fit, check_memory, check_scoring, fit, may_be_over
from sp.prompt import Prompt, Span, TokenisedPrompt, Transfer
from sp.prompt.messages import Message, as_prompt
from sp.scoring.base import ModelFreeScorer
from sp.selection import Selection, token_budget
from sp.trace import Stage, Trace, peak_bytes


@dataclass(frozen=True, repr=False)
class Pipeline(Opened):
    """Opened models, and what is done with them.

    `run` does it all; `tokenise`, `score`, `select` and `read` are for whoever shares one scoring between selections.

    Parameters are those of `Opened`, which has the ways to open models.

    Examples
    --------
    >>> from sp.pipeline.load import embedded, load
    >>> pair = Pipeline(load(embedded("target")), load(embedded("drafter")))  # doctest: +SKIP
    >>> prompt = Prompt.from_document(document, question, pair.target.template)  # doctest: +SKIP
    >>> pair.run(prompt, RunOptions(keep_ratio=0.1)).answer.text  # doctest: +SKIP
    '8301947.'
    """

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

    def run(
        self,
        prompt: Prompt | str | Sequence[Message],
        options: RunOptions | None = None,
        *,
        full: bool = False,
        reporter: Reporter = silent,
        on_token: stages.OnToken | None = None,
        by_head: bool = False,
    ) -> RunResult:
        """Answer the prompt, compressed if that pays or nothing else fits; with `full` once more by a full prefill.

        A text stands for `Prompt.from_text` of it, messages of a chat for what `sp.prompt.messages.prompt_of` makes of
        them, and no options for those of `RunOptions()`.

        `on_token` is called with each token of the answer as it is decoded, and ends it by returning True. `by_head`
        keeps the importance map of every head of the drafter.

        Raises
        ------
        PromptError
            The prompt fits the context, or a budget of device memory, neither whole nor compressed.
        ConfigError
            Without the draft that the options' way of decoding needs.
        """
        prompt, options = as_prompt(prompt, self.target), options or RunOptions()
        check_draft(options, self.draft)
        self.ready(options, reporter)
        start, trace, scored = time.perf_counter(), Trace(), None
        if self._drafts_ahead(options):
            role, reader = self._reader(options)
            tokenizers = reader.tokenizer, self.target.tokenizer
            drafted = stages.tokenise_for_drafter(prompt, *tokenizers, trace)  # by itself: all wait for it
            group, early = self._cards(role), may_be_over(self.target, drafted, options, self.residency.budget, full)
            transfers: list[Transfer] = []
            beside = self.beside, partial(self._carried, drafted, transfers), prompt, reporter
            with once_reading(*beside, later=group is not None) as (begun, telling):
                wanted = True
                if early:
                    tokenised = awaited(begun(), trace)
                    wanted = self._settle(tokenised, options, full)[2].activated
                if wanted:
                    asked = drafted, options, trace, telling, by_head
                    importance = stages.score(role, reader, self.residency, *asked, cards=group)
                if not early:
                    tokenised = awaited(begun(), trace)
            if wanted:
                scored = Scored(drafted, importance, trace, *transfers)
        else:
            tokenised = stages.tokenise(prompt, self.target.tokenizer, trace)
        text = next(stage for stage in trace.stages if stage.name == "tokenise")
        options, window, decision = self._settle(tokenised, options, full)
        scores, selection = None, None
        everything = np.ones(len(tokenised), bool)
        if decision.activated:
            if scored is None:
                scored = self.score(tokenised, options, reporter, by_head)
                trace.stages += scored.trace.stages
            ahead = time.perf_counter()  # copies run beside the selection
            if self.residency.prepare("target", _budget(tokenised, options)):
                trace.stages.append(Stage("onload target", seconds=time.perf_counter() - ahead))
            scores, selection = self.select(scored, tokenised, options, trace)
        kept = everything if selection is None else selection
        answer = self.read(tokenised, kept, options, trace, reporter, "target prefill", on_token)
        cards = [*(scored.trace.facts.get("cards", ()) if scored else ()), *answer.trace.facts.get("target_cards", ())]
        facts = {"cards": cards, "window": window.note, "residency": self.residency.report(start)}
        facts["dropped"] = dropped_lines(tokenised, scored)
        trace.facts |= told(self.target, self.drafter, self.draft, options, scored, trace.stages, facts)
        baseline = answer if full and window.whole else None
        if baseline is not None and selection is not None:
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
            None if scored is None or isinstance(options.scorer, ModelFreeScorer) else scored.drafted,
            options,
        )

    def check(
        self, prompt: Prompt | str | Sequence[Message], options: RunOptions | None = None, *, full: bool = False
    ) -> None:
        """Raise what `run` would raise before it lets a model read, and do nothing else; arguments as for `run`.

        Examples
        --------
        >>> pair = Pipeline.open(device="cpu")
        >>> pair.check("The sky is blue.", RunOptions(max_new_tokens=200_000))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        sp.errors.PromptError: the prompt has 6 tokens and the answer up to 200000, but target.gguf has a context of ...
        """
        prompt, options = as_prompt(prompt, self.target), options or RunOptions()
        check_draft(options, self.draft)
        self.ready(options)
        tokenised = self.tokenise(prompt)
        options, _, decision = self._settle(tokenised, options, full)
        if decision.activated:
            reader = self._reader(options)[1]
            drafted = stages.tokenise_for_drafter(prompt, reader.tokenizer, self.target.tokenizer, Trace(), tokenised)
            check_scoring(reader, len(drafted), options.scorer, self.residency.budget)

    def _settle(self, tokenised: TokenisedPrompt, options: RunOptions, full: bool) -> tuple[RunOptions, Fit, Decision]:
        """What the prompt's tokens settle before a model reads them; PromptError if they fit in no way.

        Options with scorer and positions settled, how the prompt fits, and whether it is compressed.
        """
        n, budget, protected = len(tokenised), self.residency.budget, int(tokenised.mask("protected").sum())
        options = replace(options, scorer=options.scorer.settled(self.target.model.device, n))
        window = fit(self.target, n, options, self.drafter is not None, protected)
        options = replace(options, positions=window.positions)
        drafter = self.drafter.model.config if self.drafter else None
        measured = find_break_even(self.break_evens, options.keep_ratio, options.scorer, drafter)
        decision = decide(
            self.target.model.config,
            drafter,
            tokens=n,
            protected=protected,
            keep_ratio=options.keep_ratio,
            compress=options.compress,
            fits=window.whole,
            threshold=options.threshold,
            # Times were measured with a target that reads densely.
            measured=None if options.target_sparse else measured,
            scorer=options.scorer,
            sparse=options.target_sparse,
        )
        beside, kept = self.draft.nbytes if self.draft else 0, _budget(tokenised, options) if decision.activated else n
        check_memory(self.target, kept, options, budget, beside)
        if full and window.whole:
            check_memory(self.target, n, options, budget, beside, full=True)
        return options, window, decision

    def tokenise(self, prompt: Prompt) -> TokenisedPrompt:
        """The prompt in the target's vocabulary."""
        return prompt.tokenise(self.target.tokenizer)

    def _carried(self, drafted: TokenisedPrompt, transfers: list[Transfer], prompt: Prompt) -> TokenisedPrompt:
        """The prompt in the target's vocabulary; how scores get there is added to `transfers`."""
        tokenised = self.tokenise(prompt)
        transfers.append(Transfer.between(drafted.bytes, tokenised.bytes))
        return tokenised

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
        trace, (role, reader) = Trace(), self._reader(options)
        if drafted is None:
            tokenizers = reader.tokenizer, self.target.tokenizer
            drafted = stages.tokenise_for_drafter(tokenised.prompt, *tokenizers, trace, tokenised)
        how = options, trace, reporter, by_head
        importance = stages.score(role, reader, self.residency, drafted, *how, cards=self._cards(role))
        return Scored(drafted, importance, trace)

    def select(
        self, scored: Scored, tokenised: TokenisedPrompt, options: RunOptions, trace: Trace | None = None
    ) -> tuple[Floats, Selection]:
        """Scores of the target's tokens, and the tokens to keep; as often as wanted for one scoring."""
        return stages.select(scored, tokenised, options, trace or Trace())

    def read(
        self,
        tokenised: TokenisedPrompt,
        kept: Bools | Selection,
        options: RunOptions,
        trace: Trace | None = None,
        reporter: Reporter = silent,
        what: str = "target prefill",
        on_token: stages.OnToken | None = None,
    ) -> Answer:
        """Prefill the kept tokens and decode; see `stages.read`, whose trace is a new one if none is given."""
        trace = Trace() if trace is None else trace
        models = self.target, self.draft, self.residency
        return stages.read(*models, tokenised, kept, options, trace, reporter, what, on_token)


def _budget(tokenised: TokenisedPrompt, options: RunOptions) -> int:
    """Tokens of a prompt that a selection may keep."""
    return token_budget(options.keep_ratio, len(tokenised), int(tokenised.mask("protected").sum()))
