"""Rendering of a conversation that also locates each message in the text.

A template may process messages: split off old thinking, strip, escape. So it renders the conversation once as it is,
and once with a private character in place of every run of text; where that character comes out, the run belongs.
The first rendering must then equal the second with the runs filled in, letter by letter, or the chat is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, get_args

from sp.chat.reasoning import Marks, marks_of
from sp.chat.tool_places import tool_places
from sp.chat.turn import FORMS, Call, Form, Turn, changed, message_of
from sp.errors import GGUFError, PromptError, SpError
from sp.gguf.template import ChatTemplate, render_chat
from sp.gguf.tokenizer import Tokenizer

FIRST, LAST = 0x100000, 0x10FFFD  # private characters of Unicode's last plane
_CODE = re.compile(f"[{chr(FIRST)}-{chr(LAST)}]")

Field = tuple[int, str]
"""Index of a message, and one of its texts: ``content``, ``reasoning``, ``argument_text`` or ``call_names``."""


class HiddenMessageError(PromptError):
    """A template does not render a message, or not so that it can be located.

    `index`: the message; `calls`: the calls of tools in it are what is not rendered.
    """

    def __init__(self, index: int, calls: bool = False) -> None:
        field, pronoun = (".tool_calls", "them") if calls else ("", "it")
        super().__init__(
            f"the chat template of this model does not render messages[{index}]{field} exactly once; omit {pronoun}"
        )
        self.index, self.calls = index, calls


@dataclass(frozen=True)
class Copy:
    """Characters ``[start, end)`` of a text of message `index`, found at ``[begin, stop)`` of the rendered text."""

    index: int
    name: str
    start: int
    end: int
    begin: int
    stop: int


Keep = Callable[[Turn, str], "re.Pattern[str] | None"]
"""Pattern of the parts of a turn's text, by the name of that text, that are not masked."""


class Masked:
    """A conversation with a private character in place of every run of text.

    `runs`: the runs, in order; None if there are more than private characters.
    """

    def __init__(self, turns: Sequence[Turn], keep: Keep, quoted: bool, verbatim: bool) -> None:
        self.originals, self.quoted = turns, quoted
        self.runs: list[tuple[Field, int, int]] | None = []
        self.turns = []
        for index, turn in enumerate(turns):
            content, reasoning = (self._mask(index, name, keep(turn, name)) for name in ("content", "reasoning"))
            calls = tuple(self._masked_calls(index, verbatim))
            self.turns.append(replace(turn, content=content, reasoning=reasoning, calls=calls))

    def _masked_calls(self, index: int, verbatim: bool) -> Iterator[Call]:
        """Yield the calls of a turn with a character for each name and, unless verbatim, each string argument."""
        ends = {"call_names": 0, "argument_text": 0}  # characters of each text that are masked so far

        def hide(text: str, field: str = "argument_text") -> str:
            start = ends[field]
            ends[field] += len(text)
            return self._run((index, field), start, ends[field]) if text and self.runs is not None else text

        for call in self.originals[index].calls:
            arguments = call.arguments if verbatim else changed(call.arguments, hide)
            yield replace(call, name=hide(call.name, "call_names"), arguments=arguments)

    def _run(self, which: Field, start: int, end: int) -> str:
        """Record a run of text and return its character."""
        assert self.runs is not None
        self.runs.append((which, start, end))
        character = chr(FIRST + len(self.runs) - 1)
        if len(self.runs) > LAST - FIRST:
            self.runs = None
        return character

    def _mask(self, index: int, name: str, keep: re.Pattern[str] | None) -> str:
        text: str = getattr(self.originals[index], name)
        out, position = [], 0
        cuts = [(match.start(), match.end()) for match in keep.finditer(text)] if keep else []
        if keep and self.originals[index].role != "assistant" and not keep.sub("", text).strip():
            cuts = []  # text without a masked run could not be located
        for start, end in [*cuts, (len(text), len(text))]:
            whole = text[position:start]
            core = whole.strip()  # templates may strip white space at the ends
            if core and self.runs is not None:
                lead = len(whole) - len(whole.lstrip())  # white space before the run
                run = self._run((index, name), position + lead, position + lead + len(core))
                out += [whole[:lead], run, whole[lead + len(core) :]]
            else:
                out.append(whole)
            out.append(text[start:end])
            position = end
        return "".join(out)

    def unmask(self, rendered: str) -> tuple[str, list[Copy]]:
        """Return the rendering of the original turns that follows from a masked one, and the copies in it."""
        assert self.runs is not None
        pieces, copies, position, last = [], [], 0, 0
        for match in _CODE.finditer(rendered):
            number = ord(match[0]) - FIRST
            # The character was in the text itself.
            if number >= len(self.runs):
                continue
            (index, name), start, end = self.runs[number]
            text = getattr(self.originals[index], name)[start:end]
            inside = (
                name == "argument_text"
                and rendered[match.start() - 1] == rendered[match.end() : match.end() + 1] == '"'
            )
            if inside or (self.quoted and self.originals[index].role == "tool"):
                text = json.dumps(text, ensure_ascii=False)[1:-1]
            pieces += [rendered[last : match.start()], text]
            position += match.start() - last
            copies.append(Copy(index, name, start, end, position, position + len(text)))
            position, last = position + len(text), match.end()
        return "".join([*pieces, rendered[last:]]), copies

    def check(self, copies: Sequence[Copy], marks: Marks | None) -> None:
        """Raise HiddenMessageError unless every run of a content occurs once; of thinking, at most once."""
        seen: dict[tuple[int, str, int], int] = {}
        for copy in copies:
            key = copy.index, copy.name, copy.start
            seen[key] = seen.get(key, 0) + 1
        for (index, name), start, end in self.runs or ():
            turn = self.originals[index]
            thought = name == "reasoning"
            if marks is not None and turn.role == "assistant" and name == "content":
                # In channels text before a call is thinking, which templates drop from earlier turns.
                thought = end <= turn.content.rfind(marks.end) or (marks.channels and bool(turn.calls))
            often = name == "call_names"  # some templates repeat the tool's name at its result
            if ((count := seen.get((index, name, start), 0)) > 1 and not often) or (count == 0 and not thought):
                raise HiddenMessageError(index, calls=often or name == "argument_text")


MOST_LITERALS = 256  # string literals of a template, all searched in every message; known templates have up to 87


@dataclass(frozen=True)
class Located:
    """The rendered text, the copies of messages in it in order, and the ranges that describe tools.

    `arguments` are the strings in calls of tools, each a copy of a part of `Turn.argument_text`.
    """

    text: str
    copies: tuple[Copy, ...]
    arguments: tuple[Copy, ...] = ()
    tools: tuple[tuple[int, int], ...] = ()

    def regions(self, turns: Sequence[Turn]) -> Iterator[tuple[int, int, int]]:
        """Yield messages with their ranges in the text: index, start, end.

        Between the parts of an assistant's message there is markup, so each part is a region.
        """
        for (index, _), run in groupby(self.copies, key=lambda copy: (copy.index, copy.name)):
            copies = list(run)
            whole = [copies] if turns[index].role != "assistant" else [[copy] for copy in copies]
            yield from ((index, part[0].begin, part[-1].stop) for part in whole)

    def place(self, index: int, start: int, end: int) -> int:
        """Return the position of a message's character in the text, or of what follows it there; `end` if nothing."""
        copies = [copy for copy in self.copies if (copy.index, copy.name) == (index, "content")]
        return next((copy.begin + max(start - copy.start, 0) for copy in copies if copy.end > start), end)


def spells_markup(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """Return a function that is True for strings which spell a special token of a model."""
    return lambda text: bool(tokenizer.special_ids & set(tokenizer.encode(text).ids.tolist()))


def render_located(
    template: ChatTemplate,
    turns: Sequence[Turn],
    variables: Mapping[str, Any],
    is_markup: Callable[[str], bool] = lambda literal: False,
) -> Located:
    r"""Render a conversation and locate its messages.

    `variables`: the other variables of the template; the schemas of tools as `tools`. `is_markup`: returns True if a
    string spells a special token of the model; such text in a message is never taken for markup.

    Raises
    ------
    HiddenMessageError
        For a message, or calls of tools, that the template omits, repeats, or changes beyond white space at its ends,
        quoting, and thinking that it drops.
    GGUFError
        If the template fails.

    Examples
    --------
    >>> template = ChatTemplate("{% for m in messages %}[{{ m.content.split('</think>')[-1] | trim }}]{% endfor %}")
    >>> located = render_located(template, [Turn("user", "hi \n"), Turn("assistant", "<think>hm</think> yo")], {})
    >>> located.text, [located.text[copy.begin:copy.stop] for copy in located.copies]
    ('[hi][yo]', ['hi', 'yo'])
    """
    errors: list[SpError] = []  # the first to be raised is about calls that no form made the template render
    for form in FORMS if any(turn.calls for turn in turns) else FORMS[:1]:
        try:
            return _render_located(template, turns, variables, is_markup, form)
        except HiddenMessageError as error:
            if not error.calls:
                raise
            errors.insert(0, error)
        except GGUFError as error:
            errors.append(error)
    raise errors[0]


def _render_located(
    template: ChatTemplate,
    turns: Sequence[Turn],
    variables: Mapping[str, Any],
    is_markup: Callable[[str], bool],
    form: Form,
) -> Located:
    """Render and locate with calls in one form."""
    marks = marks_of(template)  # None if it knows no thinking

    def messages(chat: Sequence[Turn]) -> list[dict[str, Any]]:
        return [message_of(turn, marks, form) for turn in chat]

    def render(chat: Sequence[Turn]) -> str:
        return render_chat(template, messages(chat), **variables)

    text = render(turns)
    for keep, quoted, verbatim in _keeps(template, turns, marks, is_markup):
        masked = Masked(turns, keep, quoted, verbatim)
        if masked.runs is None:
            continue
        unmasked, copies = masked.unmask(render(masked.turns))
        if unmasked == text:
            masked.check(copies, marks)
            arguments = tuple(copy for copy in copies if copy.name == "argument_text")
            runs = Located(text, tuple(copy for copy in copies if copy.name in ("content", "reasoning")))
            joined = tuple(_joined(runs, turns, marks))
            occupied = sorted((copy.begin, copy.stop) for copy in (*joined, *arguments))
            tools = tool_places(template, text, occupied, messages(turns), variables)
            return Located(text, joined, arguments=arguments, tools=tools)
    raise _first_hidden(text, turns)


def _keeps(
    template: ChatTemplate, turns: Sequence[Turn], marks: Marks | None, is_markup: Callable[[str], bool]
) -> Iterator[tuple[Keep, bool, bool]]:
    """Yield ways to mask: pattern of unmasked text, whether results of tools are quoted, whether calls are verbatim.

    First only marks of thinking stay unmasked; then everything that the template compares with; then results of tools
    are quoted. All of these again with the arguments of calls unmasked, if none spells markup.
    """
    ways = list(_ways(template, turns, marks, is_markup))
    yield from ((*way, False) for way in ways)
    arguments = [turn.argument_text for turn in turns if turn.calls]
    if any(arguments) and not any(map(is_markup, arguments)):
        yield from ((*way, True) for way in ways)


def _ways(
    template: ChatTemplate, turns: Sequence[Turn], marks: Marks | None, is_markup: Callable[[str], bool]
) -> Iterator[tuple[Keep, bool]]:
    thinking = None if marks is None else _any([marks.start, marks.end])

    def thought(turn: Turn, name: str) -> re.Pattern[str] | None:
        return thinking if turn.role == "assistant" and name == "content" else None

    yield thought, False
    contents = [turn.content for turn in turns]
    words = [word for word in template.literals if len(word) > 1 and not (word.isalnum() or word.isspace())]
    words = words if len(words) <= MOST_LITERALS else []
    # A template can only test a message for literals that occur in it.
    compared = [word for word in words if any(word in text for text in contents) and not is_markup(word)]
    if compared:
        literals = _any(compared)
        yield (lambda turn, name: literals if name == "content" else None), False
    if any(turn.role == "tool" for turn in turns):
        yield thought, True


def _any(words: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))


def _joined(located: Located, turns: Sequence[Turn], marks: Marks | None) -> Iterator[Copy]:
    """Yield copies extended by the text between their runs and at their ends, where the rendered text has it, too.

    Marks of an assistant's thinking are markup everywhere, and never included.
    """
    copies: list[Copy] = []
    for copy in located.copies:
        text: str = getattr(turns[copy.index], copy.name)
        before = copies[-1] if copies else None
        follows = before is not None and (before.index, before.name) == (copy.index, copy.name)
        if before and follows and before.end <= copy.start:
            between = text[before.end : copy.start]
            if located.text[before.stop : copy.begin] == between and _free(between, turns[copy.index], marks):
                copies[-1] = replace(before, end=copy.end, stop=copy.stop)
                continue
        if not follows and _free(text[: copy.start], turns[copy.index], marks):
            least = before.stop if before else 0
            heads = (text[: copy.start], text[: copy.start].lstrip())  # templates may strip its start
            fits = (len(head) for head in heads if located.text.endswith(head, least, copy.begin))
            head = next(fits, 0)
            copy = replace(copy, start=copy.start - head, begin=copy.begin - head)
        copies.append(copy)
    for copy, after in zip(copies, [*copies, None][1:], strict=True):
        if after is None or (after.index, after.name) != (copy.index, copy.name):
            tail = getattr(turns[copy.index], copy.name)[copy.end :]
            if _free(tail, turns[copy.index], marks):
                most = after.begin if after else len(located.text)
                fits = (len(part) for part in (tail, tail.rstrip()) if located.text.startswith(part, copy.stop, most))
                size = next(fits, 0)
                copy = replace(copy, end=copy.end + size, stop=copy.stop + size)
        yield copy


def _free(text: str, turn: Turn, marks: Marks | None) -> bool:
    """Return True if a text contains no mark of an assistant's thinking."""
    return marks is None or turn.role != "assistant" or not (marks.start in text or marks.end in text)


def _first_hidden(text: str, turns: Sequence[Turn]) -> HiddenMessageError:
    """Return the error for the first message that the text does not contain, else for the first calls."""
    # Not verbatim in the text.
    hidden = next((index for index, turn in enumerate(turns) if turn.content.strip() not in text), None)
    calling = next((index for index, turn in enumerate(turns) if turn.argument_text), None)
    if hidden is None and calling is not None:
        return HiddenMessageError(calling, calls=True)
    return HiddenMessageError(hidden or 0)


SegmentKind = Literal["system", "tools", "user", "assistant", "tool"]


@dataclass(frozen=True)
class Segment:
    """Bytes `[start, end)` of a prompt that belong to one message, or to one part of it.

    Attributes
    ----------
    kind : {"system", "tools", "user", "assistant", "tool"}
        `tools` are the schemas of tools; an unknown role counts as `system`, which is kept whole.
    start, end : int
    index : int
        The message; -1 for `tools`.
    quoted : bool
        The template wrote the message as the inside of a JSON string.
    """

    kind: SegmentKind
    start: int
    end: int
    index: int = -1
    quoted: bool = False


def segments_of(located: Located, turns: Sequence[Turn]) -> tuple[Segment, ...]:
    r"""Return the segments of a rendered text, in order; see `Located.regions` for their ends.

    `turns`: the messages it was rendered from.

    Examples
    --------
    >>> from sp.gguf.template import ChatTemplate
    >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}")
    >>> turns = [Turn("user", "Où?"), Turn("tool", '{"a": 1}')]
    >>> for segment in segments_of(render_located(template, turns, {}), turns):
    ...     print(segment)
    Segment(kind='user', start=6, end=10, index=0, quoted=False)
    Segment(kind='tool', start=17, end=25, index=1, quoted=False)
    """
    # Escapes change the length.
    quoted = {copy.index for copy in located.copies if copy.end - copy.start != copy.stop - copy.begin}
    places: list[tuple[int, int, SegmentKind, int]] = [(start, end, "tools", -1) for start, end in located.tools]
    for index, start, end in located.regions(turns):
        role = turns[index].role
        kind: SegmentKind = role if role in get_args(SegmentKind) else "system"  # type: ignore[assignment]
        places.append((start, end, kind, index))
    segments, last, size = [], 0, 0
    for start, end, kind, index in sorted(places):
        first = size + len(located.text[last:start].encode())  # in bytes
        last, size = end, first + len(located.text[start:end].encode())
        if start < end:
            segments.append(Segment(kind, first, size, index, kind == "tool" and index in quoted))
    return tuple(segments)
