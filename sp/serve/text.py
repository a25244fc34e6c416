"""Tokens of a reply to text that can be sent at once: whole characters, thinking apart, no part of a stop string."""

from __future__ import annotations

import codecs

from sp.chat import Split, Splitter, Thinks
from sp.chat.reasoning import overlap
from sp.gguf import Tokenizer


class ReplyText:
    """Feeds on tokens, hands out text.

    Parameters
    ----------
    tokenizer : Tokenizer
    stops : tuple of str
        Strings that end the answer and are not part of it; they do not end thinking.
    thinks : Thinks, optional
        How the model marks its thinking.
    begins : bool
        Whether the answer begins a text, as a reply of a chat does, or goes on with that of the prompt.

    Attributes
    ----------
    stopped : bool
        Whether a stop string was met.
    reasoning_tokens : int
        Tokens of thinking, marks included.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: tuple[str, ...] = (),
        thinks: Thinks | None = None,
        *,
        begins: bool = True,
    ) -> None:
        self.stopped, self.reasoning_tokens = False, 0
        self._tokenizer, self._stops = tokenizer, stops
        self._marks = thinks.marks.tokens if thinks else ()
        self._splitter = Splitter(thinks)
        self._bytes = tokenizer.decoder(begins=begins)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def push(self, token: int) -> Split:
        """Text that is certain after one more token; no answer after a stop."""
        raw = self._bytes.push(token)
        if token in self._tokenizer.special_ids and self._tokenizer.token_text(token) not in self._marks:
            return Split()
        before = self._splitter.thinking
        split = self._splitter.push(self._decoder.decode(raw))
        self.reasoning_tokens += before or self._splitter.thinking
        return Split(split.reasoning, self._take(split.content))

    def finish(self) -> Split:
        """What was held back."""
        last, end = self._splitter.push(self._decoder.decode(b"", final=True)), self._splitter.finish()
        content = self._take(last.content + end.content) + self._held
        self._held = ""
        return Split(last.reasoning + end.reasoning, content)

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
