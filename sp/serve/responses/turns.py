"""Items of a Responses request on their way to the messages of a chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from sp.errors import SpError
from sp.gguf import ChatTemplate, render_chat
from sp.serve.fields import MAX_NAME, RequestError, shown, text_of

TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


@lru_cache(maxsize=8)
def shows_later(template: ChatTemplate, tools: bool) -> bool:
    """Whether a template shows a system message behind others; many show the first alone, some refuse.

    >>> shows_later(ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}"), False)
    True
    >>> shows_later(ChatTemplate("{{ messages[0].content }}"), True)
    False
    """
    roles = ("system", "user", "assistant", "system", "user")
    messages = [{"role": role, "content": f"(part {index})"} for index, role in enumerate(roles)]
    given: dict[str, Any] = (
        {"tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}]} if tools else {}
    )
    try:
        return render_chat(template.for_tools if tools else template, messages, **given).count("(part 3)") == 1
    except SpError:
        return False


def flat(namespace: Any, name: Any) -> Any:
    """The name by which the model is shown a function of a namespace; what is no name is told by whoever reads it.

    >>> flat("mcp__files", "read"), flat(None, "read")
    ('mcp__files__read', 'read')
    """
    return f"{namespace}__{name}" if isinstance(namespace, str) and isinstance(name, str) else name


def part_of(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def parts_of(given: Any, where: str) -> list[dict[str, str]]:
    """The text of an item, in parts; RequestError for what is none."""
    if not isinstance(given, list):
        return [part_of(text_of(given, where))]
    found = []
    for index, part in enumerate(given):
        place, kind = f"{where}[{index}]", part.get("type") if isinstance(part, dict) else None
        if kind not in TEXTS and kind != "refusal":
            raise RequestError(f"{place} is no text; the models read text only", place)
        found.append(part_of(text_of(part.get("refusal" if kind == "refusal" else "text"), place)))
    return found


def _joined(given: Any, where: str) -> str:
    return "\n\n".join(part["text"] for part in parts_of(given, where))


def results_of(items: list[Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Results of calls by the ids of these, each with its place; RequestError for two of one call."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "function_call_output":
            where, name = f"input[{index}]", text_of(item.get("call_id"), f"input[{index}].call_id")
            if name in found:
                raise RequestError(f"{where}.call_id {shown(name)} has a result already", f"{where}.call_id")
            found[name] = (where, item)
    return found


class Turns:
    """Items on their way to messages. `places`: is told where each message came from; `results`: of calls, by id;
    `later`: whether a system message may stand behind others.

    >>> turns = Turns({}, {"c": ("input[1]", {"output": "seen"})})
    >>> turns.take({"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}, "input[0]")
    >>> turns.end()
    >>> [each["role"] for each in turns.messages]
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
        self._open: dict[str, Any] | None = None  # the assistant's turn that may go on
        self._seen = set[str]()  # calls

    def take(self, item: Any, where: str) -> str | None:
        """One more item; a line if it is of no use. RequestError for what is no item, or has no meaning here."""
        kind = item.get("type", "message" if "role" in item else None) if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(kind, str):
            raise RequestError(f"{where} is a {shown(item)} without a type; send a message or another item", where)
        if kind == "item_reference":
            raise RequestError(f"{where} refers to an item, but the server keeps none; send the item itself", where)
        if kind == "message":
            return self._message(item, where)
        if kind == "reasoning":
            self._reasoning(item, where)
        elif kind == "function_call":
            self._call(item, where)
        elif kind == "function_call_output":
            if item["call_id"] not in self._seen:
                place = f"{where}.call_id"
                raise RequestError(f"{place} {shown(item['call_id'])} answers no function_call before it", place)
            self.end()
        else:
            return f"{where}: items of type {kind[:MAX_NAME]} are not shown to the model"
        return None

    def system(self, parts: list[dict[str, str]], where: str) -> str | None:
        """Text that stands above the conversation. What comes first is one message: most templates show no second. With
        those what comes later is a message of the user, and a line says so.
        """
        self.end()
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

    def end(self) -> None:
        """The assistant's turn is over: it and the results of its calls are messages now."""
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
                raise RequestError(f"{place}: no function_call_output answers {shown(name)}; send its result", place)
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
            if not parts:  # said nothing, as before a call
                turn["content"] = None
                if turn["reasoning_content"] is None:
                    self._open = None
            return None
        self.end()
        if role in ("system", "developer"):
            return self.system(parts, where) if parts else None
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
                f"{where}.call_id {shown(name)} stands there twice; give each its own", f"{where}.call_id"
            )
        self._seen.add(name)
        function = {"name": flat(item.get("namespace"), item.get("name")), "arguments": item.get("arguments")}
        turn = self._open or self._assistant(where, "content")
        turn["calls"].append(({"id": name, "type": "function", "function": function}, where))

    def _assistant(self, where: str, name: str) -> dict[str, Any]:
        """The turn that a part of this name goes to: the open one if that part is still to come."""
        turn = self._open
        if turn is None or turn["calls"] or turn["content"] is not None or turn[name] is not None:
            self.end()
            turn = {"role": "assistant", "content": None, "reasoning_content": None, "calls": [], "where": where}
            self._open = turn
        return turn
