"""Locate the texts of a request: chat completions, Responses and Anthropic's Messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

from sp.chat.located import SegmentKind
from sp.front.json_text import Path

Api = Literal["chat", "responses", "messages"]
PATHS: dict[str, Api] = {"chat/completions": "chat", "responses": "responses", "messages": "messages"}
"""Ends of the paths whose requests may be shortened."""
TEXTS = ("text", "input_text", "output_text")  # types of parts that are text
SURROGATE = re.compile("[\ud800-\udfff]")
ROLES: dict[str, SegmentKind] = {"user": "user", "assistant": "assistant", "tool": "tool"}
PICTURES = (
    "image_url", "image", "input_image", "input_audio", "input_file", "file", "computer_screenshot",
    "image_generation_call",
)  # fmt: skip
"""Types of parts and items that hold other media."""
DOCUMENTS = {"text": "data", "content": "content"}
"""Fields with the text of a document, by the types of its source; other sources are files."""
PICTURE_TOKENS = 1600  # that a picture is assumed to cost, as the largest of hosted APIs do
IN_PROMPT = ("system", "instructions", "tools", "functions", "messages", "input")
"""Fields of a body that become a part of the prompt."""
STORED = ("previous_response_id", "conversation", "prompt")
"""Fields that name text which the upstream server stores."""


@dataclass(frozen=True)
class TextPlace:
    """A text of a request and where it stands.

    Attributes
    ----------
    path : tuple
        Keys and indices that lead to it in the body.
    kind : str
        Role of its author.
    text : str
    message : int
        Index of its message.
    fixed : bool
        True for text that must stay as it is: system text, and blocks that the client marked for a cache.
    newest : bool
        True for text of the turn that no assistant has answered yet.
    document : bool
        True for text that the API names a document, so that it holds no question.
    """

    path: Path
    kind: SegmentKind
    text: str
    message: int
    fixed: bool = False
    newest: bool = False
    document: bool = False


def api_of(path: str) -> Api | None:
    """Return the API that a request's path belongs to; None for paths whose requests pass unchanged.

    >>> api_of("/v1/chat/completions"), api_of("/v1/embeddings")
    ('chat', None)
    """
    return next((api for end, api in PATHS.items() if path.rstrip("/").endswith("/" + end)), None)


def text_places(api: Api, body: Mapping[str, Any]) -> list[TextPlace]:
    """Locate all texts of a request, in order.

    Values of another shape than the API's are skipped, as the upstream server reports them; so are texts with half a
    surrogate pair, which no tokenizer reads.

    Examples
    --------
    >>> body = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}
    >>> [(place.path, place.newest) for place in text_places("chat", body)]
    [(('messages', 0, 'content'), False), (('messages', 1, 'content'), False)]
    """
    places = [place for place in _READERS[api](body) if not SURROGATE.search(place.text)]
    answered = max((place.message for place in places if place.kind == "assistant"), default=-1)
    answered = max(answered, _last_call(api, body))
    return [replace(place, newest=place.message > answered) for place in places]


def with_texts(
    body: Mapping[str, Any], texts: Mapping[Path, str], inserted: Mapping[Path, Any] | None = None
) -> dict[str, Any]:
    """Copy a body with other texts at some paths, and with items inserted in front of some, whose paths are in order;
    everything else is shared with the original.

    >>> with_texts({"messages": [{"content": "long"}], "n": 1}, {("messages", 0, "content"): "short"})
    {'messages': [{'content': 'short'}], 'n': 1}
    """
    root: Any = copy(body)
    copies: dict[Path, Any] = {(): root}

    def container(path: Path) -> Any:
        for depth in range(1, len(path)):
            if path[:depth] not in copies:
                parent = copies[path[: depth - 1]]
                parent[path[depth - 1]] = copies[path[:depth]] = copy(parent[path[depth - 1]])
        return copies[path[:-1]]

    for path, text in texts.items():
        container(path)[path[-1]] = text
    for path, item in reversed(list((inserted or {}).items())):  # from the last one, so that indices stay
        container(path).insert(path[-1], item)
    return dict(root)


@dataclass(frozen=True)
class Frame:
    """The rest of a prompt, besides its `text_places`. `parts`: tools, calls, ids and keys, as JSON, which takes more
    tokens than chat markup; `pictures`: number of pictures, sounds and files; `is_whole`: False if the upstream server
    adds text of unknown length, such as an earlier response or results of its own tools.
    """

    parts: tuple[str, ...]
    pictures: int
    is_whole: bool = True


def frame_of(body: Mapping[str, Any], places: Iterable[TextPlace]) -> Frame:
    """Collect what an upstream server reads of a request besides its texts.

    >>> frame_of({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}, [])
    Frame(parts=('{"role": "user", "content": "Hi"}',), pictures=0, is_whole=True)
    """
    pictures = 0

    def without_pictures(value: Any) -> Any:
        nonlocal pictures
        if isinstance(value, list):
            return [without_pictures(item) for item in value]
        if not isinstance(value, dict):
            return value
        kind, source = value.get("type"), value.get("source")
        is_file = kind == "document" and isinstance(source, dict) and str(source.get("type")) not in DOCUMENTS
        if is_file or kind in PICTURES:
            pictures += 1
            return None
        return {name: without_pictures(item) for name, item in value.items()}

    rest = with_texts({name: body[name] for name in IN_PROMPT if name in body}, {place.path: "" for place in places})
    # Item by item, so that the lengths of what earlier requests had as well need no second count.
    items = [item for value in rest.values() for item in (value if isinstance(value, list) else [value])]
    parts = tuple(json.dumps(without_pictures(item)) for item in items)
    refers = any(item.get("type") == "item_reference" for _, item in _objects(body, "input"))
    # Tools with a type of their own may run on the server.
    has_own_tools = any(tool.get("type") not in (None, "function", "custom") for _, tool in _objects(body, "tools"))
    adds_text = refers or has_own_tools or any(body.get(name) is not None for name in STORED)
    return Frame(parts, pictures, not adds_text)


def _parts(content: Any, path: Path, kind: SegmentKind, message: int, fixed: bool = False) -> Iterator[TextPlace]:
    """Locate the texts of a message's content: a string, or parts."""
    if isinstance(content, str):
        yield TextPlace(path, kind, content, message, fixed)
        return
    for index, part in enumerate(content if isinstance(content, list) else []):
        if not isinstance(part, dict):
            continue
        part_path, is_fixed = (*path, index), fixed or part.get("cache_control") is not None
        if part.get("type") in TEXTS and isinstance(part.get("text"), str):
            yield TextPlace((*part_path, "text"), kind, part["text"], message, is_fixed)
        elif part.get("type") == "tool_result" and kind != "tool":  # no API nests results
            yield from _parts(part.get("content"), (*part_path, "content"), "tool", message, is_fixed)
        elif part.get("type") == "document":
            source, citations = part.get("source"), part.get("citations")
            # Citations count the characters or blocks of a document, which must be those that the client has.
            is_fixed |= isinstance(citations, dict) and bool(citations.get("enabled"))
            name = DOCUMENTS.get(str(source.get("type"))) if isinstance(source, dict) else None
            if isinstance(source, dict) and name:
                inner = _parts(source.get(name), (*part_path, "source", name), kind, message, is_fixed)
                yield from (replace(place, document=True) for place in inner)


def _objects(body: Mapping[str, Any], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a list with their indices."""
    value = body.get(name)
    for index, item in enumerate(value if isinstance(value, list) else []):
        if isinstance(item, dict):
            yield index, item


def _messages(body: Mapping[str, Any]) -> Iterator[TextPlace]:
    for index, message in _objects(body, "messages"):
        kind = ROLES.get(str(message.get("role")), "system")
        is_fixed = kind == "system" or message.get("cache_control") is not None
        yield from _parts(message.get("content"), ("messages", index, "content"), kind, index, is_fixed)


def _responses(body: Mapping[str, Any]) -> Iterator[TextPlace]:
    if isinstance(text := body.get("input"), str):
        yield TextPlace(("input",), "user", text, 0)
    for index, item in _objects(body, "input"):
        kind = item.get("type", "message")
        if kind == "message":
            role = ROLES.get(str(item.get("role")), "system")
            yield from _parts(item.get("content"), ("input", index, "content"), role, index, role == "system")
        elif isinstance(kind, str) and kind.endswith("_call_output"):
            path: Path = ("input", index, "output")
            yield from _parts(item.get("output"), path, "tool", index)
            for number, output in _objects(item, "output"):
                for name in ("stdout", "stderr"):  # of a shell
                    if isinstance(output.get(name), str):
                        yield TextPlace((*path, number, name), "tool", output[name], index)


def _last_call(api: Api, body: Mapping[str, Any]) -> int:
    """Return the index of the last message of an assistant, also of one that has calls alone; -1 without one."""
    if api == "responses":
        indices = [
            index
            for index, item in _objects(body, "input")
            if item.get("role") == "assistant" or str(item.get("type")).endswith("_call")
        ]
    else:
        indices = [index for index, message in _objects(body, "messages") if message.get("role") == "assistant"]
    return max(indices, default=-1)


_READERS: dict[Api, Callable[[Mapping[str, Any]], Iterator[TextPlace]]] = {
    "chat": _messages,
    "responses": _responses,
    "messages": _messages,
}
