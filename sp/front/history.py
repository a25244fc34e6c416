"""What a front decides of a transcript, once and for all: which texts are shortened, and what comes back of them.

A document that stands before its question is shortened at once, what tools answered once an assistant has spoken
behind it, and anything but instructions, calls and the question where the whole does not fit. What was decided is kept
by the text's hash and written the same in every later request, so that what the upstream server has cached of a
transcript stays of use. What comes back for a question stands before it, and stays there.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby
from typing import Any

from sp.chat.located import SegmentKind
from sp.errors import ConfigError, PromptError
from sp.front.bodies import Api, Path, Place, places, with_texts
from sp.front.shorten import Compressor, Ranges, Short, Text
from sp.gguf import Tokenizer
from sp.serve.messages import LONGEST, question_of

OPENING, CLOSING = "Passages from above that were left out there:\n\n", "\n\n"  # around what comes back
BETWEEN = "\n[...]\n"  # between passages
LEAST = 256  # bytes of a text that is worth shortening
ASSISTANT = 512  # bytes of what an assistant said last that count as a part of the question
MARKS = 16  # tokens that marks may add to a text
LEAST_SHARE = 0.005  # of a text; a smaller one says nothing
OVERHEAD = 512  # of each stored decision, besides its text
BEYOND = 1.1
"""How many tokens of an unknown vocabulary a token of the drafter's is thought to be, until the upstream server has
counted a prompt; and by how much what it counted is then exceeded."""


class Store:
    """Decisions by hash, the ones used longest ago dropped where they take too many bytes.

    >>> store = Store(most=2000)
    >>> store.put("a", "x" * 1200), store.put("b", "y" * 900), store.get("a") is None
    (None, None, True)
    """

    def __init__(self, most: int) -> None:
        self.most, self.nbytes, self.dropped = most, 0, 0
        self._held: OrderedDict[str, Any] = OrderedDict()
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: str) -> Any:
        """What is held under a key; None for nothing."""
        if key in self._held:
            self._held.move_to_end(key)
        return self._held.get(key)

    def put(self, key: str, value: Any, size: int | None = None) -> None:
        """Hold a value of so many bytes; of a text, its own."""
        self._forget(key)
        size = (len(str(value).encode()) if size is None else size) + OVERHEAD
        self._held[key], self._sizes[key] = value, size
        self.nbytes += size
        while self.nbytes > self.most and len(self._held) > 1:
            self._forget(next(iter(self._held)))
            self.dropped += 1

    def _forget(self, key: str) -> None:
        if key in self._held:
            del self._held[key]
            self.nbytes -= self._sizes.pop(key)


@dataclass(frozen=True)
class Rules:
    """What a request asks for.

    Attributes
    ----------
    keep_ratio : float
        Share of a text's tokens that is kept.
    threshold : int
        Tokens of a transcript below which nothing is shortened.
    most : int, optional
        Tokens that the upstream server takes of a prompt; None for any number.
    recall : bool
        Whether what was left out comes back where a later question needs it.
    """

    keep_ratio: float = 0.2
    threshold: int = 2048
    most: int | None = None
    recall: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.keep_ratio <= 1:
            raise ConfigError(f"keep_ratio must be above 0 and at most 1, not {self.keep_ratio:g}")
        for name, value, least in (("threshold", self.threshold, 0), ("max_prompt_tokens", self.most, 64)):
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, not {value}")


@dataclass(frozen=True)
class Change:
    """A text that goes on otherwise than it came. `kept`: bytes of it that go on; `before`: passages that came back."""

    kind: SegmentKind
    text: str
    kept: Ranges
    before: str = ""


@dataclass(frozen=True)
class Outcome:
    """A request as it goes on, and what became of it.

    Attributes
    ----------
    body : dict
    tokens, sent : int
        Of its texts, in the drafter's vocabulary: all of them, and those that go on.
    shortened : int
        Texts that are shorter than they came.
    decided : int
        Of these, those that were decided just now.
    recalled : int
        Passages that came back for this question.
    changes : tuple of Change
        Texts that go on otherwise than they came.
    reason : str
        Why nothing was shortened; empty where something was.
    seconds : float
        What the drafter took.
    """

    body: dict[str, Any]
    tokens: int = 0
    sent: int = 0
    shortened: int = 0
    decided: int = 0
    recalled: int = 0
    changes: tuple[Change, ...] = ()
    reason: str = ""
    seconds: float = 0.0

    def told(self) -> dict[str, Any]:
        """As ``usage.sp`` has it."""
        return {
            "tokens": self.tokens,
            "sent_tokens": self.sent,
            "shortened": self.shortened,
            "decided": self.decided,
            "recalled": self.recalled,
            "reason": self.reason,
            "drafter_ms": round(1e3 * self.seconds, 1),
        }


@dataclass
class History:
    """Shortens transcripts so that each text is written the same as long as it is remembered.

    Parameters
    ----------
    compressor : Compressor
    store : Store
    """

    compressor: Compressor
    store: Store = field(default_factory=lambda: Store(256 << 20))
    per_token: float = BEYOND  # tokens of the upstream server's vocabulary to one of the drafter's, from above
    counted: bool = False

    def shorten(self, api: Api, body: Mapping[str, Any], rules: Rules) -> Outcome:
        """A request whose texts are as short as the rules want them.

        Raises
        ------
        PromptError
            What must stay is more than `rules.most` allows.
        """
        view = _View.of(places(api, body), self._drafter.tokenizer)
        if not view.pieces:
            return Outcome(dict(body), reason="no text")
        sizes = [self._tokens(piece.text) for piece in view.pieces]
        total = sum(sizes)
        around = self._tokens(json.dumps(body["tools"])) if rules.most is not None and body.get("tools") else 0
        most = None if rules.most is None else int(rules.most / self.per_token) - around
        over = most is not None and total > most
        if total < rules.threshold and not over:
            return Outcome(dict(body), total, total, reason=f"{total:,} tokens, below {rules.threshold:,}")
        known = [None if piece.fixed else self.store.get(self._key(piece, rules)) for piece in view.pieces]
        plan = _Plan(view, sizes, known)
        plan.past = {at: held for at in view.chain if isinstance(held := self.store.get(view.chain[at]), str)}
        plan.open = [short is None and piece.may_go(over) for piece, short in zip(view.pieces, plan.known, strict=True)]
        ratio = rules.keep_ratio
        if over and most is not None:
            ratio = min(ratio, plan.room(most, sum(map(self._tokens, plan.past.values()))))
        asking = view.asking
        fresh = asking is not None and view.found[asking].newest and asking not in plan.past
        wants = rules.recall and fresh and any(short is not None for short in plan.known)
        if any(plan.open) or wants:
            self._read(plan, ratio, rules, wants)
        return self._outcome(body, plan)

    def _read(self, plan: _Plan, ratio: float, rules: Rules, wants: bool) -> None:
        """Have the drafter read the transcript, and keep what follows from it."""
        view = plan.view
        read = [index for index, piece in enumerate(view.pieces) if not (piece.asks and piece.place == view.asking)]
        texts = []
        for index in read:
            piece, short = view.pieces[index], plan.known[index]
            texts.append(Text(piece.kind, piece.text, None if short is None else short.kept, plan.open[index]))
        result = self.compressor.read(texts, view.question, keep_ratio=ratio, recall=wants)
        plan.seconds = result.seconds
        for at, short in result.texts.items():
            piece = view.pieces[read[at]]
            plan.known[read[at]] = short
            self.store.put(self._key(piece, rules), short, len(short.text.encode()) + 16 * len(short.kept))
        if result.recalled and view.asking is not None:
            plan.past[view.asking] = OPENING + BETWEEN.join(result.recalled) + CLOSING
            self.store.put(view.chain[view.asking], plan.past[view.asking])
            plan.recalled = len(result.recalled)

    def count(self, outcome: Outcome, prompt_tokens: int) -> None:
        """Take notice of how many tokens the upstream server counted of a request, its markup among them."""
        if outcome.sent >= 256 and prompt_tokens > 0:
            seen = prompt_tokens / outcome.sent
            self.per_token = max(seen, self.per_token) if self.counted else seen
            self.counted = True

    def _outcome(self, body: Mapping[str, Any], plan: _Plan) -> Outcome:
        new: dict[Path, str] = {}
        changes = list[Change]()
        sent, view = 0, plan.view
        for index, pieces in groupby(enumerate(view.pieces), key=lambda one: one[1].place):
            place, passages = view.found[index], plan.past.get(index, "")
            kept, text, size = list[tuple[int, int]](), "", 0
            sent += self._tokens(passages)
            for at, piece in pieces:
                short, length = plan.known[at], len(piece.text.encode())
                text += piece.text if short is None else short.text
                sent += plan.sizes[at] if short is None else short.kept_tokens
                kept += [(size + a, size + b) for a, b in (((0, length),) if short is None else short.kept)]
                size += length
            if passages or text != place.text:
                new[place.path] = passages + text
                changes.append(Change(place.kind, place.text, tuple(kept), passages))
        return Outcome(
            with_texts(body, new),
            sum(plan.sizes),
            sent,
            sum(short is not None for short in plan.known),
            sum(plan.open),
            plan.recalled,
            tuple(changes),
            "" if new else "nothing that is old enough",
            plan.seconds,
        )

    def _key(self, piece: _Piece, rules: Rules) -> str:
        return _digest("text", piece.kind, piece.text, f"{rules.keep_ratio:g}")

    @property
    def _drafter(self) -> Any:
        return self.compressor.pipeline.drafter

    def _tokens(self, text: str) -> int:
        return len(self._drafter.tokenizer.encode(text)) if text else 0


@dataclass(frozen=True)
class _Piece:
    """A text of a request, or a part of one. `asks`: it is the question of a text of the user."""

    place: int
    kind: SegmentKind
    text: str
    fixed: bool
    newest: bool
    asks: bool

    def may_go(self, over: bool) -> bool:
        """Whether something of it may be left out; more may where the transcript does not fit."""
        if self.fixed or self.asks or len(self.text.encode()) < LEAST:
            return False
        if self.kind == "assistant":
            return over
        return over or not self.newest or self.kind == "user"  # a document that stands before its question


@dataclass(frozen=True)
class _View:
    """The texts of a request, those of the user cut where their questions begin.

    Attributes
    ----------
    asking : int, optional
        The newest text of the user.
    question : str
        What is asked now: the end of that text, and of what an assistant said since.
    chain : dict of int to str
        A hash of each text of the user and all texts before it.
    """

    found: list[Place]
    pieces: list[_Piece]
    asking: int | None
    question: str
    chain: dict[int, str]

    @classmethod
    def of(cls, found: list[Place], tokenizer: Tokenizer) -> _View:
        """Cut as any later request cuts them: by the texts alone."""
        pieces, chain, before = list[_Piece](), dict[int, str](), ""
        asking, asked, said = None, "", ""
        for index, place in enumerate(found):
            before = _digest(before, place.kind, place.text)
            at = 0
            if place.kind == "user":
                at = question_of([place.text], "auto", tokenizer).start
                chain[index] = _digest("passages", before)
                asking, asked, said = index, place.text[at:].strip()[-LONGEST:], ""
            elif place.kind == "assistant":
                said = place.text.strip()[-ASSISTANT:] or said
            parts = [(place.text[:at], False), (place.text[at:], True)] if at else [(place.text, place.kind == "user")]
            pieces += [_Piece(index, place.kind, text, place.fixed, place.newest, asks) for text, asks in parts]
        return cls(found, pieces, asking, f"{asked}\n{said}".strip(), chain)


@dataclass
class _Plan:
    """What becomes of each piece: as it was decided, or open; and what came back before which text."""

    view: _View
    sizes: list[int]
    known: list[Short | None]
    open: list[bool] = field(default_factory=list)
    past: dict[int, str] = field(default_factory=dict)
    recalled: int = 0
    seconds: float = 0.0

    def room(self, most: int, passages: int) -> float:
        """The share of the open texts that fits beside all else; PromptError if that is too much without them."""
        columns = list(zip(self.sizes, self.known, self.open, strict=True))
        stays = passages + sum(size if short is None else short.kept_tokens for size, short, go in columns if not go)
        free = sum(size for size, _, go in columns if go)
        room = most - stays - MARKS * sum(self.open)
        if room <= 0 or (free and room < free * LEAST_SHARE):
            raise PromptError(
                f"about {stays:,} of {sum(self.sizes):,} tokens must stay as they are (instructions, what is newest, "
                f"what was decided before), and {most:,} may be sent; begin a new conversation, or send less"
            )
        return min(1.0, room / free) if free else 1.0


def _digest(*parts: str) -> str:
    made = blake2b(digest_size=20)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        made.update(len(raw).to_bytes(8, "little") + raw)
    return made.hexdigest()
