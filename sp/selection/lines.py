"""Keep the best whole lines until the budget is spent."""

from __future__ import annotations

from dataclasses import dataclass

from sp.chat import Segment
from sp.selection.base import register_selector
from sp.selection.structured.line_pieces import Reading, put_lines
from sp.selection.structured.outline import Outline
from sp.selection.structured.structured import Structured
from sp.selection.structured.view import View


@register_selector("lines")
@dataclass(frozen=True)
class Lines(Structured):
    """Lines, for code and logs; the fences of a block and tags with a line each are kept with what is inside.

    Pruning of code by lines is due to SWE-Pruner (arXiv 2601.16746).
    """

    def put(self, segment: Segment, view: View, outline: Outline) -> None:
        put_lines(view, outline, Reading(self.longest))
