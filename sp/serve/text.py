"""The text of a reply from its tokens, piece by piece, with thinking, calls and log probabilities."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from sp.chat import Call, Splitter, Thinks
from sp.chat.call_splitter import AnswerPart, Calling, CallSplitter, ThoughtCalls
from sp.chat.reasoning import overlap
from sp.decode import Chooser, Constraint, Decoder, TokenChoice
from sp.errors import plain
from sp.gguf import Tokenizer
from sp.ops.sampling.biased import Penalties
from sp.prompt import Prompt
from sp.serve.fields import MAX_NAME

MOST_UNKNOWN = 8  # reported names that belong to no tool


class ReplyDelta(NamedTuple):
    """A part of a reply: thinking, answer, and the tool calls after it."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()


class ReplyText:
    """Decodes tokens to text and splits it into thinking, answer and calls.

    `stops`: strings that end the answer and are not part of it; they end neither thinking nor calls; `thinks`: the
    model's marks of thinking; `begins`: True if the answer starts a text, as a chat's does, False if it continues the
    prompt; `stopped`: set at a stop string, which is `stop`, or after the only call that is allowed; `called`: set at
    the first call; `reasoning_tokens`: tokens of thinking and its marks.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: tuple[str, ...] = (),
        thinks: Thinks | None = None,
        *,
        begins: bool = True,
        calling: Calling | None = None,
    ) -> None:
        self.stopped, self.called, self.reasoning_tokens = False, False, 0
        self.stop: str | None = None
        self._tokenizer, self._stops = tokenizer, stops
        # Special tokens that are part of the text here; all others are dropped.
        self._marks = thinks.marks.tokens if thinks else ()
        self._marks += calling.style.tokens if calling else ()
        self._splitter = Splitter(thinks, calls=calling is not None)
        if calling and thinks and thinks.marks.channels:  # the prompt's start of a call is a part of its header
            opening, calling = calling.opening, replace(calling, opening="")
            self._calls = CallSplitter(calling)
            self._calls.push(self._splitter.push(opening).content)
            self._thoughts = ThoughtCalls(None)
        else:
            self._calls, self._thoughts = CallSplitter(calling), ThoughtCalls(calling if thinks else None)
        self._bytes = tokenizer.decoder(begins=begins)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a token may end within a character
        self._pending = ""
        self.decoded = 0  # characters so far, including thinking and calls

    @property
    def thinking(self) -> bool:
        """True if the last token belongs to thinking."""
        return self._splitter.thinking

    @property
    def tool(self) -> str:
        """The tool that the next token is addressed to, in formats with a message per call; empty for an answer."""
        return self._splitter.tool

    @property
    def unknown(self) -> list[str]:
        """Called names that belong to none of the tools."""
        return self._calls.unknown

    @property
    def answering(self) -> bool:
        """True if the next token may belong to the answer."""
        return self._splitter.answering

    def push(self, token: int) -> ReplyDelta:
        """Return the text that is certain after one more token; nothing after a stop."""
        raw = self._bytes.push(token)
        if token in self._tokenizer.special_ids and self._tokenizer.token_text(token) not in self._marks:
            return ReplyDelta()
        before, text = self._splitter.thinking, self._decoder.decode(raw)
        self.decoded += len(text)
        split = self._splitter.push(text)
        self.reasoning_tokens += before or self._splitter.thinking  # either of its marks counts, too
        answer = self._calls.push(split.content)
        return self._part(self._thought(split.reasoning), answer.text, answer.calls)

    def finish(self) -> ReplyDelta:
        """Return the pending text, without an incomplete character at the end of a truncated answer."""
        open_end, end = self._splitter.thinking, self._splitter.finish()
        thought = self._thoughts.push(end.reasoning)
        late_thoughts = self._thoughts.finish() if open_end else AnswerPart(self._thoughts.close())
        answer, rest = self._calls.push(end.content), self._calls.finish()
        part = self._part(
            thought + late_thoughts.text, answer.text + rest.text, late_thoughts.calls + answer.calls + rest.calls
        )
        pending, self._pending = self._pending, ""
        return part._replace(content=part.content + pending)

    def _thought(self, reasoning: str) -> str:
        """Return thinking that certainly does not end with calls."""
        text = self._thoughts.push(reasoning)
        return text if self._splitter.thinking else text + self._thoughts.close()

    def _part(self, reasoning: str, text: str, calls: tuple[Call, ...]) -> ReplyDelta:
        """Return what may be sent, and note a stop."""
        content = self._take(text)
        # Calls after a stop string are not part of the answer.
        calls = () if self.stopped else calls
        self.called |= bool(calls)
        self.stopped |= self._calls.done
        return ReplyDelta(reasoning, content, calls)

    def _take(self, new: str) -> str:
        """Return the text up to a stop string, and hold back an ending that may begin one."""
        if self.stopped:
            return ""
        text = self._pending + new
        matches = [(start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            start, self.stop = min(matches)
            self.stopped, self._pending = True, ""
            return text[:start]
        overlap_size = max((overlap(text, stop) for stop in self._stops), default=0)
        self._pending = text[len(text) - overlap_size :]
        return text[: len(text) - overlap_size]


def unknown_call_lines(texts: Iterable[ReplyText]) -> list[str]:
    """Return a line for each called name that belongs to none of the tools."""
    names = dict.fromkeys(plain(name, MAX_NAME) for text in texts for name in text.unknown)
    return [f"a call of {name}: there is no such tool, so it remains text" for name in names][:MOST_UNKNOWN]


LOWEST = -9999.0  # instead of minus infinity, which JSON cannot express


@dataclass(frozen=True)
class TokenLogprob:
    """A token of an answer: its bytes, its log probability, and the same of the likeliest tokens.

    `start`: characters of the text before the token, or before the character of which it is a part.
    """

    raw: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()
    start: int = 0

    @classmethod
    def of(cls, choice: TokenChoice, tokenizer: Tokenizer, start: int = 0) -> TokenLogprob:
        """Return the chosen token and its alternatives; a padded head has tokens outside the vocabulary, which are left
        out.
        """
        top = zip(choice.tokens.tolist(), choice.logprobs.tolist(), strict=True)
        named = (
            (tokenizer.token_bytes(token_id), _finite(value))
            for token_id, value in top
            if token_id < tokenizer.vocab_size
        )
        return cls(tokenizer.token_bytes(choice.token), _finite(choice.logprob), tuple(named), start)


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return the field `logprobs` of a chat's choice.

    >>> chat_logprobs([TokenLogprob(b"hi", -0.5)])["content"][0]
    {'token': 'hi', 'logprob': -0.5, 'bytes': [104, 105], 'top_logprobs': []}
    """
    entries = [
        _one(token.raw, token.logprob) | {"top_logprobs": [_one(*candidate) for candidate in token.top]}
        for token in tokens
    ]
    return {"content": entries, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return the field `logprobs` of a text completion's choice.

    >>> completion_logprobs([TokenLogprob(b"hi", -0.5), TokenLogprob(b"!", -1.0, ((b"?", -0.25),), 2)])
    {'tokens': ['hi', '!'], 'token_logprobs': [-0.5, -1.0], 'top_logprobs': [{}, {'?': -0.25}], 'text_offset': [0, 2]}
    """
    texts, offsets = [_text(token.raw) for token in tokens], [token.start for token in tokens]
    top = [{_text(raw): value for raw, value in token.top} for token in tokens]
    values = [token.logprob for token in tokens]
    return {"tokens": texts, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets}


def _one(raw: bytes, value: float) -> dict[str, Any]:
    return {"token": _text(raw), "logprob": value, "bytes": list(raw)}


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _finite(value: float) -> float:
    return max(float(value), LOWEST)


@dataclass(frozen=True)
class Piece:
    """A part of an answer: its text, thinking before it, tool calls after it, and log probabilities of its tokens if
    wanted.
    """

    text: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Ended:
    """The end of one answer and its finish reason; `stop`: the stop string that ended it."""

    index: int
    finish_reason: str
    stop: str | None = None


@dataclass(frozen=True)
class ObservedDecoder(Decoder):
    """A decoder with additional options for its `Chooser`; it does not speculate."""

    base: Decoder
    more: Mapping[str, Any]
    observed = True

    def chooser(self, seed: int, **observed: Any) -> Chooser | None:
        return self.base.chooser(seed, **self.more, **observed)


def with_prompt_tokens(penalties: Penalties | None, prompt: Prompt, tokenizer: Tokenizer) -> Penalties | None:
    """Return penalties that cover the whole prompt, whatever the target reads of it; its tokens are made once, on first
    use.
    """
    if penalties is None:
        return None
    return replace(penalties, prompt=cache(lambda: prompt.tokenise(tokenizer).ids.tolist()))


class CompletionStream:
    """Takes the tokens of one answer and sends its pieces.

    `index`: of the answer in its request; `logprobs`: likeliest tokens to report with each token; None for no log
    probabilities.
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
        self._tokenizer, self._send, self._top_logprobs = tokenizer, send, logprobs
        self._chosen: deque[TokenChoice] = deque()  # reported by the decoder, before their tokens are pushed
        self._logprobs: list[TokenLogprob] = []

    def decoder(self, base: Decoder, constraint: Constraint | None, penalties: Penalties | None) -> Decoder:
        """Return the decoder that also reports what this stream needs."""
        extras = {"constraint": constraint, "penalties": penalties}
        more: dict[str, Any] = {name: value for name, value in extras.items() if value is not None}
        if self._top_logprobs is not None:
            more |= {"on_choice": self._chosen.append, "top": self._top_logprobs}
        return ObservedDecoder(base, more) if more else base

    def push(self, token: int) -> bool:
        """Take one more token; return True if it is the last."""
        thinking, start = self.text.thinking, self.text.decoded
        part = self.text.push(token)
        if self._top_logprobs is not None:
            choice = self._chosen.popleft()  # the decoder reports a choice before the token comes here
            if not (thinking or self.text.thinking):
                self._logprobs.append(TokenLogprob.of(choice, self._tokenizer, start))
        self._emit(part)
        return self.text.stopped

    def end(self, tokens: int, most: int) -> None:
        """End the answer, which has this many tokens of at most `most`."""
        self._emit(self.text.finish(), last=True)
        long = tokens == most and not self.text.stopped
        why = "length" if long else "tool_calls" if self.text.called else "stop"
        self._send(Ended(self.index, why, self.text.stop))

    def _emit(self, part: ReplyDelta, last: bool = False) -> None:
        if any(part) or (last and self._logprobs):
            logprobs, self._logprobs = tuple(self._logprobs), []
            self._send(Piece(part.content, part.reasoning, part.calls, self.index, logprobs))
