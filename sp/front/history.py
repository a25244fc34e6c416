"""Decide once what is shortened in a transcript, and which omitted passages are restored.

A document in front of its question is shortened at once, a tool result as soon as an assistant message follows it (with
`Rules.shorten_newest` at once), and everything but instructions, calls and the question if the transcript does not fit.
A decision is stored under the hash of its text and written the same in every later request, so that the upstream
server's prefix cache stays valid.
Passages restored for a question are written in front of it, and stay there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from operator import getitem
from typing import Any

from sp.chat.located import SegmentKind
from sp.errors import PromptError
from sp.front.bodies import PICTURE_TOKENS, Api, TextPlace, frame_of, text_places, with_texts
from sp.front.json_text import Path
from sp.front.rules import Rules
from sp.front.shorten import Compressor, Ranges, ShortText, TranscriptText
from sp.front.store import DecisionStore, digest
from sp.serve.messages import LONGEST, question_of
from sp.structure import NOTHING, scalar_content

OPENING, CLOSING = "Passages from above that were left out there:\n\n", "\n\n"  # around restored passages
SEPARATOR = "\n[...]\n"  # between passages
MIN_TEXT_BYTES = 256  # of a text that is worth shortening
ASSISTANT_CHARACTERS = 512  # of the last assistant message's end that count as a part of the question
MARK_TOKENS = 16  # that marks may add to a text
MIN_KEEP_RATIO = 0.005  # of a text; a smaller share says nothing
TOKENS_PER_TOKEN = 1.1
"""Tokens of the upstream vocabulary that one of the drafter's is taken for, until the upstream server has counted."""
COUNTED_TOKENS = 256  # of a request from which on the ratio of two vocabularies is learned
MEASURE_BYTES = 8 << 20  # memory for the lengths of texts


@dataclass(frozen=True)
class Change:
    """A text that is sent otherwise than it came. `kept_ranges`: its byte ranges that are sent; `restored`: passages of
    other texts that are written in front of it."""

    kind: SegmentKind
    text: str
    kept_ranges: Ranges
    restored: str = ""


@dataclass(frozen=True)
class ShortenedRequest:
    """A request as it is sent on, and how it differs from what came.

    Attributes
    ----------
    body : dict
    texts : mapping
        New texts by their paths in the body.
    blocks : mapping
        Blocks with restored passages, by the paths of the blocks in front of which they are inserted.
    tokens, sent : int
        Length of all its texts as they came and as they are sent, in tokens of the drafter's vocabulary.
    shortened : int
        Texts that are shorter than they came.
    decided : int
        Of these, the ones decided for this request.
    recalled : int
        Passages restored for this question.
    changes : tuple of Change
        Texts that are sent otherwise than they came.
    reason : str
        Why nothing was shortened; empty if something was.
    seconds : float
        Time that the drafter took.
    estimate : int
        Tokens of texts, tools and calls, in the drafter's vocabulary; 0 if they were not estimated.
    """

    body: dict[str, Any]
    texts: Mapping[Path, str] = field(default_factory=dict)
    blocks: Mapping[Path, Any] = field(default_factory=dict)
    tokens: int = 0
    sent: int = 0
    shortened: int = 0
    decided: int = 0
    recalled: int = 0
    changes: tuple[Change, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    estimate: int = 0

    @property
    def is_changed(self) -> bool:
        """True if it is sent otherwise than it came."""
        return bool(self.texts or self.blocks)

    def usage(self) -> dict[str, Any]:
        """The object ``usage.sp`` of a reply."""
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
    """Shortens transcripts, each text always to the same bytes as long as its decision is stored.

    One thread at a time may call `shorten`.

    Parameters
    ----------
    compressor : Compressor
    store : DecisionStore
    """

    compressor: Compressor
    store: DecisionStore = field(default_factory=lambda: DecisionStore(256 << 20))
    per_token: float = TOKENS_PER_TOKEN
    """Tokens of the upstream vocabulary to one of the drafter's, an upper bound."""
    counted: bool = False
    """True once the upstream server has counted a prompt."""

    def __post_init__(self) -> None:
        self._measures = DecisionStore(MEASURE_BYTES)  # apart: a lost length costs time, a lost decision the cache

    def too_short(self, api: Api, body: Mapping[str, Any], rules: Rules) -> ShortenedRequest | None:
        """Recognise a request that is so short that its tokens need no counting, on any thread; else None."""
        size = sum(len(place.text.encode()) for place in text_places(api, body))
        if size >= rules.threshold or (rules.max_prompt_tokens is not None and size >= MIN_TEXT_BYTES):
            return None  # a token has at least one byte
        reason = f"{size:,} bytes of text, below {rules.threshold:,} tokens" if size else "no text"
        return ShortenedRequest(dict(body), reason=reason)

    def shorten(self, api: Api, body: Mapping[str, Any], rules: Rules) -> ShortenedRequest:
        """Shorten the texts of a request as the rules ask.

        Raises
        ------
        PromptError
            What must stay is more than `rules.max_prompt_tokens` allows.
        """
        places = text_places(api, body)
        view = _View.of(places, self._question_start)
        if not view.pieces:
            return ShortenedRequest(dict(body), reason="no text")
        sizes = [self._tokens(piece.text) for piece in view.pieces]
        total, frame, limit = sum(sizes), 0, None
        if rules.max_prompt_tokens is not None:
            parts = frame_of(body, places)
            frame = sum(map(self._tokens, parts.parts))
            limit = int((rules.max_prompt_tokens - PICTURE_TOKENS * parts.pictures) / self.per_token) - frame
            # Nothing is learned from a guess: of pictures, or of text that the upstream server adds.
            frame = 0 if parts.pictures or not parts.is_whole else frame
        too_long = limit is not None and total > limit
        if total < rules.threshold and not too_long:
            reason = f"{total:,} tokens, below {rules.threshold:,}"
            estimate = frame and frame + total
            return ShortenedRequest(dict(body), tokens=total, sent=total, reason=reason, estimate=estimate)
        decisions = [None if piece.fixed else self.store.get(self._key(piece, rules)) for piece in view.pieces]
        plan = _Plan(view, sizes, decisions)
        plan.restored = {
            index: passages for index, key in view.chain.items() if isinstance(passages := self.store.get(key), str)
        }
        plan.open = [
            short is None and piece.may_shorten(too_long, rules.shorten_newest)
            for piece, short in zip(view.pieces, plan.decisions, strict=True)
        ]
        ratio = rules.keep_ratio
        if too_long and limit is not None:
            ratio = min(ratio, plan.room(limit, self._restored(plan)))
        asking = view.asking
        new_question = asking is not None and places[asking].newest and asking not in plan.restored
        recall = rules.recall and new_question and any(short is not None for short in plan.decisions)
        if any(plan.open) or recall:
            self._read(plan, ratio, rules, recall, limit)
        if new_question and asking is not None and asking not in plan.restored:
            self.store.put(view.chain[asking], "")  # the same request sent again must restore nothing either
        return self._result(body, plan, frame)

    def _read(self, plan: _Plan, ratio: float, rules: Rules, recall: bool, limit: int | None) -> None:
        """Have the drafter read the transcript, and store its decisions. `limit`: most tokens to send, if any."""
        view = plan.view
        # The question is not among the texts: the drafter reads it after all of them.
        indices = [index for index, piece in enumerate(view.pieces) if not (piece.asks and piece.place == view.asking)]
        texts = []
        for index in indices:
            piece, short = view.pieces[index], plan.decisions[index]
            texts.append(
                TranscriptText(piece.kind, piece.text, None if short is None else short.kept_ranges, plan.open[index])
            )
        result = self.compressor.shorten(texts, view.question, keep_ratio=ratio, recall=recall)
        plan.seconds = result.seconds
        for position, short in result.texts.items():
            piece = view.pieces[indices[position]]
            plan.decisions[indices[position]] = short
            self.store.put(self._key(piece, rules), short, len(short.text.encode()) + 16 * len(short.kept_ranges))
        passages = result.recalled if limit is None else self._fitting(result.recalled, plan, limit)
        if passages and view.asking is not None:
            plan.restored[view.asking] = OPENING + SEPARATOR.join(passages) + CLOSING
            self.store.put(view.chain[view.asking], plan.restored[view.asking])
            plan.recalled = len(passages)

    def _fitting(self, passages: Sequence[str], plan: _Plan, limit: int) -> list[str]:
        """Return the passages that fit into a prompt of `limit` tokens, each next to those before it."""
        room = limit - plan.sent - self._restored(plan) - self._tokens(OPENING + CLOSING)
        fitting = list[str]()
        for passage in passages:
            if (size := self._tokens(SEPARATOR + passage)) <= room:
                fitting.append(passage)
                room -= size
        return fitting

    def learn(self, outcome: ShortenedRequest, prompt_tokens: int) -> None:
        """Learn from the upstream server's count of a request how its vocabulary compares with the drafter's."""
        if outcome.estimate >= COUNTED_TOKENS and prompt_tokens > 0:
            ratio = prompt_tokens / outcome.estimate
            self.per_token = max(ratio, self.per_token) if self.counted else ratio
            self.counted = True

    def _result(self, body: Mapping[str, Any], plan: _Plan, frame: int) -> ShortenedRequest:
        texts, blocks = dict[Path, str](), dict[Path, Any]()
        changes = list[Change]()
        sent, view = plan.sent + self._restored(plan), plan.view
        for index, pieces in groupby(enumerate(view.pieces), key=lambda pair: pair[1].place):
            place, passages = view.places[index], plan.restored.get(index, "")
            kept_ranges, text, offset = list[tuple[int, int]](), "", 0
            for number, piece in pieces:
                short, length = plan.decisions[number], len(piece.text.encode())
                text += piece.text if short is None else short.text
                ranges = ((0, length),) if short is None else short.kept_ranges
                kept_ranges += [(offset + start, offset + end) for start, end in ranges]
                offset += length
            if passages and place.path[-1] == "text":
                # In a block of their own: the client may have marked that of the question for a cache.
                block = reduce(getitem, place.path[:-1], body)
                blocks[place.path[:-1]] = {"type": block["type"], "text": passages}
            elif passages:
                text = passages + text
            if text != place.text:
                texts[place.path] = text
            if passages or text != place.text:
                changes.append(Change(place.kind, place.text, tuple(kept_ranges), passages))
        return ShortenedRequest(
            with_texts(body, texts, blocks),
            texts,
            blocks,
            sum(plan.sizes),
            sent,
            sum(short is not None for short in plan.decisions),
            sum(plan.open),
            plan.recalled,
            tuple(changes),
            "" if changes else "every text is new, short, marked for a cache or a JSON number",
            plan.seconds,
            frame and frame + sent,  # 0 if not estimated, so that `learn` ignores it
        )

    def _key(self, piece: _Piece, rules: Rules) -> str:
        return digest("text", piece.kind, piece.text, f"{rules.keep_ratio:g}")

    @property
    def _drafter(self) -> Any:
        return self.compressor.pipeline.drafter

    def _restored(self, plan: _Plan) -> int:
        """Return the tokens of all restored passages."""
        return sum(map(self._tokens, plan.restored.values()))

    def _tokens(self, text: str) -> int:
        return self._measured("tokens", text, lambda: len(self._drafter.tokenizer.encode(text))) if text else 0

    def _question_start(self, text: str) -> int:
        """Return the character of a user's text at which its question begins."""
        tokenizer = self._drafter.tokenizer
        return self._measured("question", text, lambda: question_of([text], "auto", tokenizer).start)

    def _measured(self, kind: str, text: str, measure: Callable[[], int]) -> int:
        """Return a number that follows from a text alone, and that earlier requests may have had to work out."""
        key = digest(kind, text)
        value = self._measures.get(key)
        if value is None:
            value = measure()
            self._measures.put(key, value, 0)
        return int(value)


@dataclass(frozen=True)
class _Piece:
    """A text of a request, or a part of it. `place`: index of the text; `asks`: it is a user's question."""

    place: int
    kind: SegmentKind
    text: str
    fixed: bool
    newest: bool
    asks: bool

    def may_shorten(self, too_long: bool, shorten_newest: bool) -> bool:
        """Return True if some of it may be omitted; more may if the transcript does not fit."""
        if self.fixed or self.asks or len(raw := self.text.encode()) < MIN_TEXT_BYTES or scalar_content(raw) == NOTHING:
            return False
        if self.kind == "assistant":
            return too_long
        # A document in front of its question is newest, and its question is known: it is shortened at once.
        return too_long or shorten_newest or not self.newest or self.kind == "user"


@dataclass(frozen=True)
class _View:
    """The texts of a request, those of the user split where their questions begin.

    Attributes
    ----------
    asking : int, optional
        Index of the newest text of the user.
    question : str
        The current question: the end of that text, and of the assistant messages since.
    chain : dict of int to str
        For each text of the user, a hash of it and all texts before it.
    """

    places: list[TextPlace]
    pieces: list[_Piece]
    asking: int | None
    question: str
    chain: dict[int, str]

    @classmethod
    def of(cls, places: list[TextPlace], question_start: Callable[[str], int]) -> _View:
        """Split by the texts alone, so that any later request is split the same."""
        pieces, chain, previous = list[_Piece](), dict[int, str](), ""
        asking, question, answer = None, "", ""
        for index, place in enumerate(places):
            previous = digest(previous, place.kind, place.text)
            start = 0
            is_message = place.kind == "user" and not place.document
            if is_message:
                start = question_start(place.text)
                chain[index] = digest("passages", previous)
                asking, question, answer = index, place.text[start:].strip()[-LONGEST:], ""
            elif place.kind == "assistant":
                answer = place.text.strip()[-ASSISTANT_CHARACTERS:] or answer
            parts = [(place.text, is_message)]
            if start:
                parts = [(place.text[:start], False), (place.text[start:], True)]
            pieces += [_Piece(index, place.kind, text, place.fixed, place.newest, asks) for text, asks in parts]
        return cls(places, pieces, asking, f"{question}\n{answer}".strip(), chain)


@dataclass
class _Plan:
    """The decision on each piece, None without one; which ones are to be decided; restored passages by their place."""

    view: _View
    sizes: list[int]
    decisions: list[ShortText | None]
    open: list[bool] = field(default_factory=list)
    restored: dict[int, str] = field(default_factory=dict)
    recalled: int = 0
    seconds: float = 0.0

    @property
    def sent(self) -> int:
        """Tokens of all pieces as they are sent, without restored passages."""
        pairs = zip(self.sizes, self.decisions, strict=True)
        return sum(size if short is None else short.kept_tokens for size, short in pairs)

    def room(self, limit: int, restored: int) -> float:
        """Return the share of the open texts that fits next to all else; PromptError if that is too much alone."""
        columns = list(zip(self.sizes, self.decisions, self.open, strict=True))
        fixed = sum(size if short is None else short.kept_tokens for size, short, is_open in columns if not is_open)
        fixed += restored
        free = sum(size for size, _, is_open in columns if is_open)
        room = limit - fixed - MARK_TOKENS * sum(self.open)  # marks are not in the keep ratio
        if room <= 0 or (free and room < free * MIN_KEEP_RATIO):
            raise PromptError(
                f"about {fixed:,} of {sum(self.sizes):,} tokens of text must stay as they are (instructions, newest "
                f"messages, earlier decisions), and there is room for {max(limit, 0):,}; begin a new conversation, "
                "send less, or raise max_prompt_tokens"
            )
        return min(1.0, room / free) if free else 1.0
