"""Requests of Anthropic's Messages API, translated to chats; what has no equivalent is ignored and reported, or
refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sp.chat import Thinking
from sp.chat.messages import describe_value
from sp.chat.reasoning import EFFORTS
from sp.errors import plain
from sp.gguf import ChatTemplate, Tokenizer
from sp.serve.anthropic.blocks import BlockChatBuilder
from sp.serve.fields import BIGGEST, MAX_NAME, PARAM, RequestError, number, text_of
from sp.serve.grammars import can_constrain
from sp.serve.messages import to_prompt
from sp.serve.options import Defaults
from sp.serve.protocol import MAX_STOPS, CompletionJob, Range, parse_request
from sp.serve.tools import MOST_TOOLS

SHARED_FIELDS = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "sp",
)  # fields with the same meaning in a chat
TRANSLATED_FIELDS = ("messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "thinking")
WITHOUT_EFFECT = ("metadata", "betas", "anthropic_beta", "anthropic_version")
MOST_IGNORED = 16  # lines that the usage block reports
EFFORT_WORDS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
MODES: dict[str, Any] = {"enabled": "on", "disabled": "off", "adaptive": "auto"}
RENAMED = {  # in this order: longer names before those they contain
    ".function.parameters": ".input_schema",
    ".function.": ".",
    "parallel_tool_calls": "tool_choice",
    PARAM: "output_config.format",
    "stop must be": "stop_sequences must be",
}  # names of a chat's fields in errors, and their names here


@dataclass(frozen=True)
class MessagesRequest:
    """A request, translated to a chat.

    Parameters
    ----------
    body : dict
        The body of the chat, as `parse_request` takes it.
    protected_ranges : tuple of Range
        Text that compression leaves, see `CompletionJob`.
    places : tuple of int
        For each message of the chat, the index of the request's message it came from; -1 for the system prompt.
    ignored : tuple of str
        Fields and blocks that have no effect.
    lines : int
        Lines that were dropped because they change with every request.
    """

    body: dict[str, Any]
    protected_ranges: tuple[Range, ...] = ()
    places: tuple[int, ...] = ()
    ignored: tuple[str, ...] = ()
    lines: int = 0

    def usage_fields(self, more: Sequence[str] = ()) -> dict[str, Any]:
        """Return the fields that the usage block reports under `sp`. `more`: further lines of what was ignored."""
        ignored = [plain(line, 2 * MAX_NAME) for line in (*self.ignored, *more)[:MOST_IGNORED]]
        return {"kept_blocks": len(self.protected_ranges), "left_out_lines": self.lines, "ignored": ignored}

    def translated(self, error: RequestError) -> RequestError:
        """Return an error of the chat with the names of the request's own fields.

        >>> request = MessagesRequest({}, places=(-1, 0, 1))
        >>> str(request.translated(RequestError("messages[2].content is empty")))
        'messages[1].content is empty'
        """

        def place(match: re.Match[str]) -> str:
            index = int(match[1])
            message_index = self.places[index] if index < len(self.places) else index
            return "system" if message_index < 0 else f"messages[{message_index}]"

        message = re.sub(r"\bmessages\[(\d{1,4})\]", place, str(error))
        for ours, theirs in RENAMED.items():
            message = message.replace(ours, theirs)
        return RequestError(message, error.param, status=error.status, code=error.code)


def messages_request_of(body: Mapping[str, Any]) -> MessagesRequest:
    """Translate a body to a chat; RequestError names the first field at fault.

    >>> request = messages_request_of({"system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}]})
    >>> request.body["messages"][0]
    {'role': 'system', 'content': [{'type': 'text', 'text': 'Be brief.'}]}
    """
    overrides = body.get("sp")
    builder = BlockChatBuilder(marked=not isinstance(overrides, dict) or overrides.get("marked") is not False)
    builder.add_system(body.get("system"))
    builder.add_messages(body.get("messages"))
    chat: dict[str, Any] = {name: body[name] for name in SHARED_FIELDS if name in body}
    chat |= {"messages": builder.messages, "stop": _stops(body.get("stop_sequences"))}
    tools, unknown = _tools(body.get("tools"))
    chat |= {"tools": tools, **_choice(body.get("tool_choice"), tools, unknown)}
    _format(body, chat)
    known = (*SHARED_FIELDS, *TRANSLATED_FIELDS, *WITHOUT_EFFECT, "output_config")
    ignored = (*builder.ignored, *unknown, *(name for name in body if name not in known))
    return MessagesRequest(
        chat, tuple(builder.protected_ranges), tuple(builder.places), tuple(dict.fromkeys(ignored)), builder.lines
    )


def _stops(value: Any) -> list[str]:
    stops = value or []
    if (
        not isinstance(stops, list)
        or len(stops) > MAX_STOPS
        or not all(isinstance(stop, str) and stop for stop in stops)
    ):
        expected = f"a list of up to {MAX_STOPS} strings that are not empty"
        raise RequestError(f"stop_sequences is {describe_value(value)}; send {expected}", "stop_sequences")
    return stops


def _tools(value: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Translate tools; return them and the ones that cannot be run here, which are those of Anthropic's servers."""
    if not isinstance(value, list | None) or len(value or ()) > MOST_TOOLS:
        raise RequestError(f"tools must be a list of up to {MOST_TOOLS} objects", "tools")
    tools, unknown = list[dict[str, Any]](), list[str]()
    for index, tool in enumerate(value or ()):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise RequestError(f"{where} is {describe_value(tool)}; send an object with name and input_schema", where)
        kind = tool.get("type")
        if kind not in (None, "custom"):
            unknown.append(f"{where} of type {text_of(kind, f'{where}.type')[:MAX_NAME]}")
            continue
        name, schema = text_of(tool.get("name"), f"{where}.name"), tool.get("input_schema")
        if not isinstance(schema, dict):
            raise RequestError(
                f"{where}.input_schema is {describe_value(schema)}; send a JSON schema", f"{where}.input_schema"
            )
        fields = {key: tool[key] for key in ("description", "strict") if tool.get(key) is not None}
        tools.append({"type": "function", "function": {"name": name, **fields, "parameters": schema}})
    return tools, unknown


def _choice(choice: Any, tools: Sequence[Any], unknown: list[str]) -> dict[str, Any]:
    """Return the fields of a chat for ``tool_choice``. `unknown`: the tools that were ignored."""
    if choice is None:
        return {}
    kind = choice.get("type") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or kind not in ("auto", "any", "tool", "none"):
        description = describe_value(kind if isinstance(choice, dict) else choice)
        raise RequestError(f"tool_choice.type is {description}; send one of auto, any, tool, none", "tool_choice")
    single = choice.get("disable_parallel_tool_use")
    if not isinstance(single, bool | None):
        raise RequestError(f"tool_choice.disable_parallel_tool_use is {describe_value(single)}; send true or false")
    chosen: Any = {"auto": "auto", "none": "none", "any": "required"}.get(kind)
    if kind == "tool":
        name = text_of(choice.get("name"), "tool_choice.name")
        chosen = {"type": "function", "function": {"name": name}}
    if kind == "any" and not tools:
        if not unknown:
            raise RequestError("tool_choice is any, but there are no tools; send some", "tool_choice")
        chosen = "auto"  # there were tools, all of which run on Anthropic's servers
    return {"tool_choice": chosen, **({"parallel_tool_calls": False} if single else {})}


def _format(body: Mapping[str, Any], chat: dict[str, Any]) -> None:
    """Copy the format of ``output_config`` into a chat."""
    config = body.get("output_config")
    if not isinstance(config, dict | None):
        raise RequestError(f"output_config is {describe_value(config)}; send an object", "output_config")
    output_format = (config or {}).get("format")
    if output_format is None:
        return
    schema = output_format.get("schema") if isinstance(output_format, dict) else None
    if not isinstance(schema, dict) or output_format.get("type") != "json_schema":
        raise RequestError("output_config.format is not valid; send {'type': 'json_schema', 'schema': {...}}", PARAM)
    chat[PARAM] = {"type": "json_schema", "json_schema": {"schema": schema}}


def job_of(
    body: Mapping[str, Any], defaults: Defaults, template: ChatTemplate | None, tokenizer: Tokenizer
) -> tuple[CompletionJob, MessagesRequest]:
    """Parse a body; return the job and the translated request. RequestError names the first field at fault."""
    request = messages_request_of(body)
    most = number(body, "max_tokens", 1, BIGGEST, whole=True)
    if most is not None:  # clients ask for the most that Anthropic's models allow
        request.body["max_tokens"] = min(most, defaults.max_new_tokens)
    try:
        job = parse_request("chat", request.body, defaults)
    except RequestError as error:
        raise request.translated(error) from None
    thinking, ignored = _thinking(body, job.template.thinking, template)
    job = replace(
        job, protected_ranges=request.protected_ranges, template=replace(job.template, thinking=thinking, param=None)
    )
    if job.tools.forced:
        job, note = with_feasible_choice(job, template, tokenizer)
        ignored += note
    if (
        job.format
        and job.tools.tools
        and template is not None
        and not can_constrain(job.tools, template, with_format=True)
    ):
        job = replace(job, format=None)
        ignored.append("output_config.format with tools")
    return job, replace(request, ignored=(*request.ignored, *ignored))


def _thinking(body: Mapping[str, Any], thinking: Thinking, template: ChatTemplate | None) -> tuple[Thinking, list[str]]:
    """Return the thinking that ``thinking`` and ``output_config.effort`` select, and which of these fields have no
    effect.

    `thinking`: the default of the server.
    """
    thinking_field, effort = body.get("thinking"), (body.get("output_config") or {}).get("effort")
    ignored = list[str]()
    if thinking_field is not None:
        kind = thinking_field.get("type") if isinstance(thinking_field, dict) else thinking_field
        if not isinstance(thinking_field, dict) or not isinstance(kind, str) or kind not in MODES:
            raise RequestError(f"thinking.type is {describe_value(kind)}; send one of {', '.join(MODES)}", "thinking")
        number(thinking_field, "budget_tokens", 0, BIGGEST, whole=True)
        thinking = replace(thinking, mode=MODES[kind])
        ignored += ["thinking.budget_tokens"] if thinking_field.get("budget_tokens") is not None else []
        if replace(thinking, effort=None).note(template) is not None:
            ignored.append(f"thinking.type {kind}")
    if effort is not None:
        word = EFFORT_WORDS.get(text_of(effort, "output_config.effort"))
        if word is None:
            raise RequestError(
                f"output_config.effort is {describe_value(effort)}; send one of {', '.join(EFFORT_WORDS)}"
            )
        if template is not None and any(name in template.names for name in EFFORTS):
            thinking = replace(thinking, effort=word)
        else:
            ignored.append("output_config.effort")
    return thinking, ignored


def with_feasible_choice(
    job: CompletionJob, template: ChatTemplate | None, tokenizer: Tokenizer
) -> tuple[CompletionJob, list[str]]:
    """Adapt a job that forces a call to what the model supports: without thinking, or else with the call optional.

    Each variant is tried on a chat of one word, because only rendering shows what the template supports. Returns the
    job and which fields have no effect.
    """
    trial = replace(job, messages=({"role": "user", "parts": ["x"]},), protected_ranges=())
    quiet = replace(job.template, thinking=replace(job.template.thinking, mode="off"))
    for template_request, note in ((job.template, []), (quiet, ["thinking with a tool_choice that forces a call"])):
        try:
            to_prompt(replace(trial, template=template_request), template, tokenizer)
            return replace(job, template=template_request), note
        except RequestError as error:
            if error.param != "tool_choice":
                return job, []  # another error, which the job itself will raise
    free = replace(job.tools, forced=False, name=None)
    return replace(job, tools=free), ["tool_choice, as this model thinks first"]
