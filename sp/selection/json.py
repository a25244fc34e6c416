"""Keep the best whole JSON values until the budget is spent, and whole lines of what is none."""

from __future__ import annotations

from dataclasses import dataclass

from sp.chat import Segment
from sp.selection.base import register_selector
from sp.selection.structured.line_pieces import Reading, put_lines
from sp.selection.structured.outline import Outline
from sp.selection.structured.structured import Structured
from sp.selection.structured.view import View


@register_selector("json")
@dataclass(frozen=True)
class Json(Structured):
    """JSON values with the keys and brackets that lead to them, so that what is kept parses; lines of other text.

    A value of at most `longest` tokens is kept or left out as a whole, of a longer one its members are.
    """

    def put(self, segment: Segment, view: View, outline: Outline) -> None:
        put_lines(view, outline, Reading(self.longest, json=True))
