"""Whether a model is to think before it answers, and how much: what its chat template is told of it, and what not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from sp.chat.marks import Marks, marks_of
from sp.chat.reasoning import Thinks
from sp.config import Option, check_fields
from sp.errors import ConfigError, GGUFError
from sp.gguf.template import ChatTemplate, render_chat

Mode = Literal["auto", "on", "off"]
SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates are told whether to think: that of Qwen3 and most others, and DeepSeek-V3.1's."""
EFFORT = "reasoning_effort"


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
    >>> Thinking("off").told(template)
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

    def told(self, template: ChatTemplate) -> dict[str, Any]:
        """Variables for a template: of those that stand for thinking, the ones it reads."""
        names, mode = template.names, self._mode(template)
        told: dict[str, Any] = {} if mode == "auto" else {name: mode == "on" for name in SWITCHES if name in names}
        return told | ({EFFORT: self.effort} if self.effort is not None and EFFORT in names else {})

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
        if self.effort is not None and EFFORT not in template.names and self._mode(template) == self.mode:
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
        none = self.effort == "none" and self.mode == "auto" and EFFORT not in template.names
        return "off" if none and any(name in template.names for name in SWITCHES) else self.mode


def begins(generation_prompt: str, marks: Marks) -> bool:
    r"""Whether thinking has begun where the reply begins."""
    return not marks.channels and generation_prompt.rfind(marks.start) > generation_prompt.rfind(marks.end)


def _begins(template: ChatTemplate, marks: Marks) -> bool:
    """Whether a template's own generation prompt begins to think."""
    try:
        return begins(render_chat(template, [{"role": "user", "content": "x"}]).rpartition("x")[2], marks)
    except GGUFError:
        return False
