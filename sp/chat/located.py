"""A conversation rendered as it is, where in the text each message lies, and what of it each says.

A template may look into messages: it splits off old thinking, strips, escapes. So it is given what was really said,
and once more with one private character in place of every run of text; where that character comes out, the run went.
What the first rendering says then has to follow from the second, letter by letter, or the chat is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, get_args

from sp.chat.reasoning import Marks, marks_of
from sp.chat.turn import FORMS, Call, Form, Turn, changed, message_of
from sp.errors import GGUFError, PromptError, SpError
from sp.gguf.template import ChatTemplate, render_chat
from sp.gguf.tokenizer import Tokenizer


def tool_places(
    template: ChatTemplate,
    text: str,
    said: Sequence[tuple[int, int]],
    messages: list[dict[str, Any]],
    variables: Mapping[str, Any],
) -> tuple[tuple[int, int], ...]:
    """Where a rendered text tells of tools: what it has more than without them, and names one of them.

    `text`: rendered with the tools; `said`, sequence of (int, int): characters of it that messages say, ascending;
    `messages`: as the template took them; `variables`: what else it was told; the schemas under `tools`.

    Returns tuple of (int, int): characters, ascending, and none of a message among them; empty if the template shows no
    tool, or refuses to render without.

    >>> template = ChatTemplate("[{% for t in tools %}{{ t | tojson }}{% endfor %}][{{ messages[0].content }}]")
    >>> told, messages = {"tools": [{"name": "grep"}]}, [{"role": "user", "content": "hi"}]
    >>> text = render_chat(template, messages, **told)
    >>> [text[start:end] for start, end in tool_places(template, text, [(19, 21)], messages, told)]
    ['{"name": "grep"}']
    """
    names = [_name(tool) for tool in variables.get("tools") or ()]
    if not any(names):
        return ()
    try:
        without = render_chat(template, messages, **{key: value for key, value in variables.items() if key != "tools"})
    except GGUFError:
        return ()
    start = _shared(text, without)
    end = len(text) - _shared(text[start:][::-1], without[start:][::-1])
    edges = [0, *(place for one in said for place in one), len(text)]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    pieces = [(low, max(start, low), min(end, high)) for low, high in gaps]
    slid = [_slid(text, *piece) for piece in pieces if piece[1] < piece[2]]
    return tuple((low, high) for low, high in slid if any(name in text[low:high] for name in names if name))


def _name(tool: Any) -> str:
    """A tool's name, as schemas have it: in its `function`, or beside."""
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    name = inner.get("name", "") if isinstance(inner, Mapping) else ""
    return name if isinstance(name, str) else ""


def _shared(one: str, other: str) -> int:
    """Characters that two texts begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _slid(text: str, least: int, start: int, end: int) -> tuple[int, int]:
    """An inserted range where it begins with a bracket, if it reads the same so far to the left."""
    low, high = start, end
    while text[low] not in "<[{" and low > least and text[low - 1] == text[high - 1]:
        low, high = low - 1, high - 1
    return (low, high) if text[low] in "<[{" else (start, end)


FIRST, LAST = 0x100000, 0x10FFFD  # private characters of Unicode's last plane
_CODE = re.compile(f"[{chr(FIRST)}-{chr(LAST)}]")

Field = tuple[int, str]
"""A message by its index, and which of its texts: ``content``, ``reasoning``, ``argument_text`` or ``call_names``."""


class HiddenMessageError(PromptError):
    """A template does not show a message, or not so that it can be found.

    `index`: the message; `calls`: what it does not show are the calls of tools.
    """

    def __init__(self, index: int, calls: bool = False) -> None:
        what, out = (".tool_calls", "them") if calls else ("", "it")
        super().__init__(f"the chat template of this model does not show messages[{index}]{what} once; leave {out} out")
        self.index, self.calls = index, calls


@dataclass(frozen=True)
class Copy:
    """Characters ``[start, end)`` of a text of message `index` stand at ``[at, stop)`` of the rendered text."""

    index: int
    name: str
    start: int
    end: int
    at: int
    stop: int


Keep = Callable[[Turn, str], "re.Pattern[str] | None"]
"""What of a turn's text, by the name of that text, the template must see as it is; white space at the ends always."""


class Masked:
    """A conversation with a private character for every run of text; `runs` is None where these do not suffice."""

    def __init__(self, turns: Sequence[Turn], keep: Keep, quoted: bool, verbatim: bool) -> None:
        self.given, self.quoted = turns, quoted
        self.runs: list[tuple[Field, int, int]] | None = []
        self.turns = []
        for index, turn in enumerate(turns):
            said, thought = (self._mask(index, name, keep(turn, name)) for name in ("content", "reasoning"))
            calls = tuple(self._named(index, verbatim))
            self.turns.append(replace(turn, content=said, reasoning=thought, calls=calls))

    def _named(self, index: int, verbatim: bool) -> Iterator[Call]:
        """The calls of a turn with a character for each name and, unless verbatim, each string in the arguments."""
        at = {"call_names": 0, "argument_text": 0}

        def hide(text: str, field: str = "argument_text") -> str:
            start = at[field]
            at[field] += len(text)
            return self._run((index, field), start, at[field]) if text and self.runs is not None else text

        for call in self.given[index].calls:
            arguments = call.arguments if verbatim else changed(call.arguments, hide)
            yield replace(call, name=hide(call.name, "call_names"), arguments=arguments)

    def _run(self, which: Field, start: int, end: int) -> str:
        """The character for a run of text."""
        assert self.runs is not None
        self.runs.append((which, start, end))
        character = chr(FIRST + len(self.runs) - 1)
        if len(self.runs) > LAST - FIRST:
            self.runs = None
        return character

    def _mask(self, index: int, name: str, keep: re.Pattern[str] | None) -> str:
        text: str = getattr(self.given[index], name)
        out, at = [], 0
        cuts = [(match.start(), match.end()) for match in keep.finditer(text)] if keep else []
        if keep and self.given[index].role != "assistant" and not keep.sub("", text).strip():
            cuts = []  # or nothing would tell where it goes
        for start, end in [*cuts, (len(text), len(text))]:
            whole = text[at:start]
            core = whole.strip()
            if core and self.runs is not None:
                lead = len(whole) - len(whole.lstrip())
                run = self._run((index, name), at + lead, at + lead + len(core))
                out += [whole[:lead], run, whole[lead + len(core) :]]
            else:
                out.append(whole)
            out.append(text[start:end])
            at = end
        return "".join(out)

    def read(self, shown: str) -> tuple[str, list[Copy]]:
        """What a rendering of the masked turns says of that of the true ones."""
        assert self.runs is not None
        pieces, copies, at, last = [], [], 0, 0
        for match in _CODE.finditer(shown):
            number = ord(match[0]) - FIRST
            if number >= len(self.runs):
                continue
            (index, name), start, end = self.runs[number]
            said = getattr(self.given[index], name)[start:end]
            inside = name == "argument_text" and shown[match.start() - 1] == shown[match.end() : match.end() + 1] == '"'
            if inside or (self.quoted and self.given[index].role == "tool"):
                said = json.dumps(said, ensure_ascii=False)[1:-1]
            pieces += [shown[last : match.start()], said]
            at += match.start() - last
            copies.append(Copy(index, name, start, end, at, at + len(said)))
            at, last = at + len(said), match.end()
        return "".join([*pieces, shown[last:]]), copies

    def check(self, copies: Sequence[Copy], marks: Marks | None) -> None:
        """HiddenMessageError unless every run of a content is there once; of thinking, at most once."""
        seen: dict[tuple[int, str, int], int] = {}
        for copy in copies:
            key = copy.index, copy.name, copy.start
            seen[key] = seen.get(key, 0) + 1
        for (index, name), start, end in self.runs or ():
            turn = self.given[index]
            thought = name == "reasoning"
            if marks is not None and turn.role == "assistant" and name == "content":
                # In channels what is said before a call is thinking, and dropped as such.
                thought = end <= turn.content.rfind(marks.end) or (marks.channels and bool(turn.calls))
            often = name == "call_names"  # some templates name the tool beside its result, too
            if ((count := seen.get((index, name, start), 0)) > 1 and not often) or (count == 0 and not thought):
                raise HiddenMessageError(index, calls=often or name == "argument_text")


MOST_LITERALS = 256  # of a template, which are all looked for in every message; the longest known one has 87


@dataclass(frozen=True)
class Located:
    """The rendered text, the copies of messages in it in the order they stand there, and where it tells of tools.

    `arguments` are the strings in calls of tools, each a copy of a part of `Turn.argument_text`.
    """

    text: str
    copies: tuple[Copy, ...]
    arguments: tuple[Copy, ...] = ()
    tools: tuple[tuple[int, int], ...] = ()

    def regions(self, turns: Sequence[Turn]) -> Iterator[tuple[int, int, int]]:
        """Messages, each with where it begins and ends in the text; between parts of an assistant's there is markup."""
        for (index, _), run in groupby(self.copies, key=lambda copy: (copy.index, copy.name)):
            copies = list(run)
            whole = [copies] if turns[index].role != "assistant" else [[copy] for copy in copies]
            yield from ((index, part[0].at, part[-1].stop) for part in whole)

    def place(self, index: int, start: int, end: int) -> int:
        """Where a character of a message stands in the text, or what of the message follows it; `end` if nothing."""
        copies = [copy for copy in self.copies if (copy.index, copy.name) == (index, "content")]
        return next((copy.at + max(start - copy.start, 0) for copy in copies if copy.end > start), end)


def spells_markup(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """Whether a string spells a special token of a model."""
    return lambda text: bool(tokenizer.special_ids & set(tokenizer.encode(text).ids.tolist()))


def render_located(
    template: ChatTemplate,
    turns: Sequence[Turn],
    variables: Mapping[str, Any],
    is_markup: Callable[[str], bool] = lambda literal: False,
) -> Located:
    """Render a conversation and find its messages.

    `variables`: what else the template is told; the schemas of tools as `tools`. `is_markup`: whether a string spells a
    special token of the model. What a message has of such is never taken for markup.

    Raises
    ------
    HiddenMessageError
        For a message that the template leaves out, repeats, or changes beyond white space at its ends, quoting, and
        thinking that it drops; or calls of tools.
    GGUFError
        If the template fails.

    Examples
    --------
    >>> template = ChatTemplate("{% for m in messages %}[{{ m.content.split('</think>')[-1] | trim }}]{% endfor %}")
    >>> found = render_located(template, [Turn("user", "hi \\n"), Turn("assistant", "<think>hm</think> yo")], {})
    >>> found.text, [found.text[copy.at:copy.stop] for copy in found.copies]
    ('[hi][yo]', ['hi', 'yo'])
    """
    errors: list[SpError] = []
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
    """The same with calls in one form."""
    marks = marks_of(template)

    def messages(given: Sequence[Turn]) -> list[dict[str, Any]]:
        return [message_of(turn, marks, form) for turn in given]

    def shown(given: Sequence[Turn]) -> str:
        return render_chat(template, messages(given), **variables)

    text = shown(turns)
    for keep, quoted, verbatim in _keeps(template, turns, marks, is_markup):
        masked = Masked(turns, keep, quoted, verbatim)
        if masked.runs is None:
            continue
        found, copies = masked.read(shown(masked.turns))
        if found == text:
            masked.check(copies, marks)
            arguments = tuple(copy for copy in copies if copy.name == "argument_text")
            said = Located(text, tuple(copy for copy in copies if copy.name in ("content", "reasoning")))
            joined = tuple(_joined(said, turns, marks))
            taken = sorted((copy.at, copy.stop) for copy in (*joined, *arguments))
            tools = tool_places(template, text, taken, messages(turns), variables)
            return Located(text, joined, arguments=arguments, tools=tools)
    raise _first_hidden(text, turns)


def _keeps(
    template: ChatTemplate, turns: Sequence[Turn], marks: Marks | None, is_markup: Callable[[str], bool]
) -> Iterator[tuple[Keep, bool, bool]]:
    """Ways to mask: the marks of thinking kept; all that the template compares with, too; results of tools quoted. And
    each again with the arguments of calls as they are, if none spells markup.
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
    said = [turn.content for turn in turns]
    words = [word for word in template.literals if len(word) > 1 and not (word.isalnum() or word.isspace())]
    words = words if len(words) <= MOST_LITERALS else []
    compared = [word for word in words if any(word in text for text in said) and not is_markup(word)]
    if compared:
        literals = _any(compared)
        yield (lambda turn, name: literals if name == "content" else None), False
    if any(turn.role == "tool" for turn in turns):
        yield thought, True


def _any(words: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))


def _joined(found: Located, turns: Sequence[Turn], marks: Marks | None) -> Iterator[Copy]:
    """Copies with what lies between their runs and at the ends of the text, where it stands there too. Not the marks of
    an assistant's thinking, which are markup wherever they stand.
    """
    copies: list[Copy] = []
    for copy in found.copies:
        text: str = getattr(turns[copy.index], copy.name)
        before = copies[-1] if copies else None
        follows = before is not None and (before.index, before.name) == (copy.index, copy.name)
        if before and follows and before.end <= copy.start:
            between = text[before.end : copy.start]
            if found.text[before.stop : copy.at] == between and _free(between, turns[copy.index], marks):
                copies[-1] = replace(before, end=copy.end, stop=copy.stop)
                continue
        if not follows and _free(text[: copy.start], turns[copy.index], marks):
            least = before.stop if before else 0
            heads = (text[: copy.start], text[: copy.start].lstrip())
            fits = (len(head) for head in heads if found.text.endswith(head, least, copy.at))
            head = next(fits, 0)
            copy = replace(copy, start=copy.start - head, at=copy.at - head)
        copies.append(copy)
    for copy, after in zip(copies, [*copies, None][1:], strict=True):
        if after is None or (after.index, after.name) != (copy.index, copy.name):
            tail = getattr(turns[copy.index], copy.name)[copy.end :]
            if _free(tail, turns[copy.index], marks):
                most = after.at if after else len(found.text)
                fits = (len(each) for each in (tail, tail.rstrip()) if found.text.startswith(each, copy.stop, most))
                size = next(fits, 0)
                copy = replace(copy, end=copy.end + size, stop=copy.stop + size)
        yield copy


def _free(text: str, turn: Turn, marks: Marks | None) -> bool:
    """Whether a text holds no mark of an assistant's thinking."""
    return marks is None or turn.role != "assistant" or not (marks.start in text or marks.end in text)


def _first_hidden(text: str, turns: Sequence[Turn]) -> HiddenMessageError:
    """The error where none can be located: of the first that does not stand there as it is, else of the first calls."""
    hidden = next((index for index, turn in enumerate(turns) if turn.content.strip() not in text), None)
    calling = next((index for index, turn in enumerate(turns) if turn.argument_text), None)
    if hidden is None and calling is not None:
        return HiddenMessageError(calling, calls=True)
    return HiddenMessageError(hidden or 0)


SegmentKind = Literal["system", "tools", "user", "assistant", "tool"]


@dataclass(frozen=True)
class Segment:
    """Bytes `[start, end)` of a prompt that one message says, or one part of it.

    `kind`, one of "system", "tools", "user", "assistant", "tool": `tools` are the schemas of tools; a role that is no
    kind counts as `system`, which is kept whole; `index`: the message; -1 for `tools`; `quoted`: the template wrote the
    message as the inside of a JSON string.
    """

    kind: SegmentKind
    start: int
    end: int
    index: int = -1
    quoted: bool = False


def segments_of(found: Located, turns: Sequence[Turn]) -> tuple[Segment, ...]:
    """What messages say of a rendered text, in its order; see `Located.regions` for where one ends.

    `turns`: the messages it was rendered from.

    Examples
    --------
    >>> from sp.gguf.template import ChatTemplate
    >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}\\n{% endfor %}")
    >>> turns = [Turn("user", "Où?"), Turn("tool", '{"a": 1}')]
    >>> for segment in segments_of(render_located(template, turns, {}), turns):
    ...     print(segment)
    Segment(kind='user', start=6, end=10, index=0, quoted=False)
    Segment(kind='tool', start=17, end=25, index=1, quoted=False)
    """
    quoted = {copy.index for copy in found.copies if copy.end - copy.start != copy.stop - copy.at}
    places: list[tuple[int, int, SegmentKind, int]] = [(start, end, "tools", -1) for start, end in found.tools]
    for index, start, end in found.regions(turns):
        role = turns[index].role
        kind: SegmentKind = role if role in get_args(SegmentKind) else "system"  # type: ignore[assignment]
        places.append((start, end, kind, index))
    segments, at, size = [], 0, 0
    for start, end, kind, index in sorted(places):
        first = size + len(found.text[at:start].encode())
        at, size = end, first + len(found.text[start:end].encode())
        if start < end:
            segments.append(Segment(kind, first, size, index, kind == "tool" and index in quoted))
    return tuple(segments)
