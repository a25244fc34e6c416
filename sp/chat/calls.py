"""How models write calls of tools, by what their chat templates say of it: one row a way."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sp.chat.plain_json import read_first, read_json, read_object
from sp.chat.turn import Call
from sp.gguf.template import ChatTemplate

Tools = Sequence[Mapping[str, Any]]
"""As OpenAI describes them: objects with a ``function`` of ``name``, ``description`` and ``parameters``, a schema."""


@dataclass(frozen=True)
class CallStyle:
    """A way to write calls.

    `sign`: A regular expression that is found in the templates of models that write so; `begin`, `end`: what stands
    round a call; both empty where a call is the whole answer; `read`: from the text between, and the tools, the calls
    in it; None if it is none; `opening`: how a call begins: of a tool by its name, or of any (None).
    """

    name: str
    sign: str
    begin: str
    end: str
    read: Callable[[str, Tools], tuple[Call, ...] | None]
    opening: Callable[[str | None], str]


def function_of(tools: Tools, name: str) -> Mapping[str, Any] | None:
    """What is said of a tool; None if there is no such tool."""
    return next((tool["function"] for tool in tools if tool["function"]["name"] == name), None)


def call_of(given: Mapping[str, Any]) -> Call | None:
    """A call from an object of ``name`` and ``arguments`` or ``parameters``, which may be JSON in a string.

    >>> call_of({"name": "add", "arguments": {"a": 1}})
    Call(name='add', arguments={'a': 1}, id='')
    """
    name = given.get("name")
    arguments = given.get("arguments", given.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = read_object(arguments or "{}")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return Call(name, arguments)


def _tagged_json(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """One object between tags."""
    given = read_object(text)
    call = None if given is None else call_of(given)
    return None if call is None else (call,)


def _bare_json(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """An answer that is nothing but objects, perhaps with semicolons between, each naming one of the tools."""
    calls, rest = list[Call](), text.strip()
    while rest:
        try:
            given, end = read_first(rest)
        except ValueError:
            return None
        call = call_of(given) if isinstance(given, dict) else None
        if call is None or function_of(tools, call.name) is None:
            return None
        calls.append(call)
        rest = rest[end:].lstrip("; \t\r\n")
    return tuple(calls) or None


_FUNCTION = re.compile(r"\s*<function=([^<>\n]{1,256})>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,256})>\n?")
_VALUE_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>|\Z))")
_FUNCTION_END = re.compile(r"\s*</function>\s*\Z")


def _tagged_parameters(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """A function with its parameters, each between tags as it is; what it is the tool's schema must say."""
    head = _FUNCTION.match(text)
    if head is None:
        return None
    arguments, at = dict[str, Any](), head.end()
    while named := _PARAMETER.match(text, at):
        end = _VALUE_END.search(text, named.end())
        if end is None:
            return None
        arguments[named[1]] = _typed(text[named.end() : end.start()], _types(tools, head[1], named[1]))
        at = end.end()
    return (Call(head[1], arguments),) if _FUNCTION_END.match(text, at) else None


def _types(tools: Tools, tool: str, parameter: str) -> frozenset[str]:
    """Types that a schema lets a parameter have; none if it does not say."""
    said: Any = function_of(tools, tool) or {}
    for key in ("parameters", "properties", parameter):
        said = said.get(key) if isinstance(said, Mapping) else None
    found = set[str]()
    if isinstance(said, Mapping):
        either = [option for key in ("anyOf", "oneOf") if isinstance(said.get(key), list) for option in said[key]]
        for each in (said, *(option for option in either if isinstance(option, Mapping))):
            kinds = each.get("type")
            found |= {kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)}
    return frozenset(found)


def _typed(text: str, types: frozenset[str]) -> Any:
    """A value as its schema has it; a string where it may be one, or is nothing else."""
    if "null" in types and text.strip().lower() in ("null", "none"):
        return None
    if not types or "string" in types:
        return text
    word = text.strip()
    try:
        return read_json(word.lower() if word in ("True", "False") else word)
    except ValueError:
        return text


CALLS = (
    CallStyle(
        *("tagged_parameters", r"<tool_call>(\\n|\s)*<function=", "<tool_call>", "</tool_call>", _tagged_parameters),
        lambda name: "<tool_call>\n<function=" + (f"{name}>\n" if name else ""),
    ),
    CallStyle(
        *("tagged_json", r"<tool_call>(\\n|\s)*\{+\s*\\?[\"']name", "<tool_call>", "</tool_call>", _tagged_json),
        lambda name: '<tool_call>\n{"name": "' + (f'{name}", "arguments":' if name else ""),
    ),
    CallStyle(
        *("bare_json", r"\{\\?\"name\\?\": [^{}\n]{1,80}\\?\"parameters\\?\":", "", "", _bare_json),
        lambda name: '{"name": "' + (f'{name}", "parameters":' if name else ""),
    ),
)
"""Qwen3-Coder and Qwen3.5; Qwen2.5, Qwen3, QwQ and Hermes; Llama 3."""


def call_style_of(template: str | ChatTemplate) -> CallStyle | None:
    r"""How a model with this template writes calls; None where that is not known."""
    source = template.source if isinstance(template, ChatTemplate) else template
    return next((style for style in CALLS if re.search(style.sign, source)), None)
