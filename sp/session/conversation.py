"""Conversation: turn after turn over one transcript; each reads what is new, and what it needs of what was left out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from sp.arrays import Ints
from sp.chat import Thinking, Turn
from sp.chat.answer import AnswerText, calling_of
from sp.chat.call_splitter import Calling
from sp.decode import Decoder
from sp.keywords import names_keywords
from sp.prompt import Prompt
from sp.prompt.prompt import prompt_of
from sp.session import request
from sp.session.compress import with_positions
from sp.session.disk.contents import RecordData, changes_of, put
from sp.session.disk.records import Array
from sp.session.memory import Slots
from sp.session.options import ConversationOptions, RunOptions
from sp.session.pipeline import Pipeline
from sp.session.recall import Memory, Recollection, recalled_span
from sp.session.result import OnToken, TurnResult, Usage
from sp.session.stream import AnswerCall, AsyncStream, Stream
from sp.session.tokenise import Vocabularies
from sp.trace import OnProgress, Reporter, reporting, silent


@names_keywords
class Conversation:
    """A growing transcript, and the caches of both models for it.

    The drafter keeps keys of the whole transcript, so that it drafts only what is new and scores everything for each
    question. The target's cache holds what was selected so far, at true positions. A turn adds what is selected of the
    new messages, and brings back what was left out and matters now. If history was changed, everything after the change
    is read again.

    One thread at a time may use it, and the pipeline must not be used otherwise meanwhile.

    Parameters
    ----------
    pipeline : Pipeline
    options : RunOptions, optional
        As for `Pipeline.run`; `keep_ratio` is the share of each turn's new tokens.
    memory : ConversationOptions, optional
    vocabularies : Vocabularies, optional
        Tokenisers that conversations of the same pipeline share.

    Raises
    ------
    ConfigError
        For options that a conversation does not support.

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
        self.pipeline, self.options = pipeline, with_positions(options or RunOptions(), pipeline.target.model.config)
        self.memory = memory or ConversationOptions()
        pipeline.ready(self.options, keys=self.memory.keys)
        tokens = vocabularies or Vocabularies(pipeline.target, pipeline.drafter)
        self._memory = Memory(pipeline, self.options, self.memory, tokens)
        self.used, self._at_work = 0.0, False  # time of the last use, for the order of offloading
        pipeline.memory_manager.clients.add(self)

    def __repr__(self) -> str:
        return f"Conversation({len(self.transcript):,} tokens, {len(self.slots):,} of them cached, {self.pipeline!r})"

    @names_keywords
    def ask(
        self,
        messages: Sequence[Turn | Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        on_token: OnToken | None = None,
        *,
        thinking: Thinking = Thinking(),  # noqa: B008
        kept_from: int = 0,
        reporter: Reporter = silent,
        progress: OnProgress | None = None,
    ) -> TurnResult:
        """Answer the last message of a chat, all of which is passed each time; see `prompt_of` and `answer`.

        `progress` as for `Pipeline.run`.
        """
        prompt = prompt_of(messages, self.pipeline.target, tools or (), thinking, kept_from=kept_from)
        calling = calling_of(self.pipeline.target.template, tools)
        return self._ask(prompt, calling, reporter=reporting(progress, reporter), on_token=on_token)

    @names_keywords
    def stream(
        self,
        messages: Sequence[Turn | Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        thinking: Thinking = Thinking(),  # noqa: B008
        kept_from: int = 0,
        progress: OnProgress | None = None,
    ) -> Stream[TurnResult]:
        """Answer like `ask`, as pieces of text while it is decoded."""
        return Stream(*self._work(messages, tools, thinking, kept_from), reporting(progress))

    @names_keywords
    def astream(
        self,
        messages: Sequence[Turn | Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        thinking: Thinking = Thinking(),  # noqa: B008
        kept_from: int = 0,
        progress: OnProgress | None = None,
    ) -> AsyncStream[TurnResult]:
        """Answer like `stream`, for an async loop."""
        return AsyncStream(*self._work(messages, tools, thinking, kept_from), reporting(progress))

    def _work(
        self,
        messages: Sequence[Turn | Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        thinking: Thinking,
        kept_from: int,
    ) -> tuple[AnswerCall[TurnResult], AnswerText]:
        target = self.pipeline.target
        prompt = prompt_of(messages, target, tools or (), thinking, kept_from=kept_from)
        calling = calling_of(target.template, tools)
        return partial(self._ask, prompt, calling), AnswerText(target.tokenizer, prompt.thinks, calling)

    def _ask(
        self, prompt: Prompt, calling: Calling | None, *, reporter: Reporter, on_token: OnToken | None
    ) -> TurnResult:
        result = self.answer(prompt, on_token, reporter=reporter)
        return replace(result, answer=result.answer.with_calls(calling))

    def answer(
        self,
        prompt: Prompt,
        on_token: OnToken | None = None,
        *,
        max_new_tokens: int | None = None,
        decode: Decoder | None = None,
        reporter: Reporter = silent,
    ) -> TurnResult:
        """Answer a prompt, which repeats the one before and its answer as far as possible.

        After an exception the conversation is as before the turn, or as if the rest of the prompt were still to come;
        after one raised by `on_token`, as if the answer had ended there.

        Parameters
        ----------
        prompt : Prompt
        on_token : callable, optional
            As for `greedy`.
        max_new_tokens : int, optional
            Replaces that of the options.
        decode : Decoder, optional
            Replaces that of the options; not a speculative one.
        reporter : Reporter

        Raises
        ------
        PromptError
            If the transcript does not fit the target's window, or a budget of memory.
        """
        options = self.options
        if max_new_tokens is not None:
            options = replace(options, max_new_tokens=max_new_tokens)
        if decode is not None:
            options = replace(options, decode=decode)
        self._at_work, self._memory.options = True, self.memory
        try:
            done = request.answer(self.pipeline, prompt, options, self._memory, reporter=reporter, on_token=on_token)
        finally:
            self._at_work, self.used = False, time.perf_counter()
        assert done.turn is not None
        return turn_result(done.turn, done)

    def matching(self, ids: Ints) -> int:
        """Return how many first tokens of a prompt in the target's vocabulary equal those of the transcript."""
        return self._memory.target.decided(ids)

    @property
    def transcript(self) -> Ints:
        """Tokens about which earlier turns decided, and the tokens of the last answer that were read, (n,)."""
        return self._memory.target.transcript

    @property
    def slots(self) -> Slots:
        """Tokens of the transcript that the target's cache holds."""
        return self._memory.target.slots

    def fork(self, prompt: Prompt) -> Conversation:
        """Return another conversation with the caches of a prompt's beginning; this one is unchanged."""
        own, attempt = self._memory, self.pipeline.memory_manager.attempt
        other = Conversation(self.pipeline, self.options, self.memory, vocabularies=own.tokens)
        # Each cache is copied while its model has the device, which may offload the other.
        ids = own.tokens.target(prompt).ids
        with ExitStack() as stack:
            other._memory.target = attempt(stack, "target", len(ids), lambda: own.target.fork(ids))
        if own.drafter is not None:
            drafted = own.tokens.drafter(prompt).ids
            with ExitStack() as stack:
                other._memory.drafter = attempt(stack, "drafter", len(drafted), partial(own.drafter.fork, drafted))
        return other

    def changes(self, *, full: bool = False) -> RecordData | None:
        """Return what is new since the last call, or with `full` everything, for a file; None after a failure."""
        return changes_of(self._memory, full=full)

    def put(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Load the contents of another one of the same models and options; DamagedError if it does not fit these."""
        put(self._memory, facts, arrays)

    def offload(self) -> bool:
        """Move both caches to host memory until they are needed next; False if they were there."""
        moved = self._memory.target.offload()
        return self._park_drafter() or moved

    def offload_for(self, name: str | None) -> bool:
        if not self._at_work:
            return self.offload()
        # During a turn only the cache of the model that does not run may be moved.
        if name == "drafter":
            return self._memory.target.offload()
        return name == "target" and self._park_drafter()

    def _park_drafter(self) -> bool:
        return self._memory.drafter is not None and self._memory.drafter.cache.park()

    def clear(self) -> None:
        """Forget everything and free its memory."""
        self._memory.target.clear()
        if self._memory.drafter is not None:
            self._memory.drafter.cache.clear()

    @property
    def nbytes(self) -> int:
        """Size in bytes of both caches on the device of the models, and of the graphs that use them."""
        drafter = self._memory.drafter
        return self._memory.target.nbytes + (0 if drafter is None else drafter.cache.nbytes)

    @property
    def host_nbytes(self) -> int:
        """Size in bytes of snapshots and offloaded caches."""
        return sum(cache.host_nbytes for cache in self._memory.caches)


def turn_result(turn: Recollection, done: request.RequestResult) -> TurnResult:
    """Return the result of a turn from that of its request."""
    prompt, way, n, new = turn.prompt, turn.plan.way, len(turn.prompt), len(done.plan.fixed)
    recalled = tuple(recalled_span(run, prompt, turn.threshold, way) for run in turn.runs) if way else ()
    drafting = [] if done.scored is None or turn.memory.drafter is None else done.scored.trace.stages
    usage = Usage(
        prompt=n,
        cached=turn.decided,
        new=new,
        kept=new if done.selection is None else int(done.selection.selected.sum()),
        recalled=sum(span.end - span.start for span in recalled),
        read=turn.cost,
        held=len(turn.plan.slots),
        drafted=sum(stage.tokens for stage in drafting if stage.name == "score"),
    )
    # Shares of blocks that the drafter's sparse attention read.
    shares = done.scored.importance.densities if done.scored else ()
    common = done.answer, usage, done.answer.trace, recalled, prompt, turn.plan.slots.present(n)
    return TurnResult(*common, done.scores, done.plan.decision, shares)
