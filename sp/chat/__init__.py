"""Chat templates: rendering of conversations, location of messages in the text, thinking and calls of tools."""

from sp.chat.located import (
    Copy,
    HiddenMessageError,
    Located,
    Segment,
    SegmentKind,
    render_located,
    segments_of,
    spells_markup,
)
from sp.chat.reasoning import MARKS, Marks, Split, Splitter, Thinking, Thinks, marks_of, split_reply
from sp.chat.turn import Call, Turn

__all__ = [
    "MARKS", "Call", "Copy", "HiddenMessageError", "Located", "Marks", "Segment", "SegmentKind", "Split", "Splitter",
    "Thinking", "Thinks", "Turn", "marks_of", "render_located", "segments_of", "spells_markup", "split_reply",
]  # fmt: skip
