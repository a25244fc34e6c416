"""What a chat says: its messages, checked; the models read text only."""

from __future__ import annotations

from typing import Any

from sp.serve.errors import RequestError
from sp.serve.fields import MAX_NAME, shown, text_of
from sp.serve.tools import calls_of, id_of, paired

MAX_MESSAGES = 1024


def messages_of(given: Any) -> tuple[dict[str, Any], ...]:
    """Messages as role, list of text parts, an assistant's reasoning and calls, the call that a tool answers.

    RequestError names the first that is none, or that lacks the other half of a call.
    """
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_MESSAGES:
        raise RequestError(f"messages must be a list of 1 to {MAX_MESSAGES} messages", "messages")
    messages = [_message(item, f"messages[{index}]") for index, item in enumerate(given)]
    for index, name in paired(messages).items():
        messages[index]["name"] = name
    return tuple(messages)


def _message(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise RequestError(f"{where} is a {shown(given)}; send an object with role and content", where)
    roles = ("system", "developer", "user", "assistant", "tool")
    role = given.get("role")
    if role not in roles:
        raise RequestError(f"{where}.role is {shown(role)}; use one of {', '.join(roles)}", f"{where}.role")
    own = {"assistant": ("reasoning_content", "tool_calls"), "tool": ("tool_call_id",)}.get(role, ())
    for name, value in given.items():
        if name in ("role", "content", "name", *own) or value in (None, []):
            continue
        place = f"{where}.{name[:MAX_NAME]}"
        what = "not supported" if name in ("function_call", "audio", "refusal", "annotations") else "unknown"
        raise RequestError(f"{place} is {what}; send the turn's text as content", place)
    said: dict[str, Any] = {"role": "system" if role == "developer" else role}
    if role == "assistant":
        thought = given.get("reasoning_content")
        said["reasoning"] = "" if thought is None else text_of(thought, f"{where}.reasoning_content")
        said["calls"] = calls_of(given.get("tool_calls"), f"{where}.tool_calls")
    elif role == "tool":
        said["call_id"] = id_of(given.get("tool_call_id"), f"{where}.tool_call_id")
    spoken = said.get("reasoning") or said.get("calls")
    content = "" if spoken and given.get("content") in (None, []) else given.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for index, part in enumerate(parts):
        place = f"{where}.content[{index}]" if isinstance(content, list) else f"{where}.content"
        if not isinstance(part, dict) or part.get("type") != "text":
            raise RequestError(f"{place} is no text; the models read text only", place)
        texts.append(text_of(part.get("text"), place))
    if not texts:
        raise RequestError(f"{where}.content is empty; leave the message out", f"{where}.content")
    return {**said, "parts": texts}
