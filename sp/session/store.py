"""Conversations: many at once, found by what a prompt begins with, within budgets of memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from hashlib import blake2b

from sp import __version__
from sp.errors import ConfigError, PromptError
from sp.prompt import Prompt, TokenisedPrompt
from sp.scoring.calibration.record import file_sha256
from sp.session.conversation import Conversation
from sp.session.decision import check_context
from sp.session.disk.records import DamagedError
from sp.session.disk.shelf import Book, Shelf
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
    key: str
    whole: int = 0  # tokens of its last prompt up to the end of the last message
    book: Book | None = None
    unsaved: bool = False


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
    shelf : Shelf, optional
        Where they are written to by `save`, and found again when they are not, or no longer, in memory.

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
        shelf: Shelf | None = None,
    ) -> None:
        if most < 1:
            raise ConfigError(f"most is {most}; remember at least 1 conversation")
        self.pipeline, self.options = pipeline, options or ConversationOptions()
        self.most, self.memory, self.device, self.shelf = most, memory, device, shelf
        self.counts = Counts()
        self._pair = here(pipeline) if shelf is None else shelf.pair
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
        least = min(int(ends[0]) if len(ends) else LEAST, len(tokenised) - 1)
        key = identity(self._pair, options, memory or self.options)
        restored = self._restore(tokenised, least, key, options, memory or self.options)
        entry, found = self._find(tokenised, least, key, options, memory or self.options)
        self.counts.add(found)
        entry.whole, entry.unsaved = int(ends[-1]) if len(ends) else len(tokenised), True
        self._entries.append(entry)
        looked = time.perf_counter() - start
        try:
            most, decode = options.max_new_tokens, options.decode
            result = entry.talk.answer(prompt, on_token, max_new_tokens=most, decode=decode, reporter=reporter)
            result.trace.stages.insert(0, Stage("find conversation", seconds=looked))
            answer = replace(result.answer, ttft_s=looked + result.answer.ttft_s)
            return replace(result, answer=answer, found=found, restored=restored and found != "miss")
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

    @property
    def behind(self) -> bool:
        """Whether `save` would have anything to do now."""
        return self.shelf is not None and not self.shelf.busy and any(entry.unsaved for entry in self._entries)

    def save(self) -> None:
        """Have what is new of the conversation that waits longest for it written, unless the shelf is busy: it will be
        asked again, and what is newer by then is written with it. Takes as long as to copy that.
        """
        if self.behind:
            self._save(next(entry for entry in self._entries if entry.unsaved))

    def clear(self) -> None:
        """Forget all of them, but not what is on the shelf."""
        for entry in self._entries:
            self._save(entry)
            entry.talk.clear()
        self._entries.clear()

    def close(self) -> None:
        """Forget all of them, once the shelf has them."""
        self.clear()
        if self.shelf is not None:
            self.shelf.close()

    @property
    def device_nbytes(self) -> int:
        """Bytes of device memory that caches hold now."""
        return 0 if self._on_host else sum(entry.talk.nbytes for entry in self._entries)

    @property
    def host_nbytes(self) -> int:
        """Bytes of host memory that all of them hold now."""
        caches = sum(entry.talk.nbytes for entry in self._entries) if self._on_host else 0
        return caches + sum(entry.talk.host_nbytes for entry in self._entries)

    def _restore(
        self, prompt: TokenisedPrompt, least: int, key: str, options: RunOptions, memory: ConversationOptions
    ) -> bool:
        """Bring back the conversation of the shelf that shares most with a prompt, if it is more than any here does."""
        if self.shelf is None:
            return False
        here = max((entry.talk.matching(prompt.ids) for entry in self._entries if entry.key == key), default=0)
        used = {entry.book for entry in self._entries if entry.book is not None}
        book, count = self.shelf.best(key, prompt.ids, used)
        if book is None or count <= here or count < least or (found := self.shelf.read(book)) is None:
            return False
        self._make_room()
        talk = Conversation(self.pipeline, options, memory, vocabularies=self._tokens)
        try:
            talk.put(*found)
        except DamagedError as error:
            self.shelf.remove(book, str(error))
            return False
        self._entries.append(_Entry(talk, key, book.whole, book))
        return talk.matching(prompt.ids) >= least

    def _find(
        self, prompt: TokenisedPrompt, least: int, key: str, options: RunOptions, memory: ConversationOptions
    ) -> tuple[_Entry, Found]:
        """The conversation for a prompt, taken out of the list; one that shares `least` tokens is gone on with."""
        shared = {entry: entry.talk.matching(prompt.ids) for entry in self._entries if entry.key == key}
        best = max(shared, key=lambda entry: shared[entry], default=None)
        if best is None or shared[best] < least:
            self._make_room()
            talk = Conversation(self.pipeline, options, memory, vocabularies=self._tokens)
            return _Entry(talk, key), "miss"
        found: Found = "hit" if shared[best] >= min(best.whole, len(prompt) - 1) else "fork"
        if found == "fork" and self.most > 1:
            self._make_room(best)
            return _Entry(best.talk.fork(prompt.prompt), key), found
        if found == "fork":  # the other branch stays on the shelf
            self._save(best)
            best.book = None
        self._entries.remove(best)
        return best, found

    def _make_room(self, spared: _Entry | None = None) -> None:
        """Let one go if there are as many as may be, but not the one to be spared."""
        while len(self._entries) >= self.most:
            self._evict(next(entry for entry in self._entries if entry is not spared))

    def _save(self, entry: _Entry) -> None:
        """Have what is new of one written, if anything is that can be."""
        if self.shelf is None or not entry.unsaved:
            return
        entry.unsaved = False  # or after a failure, which its next turn mends, it would be asked for ever
        if not len(entry.talk.transcript):  # of a request that was refused
            return
        if entry.book is not None and entry.book.gone:
            entry.book = None
        book, entry.book = entry.book, None  # should this fail, all of it is written anew
        if (found := entry.talk.written(anew=book is None)) is not None:
            book = self.shelf.put(book, found, entry.key, entry.whole)
        entry.book = book

    def _evict(self, entry: _Entry) -> None:
        self._save(entry)
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


def identity(pair: str, options: RunOptions, memory: ConversationOptions) -> str:
    """A hash over what the pair is and over options; tokens are compared one by one."""
    parts = [f"{each.name}={getattr(options, each.name)!r}" for each in fields(options) if each.name not in FREE]
    return blake2b("\n".join([pair, *parts, repr(memory)]).encode(), digest_size=16).hexdigest()


def here(pipeline: Pipeline) -> str:
    """What the models of a pair are as long as they are open: files by their places, devices, scaling of RoPE."""
    return "\n".join(_told(one, lambda each: str(each.path.resolve())) for one in (pipeline.target, pipeline.drafter))


def lasting(pipeline: Pipeline) -> str:
    """What they are for good: files by their contents, what they multiply, and this version of the program. A hash.
    ConfigError: a model has no file.
    """
    models = (_told(one, lambda each: file_sha256(each.path)) for one in (pipeline.target, pipeline.drafter))
    precisions = (str(one.model.arithmetic) for one in (pipeline.target, pipeline.drafter) if one is not None)
    return blake2b("\n".join([__version__, *models, *precisions]).encode(), digest_size=16).hexdigest()


def _told(loaded: Loaded | None, named: Callable[[Loaded], str]) -> str:
    if loaded is None:
        return "none"
    model = loaded.model
    rope = f"{model.config.rope!r} {loaded.asked}"  # that of long prompts hangs on whether one was asked for
    return f"{named(loaded)} {loaded.nbytes} {loaded.tokenizer.sha256} {model.device} {rope}"
