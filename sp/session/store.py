"""Conversations: many at once, matched by the beginning of a prompt, within budgets of memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from hashlib import blake2b

from sp import __version__
from sp.errors import ConfigError, PromptError
from sp.models.shards.shards import SharedModel
from sp.prompt import Prompt, TokenisedPrompt
from sp.scoring.calibration.record import file_sha256
from sp.session.compress import with_positions
from sp.session.conversation import Conversation
from sp.session.decision import check_context
from sp.session.disk.records import DamagedError
from sp.session.disk.shelf import Book, Shelf
from sp.session.loaded import Loaded
from sp.session.memory import message_ends
from sp.session.options import ConversationOptions, RunOptions, check_run
from sp.session.pipeline import Pipeline
from sp.session.result import ConversationMatch, OnToken, TurnResult
from sp.session.tokenise import Vocabularies
from sp.trace import Reporter, Stage, silent

LEAST = 64  # shared tokens from which a prompt without messages continues a conversation


@dataclass
class Counts:
    """Numbers of prompts by their match, and of evicted conversations."""

    hits: int = 0
    forks: int = 0
    misses: int = 0
    evictions: int = 0

    def add(self, match: ConversationMatch) -> None:
        """Count a prompt."""
        self.hits += match == "hit"
        self.forks += match == "fork"
        self.misses += match == "miss"


@dataclass(eq=False)
class _Entry:
    talk: Conversation
    key: str
    whole: int = 0  # tokens of its last prompt up to the end of the last message
    book: Book | None = None
    unsaved: bool = False


class Conversations:
    """Conversations of clients that send the whole transcript each time.

    One thread at a time may use it, and the pipeline must not be used otherwise meanwhile.

    Parameters
    ----------
    pipeline : Pipeline
    options : ConversationOptions, optional
    most : int
        Conversations to remember.
    memory : int, optional
        Bytes of host memory for all of them; on the CPU this includes their caches.
    device : int, optional
        Bytes of device memory for all caches between turns; those used longest ago are offloaded first.
    shelf : Shelf, optional
        Folder to which `save` writes them, and from which those not in memory are restored.

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
            raise ConfigError(f"most is {most}; it must be at least 1")
        self.pipeline, self.options = pipeline, options or ConversationOptions()
        self.most, self.memory, self.device, self.shelf = most, memory, device, shelf
        self.counts = Counts()
        self._pair = here(pipeline) if shelf is None else shelf.pair
        self._tokens = Vocabularies(pipeline.target, pipeline.drafter, most)  # remembers one prompt per conversation
        self._entries: list[_Entry] = []  # least recently used first

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
        """Answer a prompt in the conversation that it continues, or in a new one; see `Conversation.answer`.

        Options of the run and `memory`, which replaces the options of all, are part of a conversation's identity.
        """
        start, options = time.perf_counter(), with_positions(options, self.pipeline.target.model.config)
        tokenised = self._tokens.target(prompt)
        ends = message_ends(tokenised)
        least = min(int(ends[0]) if len(ends) else LEAST, len(tokenised) - 1)
        key = identity(self._pair, options, memory or self.options)  # caches made with other options are of no use
        restored = self._restore(tokenised, least, key, options, memory or self.options)
        entry, match = self._find(tokenised, least, key, options, memory or self.options)
        self.counts.add(match)
        entry.whole, entry.unsaved = int(ends[-1]) if len(ends) else len(tokenised), True
        self._entries.append(entry)  # most recently used last
        looked = time.perf_counter() - start  # part of the time to first token
        try:
            most, decode = options.max_new_tokens, options.decode
            result = entry.talk.answer(prompt, on_token, max_new_tokens=most, decode=decode, reporter=reporter)
            result.trace.stages.insert(0, Stage("find conversation", seconds=looked))
            answer = replace(result.answer, ttft_s=looked + result.answer.ttft_s)
            return replace(result, answer=answer, match=match, restored=restored and match != "miss")
        finally:
            self._keep_budgets()

    def refusal(self, prompt: Prompt, options: RunOptions) -> str | None:
        """Return why no conversation can answer a prompt, though a single run may; None if one can."""
        try:
            check_run(options, self.pipeline.drafter)
            check_context(self.pipeline.target, len(self._tokens.target(prompt)), options.max_new_tokens)
        except (ConfigError, PromptError) as error:
            return str(error)
        return None

    @property
    def has_unsaved(self) -> bool:
        """True if `save` would have something to do now."""
        return self.shelf is not None and not self.shelf.busy and any(entry.unsaved for entry in self._entries)

    def save(self) -> None:
        """Queue the changes of the conversation that has waited longest to be written, unless the shelf is busy.

        A busy shelf calls again, and later changes are then written, too. Takes as long as copying the changes.
        """
        if self.has_unsaved:
            self._save(next(entry for entry in self._entries if entry.unsaved))

    def clear(self) -> None:
        """Forget all conversations, except those on the shelf."""
        for entry in self._entries:
            self._save(entry)
            entry.talk.clear()
        self._entries.clear()

    def close(self) -> None:
        """Forget all conversations, once the shelf has them."""
        self.clear()
        if self.shelf is not None:
            self.shelf.close()

    @property
    def device_nbytes(self) -> int:
        """Bytes of device memory that caches hold now."""
        return 0 if self._on_host else sum(entry.talk.nbytes for entry in self._entries)

    @property
    def host_nbytes(self) -> int:
        """Bytes of host memory that all conversations hold now."""
        caches = sum(entry.talk.nbytes for entry in self._entries) if self._on_host else 0
        return caches + sum(entry.talk.host_nbytes for entry in self._entries)

    def _restore(
        self, prompt: TokenisedPrompt, least: int, key: str, options: RunOptions, memory: ConversationOptions
    ) -> bool:
        """Restore the conversation of the shelf that shares most with a prompt, if none in memory shares as much."""
        if self.shelf is None:
            return False
        # Tokens shared in memory.
        here = max((entry.talk.matching(prompt.ids) for entry in self._entries if entry.key == key), default=0)
        used = {entry.book for entry in self._entries if entry.book is not None}
        book, count = self.shelf.best(key, prompt.ids, used)
        if book is None or count <= here or count < least or (contents := self.shelf.load(book)) is None:
            return False
        self._make_room()
        talk = Conversation(self.pipeline, options, memory, vocabularies=self._tokens)
        try:
            talk.put(*contents)
        except DamagedError as error:
            self.shelf.remove(book, str(error))
            return False
        self._entries.append(_Entry(talk, key, book.whole, book))
        return talk.matching(prompt.ids) >= least

    def _find(
        self, prompt: TokenisedPrompt, least: int, key: str, options: RunOptions, memory: ConversationOptions
    ) -> tuple[_Entry, ConversationMatch]:
        """Return the conversation for a prompt, removed from the list; it shares at least `least` tokens or is new."""
        shared = {entry: entry.talk.matching(prompt.ids) for entry in self._entries if entry.key == key}
        best = max(shared, key=lambda entry: shared[entry], default=None)
        if best is None or shared[best] < least:
            self._make_room()
            talk = Conversation(self.pipeline, options, memory, vocabularies=self._tokens)
            return _Entry(talk, key), "miss"
        match: ConversationMatch = "hit" if shared[best] >= min(best.whole, len(prompt) - 1) else "fork"
        if match == "fork" and self.most > 1:
            self._make_room(best)
            return _Entry(best.talk.fork(prompt.prompt), key), match  # both branches stay in memory
        if match == "fork":  # the old branch stays on the shelf
            self._save(best)
            best.book = None
        self._entries.remove(best)
        return best, match

    def _make_room(self, spared: _Entry | None = None) -> None:
        """Evict conversations until another one fits, except the one spared."""
        while len(self._entries) >= self.most:
            self._evict(next(entry for entry in self._entries if entry is not spared))

    def _save(self, entry: _Entry) -> None:
        """Queue the changes of a conversation to be written, if there are any."""
        if self.shelf is None or not entry.unsaved:
            return
        entry.unsaved = False  # also after a failure, or `save` would try it for ever; its next turn repairs it
        if not len(entry.talk.transcript):  # of a request that was refused
            return
        if entry.book is not None and entry.book.gone:
            entry.book = None
        book, entry.book = entry.book, None  # if this fails, the next save writes a new file
        if (changes := entry.talk.changes(full=book is None)) is not None:
            book = self.shelf.put(book, changes, entry.key, entry.whole)
        entry.book = book

    def _evict(self, entry: _Entry) -> None:
        self._save(entry)
        entry.talk.clear()
        self._entries.remove(entry)
        self.counts.evictions += 1

    def _keep_budgets(self) -> None:
        """Offload or evict the conversations used longest ago."""
        for entry in list(self._entries):
            if self.device is None or self.device_nbytes <= self.device:
                break
            entry.talk.offload()
        while self.memory is not None and self._entries and self.host_nbytes > self.memory:
            self._evict(self._entries[0])

    @property
    def _on_host(self) -> bool:
        return self.pipeline.target.model.device == "cpu"


FREE = ("decode", "max_new_tokens")  # options that do not affect the caches


def identity(pair: str, options: RunOptions, memory: ConversationOptions) -> str:
    """Return a hash of the pair and of options; tokens are compared individually."""
    parts = [f"{field.name}={getattr(options, field.name)!r}" for field in fields(options) if field.name not in FREE]
    text = "\n".join([pair, *parts, repr(memory)])  # `repr` of strategies has their class and all fields
    return blake2b(text.encode(), digest_size=16).hexdigest()


def here(pipeline: Pipeline) -> str:
    """Return the identity of a pair while it is open: paths of files, devices, scaling of RoPE."""
    return "\n".join(
        _described(loaded, lambda model: str(model.path.resolve())) for loaded in (pipeline.target, pipeline.drafter)
    )


def lasting(pipeline: Pipeline) -> str:
    """Return the permanent identity of a pair, a hash: contents of files, precisions, and this version of the program.

    ConfigError if a model has no file.
    """
    models = (
        _described(loaded, lambda model: file_sha256(model.path)) for loaded in (pipeline.target, pipeline.drafter)
    )
    precisions = (str(loaded.model.arithmetic) for loaded in (pipeline.target, pipeline.drafter) if loaded is not None)
    return blake2b("\n".join([__version__, *models, *precisions]).encode(), digest_size=16).hexdigest()


def _described(loaded: Loaded | None, named: Callable[[Loaded], str]) -> str:
    if loaded is None:
        return "none"
    model = loaded.model
    rope = f"{model.config.rope!r} {loaded.requested_rope}"  # a requested scaling decides how long prompts are read
    shared = f" by {model.shards.group.size}" if isinstance(model, SharedModel) else ""
    return f"{named(loaded)} {loaded.nbytes} {loaded.tokenizer.sha256} {model.device}{shared} {rope}"
