"""What of a prompt's text the target had, for a client that asks: pieces of one kind, in order, all of the text."""

from __future__ import annotations

from typing import Any

from sp.prompt.pieces import KINDS, edges, kinds
from sp.prompt.whole import whole_characters
from sp.session import RunResult, TurnResult


def kept_text(result: RunResult | TurnResult) -> list[dict[str, Any]]:
    """Pieces of the rendered prompt, chat markup included.

    Returns
    -------
    list of dict
        ``kind`` (``kept``, ``question``, both of which were read, or ``dropped``), ``text``, together all of it, and
        ``tokens``, how many that is.
    """
    run = None if isinstance(result, TurnResult) else result.selection
    kept = result.present if isinstance(result, TurnResult) else None if run is None else run.kept
    prompt, raw = result.prompt, result.prompt.prompt.text.encode()
    found = kinds(prompt, kept)[whole_characters(prompt)]
    pieces = []
    for start, end in edges(found):
        text = raw[prompt.bytes[start, 0] : prompt.bytes[end - 1, 1]].decode(errors="replace")
        pieces.append({"kind": KINDS[found[start]], "text": text, "tokens": end - start})
    return pieces
