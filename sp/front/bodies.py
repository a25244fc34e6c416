"""Where the texts of a request stand: chat completions, responses and Anthropic's messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

from sp.chat.located import SegmentKind

Api = Literal["chat", "responses", "messages"]
PATHS: dict[str, Api] = {"chat/completions": "chat", "responses": "responses", "messages": "messages"}
"""Ends of the paths whose requests may be shortened."""
TEXTS = ("text", "input_text", "output_text")  # types of parts that are text
ROLES: dict[str, SegmentKind] = {"user": "user", "assistant": "assistant", "tool": "tool"}
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """A text of a request.

    Attributes
    ----------
    path : tuple
        Keys and indices that lead to it in the body.
    kind : str
        Whose it is.
    text : str
    message : int
        Which message it belongs to.
    fixed : bool
        Whether it must stay as it is: system text, and what the client marked for a cache.
    newest : bool
        Whether it is of the turn that no assistant has answered yet.
    """

    path: Path
    kind: SegmentKind
    text: str
    message: int
    fixed: bool = False
    newest: bool = False


def api_of(path: str) -> Api | None:
    """The API that a path of a request belongs to; None where nothing is shortened.

    >>> api_of("/v1/chat/completions"), api_of("/v1/embeddings")
    ('chat', None)
    """
    return next((api for end, api in PATHS.items() if path.rstrip("/").endswith("/" + end)), None)


def places(api: Api, body: Mapping[str, Any]) -> list[Place]:
    """All texts of a request in their order. What has another shape than the API's is no text of it: the upstream
    server says what is wrong with it.

    Examples
    --------
    >>> body = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}
    >>> [(place.path, place.newest) for place in places("chat", body)]
    [(('messages', 0, 'content'), False), (('messages', 1, 'content'), False)]
    """
    found = list(_READERS[api](body))
    answered = max((place.message for place in found if place.kind == "assistant"), default=-1)
    answered = max(answered, _last_call(api, body))
    return [replace(place, newest=place.message > answered) for place in found]


def with_texts(body: Mapping[str, Any], texts: Mapping[Path, str]) -> dict[str, Any]:
    """A copy of a body with other texts at some paths; all else is the same objects.

    >>> with_texts({"messages": [{"content": "long"}], "n": 1}, {("messages", 0, "content"): "short"})
    {'messages': [{'content': 'short'}], 'n': 1}
    """
    made: Any = copy(body)
    own: dict[Path, Any] = {(): made}
    for path, text in texts.items():
        for depth in range(1, len(path)):
            if path[:depth] not in own:
                above = own[path[: depth - 1]]
                above[path[depth - 1]] = own[path[:depth]] = copy(above[path[depth - 1]])
        own[path[:-1]][path[-1]] = text
    return dict(made)


def _parts(content: Any, path: Path, kind: SegmentKind, message: int, fixed: bool = False) -> Iterator[Place]:
    """The texts of a message's content: a string, or parts."""
    if isinstance(content, str):
        yield Place(path, kind, content, message, fixed)
        return
    for index, part in enumerate(content if isinstance(content, list) else []):
        if not isinstance(part, dict):
            continue
        at, stays = (*path, index), fixed or "cache_control" in part
        if part.get("type") in TEXTS and isinstance(part.get("text"), str):
            yield Place((*at, "text"), kind, part["text"], message, stays)
        elif part.get("type") == "tool_result":
            yield from _parts(part.get("content"), (*at, "content"), "tool", message, stays)
        elif part.get("type") == "document":
            source = part.get("source")
            if isinstance(source, dict) and source.get("type") == "text" and isinstance(source.get("data"), str):
                yield Place((*at, "source", "data"), kind, source["data"], message, stays)


def _listed(body: Mapping[str, Any], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a list, with their indices."""
    value = body.get(name)
    for index, item in enumerate(value if isinstance(value, list) else []):
        if isinstance(item, dict):
            yield index, item


def _messages(body: Mapping[str, Any]) -> Iterator[Place]:
    for index, message in _listed(body, "messages"):
        kind = ROLES.get(str(message.get("role")), "system")
        stays = kind == "system" or "cache_control" in message
        yield from _parts(message.get("content"), ("messages", index, "content"), kind, index, stays)


def _responses(body: Mapping[str, Any]) -> Iterator[Place]:
    if isinstance(text := body.get("input"), str):
        yield Place(("input",), "user", text, 0)
    for index, item in _listed(body, "input"):
        kind = item.get("type", "message")
        if kind == "message":
            role = ROLES.get(str(item.get("role")), "system")
            yield from _parts(item.get("content"), ("input", index, "content"), role, index, role == "system")
        elif kind in ("function_call_output", "custom_tool_call_output", "local_shell_call_output"):
            yield from _parts(item.get("output"), ("input", index, "output"), "tool", index)


def _last_call(api: Api, body: Mapping[str, Any]) -> int:
    """The last message in which an assistant speaks, though it be in calls alone."""
    if api == "responses":
        said = [
            index
            for index, item in _listed(body, "input")
            if item.get("role") == "assistant" or str(item.get("type")).endswith("_call")
        ]
    else:
        said = [index for index, message in _listed(body, "messages") if message.get("role") == "assistant"]
    return max(said, default=-1)


_READERS: dict[Api, Callable[[Mapping[str, Any]], Iterator[Place]]] = {
    "chat": _messages,
    "responses": _responses,
    "messages": _messages,
}
