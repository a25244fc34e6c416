"""Keep what is best of each message by its own structure, until the budget is spent."""

from __future__ import annotations

from dataclasses import dataclass

from sp.chat import Segment
from sp.selection.base import register_selector
from sp.selection.structured.line_pieces import Reading, put_lines
from sp.selection.structured.outline import TOP, Outline
from sp.selection.structured.structured import Structured
from sp.selection.structured.view import View


@register_selector("segments")
@dataclass(frozen=True)
class Segments(Structured):
    """JSON by values, code and logs by lines, prose by paragraphs or sentences, results of tools whole where short.

    What a text is, is seen paragraph by paragraph; JSON wherever it stands. A paragraph of prose or a result of a tool
    of at most `longest` tokens is one unit. Sentences of more tokens are cut into equal parts.
    """

    def put(self, segment: Segment, view: View, outline: Outline) -> None:
        if segment.kind == "tool" and view.tokens(0, len(view.text)) <= self.longest:
            outline.put(segment.start, outline.node(TOP))
        else:
            put_lines(view, outline, Reading(self.longest, json=True, prose=True))
