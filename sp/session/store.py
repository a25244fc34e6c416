"""Conversations: many at once, found by what a prompt begins with, within budgets of memory."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from hashlib import blake2b

from sp.errors import ConfigError, PromptError
from sp.prompt import Prompt, TokenisedPrompt
from sp.session.conversation import Conversation
from sp.session.decision import check_context
from sp.session.loaded import Loaded
from sp.session.memory import message_ends
from sp.session.options import ConversationOptions, RunOptions, check_run
from sp.session.pipeline import Pipeline
from sp.session.result import Found, OnToken, TurnResult
from sp.session.tokenise import Vocabularies
from sp.trace import Reporter, Stage, silent

LEAST = 64  # tokens that make it worth while to go on from a prompt without messages


@dataclass
class Counts:
    """What became of the prompts that were asked."""

    hits: int = 0
    forks: int = 0
    misses: int = 0
    evictions: int = 0

    def add(self, found: Found) -> None:
        """One more of them."""
        self.hits += found == "hit"
        self.forks += found == "fork"
        self.misses += found == "miss"


@dataclass(eq=False)
class _Entry:
    talk: Conversation
    key: bytes
    whole: int = 0  # tokens of its last prompt up to the end of the last message


class Conversations:
    """Conversations of clients that send the whole transcript each time.

    One thread at a time may use it, and no other use of the pipeline may run meanwhile.

    Parameters
    ----------
    pipeline : Pipeline
    options : ConversationOptions, optional
    most : int
        Conversations to remember.
    memory : int, optional
        Bytes of host memory for all of them; on the CPU caches are there, too.
    device : int, optional
        Bytes of device memory for the caches of all of them between turns; those used longest ago leave first.

    Attributes
    ----------
    counts : Counts

    Examples
    --------
    >>> import sp
    >>> talks = Conversations(sp.load(device="cpu"), most=2)
    >>> prompt = sp.Prompt("The sky is blue. What is blue?")
    >>> _ = talks.answer(prompt, sp.RunOptions(max_new_tokens=2)), talks.answer(prompt, sp.RunOptions(max_new_tokens=2))
    >>> talks.counts
    Counts(hits=1, forks=0, misses=1, evictions=0)
    """

    def __init__(
        self,
        pipeline: Pipeline,
        options: ConversationOptions | None = None,
        *,
        most: int = 8,
        memory: int | None = None,
        device: int | None = None,
    ) -> None:
        if most < 1:
            raise ConfigError(f"most is {most}; remember at least 1 conversation")
        self.pipeline, self.options = pipeline, options or ConversationOptions()
        self.most, self.memory, self.device = most, memory, device
        self.counts = Counts()
        self._tokens = Vocabularies(pipeline.target, pipeline.drafter, most)
        self._entries: list[_Entry] = []  # the one used longest ago first

    def __len__(self) -> int:
        return len(self._entries)

    def answer(
        self,
        prompt: Prompt,
        options: RunOptions,
        on_token: OnToken | None = None,
        *,
        memory: ConversationOptions | None = None,
        reporter: Reporter = silent,
    ) -> TurnResult:
        """Answer a prompt in the conversation that it goes on with, or a new one; see `Conversation.answer`.

        Options of a run and `memory`, in place of those of all, are part of what is looked for: with others a
        conversation is another one.
        """
        start = time.perf_counter()
        tokenised = self._tokens.target(prompt)
        ends = message_ends(tokenised)
        entry, found = self._find(tokenised, int(ends[0]) if len(ends) else LEAST, options, memory or self.options)
        self.counts.add(found)
        entry.whole = int(ends[-1]) if len(ends) else len(tokenised)
        self._entries.append(entry)
        looked = time.perf_counter() - start
        try:
            most, decode = options.max_new_tokens, options.decode
            result = entry.talk.answer(prompt, on_token, max_new_tokens=most, decode=decode, reporter=reporter)
            result.trace.stages.insert(0, Stage("find conversation", seconds=looked))
            answer = replace(result.answer, ttft_s=looked + result.answer.ttft_s)
            return replace(result, answer=answer, found=found)
        finally:
            self._keep_budgets()

    def refusal(self, prompt: Prompt, options: RunOptions) -> str | None:
        """Why no conversation can answer a prompt, though a run by itself may; None if one can."""
        try:
            check_run(options, self.pipeline.drafter)
            check_context(self.pipeline.target, len(self._tokens.target(prompt)), options.max_new_tokens)
        except (ConfigError, PromptError) as error:
            return str(error)
        return None

    def clear(self) -> None:
        """Forget all of them."""
        for entry in self._entries:
            entry.talk.clear()
        self._entries.clear()

    @property
    def device_nbytes(self) -> int:
        """Bytes of device memory that caches hold now."""
        return 0 if self._on_host else sum(entry.talk.nbytes for entry in self._entries)

    @property
    def host_nbytes(self) -> int:
        """Bytes of host memory that all of them hold now."""
        caches = sum(entry.talk.nbytes for entry in self._entries) if self._on_host else 0
        return caches + sum(entry.talk.host_nbytes for entry in self._entries)

    def _find(
        self, prompt: TokenisedPrompt, least: int, options: RunOptions, memory: ConversationOptions
    ) -> tuple[_Entry, Found]:
        """The conversation for a prompt, taken out of the list; one that shares `least` tokens is gone on with."""
        key = identity(self.pipeline, options, memory)
        shared = {entry: entry.talk.matching(prompt.ids) for entry in self._entries if entry.key == key}
        best = max(shared, key=lambda entry: shared[entry], default=None)
        if best is None or shared[best] < min(least, len(prompt) - 1):
            self._make_room()
            talk = Conversation(self.pipeline, options, memory, vocabularies=self._tokens)
            return _Entry(talk, key), "miss"
        found: Found = "hit" if shared[best] >= min(best.whole, len(prompt) - 1) else "fork"
        if found == "fork" and self.most > 1:
            self._make_room(best)
            return _Entry(best.talk.fork(prompt.prompt), key), found
        self._entries.remove(best)
        return best, found

    def _make_room(self, spared: _Entry | None = None) -> None:
        """Let one go if there are as many as may be, but not the one to be spared."""
        while len(self._entries) >= self.most:
            self._evict(next(entry for entry in self._entries if entry is not spared))

    def _evict(self, entry: _Entry) -> None:
        entry.talk.clear()
        self._entries.remove(entry)
        self.counts.evictions += 1

    def _keep_budgets(self) -> None:
        """Let those used longest ago leave the device, or go."""
        for entry in list(self._entries):
            if self.device is None or self.device_nbytes <= self.device:
                break
            entry.talk.leave()
        while self.memory is not None and self._entries and self.host_nbytes > self.memory:
            self._evict(self._entries[0])

    @property
    def _on_host(self) -> bool:
        return self.pipeline.target.model.device == "cpu"


FREE = ("decode", "max_new_tokens")  # options that leave no trace in what is remembered


def identity(pipeline: Pipeline, options: RunOptions, memory: ConversationOptions) -> bytes:
    """A hash over model files, devices, scaling of RoPE, and options; tokens are compared one by one."""
    parts = [_identity(pipeline.target), _identity(pipeline.drafter)]
    parts += [f"{each.name}={getattr(options, each.name)!r}" for each in fields(options) if each.name not in FREE]
    return blake2b("\n".join([*parts, repr(memory)]).encode(), digest_size=16).digest()


def _identity(loaded: Loaded | None) -> str:
    if loaded is None:
        return "none"
    model = loaded.model
    rope = f"{model.config.rope!r} {loaded.asked}"  # that of long prompts hangs on whether one was asked for
    return f"{loaded.path.resolve()} {loaded.nbytes} {loaded.tokenizer.sha256} {model.device} {rope}"
