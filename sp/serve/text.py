"""Tokens of an answer to text that can be sent at once: whole characters, and nothing a stop string may begin."""

from __future__ import annotations

import codecs

from sp.gguf import Tokenizer


class AnswerText:
    """Feeds on tokens, hands out text.

    Parameters
    ----------
    tokenizer : Tokenizer
    stops : tuple of str
        Strings that end the answer and are not part of it.
    begins : bool
        Whether the answer begins a text, as a reply of a chat does, or goes on with that of the prompt.

    Attributes
    ----------
    stopped : bool
        Whether a stop string was met.
    """

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...] = (), *, begins: bool = True) -> None:
        self.stopped = False
        self._special, self._stops = tokenizer.special_ids, stops
        self._bytes = tokenizer.decoder(begins=begins)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def push(self, token: int) -> str:
        """Text that is certain after one more token; empty after a stop."""
        raw = self._bytes.push(token)
        return "" if token in self._special else self._take(self._decoder.decode(raw))

    def finish(self) -> str:
        """What was held back."""
        text = self._take(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _take(self, new: str) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Longest end of `text` that begins `stop`.

    >>> _overlap("no EN", "END")
    2
    """
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
