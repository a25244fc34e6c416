"""Speaker: one answer of a request as it is made, from tokens to what is sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sp.chat import Call
from sp.decode import Choice, Chooser, Constraint, Decoder
from sp.gguf import Tokenizer
from sp.serve.choices.logprobs import TokenLogprob
from sp.serve.text import Part, ReplyText


@dataclass(frozen=True)
class Piece:
    """A part of an answer: what it says, thinking before it, calls of tools behind it, and its tokens if wanted."""

    text: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Ended:
    """The end of one answer, and why."""

    index: int
    finish_reason: str


@dataclass(frozen=True)
class Watched(Decoder):
    """A way to decode, with what a `Chooser` takes besides; no draft guesses then."""

    base: Decoder
    more: Mapping[str, Any]
    watched = True

    def chooser(self, seed: int, **watched: Any) -> Chooser | None:
        """See `Decoder`."""
        return self.base.chooser(seed, **self.more, **watched)


class Speaker:
    """Hears of tokens and sends pieces.

    Parameters
    ----------
    tokenizer : Tokenizer
    text : ReplyText
    send : callable
    index : int
        Of the answer among those of its request.
    logprobs : int or None
        Likeliest tokens to tell beside each one; None tells of none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        text: ReplyText,
        send: Callable[[Piece | Ended], None],
        index: int = 0,
        logprobs: int | None = None,
    ) -> None:
        self.text, self.index = text, index
        self._tokenizer, self._send, self._wanted = tokenizer, send, logprobs
        self._chosen: deque[Choice] = deque()
        self._told: list[TokenLogprob] = []

    def decoder(self, base: Decoder, constraint: Constraint | None) -> Decoder:
        """The way to decode by which this hears what it has to tell."""
        more: dict[str, Any] = {} if constraint is None else {"constraint": constraint}
        if self._wanted is not None:
            more |= {"on_choice": self._chosen.append, "top": self._wanted}
        return Watched(base, more) if more else base

    def hear(self, token: int) -> bool:
        """One more token; whether it is the last."""
        thinking = self.text.thinking
        part = self.text.push(token)
        if self._wanted is not None:
            choice = self._chosen.popleft()
            if not (thinking or self.text.thinking):
                self._told.append(TokenLogprob.of(choice, self._tokenizer))
        self._emit(part)
        return self.text.stopped

    def end(self, tokens: int, most: int) -> None:
        """The answer has so many tokens, and might have had `most`."""
        self._emit(self.text.finish(), last=True)
        long = tokens == most and not self.text.stopped
        self._send(Ended(self.index, "length" if long else "tool_calls" if self.text.called else "stop"))

    def _emit(self, part: Part, last: bool = False) -> None:
        if any(part) or (last and self._told):
            told, self._told = tuple(self._told), []
            self._send(Piece(part.content, part.reasoning, part.calls, self.index, told))
