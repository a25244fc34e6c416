"""Tokens of a reply to what can be sent at once: whole characters, thinking and calls apart, no stop strings."""

from __future__ import annotations

import codecs
from typing import NamedTuple

from sp.chat import Call, Splitter, Thinks
from sp.chat.calling import Calling, CallSplitter
from sp.chat.reasoning import overlap
from sp.gguf import Tokenizer


class Part(NamedTuple):
    """A part of a reply: thinking, answer, calls of tools behind it."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()


class ReplyText:
    """Feeds on tokens, hands out text.

    `stops`: strings that end the answer and are not part of it; they end neither thinking nor calls; `thinks`: how the
    model marks its thinking; `begins`: whether the answer begins a text, as a reply of a chat does, or goes on with
    that of the prompt; `stopped`: whether a stop string was met, or the only call that was wanted; `called`: whether
    there was a call; `reasoning_tokens`: tokens of thinking, marks included.
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
        self._tokenizer, self._stops = tokenizer, stops
        self._marks = thinks.marks.tokens if thinks else ()
        self._marks += (calling.style.begin, calling.style.end) if calling else ()
        self._splitter, self._calls = Splitter(thinks), CallSplitter(calling)
        self._bytes = tokenizer.decoder(begins=begins)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    @property
    def thinking(self) -> bool:
        """Whether what came last is thinking."""
        return self._splitter.thinking

    @property
    def answering(self) -> bool:
        """Whether what comes next may be answer."""
        return self._splitter.answering

    def push(self, token: int) -> Part:
        """Text that is certain after one more token; no answer after a stop."""
        raw = self._bytes.push(token)
        if token in self._tokenizer.special_ids and self._tokenizer.token_text(token) not in self._marks:
            return Part()
        before = self._splitter.thinking
        split = self._splitter.push(self._decoder.decode(raw))
        self.reasoning_tokens += before or self._splitter.thinking
        said = self._calls.push(split.content)
        return self._part(split.reasoning, said.text, said.calls)

    def finish(self) -> Part:
        """What was held back."""
        last, end = self._splitter.push(self._decoder.decode(b"", final=True)), self._splitter.finish()
        said, rest = self._calls.push(last.content + end.content), self._calls.finish()
        part = self._part(last.reasoning + end.reasoning, said.text + rest.text, said.calls + rest.calls)
        held, self._held = self._held, ""
        return part._replace(content=part.content + held)

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
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        held = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]
