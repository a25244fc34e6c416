"""Selectors for JSON, for lines and code, and for whichever of these and prose a part of a prompt is."""

from __future__ import annotations

from dataclasses import dataclass

from sp.chat import Segment
from sp.selection.base import register_selector
from sp.selection.pieces import TOP, Outline, Reading, View, put_lines
from sp.selection.structured import Structured


@register_selector("json")
@dataclass(frozen=True)
class Json(Structured):
    """JSON values with the keys and brackets that lead to them, so that what is kept parses; lines of other text.

    A value of at most `longest` tokens is kept or left out as a whole, of a longer one its members are.
    """

    def put(self, segment: Segment, view: View, outline: Outline) -> None:
        put_lines(view, outline, Reading(self.longest, json=True))


@register_selector("lines")
@dataclass(frozen=True)
class Lines(Structured):
    """Lines, for code and logs; the fences of a block and tags with a line each are kept with what is inside.

    Pruning of code by lines is due to SWE-Pruner (arXiv 2601.16746).
    """

    def put(self, segment: Segment, view: View, outline: Outline) -> None:
        put_lines(view, outline, Reading(self.longest))


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
