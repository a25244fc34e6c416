"""An answer taken apart, as it comes: what the model says, and the calls of tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sp.chat.calls import CallStyle, Tools
from sp.chat.reasoning import overlap
from sp.chat.turn import Call

MOST_TRIES = 64
"""Times that what was begun as a call may seem to end; after that it is text."""


class Said(NamedTuple):
    """A part of an answer: text, and the calls behind it."""

    text: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Calling:
    """What a model may call, and how it writes that.

    `single`: the answer ends with its first call; `opening`: what the prompt has begun of a call already.
    """

    style: CallStyle
    tools: Tools
    single: bool = False
    opening: str = ""


class CallSplitter:
    """Feeds on the text of an answer, hands out text as soon as it is certain, and calls when they are whole.

    White space before and behind a call is dropped. What begins like a call and is none is text, to the letter.

    `calling`: None takes everything for text.

    `done`: no more is wanted, as `Calling.single` has it.
    """

    def __init__(self, calling: Calling | None) -> None:
        self.done = False
        self._calling = calling
        self._held = ""  # outside a call: text that may begin one
        self._body: list[str] = []  # of what may be a call
        self._rest: str | None = None  # text behind a mark, to be looked at next
        self._inside = self._called = self._text_only = False
        self._before, self._tries, self._tail = "", 0, ""
        self._bare = bool(calling and not calling.style.begin)
        if calling:
            self.push(calling.opening)

    def push(self, text: str) -> Said:
        """What is certain after so much more text."""
        if self._calling is None or self.done:
            return Said("" if self.done else text)
        if self._bare:
            return self._push_bare(text)
        said, calls = list[str](), list[Call]()
        while True:
            found = self._scan(text) if self._inside else self._look(text)
            said.append(found.text)
            calls += found.calls
            if self._rest is None or self.done:
                return Said("".join(said), tuple(calls))
            text = self._rest

    def finish(self) -> Said:
        """What was held back, at the end of the answer; a call may lack its end mark."""
        if self._calling is None or self.done:
            return Said()
        if not self._inside:
            return Said(self._held)
        body = "".join(self._body)
        calls = self._calling.style.read(body, self._calling.tools)
        if calls:
            return Said("", calls[:1] if self._calling.single else calls)
        return Said(self._before + self._calling.style.begin + body)

    def _push_bare(self, text: str) -> Said:
        """An answer that begins as an object is held until it ends; any other is text."""
        if self._inside:
            self._body.append(text)
            return Said()
        if self._text_only:
            return Said(text)
        self._held += text
        if self._held.lstrip().startswith("{"):
            self._inside, self._body, self._held = True, [self._held], ""
        elif self._held.strip():
            text, self._held, self._text_only = self._held, "", True
            return Said(text)
        return Said()

    def _look(self, text: str) -> Said:
        """Text up to the begin of a call."""
        assert self._calling is not None
        begin, whole = self._calling.style.begin, self._held + text
        whole = whole.lstrip() if self._called else whole
        at = whole.find(begin)
        if at >= 0:
            said = whole[:at].rstrip()
            self._before, self._held, self._rest = whole[len(said) : at], "", whole[at + len(begin) :]
            self._inside, self._body, self._tail, self._tries = True, [], "", 0
        else:
            said = whole[: len(whole) - overlap(whole, begin)].rstrip()
            self._held, self._rest = whole[len(said) :], None
        self._called &= not said
        return Said(said)

    def _scan(self, text: str) -> Said:
        """A call up to its end."""
        assert self._calling is not None
        style = self._calling.style
        at = (self._tail + text).find(style.end)
        if at < 0:
            self._body.append(text)
            self._tail = (self._tail + text)[-len(style.end) + 1 :]
            self._rest = None
            return Said()
        cut = at + len(style.end) - len(self._tail)  # of the new text, with which the mark ends
        body = "".join([*self._body, text[:cut]])
        calls = style.read(body[: -len(style.end)], self._calling.tools)
        self._rest, self._tries = text[cut:], self._tries + 1
        if calls:
            self._inside, self._called, self._body = False, True, []
            self.done = self._calling.single
            return Said("", calls[:1] if self._calling.single else calls)
        self._body, self._tail = [body], ""
        if self._tries < MOST_TRIES:
            return Said()
        self._inside, self._body = False, []
        return Said(self._before + style.begin + body)
