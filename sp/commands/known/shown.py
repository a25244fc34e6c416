"""Lists of what can be named: for a terminal, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill

from sp.commands.known.kinds import Item
from sp.plugins import BUILT_IN


def as_text(found: Sequence[Item], width: int, each: bool) -> str:
    """Names with what they are and their options, with `each` one option after the other.

    No line is longer than `width`, unless a file's path is.
    """
    return "\n".join(line for item in found for line in _lines(item, width, each))


def _lines(item: Item, width: int, each: bool) -> Iterator[str]:
    head = item.name if item.source == BUILT_IN else f"{item.name}  (from {item.source})"
    yield from [head] if len(head) <= width else [item.name, f"  from {item.source}"]
    yield _filled(item.told, width, 2)
    if not each and item.fields:
        yield _filled(" ".join(field.shown for field in item.fields), width, 4)
    for field in item.fields if each else ():
        yield f"\n  {field.shown}"
        yield _filled(field.type, width, 4)
        if field.told:
            yield _filled(field.told, width, 4)
    if each:
        yield ""


def as_page(title: str, command: str, found: Sequence[Item]) -> str:
    """The same as Markdown, a section an item and a row an option."""
    parts = [f"# {title}\n\nWritten by `{command}`.\n"]
    for item in found:
        source = "" if item.source == BUILT_IN else f" From `{item.source}`."
        parts.append(f"\n## {item.name}\n\n{item.told}{source}\n")
        if item.fields:
            parts.append("\n| name | default | type | |\n|---|---|---|---|\n")
        for field in item.fields:
            default = "" if field.default is None else f"`{field.default}`"
            parts.append(f"| `{field.name}` | {default} | {_cell(field.type)} | {_cell(field.told)} |\n")
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _filled(text: str, width: int, indent: int) -> str:
    space = " " * indent
    return fill(text, width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)
