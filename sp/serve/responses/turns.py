"""Items of a Responses request, translated to the messages of a chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from sp.chat.messages import describe_value
from sp.errors import SpError
from sp.gguf import ChatTemplate, render_chat
from sp.serve.fields import MAX_NAME, RequestError, text_of

TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


@lru_cache(maxsize=8)
def shows_later(template: ChatTemplate, tools: bool) -> bool:
    """Return True if a template renders a system message after others. Many render only the first, some refuse.

    >>> shows_later(ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}"), False)
    True
    >>> shows_later(ChatTemplate("{{ messages[0].content }}"), True)
    False
    """
    roles = ("system", "user", "assistant", "system", "user")
    messages = [{"role": role, "content": f"(part {index})"} for index, role in enumerate(roles)]
    variables: dict[str, Any] = (
        {"tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}]} if tools else {}
    )
    try:
        return render_chat(template.for_tools if tools else template, messages, **variables).count("(part 3)") == 1
    except SpError:
        return False


def flat(namespace: Any, name: Any) -> Any:
    """Return the name under which the model is shown a function of a namespace. A value that is not a name is returned
    as it is, so that the check of names refuses it.

    >>> flat("mcp__files", "read"), flat(None, "read")
    ('mcp__files__read', 'read')
    """
    return f"{namespace}__{name}" if isinstance(namespace, str) and isinstance(name, str) else name


def part_of(text: str) -> dict[str, str]:
    """Return a text as a content part."""
    return {"type": "text", "text": text}


def parts_of(value: Any, where: str) -> list[dict[str, str]]:
    """Return the content parts of an item's text; RequestError for any other content."""
    if not isinstance(value, list):
        return [part_of(text_of(value, where))]
    parts = []
    for index, part in enumerate(value):
        place, kind = f"{where}[{index}]", part.get("type") if isinstance(part, dict) else None
        if kind not in TEXTS and kind != "refusal":
            raise RequestError(f"{place} is not text; the models read text only", place)
        parts.append(part_of(text_of(part.get("refusal" if kind == "refusal" else "text"), place)))
    return parts


def _joined(value: Any, where: str) -> str:
    return "\n\n".join(part["text"] for part in parts_of(value, where))


def results_of(items: list[Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the results of calls by call id, each with its place; RequestError for a second result of one call."""
    results: dict[str, tuple[str, dict[str, Any]]] = {}
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "function_call_output":
            where, name = f"input[{index}]", text_of(item.get("call_id"), f"input[{index}].call_id")
            if name in results:
                raise RequestError(f"{where}.call_id {describe_value(name)} has a result already", f"{where}.call_id")
            results[name] = (where, item)
    return results


class ItemChatBuilder:
    """Builds the messages of a chat from items.

    `places`: receives the place in the request of each message; `results`: of calls, by id; `later`: returns True if a
    system message may follow others.

    >>> builder = ItemChatBuilder({}, {"c": ("input[1]", {"output": "seen"})})
    >>> builder.add({"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}, "input[0]")
    >>> builder.end_turn()
    >>> [message["role"] for message in builder.messages]
    ['assistant', 'tool']
    """

    def __init__(
        self,
        places: dict[str, str],
        results: Mapping[str, tuple[str, dict[str, Any]]],
        later: Callable[[], bool] = lambda: True,
    ) -> None:
        self.messages: list[dict[str, Any]] = []
        self._places, self._results, self._later = places, results, later
        self._open: dict[str, Any] | None = None  # the assistant's turn that may get more parts
        self._seen = set[str]()  # ids of calls

    def add(self, item: Any, where: str) -> str | None:
        """Add an item; return a line if it was ignored. RequestError for an item that is invalid or has no meaning
        here.
        """
        kind = item.get("type", "message" if "role" in item else None) if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(kind, str):
            raise RequestError(
                f"{where} is a {describe_value(item)} without a type; send a message or another item", where
            )
        if kind == "item_reference":
            raise RequestError(
                f"{where} refers to a stored item, but the server stores none; send the item itself", where
            )
        if kind == "message":
            return self._message(item, where)
        if kind == "reasoning":
            self._reasoning(item, where)
        elif kind == "function_call":
            self._call(item, where)
        elif kind == "function_call_output":
            if item["call_id"] not in self._seen:
                place = f"{where}.call_id"
                raise RequestError(
                    f"{place} {describe_value(item['call_id'])} matches no function_call before it", place
                )
            self.end_turn()
        else:
            return f"{where}: items of type {kind[:MAX_NAME]} are not shown to the model"
        return None

    def add_system(self, parts: list[dict[str, str]], where: str) -> str | None:
        """Add text of a system message. What comes before all other messages is merged into one, since most templates
        render no second. With such a template, later text becomes a message of the user; returns a line that says so.
        """
        self.end_turn()
        if not self.messages:
            self._add({"role": "system", "content": list(parts)}, where)
        elif len(self.messages) == 1 and self.messages[0]["role"] == "system":
            self.messages[0]["content"] += parts
        elif self._later():
            self._add({"role": "system", "content": parts}, where)
        else:
            self._add({"role": "user", "content": parts}, where)
            return f"{where}.role: shown as the user's, as the chat template shows no later system message"
        return None

    def end_turn(self) -> None:
        """End the assistant's turn: add it and the results of its calls to the messages."""
        turn, self._open = self._open, None
        if turn is None:
            return
        index, calls = len(self.messages), turn.pop("calls")
        places = [place for _, place in calls]
        if calls:
            turn["tool_calls"] = [call for call, _ in calls]
        self._add(turn, turn.pop("where"))
        for number, place in enumerate(places):
            self._places[f"messages[{index}].tool_calls[{number}]"] = place
        for (call, _), place in zip(calls, places, strict=True):
            name = call["id"]
            if name not in self._results:
                raise RequestError(
                    f"{place}: no function_call_output answers {describe_value(name)}; send its result", place
                )
            there, item = self._results[name]
            text = _joined(item.get("output"), f"{there}.output")
            self._add({"role": "tool", "tool_call_id": name, "content": text}, there)

    def _add(self, message: dict[str, Any], where: str) -> None:
        self._places[f"messages[{len(self.messages)}]"] = where
        self.messages.append(message)

    def _message(self, item: dict[str, Any], where: str) -> str | None:
        role, content = item.get("role"), item.get("content")
        parts = parts_of(content, f"{where}.content")
        if role == "assistant":
            turn = self._assistant(where, "content")
            turn["content"] = parts
            if not parts:  # an empty message, as before a call
                turn["content"] = None
                if turn["reasoning_content"] is None:
                    self._open = None
            return None
        self.end_turn()
        if role in ("system", "developer"):
            return self.add_system(parts, where) if parts else None
        if parts or role != "user":
            self._add({"role": role, "content": content if isinstance(content, str) else parts}, where)
        return None

    def _reasoning(self, item: dict[str, Any], where: str) -> None:
        thought = next((name for name in ("content", "summary") if item.get(name)), None)
        if thought is not None:
            turn, text = self._assistant(where, "reasoning_content"), _joined(item[thought], f"{where}.{thought}")
            turn["reasoning_content"] = text

    def _call(self, item: dict[str, Any], where: str) -> None:
        name = text_of(item.get("call_id"), f"{where}.call_id")
        if name in self._seen:
            raise RequestError(
                f"{where}.call_id {describe_value(name)} appears twice; give each call its own", f"{where}.call_id"
            )
        self._seen.add(name)
        function = {"name": flat(item.get("namespace"), item.get("name")), "arguments": item.get("arguments")}
        turn = self._open or self._assistant(where, "content")
        turn["calls"].append(({"id": name, "type": "function", "function": function}, where))

    def _assistant(self, where: str, name: str) -> dict[str, Any]:
        """Return the turn that gets a part with this name: the open one if it has no such part yet, else a new one."""
        turn = self._open
        if turn is None or turn["calls"] or turn["content"] is not None or turn[name] is not None:
            self.end_turn()
            turn = {"role": "assistant", "content": None, "reasoning_content": None, "calls": [], "where": where}
            self._open = turn
        return turn
