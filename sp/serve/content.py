"""What a chat says: its messages and tools, checked; the models read text only."""

from __future__ import annotations

import json
from typing import Any

from sp.serve.errors import RequestError
from sp.serve.fields import MAX_NAME, shown, text_of

MAX_MESSAGES = 1024


def messages_of(given: Any) -> tuple[dict[str, Any], ...]:
    """Messages as role, list of text parts, and an assistant's reasoning; RequestError names the first that is not."""
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_MESSAGES:
        raise RequestError(f"messages must be a list of 1 to {MAX_MESSAGES} messages", "messages")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(given))


def _message(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise RequestError(f"{where} is a {shown(given)}; send an object with role and content", where)
    roles = ("system", "developer", "user", "assistant", "tool")
    role = given.get("role")
    if role not in roles:
        raise RequestError(f"{where}.role is {shown(role)}; use one of {', '.join(roles)}", f"{where}.role")
    thought = given.get("reasoning_content") if role == "assistant" else None
    for name, value in given.items():
        if name in ("role", "content", "name", "tool_call_id") or value in (None, []):
            continue
        if name == "reasoning_content" and role == "assistant":
            continue
        place = f"{where}.{name[:MAX_NAME]}"
        what = "not supported" if name in ("tool_calls", "function_call", "audio", "refusal") else "unknown"
        raise RequestError(f"{place} is {what}; send the turn's text as content", place)
    reasoning = "" if thought is None else text_of(thought, f"{where}.reasoning_content")
    content = "" if reasoning and given.get("content") is None else given.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for index, part in enumerate(parts):
        place = f"{where}.content[{index}]" if isinstance(content, list) else f"{where}.content"
        if not isinstance(part, dict) or part.get("type") != "text":
            raise RequestError(f"{place} is no text; the models read text only", place)
        texts.append(text_of(part.get("text"), place))
    if not texts:
        raise RequestError(f"{where}.content is empty; leave the message out", f"{where}.content")
    return {"role": "system" if role == "developer" else role, "parts": texts, "reasoning": reasoning}


def tools_of(given: Any) -> tuple[dict[str, Any], ...]:
    """Descriptions of tools as they came; RequestError unless they are objects that can be written as UTF-8."""
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > 256 or not all(isinstance(tool, dict) for tool in given):
        raise RequestError("tools must be a list of up to 256 objects", "tools")
    text_of(json.dumps(given, ensure_ascii=False), "tools")
    return tuple(given)
