"""Where a chat template shows the schemas of tools that it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sp.errors import GGUFError
from sp.gguf.template import ChatTemplate, render_chat


def tool_places(
    template: ChatTemplate,
    text: str,
    said: Sequence[tuple[int, int]],
    messages: list[dict[str, Any]],
    variables: Mapping[str, Any],
) -> tuple[tuple[int, int], ...]:
    """Where a rendered text tells of tools: what it has more than without them, and names one of them.

    `text`: rendered with the tools; `said`, sequence of (int, int): characters of it that messages say, ascending;
    `messages`: as the template took them; `variables`: what else it was told; the schemas under `tools`.

    Returns
    -------
    tuple of (int, int)
        Characters, ascending, and none of a message among them; empty if the template shows no tool, or refuses to
        render without.

    Examples
    --------
    >>> template = ChatTemplate("[{% for t in tools %}{{ t | tojson }}{% endfor %}][{{ messages[0].content }}]")
    >>> told, messages = {"tools": [{"name": "grep"}]}, [{"role": "user", "content": "hi"}]
    >>> text = render_chat(template, messages, **told)
    >>> [text[start:end] for start, end in tool_places(template, text, [(19, 21)], messages, told)]
    ['{"name": "grep"}']
    """
    names = [_name(tool) for tool in variables.get("tools") or ()]
    if not any(names):
        return ()
    try:
        without = render_chat(template, messages, **{key: value for key, value in variables.items() if key != "tools"})
    except GGUFError:
        return ()
    start = _shared(text, without)
    end = len(text) - _shared(text[start:][::-1], without[start:][::-1])
    edges = [0, *(place for one in said for place in one), len(text)]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    pieces = [(low, max(start, low), min(end, high)) for low, high in gaps]
    slid = [_slid(text, *piece) for piece in pieces if piece[1] < piece[2]]
    return tuple((low, high) for low, high in slid if any(name in text[low:high] for name in names if name))


def _name(tool: Any) -> str:
    """A tool's name, as schemas have it: in its `function`, or beside."""
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    name = inner.get("name", "") if isinstance(inner, Mapping) else ""
    return name if isinstance(name, str) else ""


def _shared(one: str, other: str) -> int:
    """Characters that two texts begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _slid(text: str, least: int, start: int, end: int) -> tuple[int, int]:
    """An inserted range where it begins with a bracket, if it reads the same so far to the left."""
    low, high = start, end
    while text[low] not in "<[{" and low > least and text[low - 1] == text[high - 1]:
        low, high = low - 1, high - 1
    return (low, high) if text[low] in "<[{" else (start, end)
