"""Notations of tool calls: parsed from a reply as a model writes them, and spelled out for grammars."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sp.chat.reasoning import CALLED, TO_TOOL
from sp.chat.turn import Call
from sp.gguf.template import ChatTemplate

MOST_DEPTH = 64  # of nested lists and objects, over which templates and this package recurse


def read_json(text: str) -> Any:
    """Return the value that a text spells.

    ValueError for text that is no JSON, and for values that other JSON readers refuse: NaN and infinities, lone
    surrogates, nesting deeper than `MOST_DEPTH`.
    """
    value, end = read_first(text)
    if text[end:].strip():
        raise ValueError("there is more than one value")
    return value


def read_object(text: str) -> dict[str, Any] | None:
    """Return the object that a whole text spells; None for anything else, including what `read_json` refuses."""
    try:
        value = read_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def read_first(text: str) -> tuple[Any, int]:
    """Return the value with which a text begins, after white space, and its end; ValueError as `read_json`.

    >>> read_first(' {"a": 1}; more')
    ({'a': 1}, 9)
    """
    try:
        value, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not shallow(value):
        raise ValueError(f"it is nested deeper than {MOST_DEPTH}")
    json.dumps(value, ensure_ascii=False).encode()  # raises UnicodeEncodeError, a ValueError, for lone surrogates
    return value, end


def shallow(value: Any, depth: int = MOST_DEPTH) -> bool:
    """Return True if plain data is nested at most `depth` levels deep."""
    level = [value]  # breadth first, without recursion
    for _ in range(depth + 1):
        nodes = [value for value in level if isinstance(value, Mapping | list)]
        if not nodes:
            return True
        level = [item for node in nodes for item in (node.values() if isinstance(node, Mapping) else node)]
    return False


def _real(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not finite")
    return value


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_float=_real, parse_constant=_constant)


Tools = Sequence[Mapping[str, Any]]
"""Tools as in OpenAI's API: objects with a ``function`` of ``name``, ``description`` and ``parameters`` (a schema)."""


@dataclass(frozen=True)
class ArgumentNotation:
    """The notation of a call after `CallStyle.opening`.

    `around`: texts before and after its arguments, the latter before `CallStyle.end`; `parameter`: texts before and
    after each argument, the former with a placeholder for its name; empty where the arguments are one JSON object, or
    with `braces` an object of bare keys.
    """

    around: tuple[str, str] = ("", "")
    parameter: tuple[str, ...] = ()
    braces: bool = False


@dataclass(frozen=True)
class CallStyle:
    """A notation of calls, found by a sign in the chat template.

    Models omit `begin` at times; the `bare` fields describe calls without it.

    Attributes
    ----------
    sign : str
        Regular expression that matches the templates of models with this notation.
    begin, end : str
        Texts around a call; both empty where a call is the whole answer, `end` where it extends to the next call or to
        the end of the answer.
    parse : callable
        Returns the calls in the text between, given the tools; None if it contains none.
    opening : callable
        Returns the start of a call of a tool by its name, or of any tool (None).
    inside : tuple of str
        Special tokens within a call.
    bare : callable
        Returns the texts with which a call of a tool begins without `begin`.
    bare_end : str
        Text that ends a bare call, a part of it, if not `end`.
    bare_first : bool
        A bare call is recognised only at the start of an answer or after a call, because text may contain the same.
    notation : ArgumentNotation
        Notation of the arguments, for grammars.
    between : str or None
        Text between calls, for grammars; None where there can be one only.
    """

    name: str
    sign: str
    begin: str
    end: str
    parse: Callable[[str, Tools], tuple[Call, ...] | None]
    opening: Callable[[str | None], str]
    inside: tuple[str, ...] = ()
    bare: Callable[[str], tuple[str, ...]] = lambda _: ()
    bare_end: str = ""
    bare_first: bool = False
    notation: ArgumentNotation = ArgumentNotation()
    between: str | None = None

    @property
    def in_header(self) -> bool:
        """True if a call is a message of its own, whose header names the tool."""
        return self.begin.startswith("to=")

    @property
    def tokens(self) -> tuple[str, ...]:
        """Special tokens that belong to calls, and are no text."""
        return self.begin, self.end, *self.inside


def function_of(tools: Tools, name: str) -> Mapping[str, Any] | None:
    """Return the description of a tool; None if there is no such tool."""
    return next((tool["function"] for tool in tools if tool["function"]["name"] == name), None)


def call_of(record: Mapping[str, Any]) -> Call | None:
    """Parse a call from an object of ``name`` and ``arguments`` or ``parameters``, which may be JSON in a string.

    >>> call_of({"name": "add", "arguments": {"a": 1}})
    Call(name='add', arguments={'a': 1}, id='')
    """
    name = record.get("name")
    arguments = record.get("arguments", record.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = read_object(arguments or "{}")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return Call(name, arguments)


def _objects(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """Parse objects, or a list of them, with nothing but separators between."""
    calls, rest = list[Call](), text.strip()
    while rest:
        try:
            value, end = read_first(rest)
        except ValueError:
            return None
        records = value if isinstance(value, list) else [value]
        parsed = [call_of(record) if isinstance(record, dict) else None for record in records]
        if not parsed or None in parsed:
            return None
        calls += [call for call in parsed if call is not None]
        rest = rest[end:].lstrip(";, \t\r\n")
    return tuple(calls) or None


def _in_channel(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """Parse a message header after the namespace of tools: a name, and after the header an object."""
    head, mark, body = text.partition("<|message|>")
    name, arguments = re.match(r"[A-Za-z0-9_.:-]{1,128}", head), read_object(body.strip() or "{}")
    return (Call(name[0], arguments),) if mark and name and arguments is not None else None


_FUNCTION = re.compile(r"\s*<function=([^<>\n]{1,256})>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,256})>\n?")
_VALUE_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>|\Z))")
_FUNCTION_END = re.compile(r"\s*</function>")


def _tagged_parameters(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """Parse functions with parameters between tags; their types come from the tool's schema."""
    calls, offset = list[Call](), 0
    while head := _FUNCTION.match(text, offset):
        arguments, offset = dict[str, Any](), head.end()
        while parameter := _PARAMETER.match(text, offset):
            end = _VALUE_END.search(text, parameter.end())
            if end is None:
                return None
            arguments[parameter[1]] = _typed(text[parameter.end() : end.start()], _types(tools, head[1], parameter[1]))
            offset = end.end()
        if not (closed := _FUNCTION_END.match(text, offset)):
            return None
        calls.append(Call(head[1], arguments))
        offset = closed.end()
    return tuple(calls) if calls and not text[offset:].strip() else None


def _types(tools: Tools, tool: str, parameter: str) -> frozenset[str]:
    """Return the types that a tool's schema allows for a parameter."""
    root = (function_of(tools, tool) or {}).get("parameters")
    return types_of(resolved(within(root, "properties", parameter), root))


def within(value: Any, *keys: str) -> Any:
    """Return the value at a path of keys through nested objects; None if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def list_of(schema: Mapping[str, Any], key: str) -> list[Any]:
    """Return a list of a schema; empty if it has none."""
    value = schema.get(key)
    return value if isinstance(value, list) else []


def resolved(schema: Any, root: Any) -> Any:
    """Return a schema, or the definition in `root` that it refers to.

    >>> resolved({"$ref": "#/$defs/a"}, {"$defs": {"a": {"type": "null"}}})
    {'type': 'null'}
    """
    for _ in range(MOST_DEPTH):
        place = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(place, str) or not place.startswith("#/"):
            break
        # Escapes of JSON pointers (RFC 6901).
        schema = within(root, *(key.replace("~1", "/").replace("~0", "~") for key in place[2:].split("/")))
    return schema


def types_of(schema: Any) -> frozenset[str]:
    """Return the types that a schema allows; empty if it names none."""
    types = set[str]()
    if isinstance(schema, Mapping):
        options = [option for key in ("anyOf", "oneOf") for option in list_of(schema, key)]
        for part in (schema, *(option for option in options if isinstance(option, Mapping))):
            kinds = part.get("type")
            types |= {kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if isinstance(kind, str)}
    return frozenset(types)


def _typed(text: str, types: frozenset[str]) -> Any:
    """Convert a value to a type of its schema; a string stays one where the schema allows it, or nothing else fits."""
    if "null" in types and text.strip().lower() in ("null", "none"):  # models write Python's None, too
        return None
    if not types or "string" in types:
        return text
    word = text.strip()
    try:
        return read_json(word.lower() if word in ("True", "False") else word)  # Python's booleans
    except ValueError:
        return text


_NAMED = re.compile(r"\s*([^\s\[\]{}]{1,256})(?:\[CALL_ID\]\w{1,64})?\[ARGS\]")


def _named_json(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """Parse a name, and an object after its mark; older models write objects in a list."""
    if text.lstrip().startswith("["):  # older models
        return _objects(text, tools)
    head = _NAMED.match(text)
    arguments = None if head is None else read_object(text[head.end() :] or "{}")
    return None if head is None or arguments is None else (Call(head[1], arguments),)


_INVOKED = re.compile(r'\s*<atem:invoke name="([^"<>\n]{1,256})">(.*?)\s*</atem:invoke>', re.DOTALL)
_INVOKED_PARAMETER = re.compile(
    r'\s*<atem:parameter name="([^"<>\n]{1,256})"[^<>\n]{0,64}>(.*?)</atem:parameter>', re.DOTALL
)


def _invoked(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """Parse functions with parameters between tags; a name may be preceded by that of a namespace."""
    calls, offset = list[Call](), 0
    while call := _INVOKED.match(text, offset):
        name, arguments, inside = call[1], dict[str, Any](), 0
        if function_of(tools, name) is None and function_of(tools, name.rpartition(".")[2]) is not None:
            name = name.rpartition(".")[2]
        while parameter := _INVOKED_PARAMETER.match(call[2], inside):
            arguments[parameter[1]] = _typed(parameter[2], _types(tools, name, parameter[1]))
            inside = parameter.end()
        if call[2][inside:].strip():
            return None
        calls.append(Call(name, arguments))
        offset = call.end()
    return tuple(calls) if calls and not text[offset:].strip() else None


QUOTE = '<|"|>'
_CALLED = re.compile(r"\s*call:([A-Za-z0-9_.:-]{1,128})\s*(?=\{)")
_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"]{1,256})\s*:")


def _braced(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """Parse a name, and an object whose keys are bare and whose strings are between marks of their own."""
    head = _CALLED.match(text)
    parts = text[head.end() :].split(QUOTE) if head else []  # strings are the odd parts
    if head is None or len(parts) % 2 == 0:
        return None
    for index, part in enumerate(parts):  # odd parts are strings; in the others keys get quotes
        parts[index] = json.dumps(part) if index % 2 else _KEY.sub(lambda key: f"{key[1]}{json.dumps(key[2])}:", part)
    arguments = read_object("".join(parts))
    return None if arguments is None else (Call(head[1], arguments),)


CALLS = (
    CallStyle(
        *("braced", r"<\|tool_call>call:", "<|tool_call>", "<tool_call|>", _braced),
        lambda name: "<|tool_call>call:" + (f"{name}{{" if name else ""),
        (QUOTE,),
        notation=ArgumentNotation(("", "}"), braces=True),
        between="",
    ),
    CallStyle(
        *("tagged_parameters", r"<tool_call>(\\n|\s)*<function=", "<tool_call>", "</tool_call>", _tagged_parameters),
        lambda name: "<tool_call>\n<function=" + (f"{name}>\n" if name else ""),
        bare=lambda name: (f"<function={name}>",),
        bare_end="</function>",
        notation=ArgumentNotation(("", "</function>\n"), ("<parameter={}>\n", "\n</parameter>\n")),
        between="\n",
    ),
    CallStyle(
        *("tagged_json", r"<tool_call>(\\n|\s)*\{+\s*\\?[\"']name", "<tool_call>", "</tool_call>", _objects),
        lambda name: '<tool_call>\n{"name": "' + (f'{name}", "arguments":' if name else ""),
        bare=lambda name: (f'{{"name": "{name}"', f'{{"name":"{name}"'),
        bare_first=True,
        notation=ArgumentNotation((" ", "}\n")),
        between="\n",
    ),
    CallStyle(
        *("bare_json", r"\{\\?\"name\\?\": [^{}\n]{1,80}\\?\"parameters\\?\":", "", "", _objects),
        lambda name: '{"name": "' + (f'{name}", "parameters":' if name else ""),
        notation=ArgumentNotation((" ", "}")),
    ),
    CallStyle(
        *("named_json", r"(?s)\[TOOL_CALLS\].{0,999}?\[ARGS\]", "[TOOL_CALLS]", "", _named_json),
        lambda name: "[TOOL_CALLS]" + (f"{name}[ARGS]" if name else ""),
        ("[CALL_ID]", "[ARGS]"),
        between="",
    ),
    CallStyle(
        *("invoked", "<atem:invoke name=", "<atem:function_calls>", "</atem:function_calls>", _invoked),
        lambda name: f' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n' if name else "",
        notation=ArgumentNotation(("", "</atem:invoke>\n"), ('<atem:parameter name="{}">', "</atem:parameter>\n")),
    ),
    CallStyle(
        *(
            "in_channel",
            r"<\|start\|>assistant to=(.|\n){0,40}functions\.",
            TO_TOOL.partition("{")[0],
            CALLED,
            _in_channel,
        ),
        lambda name: " " + (TO_TOOL.format(name) if name else TO_TOOL.partition("{")[0]),
    ),
)  # Gemma 4; Qwen3-Coder and Qwen3.5; Qwen2.5, Qwen3, QwQ and Hermes; Llama 3; Devstral 2 and Ministral 3;
# Muse Glimmer; gpt-oss


def call_style_of(template: str | ChatTemplate) -> CallStyle | None:
    """Return the notation of calls for a template; None if it is not known."""
    source = template.source if isinstance(template, ChatTemplate) else template
    return next((style for style in CALLS if re.search(style.sign, source)), None)
