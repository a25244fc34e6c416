"""The ranges of a rendered conversation that describe tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sp.errors import GGUFError
from sp.gguf.template import ChatTemplate, render_chat


def tool_places(
    template: ChatTemplate,
    text: str,
    occupied: Sequence[tuple[int, int]],
    messages: list[dict[str, Any]],
    variables: Mapping[str, Any],
) -> tuple[tuple[int, int], ...]:
    """Return the ranges in which a rendered text describes tools: text that is absent without them, and names one.

    Parameters
    ----------
    template : ChatTemplate
    text : str
        Rendered with the tools.
    occupied : sequence of (int, int)
        Character ranges of messages in it, ascending.
    messages : list of dict
        The messages as the template took them.
    variables : mapping
        The other variables of the template; the schemas under `tools`.

    Returns
    -------
    tuple of (int, int)
        Character ranges, ascending, outside of messages; empty if the template renders no tool, or fails without tools.

    Examples
    --------
    >>> template = ChatTemplate("[{% for t in tools %}{{ t | tojson }}{% endfor %}][{{ messages[0].content }}]")
    >>> variables, messages = {"tools": [{"name": "grep"}]}, [{"role": "user", "content": "hi"}]
    >>> text = render_chat(template, messages, **variables)
    >>> [text[start:end] for start, end in tool_places(template, text, [(19, 21)], messages, variables)]
    ['{"name": "grep"}']
    """
    names = [_name(tool) for tool in variables.get("tools") or ()]
    if not any(names):
        return ()
    try:
        without = render_chat(template, messages, **{key: value for key, value in variables.items() if key != "tools"})
    except GGUFError:
        return ()
    # The inserted text lies between the longest common prefix and suffix of both renderings.
    start = _shared(text, without)
    end = len(text) - _shared(text[start:][::-1], without[start:][::-1])
    edges = [0, *(edge for message in occupied for edge in message), len(text)]
    gaps = zip(edges[::2], edges[1::2], strict=True)  # text between messages
    pieces = [(low, max(start, low), min(end, high)) for low, high in gaps]
    slid = [_slid(text, *piece) for piece in pieces if piece[1] < piece[2]]
    return tuple((low, high) for low, high in slid if any(name in text[low:high] for name in names if name))


def _name(tool: Any) -> str:
    """Return a tool's name from its schema: in its `function`, or at the top level."""
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    name = inner.get("name", "") if isinstance(inner, Mapping) else ""
    return name if isinstance(name, str) else ""


def _shared(first: str, second: str) -> int:
    """Return the length of the common prefix of two texts."""
    # Binary search with slices, which Python compares faster than characters.
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    return low


def _slid(text: str, least: int, start: int, end: int) -> tuple[int, int]:
    """Return an inserted range moved left to where it begins with a bracket, if the text reads the same there."""
    low, high = start, end
    while text[low] not in "<[{" and low > least and text[low - 1] == text[high - 1]:
        low, high = low - 1, high - 1
    return (low, high) if text[low] in "<[{" else (start, end)
