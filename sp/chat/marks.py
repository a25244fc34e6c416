"""How models mark their thinking, by what their chat templates write: one row a way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sp.gguf.template import ChatTemplate


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
    closing : str
        What ends a thinking that the template itself began, as templates write it that can switch thinking off.
    """

    start: str
    end: str
    sign: str
    history: Literal["reasoning_content", "thinking", "blocks"] = "reasoning_content"
    channels: bool = False
    closing: str = ""

    @property
    def tokens(self) -> tuple[str, ...]:
        """Special tokens that belong to the marks, and are no text."""
        return ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>") if self.channels else (
            self.start,
            self.end,
        )  # fmt: skip


MARKS = (
    Marks("<|channel|>analysis<|message|>", "<|end|>", "<|channel|>analysis<|message|>", "thinking", channels=True),
    Marks("[THINK]", "[/THINK]", "[/THINK]", "blocks", closing="[/THINK]"),
    Marks("<think>", "</think>", "</think>", closing="\n</think>\n\n"),
)
"""gpt-oss; Mistral's reasoning models; Qwen3, Qwen3.5, QwQ, SmolLM3, GLM-4.7, DeepSeek-R1 and its distills."""


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
