"""How a model marks its thinking, how a template is asked for it, and how it is parted from a reply."""

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
    """A way to mark thinking.

    Parameters
    ----------
    start, end : str
        What stands round it in a reply.
    sign : str
        What a template that knows of it holds.
    history : {"reasoning_content", "thinking", "blocks"}
        How a template takes the thinking of an earlier turn: as a field of that name, or as a block of the content.
    channels : bool
        `start` and `end` are a part of a message with a header; what is no thinking has one of its own.
    special : tuple of str
        Special tokens in both, where these are no such tokens themselves.
    closing : str
        What ends a thinking that the template itself began, as templates write it that can switch thinking off.
    leads, tool, thought, parts, breaks : tuple of str, str, str, tuple of str, tuple of str
        Of channels: how a reply's first header may begin; regular expressions for what is found in the header of a
        call, with the tool's name, and of thinking; special tokens that belong to messages, and that end their text.
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
        *(" to=self<|message|>", "<|eom|>", "<atem:function_calls>"),  # a template may put the header together
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
    """The marks a template knows; None where it writes of no thinking.

    Examples
    --------
    >>> marks_of("{{ message.content.split('</think>')[-1] }}").start
    '<think>'
    >>> marks_of("{{ message.content }}") is None
    True
    """
    source = template.source if isinstance(template, ChatTemplate) else template
    return next((marks for marks in MARKS if marks.sign in source), None)


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


TO_TOOL, CALLED = "to=functions.{}<|channel|>commentary json<|message|>", "<|call|>"
"""What stands round a call in channels, but for the begin of its message's header, as templates write it."""


class Splitter:
    """Feeds on the text of a reply, hands out thinking and answer as soon as each is certain.

    White space round both parts is dropped, and held back until it is known to lie inside one. A reply that begins
    with no mark is all answer, to the letter.

    `thinks`: None for a model that marks no thinking; `calls`: messages in channels that are for a tool are handed out
    as an answer with `TO_TOOL` and `CALLED` round what they say, for a `CallSplitter`.

    Examples
    --------
    >>> splitter = Splitter(Thinks(marks_of("</think>")))
    >>> [splitter.push(text) for text in ("<thi", "nk>\\nhm\\n</", "think>\\n\\nYes. ")]
    [Split(reasoning='', content=''), Split(reasoning='hm', content=''), Split(reasoning='', content='Yes. ')]
    """

    def __init__(self, thinks: Thinks | None, *, calls: bool = False) -> None:
        self._marks = thinks.marks if thinks else None
        self._held = ""
        self._calls, self._tool = (
            calls,
            "",
        )  # whether calls are wanted; the name of the tool that the part at hand is for
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

    @property
    def tool(self) -> str:
        """The tool that what comes next is for; empty for an answer."""
        return self._tool

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
            if self._tool and not self._begun and self._state == "content":
                found["content"].append(TO_TOOL.format(self._tool))
                self._begun = True
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
        assert self._marks is not None
        head, mark, rest = self._held.partition("<|message|>")
        leads = self._marks.leads
        if mark:
            to = re.search(self._marks.tool, head) if self._calls else None
            thought = to is None and re.search(self._marks.thought, head) is not None
            self._tool = to[1] if to else ""
            self._enter("thinking" if thought else "content", rest)
        elif final or not (self._begun or any(one.startswith(self._held[: len(one)]) for one in leads)):
            self._enter("content", "" if self._held.startswith(("<|", leads[0])) else self._held)

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
            ended, self._tool = CALLED if self._tool else "", ""
            self._enter("header" if self._marks and self._marks.channels else "after", rest)
            return text.rstrip() + ended
        keep = 0 if final else max(overlap(self._held, mark) for mark in ends)
        whole = self._held[: len(self._held) - keep]
        text = whole.rstrip()
        self._held = "" if final else self._held[len(text) :]
        self._begun |= bool(text)
        return text

    def _ends(self) -> tuple[str, ...]:
        if self._marks is None or (self._state == "content" and not self._marks.channels):
            return ()
        return self._marks.breaks if self._marks.channels else (self._marks.end,)

    def _enter(self, state: str, held: str) -> None:
        self._begun = state == "header"
        self._state, self._held = state, held


def split_reply(text: str, thinks: Thinks | None) -> Split:
    """A whole reply taken apart, both parts without white space at their ends.

    Examples
    --------
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


Mode = Literal["auto", "on", "off"]
SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates are told whether to think: that of Qwen3 and most others, and DeepSeek-V3.1's."""
EFFORT = "reasoning_effort"
EFFORTS = (EFFORT, "reasoning_strength")
"""Variables by which templates are told how much to think: that of most, and Muse Glimmer's."""


@dataclass(frozen=True)
class Thinking:
    """What is asked of a model's thinking.

    Parameters
    ----------
    mode : {"auto", "on", "off"}
        Whether the model thinks first: as its chat template has it, with, or without.
    effort : str, optional
        How much it thinks: low, medium, high or another word the template knows; none is off where it knows no words.

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
    'the chat template reads no reasoning_effort, so high changes nothing'
    """

    group: ClassVar[str] = "Decoding"

    mode: Annotated[Mode, Option(flags=("--thinking",))] = "auto"
    effort: Annotated[str | None, Option(flags=("--reasoning-effort",))] = None

    def __post_init__(self) -> None:
        check_fields(self, "thinking")
        if self.effort is not None and not re.fullmatch(r"[A-Za-z0-9_.-]{1,32}", self.effort):
            raise ConfigError(f"a reasoning effort is one word such as low, medium or high, not {self.effort[:40]!r}")

    def variables(self, template: ChatTemplate) -> dict[str, Any]:
        """Variables for a template: of those that stand for thinking, the ones it reads."""
        names, mode = template.names, self._mode(template)
        told: dict[str, Any] = {} if mode == "auto" else {name: mode == "on" for name in SWITCHES if name in names}
        return told | {name: self.effort for name in EFFORTS if self.effort is not None and name in names}

    def note(self, template: ChatTemplate | None) -> str | None:
        """What of this a template cannot be told, in one line; None if nothing is lost."""
        if template is None:
            return None if self in (Thinking(), Thinking("off")) else "there is no chat template to ask for thinking"
        marks, switched = marks_of(template), any(name in template.names for name in SWITCHES)
        lost = []
        if self.mode == "on" and not switched and marks is None:
            lost.append("knows of no thinking, so on changes nothing")
        if self.mode == "off" and not switched and marks is not None and not _begins(template, marks):
            lost.append("has no switch for thinking, so the model may think all the same")
        if self.effort is not None and not _takes_effort(template) and self._mode(template) == self.mode:
            lost.append(f"reads no {EFFORT}, so {self.effort} changes nothing")
        return f"the chat template {' and '.join(lost)}" if lost else None

    def reply(self, template: ChatTemplate, generation_prompt: str) -> tuple[str, Thinks | None]:
        """How the reply begins.

        Parameters
        ----------
        template : ChatTemplate
        generation_prompt : str
            What the template wrote behind the last message.

        Returns
        -------
        str
            What must follow the generation prompt: with `off`, the end of a thinking that it begins all the same.
        Thinks or None
            How to read the reply; None if the template marks no thinking.
        """
        marks = marks_of(template)
        if marks is None:
            return "", None
        opened = begins(generation_prompt, marks)
        if not opened or self._mode(template) != "off":
            written = marks.start in generation_prompt or marks.end in generation_prompt
            return "", Thinks(marks, opened, written and not marks.channels)
        return marks.closing, Thinks(marks, written=True)

    def _mode(self, template: ChatTemplate) -> Mode:
        """The mode, where an effort of none decides it."""
        none = self.effort == "none" and self.mode == "auto" and not _takes_effort(template)
        return "off" if none and any(name in template.names for name in SWITCHES) else self.mode


def _takes_effort(template: ChatTemplate) -> bool:
    """Whether a template can be told how much to think."""
    return any(name in template.names for name in EFFORTS)


def begins(generation_prompt: str, marks: Marks) -> bool:
    r"""Whether thinking has begun where the reply begins."""
    return not marks.channels and generation_prompt.rfind(marks.start) > generation_prompt.rfind(marks.end)


def _begins(template: ChatTemplate, marks: Marks) -> bool:
    """Whether a template's own generation prompt begins to think."""
    try:
        return begins(render_chat(template, [{"role": "user", "content": "x"}]).rpartition("x")[2], marks)
    except GGUFError:
        return False
