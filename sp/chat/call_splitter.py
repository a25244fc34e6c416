"""Calls parted from the text around them, piece by piece, as an answer comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sp.chat.calls import CallStyle, Tools, function_of
from sp.chat.reasoning import overlap
from sp.chat.turn import Call

MOST_TRIES = 64  # times that what was begun as a call may seem to end; after that it is text


class Said(NamedTuple):
    """A part of an answer: text, and the calls behind it."""

    text: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Calling:
    """What a model may call, and how it writes that. `single`: the answer ends with its first call; `opening`: what the
    prompt has begun of a call already.
    """

    style: CallStyle
    tools: Tools
    single: bool = False
    opening: str = ""

    def read(self, body: str) -> tuple[Call, ...] | None:
        """The calls between the marks, of whatever names; None if there are none."""
        found = self.style.read(body, self.tools)
        return found[:1] if found and self.single else found

    def unknown(self, calls: tuple[Call, ...]) -> str | None:
        """The first name that is none of the tools'."""
        return next((call.name for call in calls if function_of(self.tools, call.name) is None), None)


class Opener(NamedTuple):
    """How a call begins. `mark`: what ends it; `within`: whether both marks are a part of what is read."""

    text: str
    mark: str
    within: bool = False
    first: bool = False  # see `CallStyle.bare_first`


def openers_of(calling: Calling) -> tuple[Opener, ...]:
    """All ways in which a call may begin."""
    style = calling.style
    names = [tool["function"]["name"] for tool in calling.tools]
    mark, within = style.bare_end or style.end, bool(style.bare_end)
    bare = [Opener(text, mark, True, style.bare_first) for name in names for text in style.bare(name)]
    assert within or style.bare_first or not bare, "what ends by the mark of a call is not found within text"
    return Opener(style.begin, style.end or style.begin), *bare


def signs_of(openers: Sequence[Opener]) -> frozenset[str]:
    """The letters with which calls begin."""
    return frozenset(each.text[0] for each in openers)


class CallSplitter:
    """Feeds on the text of an answer, hands out text as soon as it is certain, and calls when they are whole. White
    space before and behind a call is dropped. What begins like a call and is none is text, to the letter, and so is a
    call of what is none of the tools. `calling`: None takes everything for text. `done`: no more is wanted, as
    `Calling.single` has it; `unknown`: names that are none of the tools'.
    """

    def __init__(self, calling: Calling | None) -> None:
        self.done, self.unknown = False, list[str]()
        self._calling = calling
        self._openers = openers_of(calling) if calling and calling.style.begin else ()
        self._signs = signs_of(self._openers)
        self._opener = self._openers[0] if self._openers else Opener("", "")  # of what may be a call
        self._held = ""  # outside a call: text that may begin one
        self._body: list[str] = []  # of what may be a call
        self._rest: str | None = None  # text behind a mark, to be looked at next
        self._inside = self._called = self._text_only = self._stray = False
        self._fresh = True  # no text was said yet
        self._before, self._tries, self._tail = "", 0, ""
        if calling:
            self.push(calling.opening)

    @property
    def inside(self) -> bool:
        """Whether what came last may be a part of a call."""
        return self._inside

    @property
    def held(self) -> str:
        """What is not certain yet, to the letter."""
        return self._text_of("".join(self._body)) if self._inside else self._held

    def push(self, text: str) -> Said:
        """What is certain after so much more text."""
        if self._calling is None or self.done:
            return Said("" if self.done else text)
        if not self._openers:
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
        calls = self._known(self._calling.read(body))
        return Said("", calls) if calls else Said(self._text_of(body))

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
        whole = self._held + text
        whole = whole.lstrip() if self._called else whole
        if self._stray:  # the end mark behind a call that began without one
            end = self._calling.style.end
            if whole != end and end.startswith(whole):
                self._held, self._rest = whole, None
                return Said()
            self._stray, whole = False, whole.removeprefix(end).lstrip() if whole.startswith(end) else whole
        open_here = self._fresh or self._called
        near = () if self._signs.isdisjoint(whole) else self._openers  # most text is searched for none of many tools
        may = [each for each in near if not each.first or open_here]
        ahead = [(at, each) for each in may if (at := whole.find(each.text)) >= 0]
        found = [(at, each) for at, each in ahead if not (each.first and whole[:at].strip())]
        if found:
            at, opener = min(found, key=lambda one: one[0])
            said, cut = whole[:at].rstrip(), at if opener.within else at + len(opener.text)
            self._before, self._held, self._rest = whole[len(said) : at], "", whole[cut:]
            self._inside, self._body, self._tail, self._tries, self._opener = True, [], "", 0, opener
        else:
            begun = whole.lstrip()
            keep = max(
                (len(begun) * each.text.startswith(begun) if each.first else overlap(whole, each.text) for each in may),
                default=0,
            )
            said = whole[: len(whole) - keep].rstrip()
            self._held, self._rest = whole[len(said) :], None
        self._called &= not said
        self._fresh &= not said
        return Said(said)

    def _scan(self, text: str) -> Said:
        """A call up to its end."""
        assert self._calling is not None
        mark = self._opener.mark
        at = (self._tail + text).find(mark)
        if at < 0:
            self._body.append(text)
            self._tail = (self._tail + text)[-len(mark) + 1 :]
            self._rest = None
            return Said()
        cut = at + len(mark) - len(self._tail)  # of the new text, with which the mark ends
        body, style = "".join([*self._body, text[:cut]]), self._calling.style
        inner = self._opener.within and mark == style.bare_end
        read = self._calling.read(body if inner else body[: -len(mark)])
        calls = self._known(read)
        self._rest, self._tries = text[cut:], self._tries + 1
        if calls:
            self._rest = self._rest if mark != style.begin else mark + self._rest
            self._inside, self._called, self._body, self._stray = False, True, [], inner
            self.done = self._calling.single
            return Said("", calls)
        self._body, self._tail = [body], ""
        if read is None and self._tries < MOST_TRIES:
            return Said()
        if mark == style.begin:  # which begins what comes next
            self._rest, body = mark + self._rest, body[: -len(mark)]
        self._inside, self._body, self._fresh, self._called = False, [], False, False
        return Said(self._text_of(body))

    def _known(self, calls: tuple[Call, ...] | None) -> tuple[Call, ...]:
        """The calls, if all are of tools."""
        assert self._calling is not None
        if calls and (name := self._calling.unknown(calls)) is not None:
            self.unknown.append(name)
            return ()
        return calls or ()

    def _text_of(self, body: str) -> str:
        """What looked like a call, as it was written."""
        return self._before + ("" if self._opener.within else self._opener.text) + body


class ThoughtCalls:
    """Feeds on thinking, hands it out; what may be a call at its very end is held back. A model that calls before it
    has closed its thinking has answered so; behind thinking that was closed, what it thought of calling is no call.

    Examples
    --------
    >>> from sp.chat.calls import CALLS
    >>> tool = {"function": {"name": "look"}}
    >>> calls = ThoughtCalls(Calling(next(style for style in CALLS if style.name == "tagged_json"), [tool]))
    >>> calls.push('I look. <tool_call>{"name": "look"}'), calls.push("</tool_call>")
    ('I look.', '')
    >>> calls.finish().calls
    (Call(name='look', arguments={}, id=''),)
    """

    def __init__(self, calling: Calling | None) -> None:
        known = calling if calling and calling.style.begin else None
        self._splitter = CallSplitter(replace(known, single=False, opening="") if known else None)
        self._single = bool(known and known.single)
        self._signs = signs_of(openers_of(known) if known else ())
        self._raw = ""  # what is held back
        self._calls: tuple[Call, ...] = ()  # with which that ends

    def push(self, text: str) -> str:
        """Thinking that is no call at its end."""
        quiet = not self._splitter.inside and not self._calls and self._signs.isdisjoint(self._raw + text)
        out = list[str]()
        for piece in [text] if quiet else text:  # of one letter, text never comes behind a call
            self._raw += piece
            said = self._splitter.push(piece)
            self._calls += said.calls
            if said.text:
                held = self._splitter.held
                out.append(self._raw[: len(self._raw) - len(held)])
                self._raw, self._calls = held, ()
        return "".join(out)

    def close(self) -> str:
        """What was held back, once the thinking has ended as it should."""
        text, self._raw = self._raw, ""
        return text

    def finish(self) -> Said:
        """What was held back, where the answer has ended before its thinking."""
        rest = self._splitter.finish()
        calls = () if rest.text else (*self._calls, *rest.calls)
        return Said("", calls[:1] if self._single else calls) if calls else Said(self._raw)
