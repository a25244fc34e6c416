"""The prompt with what was kept made visible: an excerpt for the terminal, the whole of it as HTML."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from rich.text import Text

from sp.pipeline import RunResult
from sp.prompt.pieces import KINDS, edges, kinds, text_of

STYLES = {"kept": "", "question": "cyan", "needle": "bold green", "lost needle": "bold red"}

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Kept text</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root {{ color-scheme: light dark; --ink: #1b1e23; --paper: #ffffff; --dropped: #767676; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6e9ed; --paper: #14171b; --dropped: #868e96; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 1.5rem auto; padding: 0 1rem; color: var(--ink);
  background: var(--paper); }}
h1 {{ font-size: 1.5rem; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.5 ui-monospace, monospace; color: var(--dropped); }}
.kept {{ color: #111; background: #fff3bf; }} .question {{ color: #111; background: #c5f6fa; }}
.needle {{ color: #111; background: #b2f2bb; font-weight: bold; }}
.lost {{ color: #111; background: #ffc9c9; font-weight: bold; }}
</style></head><body>
<h1>Kept {kept:,} of {total:,} tokens ({share:.1f} %)</h1>
<p><span class="kept">kept</span> <span class="question">question</span> <span class="needle">needle, kept</span>
<span class="lost">needle, dropped</span> and dropped text in grey.</p>
<pre>{body}</pre></body></html>
"""


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
            text = piece(result, start, end)
            spent += len(text)
            shown.append(text, style=STYLES[kind])
        else:
            shown.append(f" [{end - start:,} kept tokens not shown] ", style="dim")
    return shown


def as_html(result: RunResult) -> str:
    """The whole prompt as a page, dropped text in grey."""
    body = "".join(
        escape(piece(result, start, end))
        if kind == "dropped"
        else f'<span class="{kind.split()[0]}">{escape(piece(result, start, end))}</span>'
        for kind, start, end in runs(result)
    )
    total = len(result.prompt)
    return PAGE.format(kept=result.kept_tokens, total=total, share=100 * result.kept_tokens / total, body=body)
