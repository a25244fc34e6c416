"""From tokens to the text of a reply, piece by piece, with thinking, calls and log probabilities."""

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

MOST_UNKNOWN = 8  # names of no tool that are told


class Part(NamedTuple):
    """A part of a reply: thinking, answer, calls of tools behind it."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()


class ReplyText:
    """Feeds on tokens, hands out text. `stops`: strings that end the answer and are not part of it; they end neither
    thinking nor calls; `thinks`: how the model marks its thinking; `begins`: whether the answer begins a text, as a
    reply of a chat does, or goes on with that of the prompt; `stopped`: whether a stop string was met, `stop`, or the
    only call that was wanted; `called`: whether there was a call; `reasoning_tokens`: those of thinking and its marks.
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
        self._marks = thinks.marks.tokens if thinks else ()
        self._marks += calling.style.tokens if calling else ()
        self._splitter = Splitter(thinks, calls=calling is not None)
        if calling and thinks and thinks.marks.channels:  # what the prompt has begun of a call is a part of its header
            opening, calling = calling.opening, replace(calling, opening="")
            self._calls = CallSplitter(calling)
            self._calls.push(self._splitter.push(opening).content)
            self._thoughts = ThoughtCalls(None)
        else:
            self._calls, self._thoughts = CallSplitter(calling), ThoughtCalls(calling if thinks else None)
        self._bytes = tokenizer.decoder(begins=begins)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.decoded = 0  # characters of all text so far, those of thinking and calls among them

    @property
    def thinking(self) -> bool:
        """Whether what came last is thinking."""
        return self._splitter.thinking

    @property
    def tool(self) -> str:
        """The tool that what comes next is for, where calls are messages of their own; empty for an answer."""
        return self._splitter.tool

    @property
    def unknown(self) -> list[str]:
        """What was called, and is none of the tools."""
        return self._calls.unknown

    @property
    def answering(self) -> bool:
        """Whether what comes next may be answer."""
        return self._splitter.answering

    def push(self, token: int) -> Part:
        """Text that is certain after one more token; no answer after a stop."""
        raw = self._bytes.push(token)
        if token in self._tokenizer.special_ids and self._tokenizer.token_text(token) not in self._marks:
            return Part()
        before, text = self._splitter.thinking, self._decoder.decode(raw)
        self.decoded += len(text)
        split = self._splitter.push(text)
        self.reasoning_tokens += before or self._splitter.thinking
        said = self._calls.push(split.content)
        return self._part(self._thought(split.reasoning), said.text, said.calls)

    def finish(self) -> Part:
        """What was held back, but for a character of which an answer that was cut has only a part."""
        open_end, end = self._splitter.thinking, self._splitter.finish()
        thought = self._thoughts.push(end.reasoning)
        kept = self._thoughts.finish() if open_end else AnswerPart(self._thoughts.close())
        said, rest = self._calls.push(end.content), self._calls.finish()
        part = self._part(thought + kept.text, said.text + rest.text, kept.calls + said.calls + rest.calls)
        held, self._held = self._held, ""
        return part._replace(content=part.content + held)

    def _thought(self, reasoning: str) -> str:
        """Thinking that is certain not to end with calls."""
        text = self._thoughts.push(reasoning)
        return text if self._splitter.thinking else text + self._thoughts.close()

    def _part(self, reasoning: str, text: str, calls: tuple[Call, ...]) -> Part:
        """What may be sent, and whether that is the end."""
        content = self._take(text)
        calls = () if self.stopped else calls
        self.called |= bool(calls)
        self.stopped |= self._calls.done
        return Part(reasoning, content, calls)

    def _take(self, new: str) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.stop = min(found)
            self.stopped, self._held = True, ""
            return text[:at]
        held = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def uncalled(texts: Iterable[ReplyText]) -> list[str]:
    """A line for each name that was called and is none of the tools."""
    names = dict.fromkeys(plain(name, MAX_NAME) for text in texts for name in text.unknown)
    return [f"a call of {name}: there is no such tool, so it stays text" for name in names][:MOST_UNKNOWN]


LOWEST = -9999.0  # in place of minus infinity, which JSON has no word for


@dataclass(frozen=True)
class TokenLogprob:
    """A token of an answer: its bytes, the logarithm of its probability, and the same of the likeliest ones. `start`:
    where in the text it begins, or the character does of which it is a part.
    """

    raw: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()
    start: int = 0

    @classmethod
    def of(cls, choice: TokenChoice, tokenizer: Tokenizer, start: int = 0) -> TokenLogprob:
        """What was chosen, in a vocabulary; a padded head has tokens that are in none."""
        top = zip(choice.tokens.tolist(), choice.logprobs.tolist(), strict=True)
        named = ((tokenizer.token_bytes(each), _finite(value)) for each, value in top if each < tokenizer.vocab_size)
        return cls(tokenizer.token_bytes(choice.token), _finite(choice.logprob), tuple(named), start)


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The field `logprobs` of a choice of a chat.

    >>> chat_logprobs([TokenLogprob(b"hi", -0.5)])["content"][0]
    {'token': 'hi', 'logprob': -0.5, 'bytes': [104, 105], 'top_logprobs': []}
    """
    told = [_one(each.raw, each.logprob) | {"top_logprobs": [_one(*one) for one in each.top]} for each in tokens]
    return {"content": told, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The same of a text completion.

    >>> completion_logprobs([TokenLogprob(b"hi", -0.5), TokenLogprob(b"!", -1.0, ((b"?", -0.25),), 2)])
    {'tokens': ['hi', '!'], 'token_logprobs': [-0.5, -1.0], 'top_logprobs': [{}, {'?': -0.25}], 'text_offset': [0, 2]}
    """
    texts, offsets = [_text(each.raw) for each in tokens], [each.start for each in tokens]
    top = [{_text(raw): value for raw, value in each.top} for each in tokens]
    values = [each.logprob for each in tokens]
    return {"tokens": texts, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets}


def _one(raw: bytes, value: float) -> dict[str, Any]:
    return {"token": _text(raw), "logprob": value, "bytes": list(raw)}


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _finite(value: float) -> float:
    return max(float(value), LOWEST)


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
    """The end of one answer, and why; `stop`: the string that ended it."""

    index: int
    finish_reason: str
    stop: str | None = None


@dataclass(frozen=True)
class Watched(Decoder):
    """A way to decode, with what a `Chooser` takes besides; no draft guesses then."""

    base: Decoder
    more: Mapping[str, Any]
    observed = True

    def chooser(self, seed: int, **observed: Any) -> Chooser | None:
        return self.base.chooser(seed, **self.more, **observed)


def knowing(penalties: Penalties | None, prompt: Prompt, tokenizer: Tokenizer) -> Penalties | None:
    """Penalties that know the whole prompt, whatever of it the target reads; its tokens are found once, if at all."""
    if penalties is None:
        return None
    return replace(penalties, prompt=cache(lambda: prompt.tokenise(tokenizer).ids.tolist()))


class Speaker:
    """Hears of tokens and sends pieces. `index`: of the answer among those of its request; `logprobs`: likeliest tokens
    to tell beside each one; None tells of none.
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
        self._chosen: deque[TokenChoice] = deque()
        self._told: list[TokenLogprob] = []

    def decoder(self, base: Decoder, constraint: Constraint | None, penalties: Penalties | None) -> Decoder:
        """The way to decode by which this hears what it has to tell."""
        given = {"constraint": constraint, "penalties": penalties}
        more: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self._wanted is not None:
            more |= {"on_choice": self._chosen.append, "top": self._wanted}
        return Watched(base, more) if more else base

    def hear(self, token: int) -> bool:
        """One more token; whether it is the last."""
        thinking, start = self.text.thinking, self.text.decoded
        part = self.text.push(token)
        if self._wanted is not None:
            choice = self._chosen.popleft()
            if not (thinking or self.text.thinking):
                self._told.append(TokenLogprob.of(choice, self._tokenizer, start))
        self._emit(part)
        return self.text.stopped

    def end(self, tokens: int, most: int) -> None:
        """The answer has so many tokens, and might have had `most`."""
        self._emit(self.text.finish(), last=True)
        long = tokens == most and not self.text.stopped
        why = "length" if long else "tool_calls" if self.text.called else "stop"
        self._send(Ended(self.index, why, self.text.stop))

    def _emit(self, part: Part, last: bool = False) -> None:
        if any(part) or (last and self._told):
            told, self._told = tuple(self._told), []
            self._send(Piece(part.content, part.reasoning, part.calls, self.index, told))
