"""The field `response_format` of a request: text, any JSON object, or JSON of a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sp.chat.plain_json import MOST_DEPTH, shallow
from sp.serve.errors import RequestError
from sp.serve.fields import MAX_NAME, shown, text_of

LONGEST_SCHEMA = 1 << 16
"""Characters."""
KINDS = ("text", "json_object", "json_schema")
PARAM = "response_format"


@dataclass(frozen=True)
class Format:
    """What an answer must be: JSON of the schema that `schema` spells."""

    schema: str


def format_of(body: Mapping[str, Any]) -> Format | None:
    """The format that a request asks for, checked; None for text.

    Raises
    ------
    RequestError
        For what is no format, and beside tools that the model may call.

    Examples
    --------
    >>> format_of({"response_format": {"type": "json_object"}})
    Format(schema='{"type": "object"}')
    """
    given = body.get(PARAM)
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or kind not in KINDS:
        seen = shown(kind if isinstance(given, dict) else given)
        raise RequestError(f"{PARAM}.type is {seen}; send one of {', '.join(KINDS)}", PARAM)
    for name in given:
        if name not in ("type", kind if kind == "json_schema" else "type"):
            raise RequestError(f"{PARAM}.{name[:MAX_NAME]} is unknown with type {kind}; leave it out", PARAM)
    if kind == "text":
        return None
    if body.get("tools") and body.get("tool_choice") != "none":
        raise RequestError(f"{PARAM} and tools exclude each other; send tool_choice 'none', or leave one out", PARAM)
    return Format(json.dumps({"type": "object"}) if kind == "json_object" else _schema(given.get("json_schema")))


def _schema(given: Any) -> str:
    where = f"{PARAM}.json_schema"
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(schema, dict):
        raise RequestError(f"{where}.schema is no object; send {{'name': 'x', 'schema': {{...}}}}", where)
    for name in given:
        if name not in ("name", "schema", "strict", "description"):
            raise RequestError(f"{where}.{name[:MAX_NAME]} is unknown; leave it out", where)
    if not shallow(schema, MOST_DEPTH):
        raise RequestError(f"{where}.schema is nested deeper than {MOST_DEPTH}; flatten it", where)
    text = text_of(json.dumps(schema, ensure_ascii=False), f"{where}.schema")
    if len(text) > LONGEST_SCHEMA:
        raise RequestError(f"{where}.schema has over {LONGEST_SCHEMA} characters; send a shorter one", where)
    return text
