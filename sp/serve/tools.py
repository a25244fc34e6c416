"""Tools of a request, how the model may call them, and calls as clients send them back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sp.chat import Call, Thinks
from sp.chat.call_splitter import Calling
from sp.chat.calls import MOST_DEPTH, call_style_of, read_object, shallow
from sp.gguf import ChatTemplate
from sp.serve.fields import MAX_NAME, RequestError, shown, text_of

MOST_TOOLS = 256
MOST_CALLS = 128  # in one turn
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
SHAPE = "send {'type': 'function', 'function': {'name': 'look', 'parameters': {...}}}"
KINDS = (("description", str, "a string"), ("parameters", dict, "a JSON schema"), ("strict", bool, "true or false"))
"""Of a function: fields, their types, and what these are called."""
CHOICES = ("none", "auto", "required")


@dataclass(frozen=True)
class ToolUse:
    """The tools that the model is shown, and how it may call them."""

    tools: tuple[dict[str, Any], ...] = ()  # as they came; none with the choice "none"
    forced: bool = False  # the answer must begin with a call
    name: str | None = None  # of the tool that must be called
    single: bool = False  # one call at most
    held: Mapping[str, Any] | None = None  # schemas of arguments, by name; None where calls are held to no grammar

    def template(self, template: ChatTemplate) -> ChatTemplate:
        """That of a model's which shows these tools."""
        return template.for_tools if self.tools else template

    def calling(self, template: ChatTemplate | None, thinks: Thinks | None = None) -> Calling | None:
        """How calls are read from the answer; None without tools, RequestError where the model's way is not known.
        `thinks`: how the answer begins; behind thinking a grammar alone can force a call, and the prompt begins none.
        """
        if not self.tools or template is None:
            return None
        style = call_style_of(self.template(template))
        if style is None:
            said = "shows tools, if at all, in a way that is not known"
            raise RequestError(f"the chat template of this model {said}; leave tools out", "tools")
        behind = self.held is not None and thinks is not None and thinks.opened
        opening = style.opening(self.name) if self.forced and not behind else ""
        return Calling(style, self.tools, self.single, opening)


def tool_use(body: Mapping[str, Any]) -> ToolUse:
    """The fields ``tools``, ``tool_choice`` and ``parallel_tool_calls`` of a body, checked."""
    tools = _tools(body.get("tools"))
    single = body.get("parallel_tool_calls")
    if not isinstance(single, bool | None):
        raise RequestError(f"parallel_tool_calls is {shown(single)}; send true or false", "parallel_tool_calls")
    choice, names = body.get("tool_choice"), [tool["function"]["name"] for tool in tools]
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if choice.get("type") != "function" or set(choice) != {"type", "function"} or not isinstance(name, str):
            wanted = "{'type': 'function', 'function': {'name': 'look'}}"
            raise RequestError(f"tool_choice is no choice of a tool; send {wanted} or a word", "tool_choice")
        if name not in names:
            raise RequestError(f"tool_choice names {shown(name)}, which is none of the tools; add it", "tool_choice")
        return ToolUse(tools, True, name, True)
    if choice is not None and choice not in CHOICES:
        known = ", ".join(CHOICES)
        raise RequestError(f"tool_choice is {shown(choice)}; send one of {known}, or name a tool", "tool_choice")
    if choice == "required" and not tools:
        raise RequestError("tool_choice is 'required', but there are no tools; send some", "tool_choice")
    if choice == "none":
        return ToolUse()
    forced = choice == "required"
    return ToolUse(tools, forced, names[0] if forced and len(names) == 1 else None, single is False)


def _tools(given: Any) -> tuple[dict[str, Any], ...]:
    """Descriptions of tools as they came; RequestError names the first that is none."""
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > MOST_TOOLS:
        raise RequestError(f"tools must be a list of up to {MOST_TOOLS} objects", "tools")
    names = set()
    for index, tool in enumerate(given):
        where = f"tools[{index}]"
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function":
            raise RequestError(f"{where} is no function; {SHAPE}", where)
        name = _name(function.get("name"), f"{where}.function.name")
        if name in names:
            raise RequestError(f"{where}.function.name {shown(name)} stands there twice; give each its own", where)
        names.add(name)
        kinds = (
            ("description", str, "a string"),
            ("parameters", dict, "a JSON schema"),
            ("strict", bool, "true or false"),
        )
        for key, kind, what in kinds:
            value = function.get(key)
            if value is not None and not isinstance(value, kind):
                raise RequestError(f"{where}.function.{key} is {shown(value)}; send {what}", f"{where}.function.{key}")
    if not shallow(given, MOST_DEPTH):
        raise RequestError(f"tools are nested deeper than {MOST_DEPTH}; send plain schemas", "tools")
    text_of(json.dumps(given, ensure_ascii=False), "tools")
    return tuple(given)


def calls_of(given: Any, where: str) -> tuple[Call, ...]:
    """The calls of an assistant's turn, as a client sends them back."""
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > MOST_CALLS:
        raise RequestError(f"{where} must be a list of up to {MOST_CALLS} calls", where)
    calls = tuple(_call(item, f"{where}[{index}]") for index, item in enumerate(given))
    if len({call.id for call in calls}) < len(calls):
        raise RequestError(f"{where} have an id twice; give each its own", where)
    return calls


def _call(given: Any, where: str) -> Call:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or given.get("type", "function") != "function":
        raise RequestError(f"{where} is no call of a function; send it as the answer had it", where)
    name = _name(function.get("name"), f"{where}.function.name")
    written = text_of(function.get("arguments"), f"{where}.function.arguments")
    arguments = read_object(written or "{}")
    if arguments is None:
        place = f"{where}.function.arguments"
        raise RequestError(f"{place} is no JSON object; send what the answer had, a string", place)
    return Call(name, arguments, id_of(given.get("id"), f"{where}.id"))


def _name(given: Any, where: str) -> str:
    if not NAME.fullmatch(text_of(given, where)):
        raise RequestError(f"{where} is {shown(given)}; send up to 128 letters, digits, _ . : or -", where)
    return str(given)


def id_of(given: Any, where: str) -> str:
    """The id of a call."""
    if not text_of(given, where) or len(given) > MAX_NAME:
        raise RequestError(f"{where} is {shown(given)}; send an id of 1 to {MAX_NAME} characters", where)
    return str(given)
