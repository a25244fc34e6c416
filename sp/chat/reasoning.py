"""Thinking: how models mark it, how a template is asked for it, and how it is separated from a reply."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from sp.config import Option, check_fields
from sp.errors import ConfigError, GGUFError
from sp.gguf.template import ChatTemplate, render_chat


@dataclass(frozen=True)
class Marks:
    """A notation of thinking.

    Parameters
    ----------
    start, end : str
        Texts around thinking in a reply.
    sign : str
        Text that occurs in templates with this notation.
    history : {"reasoning_content", "thinking", "blocks"}
        Where a template takes the thinking of an earlier turn: in a field of that name, or as a block of the content.
    channels : bool
        `start` and `end` are a part of a message with a header; the answer is another message with its own header.
    special : tuple of str
        Special tokens in both, where these are no such tokens themselves.
    closing : str
        Text that ends thinking which the template itself began, as in templates that can switch thinking off.
    leads : tuple of str
        With channels: possible starts of a reply's first header.
    tool, thought : str
        With channels: regular expressions that match the header of a call, with the tool's name, and of thinking.
    parts, breaks : tuple of str
        With channels: special tokens that belong to messages, and those that end a message's text.
    """

    start: str
    end: str
    sign: str
    history: Literal["reasoning_content", "thinking", "blocks"] = "reasoning_content"
    channels: bool = False
    special: tuple[str, ...] = ()
    closing: str = ""
    leads: tuple[str, ...] = ("<|", " to=")
    tool: str = r"\bto=functions\.([A-Za-z0-9_.:-]{1,128})"
    thought: str = r"<\|channel\|>\s*analysis\b"
    parts: tuple[str, ...] = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>")
    breaks: tuple[str, ...] = ("<|end|>", "<|start|>", "<|channel|>", "<|call|>", "<|return|>")

    @property
    def tokens(self) -> tuple[str, ...]:
        """Special tokens that belong to the marks, and are no text."""
        return self.parts if self.channels else self.special or (self.start, self.end)


MARKS = (
    Marks("<|channel|>analysis<|message|>", "<|end|>", "<|channel|>analysis<|message|>", "thinking", channels=True),
    Marks("[THINK]", "[/THINK]", "[/THINK]", "blocks", closing="[/THINK]"),
    Marks("<think>", "</think>", "</think>", closing="\n</think>\n\n"),
    Marks(
        *(
            " to=self<|message|>",
            "<|eom|>",
            "<atem:function_calls>",
        ),  # templates may compose the header, so the sign is that of calls
        channels=True,
        leads=(" to=",),
        tool="(?!)",  # calls are marked in the text
        thought=r"\bto=self\b",
        parts=("<|start|>", "<|message|>", "<|eom|>"),
        breaks=("<|eom|>", "<|eot|>", "<|start|>"),
    ),
    Marks(
        *("<|channel>thought\n", "<channel|>", "<|channel>thought"),
        special=("<|channel>", "<channel|>"),
        closing="<channel|>",
    ),
)  # gpt-oss; reasoning Mistral; Qwen3, Qwen3.5, QwQ, SmolLM3, GLM-4.7, DeepSeek-R1 and its distills; Muse Glimmer;
# Gemma 4


def marks_of(template: str | ChatTemplate) -> Marks | None:
    """Return the notation of a template; None if it knows no thinking.

    Examples
    --------
    >>> marks_of("{{ message.content.split('</think>')[-1] }}").start
    '<think>'
    >>> marks_of("{{ message.content }}") is None
    True
    """
    source = template.source if isinstance(template, ChatTemplate) else template
    # The first match counts: signs may contain each other.
    return next((marks for marks in MARKS if marks.sign in source), None)


class Split(NamedTuple):
    """A part of a reply: thinking, and the answer."""

    reasoning: str = ""
    content: str = ""


@dataclass(frozen=True)
class Thinks:
    """The notation of thinking in the reply to a prompt.

    `marks`: the notation; `opened`: the prompt ends within thinking; `has_marks`: the prompt ends with marks, open or
    closed.
    """

    marks: Marks
    opened: bool = False
    has_marks: bool = False


TO_TOOL, CALLED = "to=functions.{}<|channel|>commentary json<|message|>", "<|call|>"
"""Texts around a call in channels, without the start of its message's header, as templates write them."""


class Splitter:
    """Takes the text of a reply and returns thinking and answer as soon as each is certain.

    White space around both parts is dropped, and held back until it is known to be inside of one. A reply that begins
    without a mark is all answer, unchanged.

    `thinks`: None for a model that marks no thinking; `calls`: messages in channels that are for a tool are returned
    as an answer with `TO_TOOL` and `CALLED` around their text, for a `CallSplitter`.

    Examples
    --------
    >>> splitter = Splitter(Thinks(marks_of("</think>")))
    >>> [splitter.push(text) for text in ("<thi", "nk>\\nhm\\n</", "think>\\n\\nYes. ")]
    [Split(reasoning='', content=''), Split(reasoning='hm', content=''), Split(reasoning='', content='Yes. ')]
    """

    def __init__(self, thinks: Thinks | None, *, calls: bool = False) -> None:
        self._marks = thinks.marks if thinks else None
        self._pending = ""
        self._calls = calls
        self._tool = ""  # name of the tool that the current part is for
        self._started = False  # some text of the current part was returned
        self._state = "content"
        if self._marks:
            self._state = "header" if self._marks.channels else "thinking" if thinks and thinks.opened else "start"

    @property
    def thinking(self) -> bool:
        """True if the last text was thinking."""
        return self._state == "thinking"

    @property
    def answering(self) -> bool:
        """True if the next text may be answer: neither thinking nor the name of a channel."""
        return self._state not in ("thinking", "header")

    @property
    def tool(self) -> str:
        """Name of the tool that the next text is for; empty for an answer."""
        return self._tool

    def push(self, text: str) -> Split:
        """Return the parts that are certain after more text."""
        self._pending += text
        return self._advance(final=False)

    def finish(self) -> Split:
        """Return the text that was held back, at the end of the reply."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> Split:
        parts: dict[str, list[str]] = {"thinking": [], "content": []}
        while True:
            if self._tool and not self._started and self._state == "content":
                parts["content"].append(TO_TOOL.format(self._tool))
                self._started = True
            before = self._state, self._pending
            step = {"start": self._start, "header": self._header, "after": self._after}.get(self._state)
            if step:
                step(final)
            else:
                parts[self._state].append(self._body(final))
            if (self._state, self._pending) == before or not self._pending:  # nothing more is certain
                return Split("".join(parts["thinking"]), "".join(parts["content"]))

    def _start(self, final: bool) -> None:
        """Before any part: consume a start mark, or enter the answer."""
        assert self._marks is not None
        text, mark = self._pending.lstrip(), self._marks.start
        if text.startswith(mark):
            self._enter("thinking", text[len(mark) :])
        elif final or not mark.startswith(text):
            self._enter("content", self._pending)

    def _after(self, final: bool) -> None:
        """After thinking: drop white space."""
        if (text := self._pending.lstrip()) or final:
            self._enter("content", text)

    def _header(self, final: bool) -> None:
        """Consume the header of a message in channels; a reply without a header is all answer."""
        assert self._marks is not None
        head, mark, rest = self._pending.partition("<|message|>")  # the mark ends every header
        leads = self._marks.leads
        if mark:
            to = re.search(self._marks.tool, head) if self._calls else None
            thought = to is None and re.search(self._marks.thought, head) is not None
            self._tool = to[1] if to else ""
            self._enter("thinking" if thought else "content", rest)
        elif final or not (self._started or any(lead.startswith(self._pending[: len(lead)]) for lead in leads)):
            self._enter("content", "" if self._pending.startswith(("<|", leads[0])) else self._pending)

    def _body(self, final: bool) -> str:
        """Return the certain text of the current part."""
        ends = self._ends()
        if self._state == "content" and not ends:
            text, self._pending = self._pending, ""
            return text
        if self._state == "thinking" and not self._started:
            self._pending = self._pending.lstrip()
        position, mark = min(
            ((position, mark) for mark in ends if (position := self._pending.find(mark)) >= 0), default=(-1, "")
        )
        if mark:
            text, rest = self._pending[:position], self._pending[position + len(mark) :]
            suffix, self._tool = CALLED if self._tool else "", ""
            self._enter("header" if self._marks and self._marks.channels else "after", rest)
            return text.rstrip() + suffix
        # Hold back an end of the text that may be the start of a mark, and the white space before it.
        keep = 0 if final else max(overlap(self._pending, mark) for mark in ends)
        whole = self._pending[: len(self._pending) - keep]
        text = whole.rstrip()
        self._pending = "" if final else self._pending[len(text) :]
        self._started |= bool(text)
        return text

    def _ends(self) -> tuple[str, ...]:
        if self._marks is None or (self._state == "content" and not self._marks.channels):
            return ()
        return self._marks.breaks if self._marks.channels else (self._marks.end,)

    def _enter(self, state: str, pending: str) -> None:
        self._started = state == "header"
        self._state, self._pending = state, pending


def split_reply(text: str, thinks: Thinks | None) -> Split:
    r"""Split a whole reply into thinking and answer, both without white space at their ends.

    Examples
    --------
    >>> split_reply("hm\n</think>\n\nYes.\n", Thinks(marks_of("</think>"), opened=True))
    Split(reasoning='hm', content='Yes.')
    """
    splitter = Splitter(thinks)
    return Split(*(part.strip() for part in joined([splitter.push(text), splitter.finish()])))


def joined(parts: Iterable[Split]) -> Split:
    """Concatenate the parts of one reply."""
    reasoning, content = zip(*parts, strict=True)
    return Split("".join(reasoning), "".join(content))


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` that is a proper start of `mark`."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)


Mode = Literal["auto", "on", "off"]
SWITCHES = ("enable_thinking", "thinking")
"""Variables of templates that switch thinking: that of Qwen3 and most others, and that of DeepSeek-V3.1."""
EFFORT = "reasoning_effort"
EFFORTS = (EFFORT, "reasoning_strength")
"""Variables of templates for the amount of thinking: that of most, and that of Muse Glimmer."""


@dataclass(frozen=True)
class Thinking:
    """Options for a model's thinking.

    Parameters
    ----------
    mode : {"auto", "on", "off"}
        Thinking before the answer: the default of the chat template, on, or off.
    effort : str, optional
        Amount of thinking: low, medium, high or another word that the template knows; none means off for other ones.

    Raises
    ------
    ConfigError
        For another mode, or an effort that is no single word.

    Examples
    --------
    >>> template = ChatTemplate("{% if enable_thinking %}<think>{% endif %}")
    >>> Thinking("off").variables(template)
    {'enable_thinking': False}
    >>> Thinking("on", "high").note(template)
    'the chat template reads no reasoning_effort, so high has no effect'
    """

    group: ClassVar[str] = "Decoding"

    mode: Annotated[Mode, Option(flags=("--thinking",))] = "auto"
    effort: Annotated[str | None, Option(flags=("--reasoning-effort",))] = None

    def __post_init__(self) -> None:
        check_fields(self, "thinking")
        if self.effort is not None and not re.fullmatch(r"[A-Za-z0-9_.-]{1,32}", self.effort):
            raise ConfigError(f"a reasoning effort is one word such as low, medium or high, not {self.effort[:40]!r}")

    def variables(self, template: ChatTemplate) -> dict[str, Any]:
        """Return the variables for thinking that a template reads, with their values."""
        names, mode = template.names, self._mode(template)
        switches: dict[str, Any] = {} if mode == "auto" else {name: mode == "on" for name in SWITCHES if name in names}
        return switches | {name: self.effort for name in EFFORTS if self.effort is not None and name in names}

    def note(self, template: ChatTemplate | None) -> str | None:
        """Return one line about options that a template does not support; None if it supports all."""
        if template is None:
            return (
                None if self in (Thinking(), Thinking("off")) else "without a chat template thinking cannot be switched"
            )
        marks, switched = marks_of(template), any(name in template.names for name in SWITCHES)
        lost = []
        if self.mode == "on" and not switched and marks is None:
            lost.append("knows no thinking, so on has no effect")
        if self.mode == "off" and not switched and marks is not None and not _begins(template, marks):
            lost.append("has no switch for thinking, so the model may think nevertheless")
        if self.effort is not None and not _takes_effort(template) and self._mode(template) == self.mode:
            lost.append(f"reads no {EFFORT}, so {self.effort} has no effect")
        return f"the chat template {' and '.join(lost)}" if lost else None

    def reply(self, template: ChatTemplate, generation_prompt: str) -> tuple[str, Thinks | None]:
        """Return how the reply begins and how it is marked.

        Parameters
        ----------
        template : ChatTemplate
        generation_prompt : str
            The text that the template wrote after the last message.

        Returns
        -------
        str
            Text to add to the generation prompt: with `off`, the end of thinking that it begins nevertheless.
        Thinks or None
            The notation of thinking in the reply; None if the template has none.
        """
        marks = marks_of(template)
        if marks is None:
            return "", None
        opened = begins(generation_prompt, marks)  # the template itself starts to think
        if not opened or self._mode(template) != "off":
            has_marks = marks.start in generation_prompt or marks.end in generation_prompt
            return "", Thinks(marks, opened, has_marks and not marks.channels)
        return marks.closing, Thinks(marks, has_marks=True)

    def _mode(self, template: ChatTemplate) -> Mode:
        """Return the mode, taking an effort of none for off where the template reads no effort."""
        none = self.effort == "none" and self.mode == "auto" and not _takes_effort(template)
        return "off" if none and any(name in template.names for name in SWITCHES) else self.mode


def _takes_effort(template: ChatTemplate) -> bool:
    """Return True if a template reads a variable for the amount of thinking."""
    return any(name in template.names for name in EFFORTS)


def begins(generation_prompt: str, marks: Marks) -> bool:
    """Return True if the generation prompt ends within thinking."""
    return not marks.channels and generation_prompt.rfind(marks.start) > generation_prompt.rfind(marks.end)


def _begins(template: ChatTemplate, marks: Marks) -> bool:
    """Return True if a template's own generation prompt ends within thinking."""
    try:
        return begins(render_chat(template, [{"role": "user", "content": "x"}]).rpartition("x")[2], marks)
    except GGUFError:
        return False
