"""Separation of calls from the text around them, piece by piece as an answer comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sp.chat.calls import CallStyle, Tools, function_of
from sp.chat.reasoning import overlap
from sp.chat.turn import Call

MOST_TRIES = 64  # end marks within a possible call after which it counts as text


class AnswerPart(NamedTuple):
    """A part of an answer: text, and the calls after it."""

    text: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Calling:
    """Tools that a model may call, and the format of its calls.

    `single`: the answer ends with its first call; `opening`: the part of a call that the prompt already contains.
    """

    style: CallStyle
    tools: Tools
    single: bool = False
    opening: str = ""

    def parse(self, body: str) -> tuple[Call, ...] | None:
        """Parse the calls between the marks, with any names; None if the text is no call."""
        calls = self.style.parse(body, self.tools)
        return calls[:1] if calls and self.single else calls

    def unknown(self, calls: tuple[Call, ...]) -> str | None:
        """Return the first name that belongs to none of the tools."""
        return next((call.name for call in calls if function_of(self.tools, call.name) is None), None)


class Opener(NamedTuple):
    """A text with which a call begins.

    `mark`: the text that ends the call; `within`: both are a part of the call's notation; `first`: see
    `CallStyle.bare_first`.
    """

    text: str
    mark: str
    within: bool = False
    first: bool = False


def openers_of(calling: Calling) -> tuple[Opener, ...]:
    """Return all texts with which a call may begin."""
    style = calling.style
    names = [tool["function"]["name"] for tool in calling.tools]
    mark, within = style.bare_end or style.end, bool(style.bare_end)
    bare = [Opener(text, mark, True, style.bare_first) for name in names for text in style.bare(name)]
    assert within or style.bare_first or not bare, "a bare call without an end mark of its own must come first"
    return Opener(style.begin, style.end or style.begin), *bare


def signs_of(openers: Sequence[Opener]) -> frozenset[str]:
    """Return the first letters of calls."""
    return frozenset(opener.text[0] for opener in openers)


class CallSplitter:
    """Takes the text of an answer, returns text as soon as it is certain, and calls when they are complete.

    White space before and after a call is dropped. Text that begins like a call but is none is returned unchanged, as
    is a call of an unknown tool.

    Parameters
    ----------
    calling : Calling or None
        None takes everything for text.

    Attributes
    ----------
    done : bool
        Further text is ignored, as `Calling.single` demands.
    unknown : list of str
        Names that were called and belong to none of the tools.
    """

    def __init__(self, calling: Calling | None) -> None:
        self.done, self.unknown = False, list[str]()
        self._calling = calling
        self._openers = openers_of(calling) if calling and calling.style.begin else ()
        self._signs = signs_of(self._openers)
        self._opener = self._openers[0] if self._openers else Opener("", "")  # of the possible call
        self._pending = ""  # outside a call: text that may begin one
        self._body: list[str] = []  # text of the possible call
        self._rest: str | None = None  # text after a mark, to be scanned next
        # Inside a possible call; directly after a call; an answer without calls; an end mark may follow a bare call.
        self._inside = self._called = self._text_only = self._stray = False
        self._fresh = True  # no text was returned yet
        # White space before a call, end marks seen in it, its last letters.
        self._before, self._tries, self._tail = "", 0, ""
        if calling:
            self.push(calling.opening)  # as if the model had written it

    @property
    def inside(self) -> bool:
        """True if the last text may be a part of a call."""
        return self._inside

    @property
    def pending(self) -> str:
        """Text that is not certain yet, unchanged."""
        return self._source_of("".join(self._body)) if self._inside else self._pending

    def push(self, text: str) -> AnswerPart:
        """Return the text and calls that are certain after more text."""
        if self._calling is None or self.done:
            return AnswerPart("" if self.done else text)
        if not self._openers:
            return self._push_bare(text)
        texts, calls = list[str](), list[Call]()
        while True:
            part = self._scan(text) if self._inside else self._look(text)
            texts.append(part.text)
            calls += part.calls
            # Text after a mark may hold another call.
            if self._rest is None or self.done:
                return AnswerPart("".join(texts), tuple(calls))
            text = self._rest

    def finish(self) -> AnswerPart:
        """Return the text that was held back, at the end of the answer; a call may lack its end mark."""
        if self._calling is None or self.done:
            return AnswerPart()
        if not self._inside:
            return AnswerPart(self._pending)
        body = "".join(self._body)
        calls = self._known(self._calling.parse(body))
        return AnswerPart("", calls) if calls else AnswerPart(self._source_of(body))

    def _push_bare(self, text: str) -> AnswerPart:
        """Hold back an answer that begins as an object until it ends; any other is text."""
        if self._inside:
            self._body.append(text)
            return AnswerPart()
        if self._text_only:
            return AnswerPart(text)
        self._pending += text
        if self._pending.lstrip().startswith("{"):
            self._inside, self._body, self._pending = True, [self._pending], ""
        elif self._pending.strip():
            text, self._pending, self._text_only = self._pending, "", True
            return AnswerPart(text)
        return AnswerPart()

    def _look(self, text: str) -> AnswerPart:
        """Return text up to the start of a call."""
        assert self._calling is not None
        whole = self._pending + text
        whole = whole.lstrip() if self._called else whole
        if self._stray:  # models may end a call with a mark that they left out before it
            end = self._calling.style.end
            if whole != end and end.startswith(whole):
                self._pending, self._rest = whole, None
                return AnswerPart()
            self._stray, whole = False, whole.removeprefix(end).lstrip() if whole.startswith(end) else whole
        open_here = self._fresh or self._called
        # There are several openers for each tool; most text has none of their first letters.
        near = () if self._signs.isdisjoint(whole) else self._openers
        may = [opener for opener in near if not opener.first or open_here]
        hits = [(start, opener) for opener in may if (start := whole.find(opener.text)) >= 0]
        hits = [(start, opener) for start, opener in hits if not (opener.first and whole[:start].strip())]
        if hits:
            start, opener = min(hits, key=lambda hit: hit[0])
            text, body_start = whole[:start].rstrip(), start if opener.within else start + len(opener.text)
            self._before, self._pending, self._rest = whole[len(text) : start], "", whole[body_start:]
            self._inside, self._body, self._tail, self._tries, self._opener = True, [], "", 0, opener
        else:
            # Hold back an end of the text that may be the start of an opener, and the white space before it.
            head = whole.lstrip()
            keep = max(
                (len(head) * o.text.startswith(head) if o.first else overlap(whole, o.text) for o in may), default=0
            )
            text = whole[: len(whole) - keep].rstrip()
            self._pending, self._rest = whole[len(text) :], None
        self._called &= not text
        self._fresh &= not text
        return AnswerPart(text)

    def _scan(self, text: str) -> AnswerPart:
        """Consume a call up to its end."""
        assert self._calling is not None
        mark = self._opener.mark
        start = (self._tail + text).find(mark)
        if start < 0:
            self._body.append(text)
            self._tail = (self._tail + text)[-len(mark) + 1 :]  # a mark may be split between two pieces
            self._rest = None
            return AnswerPart()
        end = start + len(mark) - len(self._tail)  # of the mark, in `text`
        body, style = "".join([*self._body, text[:end]]), self._calling.style
        inner = self._opener.within and mark == style.bare_end
        parsed = self._calling.parse(body if inner else body[: -len(mark)])
        calls = self._known(parsed)
        self._rest, self._tries = text[end:], self._tries + 1
        if calls:
            self._rest = self._rest if mark != style.begin else mark + self._rest  # the mark starts the next call
            self._inside, self._called, self._body, self._stray = False, True, [], inner
            self.done = self._calling.single
            return AnswerPart("", calls)
        self._body, self._tail = [body], ""
        if parsed is None and self._tries < MOST_TRIES:  # the mark may be a part of an argument
            return AnswerPart()
        if mark == style.begin:  # one call ends where the next begins
            self._rest, body = mark + self._rest, body[: -len(mark)]
        self._inside, self._body, self._fresh, self._called = False, [], False, False
        return AnswerPart(self._source_of(body))

    def _known(self, calls: tuple[Call, ...] | None) -> tuple[Call, ...]:
        """Return the calls if all are of known tools."""
        assert self._calling is not None
        if calls and (name := self._calling.unknown(calls)) is not None:
            self.unknown.append(name)  # for a remark to the client
            return ()
        return calls or ()

    def _source_of(self, body: str) -> str:
        """Return the text of a possible call as the model wrote it."""
        return self._before + ("" if self._opener.within else self._opener.text) + body


class ThoughtCalls:
    """Takes thinking and returns it; a possible call at its very end is held back.

    If a model calls a tool before it has closed its thinking, the call is its answer; a call that is followed by more
    thinking, or by the end mark of the thinking, is none.

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
        self._raw = ""  # text held back
        self._calls: tuple[Call, ...] = ()  # calls at the end of it

    def push(self, text: str) -> str:
        """Return the thinking that does not end with a possible call."""
        quiet = not self._splitter.inside and not self._calls and self._signs.isdisjoint(self._raw + text)
        out = list[str]()
        for piece in [text] if quiet else text:  # letter by letter, so that no part has text after a call
            self._raw += piece
            part = self._splitter.push(piece)
            self._calls += part.calls
            if part.text:
                pending = self._splitter.pending
                out.append(self._raw[: len(self._raw) - len(pending)])
                self._raw, self._calls = pending, ()
        return "".join(out)

    def close(self) -> str:
        """Return the text that was held back, once the thinking was closed by its mark."""
        text, self._raw = self._raw, ""
        return text

    def finish(self) -> AnswerPart:
        """Return the text or calls that were held back, where the answer ended within its thinking."""
        rest = self._splitter.finish()
        calls = () if rest.text else (*self._calls, *rest.calls)
        return AnswerPart("", calls[:1] if self._single else calls) if calls else AnswerPart(self._raw)
