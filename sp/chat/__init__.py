"""How a chat template renders a conversation: where messages lie in its text, how thinking is asked for and marked."""

from sp.chat.located import Located, render_located, spells_markup
from sp.chat.marks import MARKS, Marks, marks_of
from sp.chat.masked import Copy, HiddenMessageError
from sp.chat.reasoning import Split, Splitter, Thinks, split_reply
from sp.chat.thinking import Thinking
from sp.chat.turn import Call, Turn

__all__ = [
    "MARKS",
    "Call",
    "Copy",
    "HiddenMessageError",
    "Located",
    "Marks",
    "Split",
    "Splitter",
    "Thinking",
    "Thinks",
    "Turn",
    "marks_of",
    "render_located",
    "spells_markup",
    "split_reply",
]
