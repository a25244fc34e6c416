"""Kept text of a run for a terminal: kinds of tokens in colour, gaps as their lengths."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from sp.errors import printable
from sp.prompt.heat import KINDS, edges, kinds, text_of
from sp.session import RunResult

STYLES = {"kept": "", "question": "cyan", "needle": "bold green", "lost needle": "bold red"}


def runs(result: RunResult) -> Iterator[tuple[str, int, int]]:
    """Iterate over runs of consecutive tokens of one kind, as (kind, first token, end token)."""
    kinds_of_tokens = kinds(result.prompt, None if result.selection is None else result.selection.selected)
    for start, end in edges(kinds_of_tokens):
        yield KINDS[kinds_of_tokens[start]], start, end


def piece(result: RunResult, start: int, end: int) -> str:
    """Return the text of tokens [start, end); bytes of incomplete characters are U+FFFD."""
    return text_of(result.prompt.prompt.text.encode(), result.prompt.bytes, start, end)


def as_text(result: RunResult, limit: int | None = 1600) -> Text:
    """Return kept text for a terminal, with gaps replaced by their lengths, and cut after `limit` characters.

    The question, the needle and the runs of tokens next to it are always shown in full.
    """
    parts = list(runs(result))
    excerpt = Text()
    letters = 0
    for index, (kind, start, end) in enumerate(parts):
        near_needle = any(other[0].endswith("needle") for other in parts[max(0, index - 1) : index + 2])
        if kind == "dropped":
            excerpt.append(f" […{end - start:,} tokens…] ", style="dim")
        elif limit is None or letters < limit or near_needle or kind == "question":
            text = printable(piece(result, start, end))
            letters += len(text)
            # Colour alone would not show that a needle is missing, and a pipe has none.
            excerpt.append(f"[left out: {text}]" if kind == "lost needle" else text, style=STYLES[kind])
        else:
            excerpt.append(f" [{end - start:,} kept tokens not shown] ", style="dim")
    return excerpt
