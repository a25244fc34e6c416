"""Conversation: turn after turn over one transcript; each reads what is new, and what it needs of what was left out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.chat import Thinking, Turn, split_reply
from sp.conversation.before import check_turn, decide_new
from sp.conversation.choose import Chosen, Run, choose_new, choose_recalled
from sp.conversation.drafter_memory import DrafterMemory
from sp.conversation.layout import lay_out, reopened, told
from sp.conversation.options import ConversationOptions, check_run
from sp.conversation.plan import Planner
from sp.conversation.rendering import message_ends, message_starts
from sp.conversation.shown import Shown
from sp.conversation.slots import Slots
from sp.conversation.target_memory import TargetMemory
from sp.conversation.tokens import Vocabularies
from sp.conversation.turn import TurnResult, Usage
from sp.decode import Decoder
from sp.models import Trail
from sp.pipeline import Answer, Pipeline, RunOptions, stages
from sp.pipeline.beside import Waiting, awaited, timed
from sp.pipeline.result import Reporter, Scored, silent
from sp.pipeline.told import dropped_lines
from sp.pipeline.told import told as told_of
from sp.prompt import Prompt, TokenisedPrompt, transfer_scores
from sp.prompt.messages import prompt_of
from sp.prompt.whole import whole_characters
from sp.trace import Trace


class Conversation:
    """A transcript that grows, and what both models remember of it.

    The drafter keeps keys of all of it, so that it drafts only what is new and scores everything for each question. The
    target's cache holds what was kept so far, at true positions. A turn adds what is kept of the new messages, and
    brings back what was left out and matters now. History that was changed costs what comes after the change.

    One thread at a time may use it, and no other use of the pipeline may run meanwhile.

    Parameters
    ----------
    pipeline : Pipeline
    options : RunOptions, optional
        As for `Pipeline.run`; `keep_ratio` is the share of each turn's new tokens.
    memory : ConversationOptions, optional
    vocabularies : Vocabularies, optional
        That conversations of the same pipeline share.

    Raises
    ------
    ConfigError
        For options that no conversation can have.

    Examples
    --------
    >>> import sp
    >>> talk = sp.Conversation(sp.load(), sp.RunOptions(keep_ratio=0.2, compress="always"))  # doctest: +SKIP
    >>> talk.ask([{"role": "user", "content": f"{document} What is the number?"}]).answer.text  # doctest: +SKIP
    '8301947.'
    """

    def __init__(
        self,
        pipeline: Pipeline,
        options: RunOptions | None = None,
        memory: ConversationOptions | None = None,
        *,
        vocabularies: Vocabularies | None = None,
    ) -> None:
        self.pipeline, self.options = pipeline, options or RunOptions()
        self._tokens = vocabularies or Vocabularies(pipeline.target, pipeline.drafter)
        self.memory = memory or ConversationOptions()
        pipeline.ready(self.options)
        layers = check_run(self.options, pipeline.drafter)
        self._target = TargetMemory(pipeline.target, self.options, self.memory.snapshots)
        self._drafter: DrafterMemory | None = None
        if layers is not None and pipeline.drafter is not None:
            self._drafter = DrafterMemory(pipeline.drafter, layers, self.memory.keys, self.memory.snapshots)
        self.used, self._at_work = 0.0, False
        pipeline.residency.guests.add(self)

    def __repr__(self) -> str:
        return f"Conversation({len(self.transcript):,} tokens, {len(self.slots):,} of them held, {self.pipeline!r})"

    def ask(
        self,
        messages: Sequence[Turn | Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        on_token: stages.OnToken | None = None,
        *,
        thinking: Thinking = Thinking(),  # noqa: B008
        kept_from: int = 0,
        reporter: Reporter = silent,
    ) -> TurnResult:
        """Answer the last message of a chat, all of which is given each time; see `prompt_of` and `answer`."""
        prompt = prompt_of(messages, self.pipeline.target, tools or (), thinking, kept_from=kept_from)
        return self.answer(prompt, on_token, reporter=reporter)

    def answer(
        self,
        prompt: Prompt,
        on_token: stages.OnToken | None = None,
        *,
        max_new_tokens: int | None = None,
        decode: Decoder | None = None,
        reporter: Reporter = silent,
    ) -> TurnResult:
        """Answer a prompt, which begins as far as may be like the one before and its answer.

        Whatever is raised, by `on_token` too, the conversation stands as before the turn, or as if the rest of the
        prompt were still to come.

        Parameters
        ----------
        prompt : Prompt
        on_token : callable, optional
            As for `greedy`.
        max_new_tokens : int, optional
            In place of that of the options.
        decode : Decoder, optional
            In place of that of the options; none that guesses ahead.
        reporter : Reporter

        Raises
        ------
        PromptError
            The transcript does not fit the target's window, or a budget of memory.
        """
        options = self.options
        if max_new_tokens is not None:
            options = replace(options, max_new_tokens=max_new_tokens)
        if decode is not None:
            options = replace(options, decode=decode)
        self._at_work = True
        try:
            return self._answer(prompt, options, on_token, reporter)
        finally:
            self._at_work, self.used = False, time.perf_counter()

    def _answer(
        self, prompt: Prompt, options: RunOptions, on_token: stages.OnToken | None, reporter: Reporter
    ) -> TurnResult:
        """See `answer`."""
        pipeline, trace, start = self.pipeline, Trace(), time.perf_counter()
        waiting = None
        if self._drafter is not None and options.keep_ratio < 1 and self._tokens.drafter is not self._tokens.target:
            waiting = pipeline.beside.submit(timed, self._tokens.drafter, prompt)
        with trace.stage("tokenise") as stage:
            tokenised = self._tokens.target(prompt)
            stage.tokens = len(tokenised)
        n = len(tokenised)
        decided = int(whole_characters(tokenised)[self._target.decided(tokenised.ids)])  # none is decided in part
        old = self._target.slots
        old = old.first(old.before(decided))
        present = old.present(decided)
        recalling = self.memory.recall != "off" and bool((~present).any())
        parted = decided < len(self._target.transcript)
        if recalling and (begin := reopened(old, message_starts(tokenised), decided, parted)) is not None:
            decided, old = begin, old.first(old.before(begin))
            present = old.present(decided)
        decision = decide_new(pipeline, options, tokenised, decided)
        check_turn(pipeline, options, tokenised, present, decision.activated)
        scores, drafted, scored, choosing = None, 0, None, options
        if pipeline.drafter is not None and options.keep_ratio < 1 and (decision.activated or recalling):
            scores, drafted, scored = self._score(tokenised, waiting, options, trace, reporter)
            choosing = replace(options, selector=options.selector.settled(scored.importance.fineness))
        with trace.stage("select", n - decided):
            kept, chosen = np.ones(n, bool), Chosen(np.ones(n - decided, bool))
            if decision.activated and scores is not None:
                chosen = choose_new(scores, tokenised, decided, choosing)
            kept[decided:] = chosen.kept
            shown = Shown.of(tokenised, kept, chosen.read, pipeline.target.tokenizer)
        with trace.stage("recall", int((~present).sum()) if recalling else 0):
            runs, threshold = list[Run](), 0.0
            if recalling and scores is not None:
                runs, threshold = choose_recalled(scores, tokenised, present, choosing, self.memory)
            planner = Planner(old, tokenised.ids, decided, shown, options.positions)
            plan = lay_out(planner, tokenised, runs, self.memory.recall, pipeline.target, options, self._target.cost)
        before = self._target.cost(plan)
        ends = message_ends(tokenised)
        with ExitStack() as stack:
            read = partial(self._target.read, plan, tokenised.ids, ends, options.max_new_tokens)
            with trace.stage("target prefill", before), reporter("target prefill", before) as progress:
                work = partial(read, progress)
                logits, densities = pipeline.residency.attempt(stack, "target", before, work)
                int(logits.argmax())  # the first token is known; waits for the device
            ttft = trace.seconds
            if ways := self._target.told():
                trace.facts["prefill_read"] = ways
            with trace.stage("decode") as stage:
                tokens = self._target.answer(logits, options, on_token)
                stage.tokens = len(tokens)
        for trail in self._trails:
            trail.settle()
        since = int(tokenised.bytes[decided - 1, 1]) if decided else 0
        facts = {"residency": pipeline.residency.report(start), "dropped": dropped_lines(tokenised, scored, since)}
        trace.facts |= told_of(pipeline.target, pipeline.drafter, None, options, scored, trace.stages, facts)
        if scored is not None and self._drafter is not None and self._drafter.forgotten:
            trace.facts["positions"] = [*trace.facts.get("positions", ()), *self._drafter.forgotten]
        if chosen.told:
            trace.facts["selection"] = list(chosen.told)
        said = split_reply(pipeline.target.tokenizer.decode(tokens), prompt.thinks)
        answer = Answer(said.content, tuple(tokens), ttft, trace, densities, reasoning=said.reasoning)
        way = plan.way
        recalled = tuple(told(run, tokenised, threshold, way) for run in runs) if way else ()
        usage = Usage(
            prompt=n,
            cached=decided,
            new=n - decided,
            kept=int(chosen.kept.sum()),
            recalled=sum(each.end - each.start for each in recalled),
            read=before,
            held=len(plan.slots),
            drafted=drafted,
        )
        here, shares = plan.slots.present(n), scored.importance.densities if scored else ()
        return TurnResult(answer, usage, trace, recalled, tokenised, here, scores, decision, shares)

    def matching(self, ids: Ints) -> int:
        """How many first tokens of a prompt in the target's vocabulary are those of the transcript."""
        return self._target.decided(ids)

    @property
    def transcript(self) -> Ints:
        """Tokens that earlier turns have decided, and what was read of the last answer, (n,)."""
        return self._target.transcript

    @property
    def slots(self) -> Slots:
        """What the target's cache holds of them."""
        return self._target.slots

    def fork(self, prompt: Prompt) -> Conversation:
        """Another conversation that knows what this one knows of a prompt's beginning; this one stays as it is."""
        other = Conversation(self.pipeline, self.options, self.memory, vocabularies=self._tokens)
        ids, begin = self._tokens.target(prompt).ids, self.pipeline.residency.attempt
        with ExitStack() as stack:
            other._target = begin(stack, "target", len(ids), partial(self._target.fork, ids))
        if self._drafter is not None:
            ids = self._tokens.drafter(prompt).ids
            with ExitStack() as stack:
                other._drafter = begin(stack, "drafter", len(ids), partial(self._drafter.fork, ids))
        return other

    def leave(self) -> bool:
        """Move both caches to host memory until they are next needed; False if they were there."""
        left = self._target.leave()
        return (self._drafter is not None and self._drafter.trail.park()) or left

    def leave_for(self, name: str | None) -> bool:
        """See `Guest`."""
        if not self._at_work:
            return self.leave()
        beside = name == "target" and self._drafter is not None and self._drafter.trail.park()
        return self._target.leave() if name == "drafter" else beside

    def clear(self) -> None:
        """Forget everything and give its memory back."""
        self._target.clear()
        if self._drafter is not None:
            self._drafter.trail.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of both caches where the models are, and of what reads into them."""
        return self._target.nbytes + (0 if self._drafter is None else self._drafter.trail.nbytes)

    @property
    def host_nbytes(self) -> int:
        """Bytes of snapshots, and of caches that have left."""
        return sum(trail.host_nbytes for trail in self._trails)

    @property
    def _trails(self) -> tuple[Trail, ...]:
        return (self._target.trail, *([self._drafter.trail] if self._drafter is not None else []))

    def _score(
        self, prompt: TokenisedPrompt, waiting: Waiting | None, options: RunOptions, trace: Trace, reporter: Reporter
    ) -> tuple[Floats, int, Scored]:
        """Importance of the target's tokens (n,), how many the drafter read, and what it found."""
        drafter = self.pipeline.drafter if options.scorer.drafts else self.pipeline.target
        assert drafter is not None
        drafted = awaited(waiting, trace, "tokenise for drafter") if waiting else prompt
        keys = self._drafter.keys(drafted.ids, message_ends(drafted)) if self._drafter is not None else None
        known = keys.trail.tokens if keys else len(drafted)
        found = stages.score("drafter", drafter, self.pipeline.residency, drafted, options, trace, reporter, keys=keys)
        trace.stages = stages.apart(trace.stages, found)
        with trace.stage("select"):
            scores = transfer_scores(found.scores, drafted.bytes, prompt.bytes)
        return scores, len(drafted) - known, Scored(drafted, found, trace)
