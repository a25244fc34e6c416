"""The prompt with what was kept made visible: an excerpt for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from sp.errors import printable
from sp.prompt.heat import KINDS, edges, kinds, text_of
from sp.session import RunResult

STYLES = {"kept": "", "question": "cyan", "needle": "bold green", "lost needle": "bold red"}


def runs(result: RunResult) -> Iterator[tuple[str, int, int]]:
    """Consecutive tokens of one kind as (kind, first token, end token)."""
    found = kinds(result.prompt, None if result.selection is None else result.selection.kept)
    for start, end in edges(found):
        yield KINDS[found[start]], start, end


def piece(result: RunResult, start: int, end: int) -> str:
    """Text of tokens [start, end); bytes cut off from their character are shown as U+FFFD."""
    return text_of(result.prompt.prompt.text.encode(), result.prompt.bytes, start, end)


def as_text(result: RunResult, limit: int | None = 1600) -> Text:
    """Kept text for a terminal, gaps replaced by their length; cut after `limit` characters around the needle.

    Pieces next to the needle are always shown whole, so the excerpt shows what matters most.
    """
    parts = list(runs(result))
    shown = Text()
    spent = 0
    for at, (kind, start, end) in enumerate(parts):
        near = any(other[0].endswith("needle") for other in parts[max(0, at - 1) : at + 2])
        if kind == "dropped":
            shown.append(f" […{end - start:,} tokens…] ", style="dim")
        elif limit is None or spent < limit or near or kind == "question":
            text = printable(piece(result, start, end))
            spent += len(text)
            shown.append(text, style=STYLES[kind])
        else:
            shown.append(f" [{end - start:,} kept tokens not shown] ", style="dim")
    return shown
