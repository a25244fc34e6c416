"""Tools of a request, the choice among them, and calls that clients send back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sp.chat import Call, Thinks
from sp.chat.call_splitter import Calling
from sp.chat.calls import MOST_DEPTH, call_style_of, read_object, shallow
from sp.chat.messages import describe_value
from sp.gguf import ChatTemplate
from sp.serve.fields import MAX_NAME, RequestError, text_of

MOST_TOOLS = 256
MOST_CALLS = 128  # in one turn of the assistant
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
SHAPE = "send {'type': 'function', 'function': {'name': 'look', 'parameters': {...}}}"
CHOICES = ("none", "auto", "required")


@dataclass(frozen=True)
class ToolUse:
    """The tools that the model is shown, and the rules for its calls."""

    tools: tuple[dict[str, Any], ...] = ()  # as received; empty with tool_choice "none"
    forced: bool = False  # the answer must start with a call
    name: str | None = None  # of the only tool that may be called
    single: bool = False  # at most one call
    call_schemas: Mapping[str, Any] | None = None  # schemas of arguments by tool; None if no grammar applies

    def template(self, template: ChatTemplate) -> ChatTemplate:
        """Return the variant of a model's template that shows these tools."""
        return template.for_tools if self.tools else template

    def calling(self, template: ChatTemplate | None, thinks: Thinks | None = None) -> Calling | None:
        """Return the format in which the model writes calls; None without tools, RequestError if the format is unknown.

        `thinks`: how the answer starts. If it starts with thinking, only a grammar can force a call; otherwise the
        prompt contains the start of the call.
        """
        if not self.tools or template is None:
            return None
        style = call_style_of(self.template(template))
        if style is None:
            reason = "does not show tools in a known format"
            raise RequestError(f"the chat template of this model {reason}; leave tools out", "tools")
        behind = self.call_schemas is not None and thinks is not None and thinks.opened
        opening = style.opening(self.name) if self.forced and not behind else ""
        return Calling(style, self.tools, self.single, opening)


def tool_use(body: Mapping[str, Any]) -> ToolUse:
    """Parse the fields ``tools``, ``tool_choice`` and ``parallel_tool_calls`` of a body."""
    tools = _tools(body.get("tools"))
    single = body.get("parallel_tool_calls")
    if not isinstance(single, bool | None):
        raise RequestError(
            f"parallel_tool_calls is {describe_value(single)}; send true or false", "parallel_tool_calls"
        )
    choice, names = body.get("tool_choice"), [tool["function"]["name"] for tool in tools]
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if choice.get("type") != "function" or set(choice) != {"type", "function"} or not isinstance(name, str):
            example = "{'type': 'function', 'function': {'name': 'look'}}"
            raise RequestError(
                f"tool_choice is not valid; send {example} or one of none, auto, required", "tool_choice"
            )
        if name not in names:
            raise RequestError(
                f"tool_choice names {describe_value(name)}, which is not among the tools; add it", "tool_choice"
            )
        return ToolUse(tools, True, name, True)
    if choice is not None and choice not in CHOICES:
        known = ", ".join(CHOICES)
        raise RequestError(
            f"tool_choice is {describe_value(choice)}; send one of {known}, or name a tool", "tool_choice"
        )
    if choice == "required" and not tools:
        raise RequestError("tool_choice is 'required', but there are no tools; send some", "tool_choice")
    if choice == "none":
        return ToolUse()
    forced = choice == "required"
    return ToolUse(tools, forced, names[0] if forced and len(names) == 1 else None, single is False)


def _tools(tools: Any) -> tuple[dict[str, Any], ...]:
    """Check descriptions of tools and return them unchanged; RequestError names the first that is invalid."""
    if tools is None:
        return ()
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS:
        raise RequestError(f"tools must be a list of up to {MOST_TOOLS} objects", "tools")
    names = set()
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function":
            raise RequestError(f"{where} is not a function; {SHAPE}", where)
        name = _name(function.get("name"), f"{where}.function.name")
        if name in names:
            raise RequestError(
                f"{where}.function.name {describe_value(name)} appears twice; give each tool its own", where
            )
        names.add(name)
        kinds = (
            ("description", str, "a string"),
            ("parameters", dict, "a JSON schema"),
            ("strict", bool, "true or false"),
        )
        for key, kind, expected in kinds:
            value = function.get(key)
            if value is not None and not isinstance(value, kind):
                raise RequestError(
                    f"{where}.function.{key} is {describe_value(value)}; send {expected}", f"{where}.function.{key}"
                )
    if not shallow(tools, MOST_DEPTH):
        raise RequestError(f"tools are nested deeper than {MOST_DEPTH}; send plain schemas", "tools")
    text_of(json.dumps(tools, ensure_ascii=False), "tools")  # refuses lone surrogates, which UTF-8 cannot encode
    return tuple(tools)


def calls_of(value: Any, where: str) -> tuple[Call, ...]:
    """Parse the calls of an assistant's turn that a client sends back."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MOST_CALLS:
        raise RequestError(f"{where} must be a list of up to {MOST_CALLS} calls", where)
    calls = tuple(_call(item, f"{where}[{index}]") for index, item in enumerate(value))
    if len({call.id for call in calls}) < len(calls):
        raise RequestError(f"{where} contain an id twice; give each call its own", where)
    return calls


def _call(value: Any, where: str) -> Call:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or value.get("type", "function") != "function":
        raise RequestError(f"{where} is not a function call; send it as the answer had it", where)
    name = _name(function.get("name"), f"{where}.function.name")
    spelled = text_of(function.get("arguments"), f"{where}.function.arguments")
    arguments = read_object(spelled or "{}")
    if arguments is None:
        place = f"{where}.function.arguments"
        raise RequestError(f"{place} is not a JSON object in a string; send what the answer had", place)
    return Call(name, arguments, id_of(value.get("id"), f"{where}.id"))


def _name(value: Any, where: str) -> str:
    if not NAME.fullmatch(text_of(value, where)):
        raise RequestError(f"{where} is {describe_value(value)}; send up to 128 letters, digits, _ . : or -", where)
    return str(value)


def id_of(value: Any, where: str) -> str:
    """Return the id of a call; RequestError for an invalid one."""
    if not text_of(value, where) or len(value) > MAX_NAME:
        raise RequestError(f"{where} is {describe_value(value)}; send an id of 1 to {MAX_NAME} characters", where)
    return str(value)
