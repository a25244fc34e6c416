"""Calls of tools: read from a reply as a model marks them, and written as clients read them."""

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

MOST_DEPTH = 64  # of nested lists and objects; templates and our own code walk down them


def read_json(text: str) -> Any:
    """The value that a text spells. ValueError for no JSON, and for what other readers refuse: values that are no
    number, surrogates alone, nesting beyond `MOST_DEPTH`.
    """
    value, end = read_first(text)
    if text[end:].strip():
        raise ValueError("there is more than one value")
    return value


def read_object(text: str) -> dict[str, Any] | None:
    """The object that a whole text spells; None for anything else, and for what `read_json` refuses."""
    try:
        value = read_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def read_first(text: str) -> tuple[Any, int]:
    """The value with which a text begins, after white space, and where it ends; ValueError as `read_json`.

    >>> read_first(' {"a": 1}; more')
    ({'a': 1}, 9)
    """
    try:
        value, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not shallow(value):
        raise ValueError(f"it is nested deeper than {MOST_DEPTH}")
    json.dumps(value, ensure_ascii=False).encode()
    return value, end


def shallow(value: Any, depth: int = MOST_DEPTH) -> bool:
    """Whether plain data is nested at most so deep."""
    level = [value]
    for _ in range(depth + 1):
        inner = [each for each in level if isinstance(each, Mapping | list)]
        if not inner:
            return True
        level = [item for each in inner for item in (each.values() if isinstance(each, Mapping) else each)]
    return False


def _real(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not finite")
    return value


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_float=_real, parse_constant=_constant)


Tools = Sequence[Mapping[str, Any]]
"""As OpenAI describes them: objects with a ``function`` of ``name``, ``description`` and ``parameters``, a schema."""


@dataclass(frozen=True)
class Written:
    """How a call goes on behind `CallStyle.opening`. `around`: what stands round its arguments, before `CallStyle.end`;
    `parameter`: round each of them, with a place for its name; empty where they are one object of JSON, or with
    `braces` of bare keys.
    """

    around: tuple[str, str] = ("", "")
    parameter: tuple[str, ...] = ()
    braces: bool = False


@dataclass(frozen=True)
class CallStyle:
    """A way to write calls. `sign`: A regular expression that is found in the templates of models that write so;
    `begin`, `end`: what stands round a call; both empty where a call is the whole answer, the latter where it goes on
    to the next or to the answer's end; `read`: from the text between, and the tools, the calls in it; None if it is
    none; `opening`: how a call begins: of a tool by its name, or of any (None); `inside`: special tokens within it.
    Models leave `begin` out at times: `bare`: how a call of a tool then begins; `bare_end`: how it ends, a part of it,
    if not by `end`; `bare_first`: only at the begin of an answer, or behind a call, as what text may hold as well.
    For grammars: `written`: its arguments; `between`: what stands between calls, None where one is all.
    """

    name: str
    sign: str
    begin: str
    end: str
    read: Callable[[str, Tools], tuple[Call, ...] | None]
    opening: Callable[[str | None], str]
    inside: tuple[str, ...] = ()
    bare: Callable[[str], tuple[str, ...]] = lambda _: ()
    bare_end: str = ""
    bare_first: bool = False
    written: Written = Written()
    between: str | None = None

    @property
    def in_header(self) -> bool:
        """Whether a call is a message of its own, whose header names the tool."""
        return self.begin.startswith("to=")

    @property
    def tokens(self) -> tuple[str, ...]:
        """Special tokens that belong to calls, and are no text."""
        return self.begin, self.end, *self.inside


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


def _objects(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """Nothing but objects, or a list of them, perhaps with signs between."""
    calls, rest = list[Call](), text.strip()
    while rest:
        try:
            given, end = read_first(rest)
        except ValueError:
            return None
        found = [call_of(each) if isinstance(each, dict) else None for each in _listed(given)]
        if not found or None in found:
            return None
        calls += [call for call in found if call is not None]
        rest = rest[end:].lstrip(";, \t\r\n")
    return tuple(calls) or None


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _in_channel(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """What follows the name of the tools' namespace in a message's header: a name, and behind the header an object."""
    head, mark, body = text.partition("<|message|>")
    name, arguments = re.match(r"[A-Za-z0-9_.:-]{1,128}", head), read_object(body.strip() or "{}")
    return (Call(name[0], arguments),) if mark and name and arguments is not None else None


_FUNCTION = re.compile(r"\s*<function=([^<>\n]{1,256})>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,256})>\n?")
_VALUE_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>|\Z))")
_FUNCTION_END = re.compile(r"\s*</function>")


def _tagged_parameters(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """Functions with their parameters, each between tags as it is; what it is the tool's schema must say."""
    calls, at = list[Call](), 0
    while head := _FUNCTION.match(text, at):
        arguments, at = dict[str, Any](), head.end()
        while named := _PARAMETER.match(text, at):
            end = _VALUE_END.search(text, named.end())
            if end is None:
                return None
            arguments[named[1]] = _typed(text[named.end() : end.start()], _types(tools, head[1], named[1]))
            at = end.end()
        if not (closed := _FUNCTION_END.match(text, at)):
            return None
        calls.append(Call(head[1], arguments))
        at = closed.end()
    return tuple(calls) if calls and not text[at:].strip() else None


def _types(tools: Tools, tool: str, parameter: str) -> frozenset[str]:
    """Types that a tool's schema lets a parameter have."""
    root = (function_of(tools, tool) or {}).get("parameters")
    return types_of(resolved(within(root, "properties", parameter), root))


def within(value: Any, *keys: str) -> Any:
    """What objects hold, one within the other; None where one does not."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    """A list of a schema; empty where it has none."""
    found = schema.get(key)
    return found if isinstance(found, list) else []


def resolved(schema: Any, root: Any) -> Any:
    """A schema, or the part of the whole one that it refers to.

    >>> resolved({"$ref": "#/$defs/a"}, {"$defs": {"a": {"type": "null"}}})
    {'type': 'null'}
    """
    for _ in range(MOST_DEPTH):
        place = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(place, str) or not place.startswith("#/"):
            break
        schema = within(root, *(each.replace("~1", "/").replace("~0", "~") for each in place[2:].split("/")))
    return schema


def types_of(said: Any) -> frozenset[str]:
    """Types that a schema lets a value have; none if it does not say."""
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


_NAMED = re.compile(r"\s*([^\s\[\]{}]{1,256})(?:\[CALL_ID\]\w{1,64})?\[ARGS\]")


def _named_json(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """A name, and an object behind its mark; or, as older models write it, objects in a list."""
    if text.lstrip().startswith("["):
        return _objects(text, tools)
    head = _NAMED.match(text)
    arguments = None if head is None else read_object(text[head.end() :] or "{}")
    return None if head is None or arguments is None else (Call(head[1], arguments),)


_INVOKED = re.compile(r'\s*<atem:invoke name="([^"<>\n]{1,256})">(.*?)\s*</atem:invoke>', re.DOTALL)
_GIVEN = re.compile(r'\s*<atem:parameter name="([^"<>\n]{1,256})"[^<>\n]{0,64}>(.*?)</atem:parameter>', re.DOTALL)


def _invoked(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """Functions with their parameters, each between tags; a name may have that of a namespace before it."""
    calls, at = list[Call](), 0
    while found := _INVOKED.match(text, at):
        name, arguments, inside = found[1], dict[str, Any](), 0
        if function_of(tools, name) is None and function_of(tools, name.rpartition(".")[2]) is not None:
            name = name.rpartition(".")[2]
        while given := _GIVEN.match(found[2], inside):
            arguments[given[1]] = _typed(given[2], _types(tools, name, given[1]))
            inside = given.end()
        if found[2][inside:].strip():
            return None
        calls.append(Call(name, arguments))
        at = found.end()
    return tuple(calls) if calls and not text[at:].strip() else None


QUOTE = '<|"|>'
_CALLED = re.compile(r"\s*call:([A-Za-z0-9_.:-]{1,128})\s*(?=\{)")
_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"]{1,256})\s*:")


def _braced(text: str, tools: Tools) -> tuple[Call, ...] | None:
    """A name, and an object whose keys are bare and whose strings stand between marks of their own."""
    head = _CALLED.match(text)
    parts = text[head.end() :].split(QUOTE) if head else []
    if head is None or len(parts) % 2 == 0:
        return None
    for at, part in enumerate(parts):
        parts[at] = json.dumps(part) if at % 2 else _KEY.sub(lambda key: f"{key[1]}{json.dumps(key[2])}:", part)
    arguments = read_object("".join(parts))
    return None if arguments is None else (Call(head[1], arguments),)


CALLS = (
    CallStyle(
        *("braced", r"<\|tool_call>call:", "<|tool_call>", "<tool_call|>", _braced),
        lambda name: "<|tool_call>call:" + (f"{name}{{" if name else ""),
        (QUOTE,),
        written=Written(("", "}"), braces=True),
        between="",
    ),
    CallStyle(
        *("tagged_parameters", r"<tool_call>(\\n|\s)*<function=", "<tool_call>", "</tool_call>", _tagged_parameters),
        lambda name: "<tool_call>\n<function=" + (f"{name}>\n" if name else ""),
        bare=lambda name: (f"<function={name}>",),
        bare_end="</function>",
        written=Written(("", "</function>\n"), ("<parameter={}>\n", "\n</parameter>\n")),
        between="\n",
    ),
    CallStyle(
        *("tagged_json", r"<tool_call>(\\n|\s)*\{+\s*\\?[\"']name", "<tool_call>", "</tool_call>", _objects),
        lambda name: '<tool_call>\n{"name": "' + (f'{name}", "arguments":' if name else ""),
        bare=lambda name: (f'{{"name": "{name}"', f'{{"name":"{name}"'),
        bare_first=True,
        written=Written((" ", "}\n")),
        between="\n",
    ),
    CallStyle(
        *("bare_json", r"\{\\?\"name\\?\": [^{}\n]{1,80}\\?\"parameters\\?\":", "", "", _objects),
        lambda name: '{"name": "' + (f'{name}", "parameters":' if name else ""),
        written=Written((" ", "}")),
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
        written=Written(("", "</atem:invoke>\n"), ('<atem:parameter name="{}">', "</atem:parameter>\n")),
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
    r"""How a model with this template writes calls; None where that is not known."""
    source = template.source if isinstance(template, ChatTemplate) else template
    return next((style for style in CALLS if re.search(style.sign, source)), None)
