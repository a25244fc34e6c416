"""Messages with one private character in place of every run of their text, and where these come out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sp.chat.marks import Marks
from sp.chat.turn import Call, Turn, changed
from sp.errors import PromptError

FIRST, LAST = 0x100000, 0x10FFFD  # private characters of Unicode's last plane
_CODE = re.compile(f"[{chr(FIRST)}-{chr(LAST)}]")

Field = tuple[int, str]
"""A message by its index, and which of its texts: ``content``, ``reasoning``, ``argument_text`` or ``call_names``."""


class HiddenMessageError(PromptError):
    """A template does not show a message, or not so that it can be found.

    Parameters
    ----------
    index : int
        The message.
    calls : bool
        What it does not show are the calls of tools.
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
                thought = end <= turn.content.rfind(marks.end)
            often = name == "call_names"  # some templates name the tool beside its result, too
            if ((count := seen.get((index, name, start), 0)) > 1 and not often) or (count == 0 and not thought):
                raise HiddenMessageError(index, calls=often or name == "argument_text")
