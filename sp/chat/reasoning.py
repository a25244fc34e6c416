"""A reply taken apart, as it comes: what the model thought, and what it says."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sp.chat.marks import Marks


class Split(NamedTuple):
    """A part of a reply: thinking, and the answer."""

    reasoning: str = ""
    content: str = ""


@dataclass(frozen=True)
class Thinks:
    """How a reply is to be read.

    `marks`: of its thinking; `opened`: the prompt has opened them already; `written`: the prompt ends with marks, open
    or closed.
    """

    marks: Marks
    opened: bool = False
    written: bool = False


class Splitter:
    """Feeds on the text of a reply, hands out thinking and answer as soon as each is certain.

    White space round both parts is dropped, and held back until it is known to lie inside one. A reply that begins
    with no mark is all answer, to the letter.

    `thinks`: None for a model that marks no thinking.

    Examples
    --------
    >>> from sp.chat.marks import marks_of
    >>> splitter = Splitter(Thinks(marks_of("</think>")))
    >>> [splitter.push(text) for text in ("<thi", "nk>\\nhm\\n</", "think>\\n\\nYes. ")]
    [Split(reasoning='', content=''), Split(reasoning='hm', content=''), Split(reasoning='', content='Yes. ')]
    """

    def __init__(self, thinks: Thinks | None) -> None:
        self._marks = thinks.marks if thinks else None
        self._held = ""
        self._begun = False  # of the part at hand, some text is out
        self._state = "content"
        if self._marks:
            self._state = "header" if self._marks.channels else "thinking" if thinks and thinks.opened else "start"

    @property
    def thinking(self) -> bool:
        """Whether what came last is thinking."""
        return self._state == "thinking"

    @property
    def answering(self) -> bool:
        """Whether what comes next may be answer: neither thinking nor the name of a channel."""
        return self._state not in ("thinking", "header")

    def push(self, text: str) -> Split:
        """What is certain after so much more text."""
        self._held += text
        return self._advance(final=False)

    def finish(self) -> Split:
        """What was held back, at the end of the reply."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> Split:
        found: dict[str, list[str]] = {"thinking": [], "content": []}
        while True:
            before = self._state, self._held
            step = {"start": self._start, "header": self._header, "after": self._after}.get(self._state)
            if step:
                step(final)
            else:
                found[self._state].append(self._body(final))
            if (self._state, self._held) == before or not self._held:
                return Split("".join(found["thinking"]), "".join(found["content"]))

    def _start(self, final: bool) -> None:
        """Before anything: a mark, or what is no thinking."""
        assert self._marks is not None
        text, mark = self._held.lstrip(), self._marks.start
        if text.startswith(mark):
            self._enter("thinking", text[len(mark) :])
        elif final or not mark.startswith(text):
            self._enter("content", self._held)

    def _after(self, final: bool) -> None:
        """White space behind the thinking."""
        if (text := self._held.lstrip()) or final:
            self._enter("content", text)

    def _header(self, final: bool) -> None:
        """Of a message in channels, up to its text; a reply without one is all answer."""
        head, mark, rest = self._held.partition("<|message|>")
        if mark:
            self._enter("thinking" if re.search(r"<\|channel\|>\s*analysis\b", head) else "content", rest)
        elif final or not ("<|".startswith(self._held[:2]) or self._begun):
            self._enter("content", "" if self._held.startswith("<|") else self._held)

    def _body(self, final: bool) -> str:
        """Text of the part at hand that is certain."""
        ends = self._ends()
        if self._state == "content" and not ends:
            text, self._held = self._held, ""
            return text
        if self._state == "thinking" and not self._begun:
            self._held = self._held.lstrip()
        at, mark = min(((at, mark) for mark in ends if (at := self._held.find(mark)) >= 0), default=(-1, ""))
        if mark:
            text, rest = self._held[:at], self._held[at + len(mark) :]
            self._enter("header" if self._marks and self._marks.channels else "after", rest)
            return text.rstrip()
        keep = 0 if final else max(overlap(self._held, mark) for mark in ends)
        whole = self._held[: len(self._held) - keep]
        text = whole.rstrip()
        self._held = "" if final else self._held[len(text) :]
        self._begun |= bool(text)
        return text

    def _ends(self) -> tuple[str, ...]:
        if self._marks is None or (self._state == "content" and not self._marks.channels):
            return ()
        return ("<|end|>", "<|start|>", "<|channel|>", "<|call|>", "<|return|>") if self._marks.channels else (
            self._marks.end,
        )  # fmt: skip

    def _enter(self, state: str, held: str) -> None:
        self._begun = state == "header"
        self._state, self._held = state, held


def split_reply(text: str, thinks: Thinks | None) -> Split:
    """A whole reply taken apart, both parts without white space at their ends.

    Examples
    --------
    >>> from sp.chat.marks import marks_of
    >>> split_reply("hm\\n</think>\\n\\nYes.\\n", Thinks(marks_of("</think>"), opened=True))
    Split(reasoning='hm', content='Yes.')
    """
    splitter = Splitter(thinks)
    return Split(*(part.strip() for part in joined([splitter.push(text), splitter.finish()])))


def joined(parts: Iterable[Split]) -> Split:
    """Parts of one reply, end to end."""
    reasoning, content = zip(*parts, strict=True)
    return Split("".join(reasoning), "".join(content))


def overlap(text: str, mark: str) -> int:
    """Longest end of `text` that begins `mark`."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
