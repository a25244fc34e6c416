"""Requests and replies as OpenAI's clients write and read them: completions, chats, thinking, tools."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from sp.chat import Thinking
from sp.chat.messages import FieldError, parts_of, role_of, thought_of
from sp.chat.reasoning import EFFORT, SWITCHES
from sp.decode import Speculative
from sp.errors import ConfigError, unknown_name
from sp.gguf import ChatTemplate
from sp.ops.sampling.biased import Penalties
from sp.serve.fields import (
    BIAS,
    BIGGEST,
    MAX_NAME,
    NUMBERS,
    PARAM,
    Choosing,
    Format,
    RequestError,
    check_shape,
    format_of,
    like,
    logprobs_of,
    not_null,
    penalties_of,
    prompt_of,
    shown,
    text_of,
    typed,
)
from sp.serve.options import Defaults, Overrides, options_of, overrides_of
from sp.serve.tools import ToolUse, calls_of, id_of, tool_use
from sp.session import RunOptions

KWARGS = "chat_template_kwargs"
LONGEST_KWARGS = 1 << 16
RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
"""Variables that are not a request's to set."""


@dataclass(frozen=True)
class TemplateRequest:
    """What the template is to be told."""

    thinking: Thinking = field(default_factory=Thinking)  # the server's, with what the request changes
    variables: Mapping[str, Any] = field(default_factory=dict)  # the rest of `chat_template_kwargs`
    param: str | None = None  # the field by which the request asked for thinking; None if it did not

    def told(self, template: ChatTemplate) -> dict[str, Any]:
        """All variables; RequestError for what the template does not read."""
        for name in self.variables:
            if name not in template.names:
                where = f"{KWARGS}.{name}"
                raise RequestError(f"the chat template of this model does not read {where}; leave it out", where)
        if self.param and (note := self.thinking.note(template)):
            raise RequestError(f"{note}; leave {self.param} out", self.param)
        return {**self.variables, **self.thinking.variables(template)}


def template_request(body: Mapping[str, Any], default: Thinking) -> TemplateRequest:
    """The fields ``chat_template_kwargs`` and ``reasoning_effort`` of a body, checked."""
    kwargs = dict(typed(body, KWARGS, (dict, type(None)), "an object such as {'enable_thinking': false}") or {})
    if len(json.dumps(kwargs, ensure_ascii=False)) > LONGEST_KWARGS:
        raise RequestError(f"{KWARGS} has more than {LONGEST_KWARGS} characters; send less", KWARGS)
    text_of(json.dumps(kwargs, ensure_ascii=False), KWARGS)
    thinking, param = default, None
    for name in SWITCHES:
        if name in kwargs:
            value, param = kwargs.pop(name), f"{KWARGS}.{name}"
            if not isinstance(value, bool):
                raise RequestError(f"{param} is {shown(value)}; send true or false", param)
            thinking = replace(thinking, mode="on" if value else "off")
    efforts = [(f"{KWARGS}.{EFFORT}", kwargs.pop(EFFORT, None)), (EFFORT, body.get(EFFORT))]
    for where, value in efforts:
        if value is not None:
            try:
                thinking, param = replace(thinking, effort=text_of(value, where)), where
            except ConfigError as error:
                raise RequestError(f"{where}: {error}", where) from None
    for name in kwargs:
        where = f"{KWARGS}.{name[:MAX_NAME]}"
        if name in RESERVED:
            raise RequestError(f"{where} is not a request's to set; leave it out", where)
    return TemplateRequest(thinking, kwargs, param)


def paired(messages: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Names of the tools that answer, by their messages; RequestError for a call or a result without the other."""
    found = dict[int, str]()
    open_calls, asked = dict[str, str](), 0
    for index, message in enumerate([*messages, {"role": "end"}]):
        if message["role"] == "tool":
            where, given = f"messages[{index}].tool_call_id", message["call_id"]
            if given not in open_calls:
                raise RequestError(f"{where} {shown(given)} answers no call of the assistant's turn before it", where)
            found[index] = open_calls.pop(given)
            continue
        if open_calls:
            where, missing = f"messages[{asked}].tool_calls", shown(next(iter(open_calls)))
            raise RequestError(f"{where}: no message of role tool answers {missing}; send its result", where)
        open_calls, asked = {call.id: call.name for call in message.get("calls", ())}, index
    return found


MAX_MESSAGES = 1024


def messages_of(given: Any, ignored: list[str] | None = None) -> tuple[dict[str, Any], ...]:
    """Messages as role, list of text parts, an assistant's reasoning and calls, the call that a tool answers.
    RequestError names the first that is none, or that lacks the other half of a call. `ignored`: hears of unknown
    fields; without it they are refused.
    """
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_MESSAGES:
        raise RequestError(f"messages must be a list of 1 to {MAX_MESSAGES} messages", "messages")
    try:
        messages = [_message(item, f"messages[{index}]", ignored) for index, item in enumerate(given)]
    except FieldError as error:
        raise RequestError(str(error), error.param) from None
    for index, name in paired(messages).items():
        messages[index]["name"] = name
    return tuple(messages)


def _message(given: Any, where: str, ignored: list[str] | None) -> dict[str, Any]:
    said: dict[str, Any] = {"role": role_of(given, where, ignored)}
    if said["role"] == "assistant":
        said["reasoning"] = thought_of(given, where)
        said["calls"] = calls_of(given.get("tool_calls"), f"{where}.tool_calls")
    elif said["role"] == "tool":
        said["call_id"] = id_of(given.get("tool_call_id"), f"{where}.tool_call_id")
    spoken = bool(said.get("reasoning") or said.get("calls"))
    return {**said, "parts": parts_of(given, where, spoken=spoken)}


MAX_STOPS = 16
MOST_IGNORED = 32  # lines; a client that sends more of what is unknown knows by then

COMMON = ("model", "max_tokens", "stream", "stream_options", "stop", *NUMBERS, BIAS, "logprobs", PARAM, "sp")
TOOLS = ("tools", "tool_choice", "parallel_tool_calls")
FIELDS = {
    "chat": (*COMMON, "messages", "max_completion_tokens", "top_logprobs", *TOOLS, KWARGS, EFFORT),
    "completion": (*COMMON, "prompt"),
}
WITHOUT_EFFECT = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1, None),
    "echo": (False, None),
    "suffix": ("", None),
}  # fields that are not supported, and the values with which they ask for nothing


Kind = Literal["chat", "completion"]
Range = tuple[int, int, int]


@dataclass(frozen=True)
class Job:
    """A checked request: `messages` of a chat, or the `prompt` of a completion. `kept`: ranges of text that compression
    leaves: the number of a message, and the characters of its parts, joined by blank lines, from which and to which.
    """

    kind: Kind
    options: RunOptions
    messages: tuple[dict[str, Any], ...] = ()
    kept: tuple[Range, ...] = ()
    tools: ToolUse = field(default_factory=ToolUse)
    prompt: str = ""
    ids: tuple[int, ...] = ()  # tokens of the target in place of it
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    asked: Overrides = field(default_factory=Overrides)
    template: TemplateRequest = field(default_factory=TemplateRequest)
    choices: int = 1
    logprobs: int | None = None
    penalties: Penalties | None = None
    format: Format | None = None
    ignored: tuple[str, ...] = ()  # what of the request is not heeded, a line each


MOST_DIGITS = 4300  # of a number, as Python itself writes them
DATA = ("messages", "input", "tools", PARAM, "text", "output_config", "metadata")
"""Fields in which numbers are data, such as the bounds of a schema."""


def parse_json(raw: bytes) -> dict[str, Any]:
    """The body as an object; RequestError for anything else, and for numbers no field could mean. In `DATA` numbers may
    have any size that can be written again: one beyond floats is the whole number that it spells, to the digit.
    """
    large = False

    def integer(text: str) -> int:
        nonlocal large
        if len(text.removeprefix("-")) > MOST_DIGITS:
            raise _too_large(len(text))
        large |= abs(value := int(text)) > BIGGEST
        return value

    def real(text: str) -> float:
        nonlocal large
        if math.isfinite(value := float(text)):
            return value
        try:
            exact = Decimal(text)
        except InvalidOperation:  # its exponent has nineteen digits
            raise _too_large(None) from None
        if exact.adjusted() >= MOST_DIGITS:
            raise _too_large(exact.adjusted() + 1)
        large = True
        return int(exact)

    def constant(name: str) -> float:
        raise RequestError(f"the body has {name}, which is no JSON; leave the field out")

    check_shape(raw)
    try:
        body = json.loads(raw, parse_int=integer, parse_float=real, parse_constant=constant)
    except RecursionError:
        raise RequestError("the body is nested too deeply; send plain messages") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 (byte {error.start}); encode it so") from None
    except json.JSONDecodeError as error:
        raise RequestError(f"the body is no JSON: {error.msg} at character {error.pos}; send one object") from None
    if not isinstance(body, dict):
        raise RequestError(f"the body is a JSON {shown(body)}; send an object")
    if large:
        for name, value in body.items():
            if name not in DATA:
                _check_size(value, name[:MAX_NAME])
    return body


def _too_large(digits: int | None) -> RequestError:
    many = "more digits than can be written" if digits is None else f"{digits} digits"
    return RequestError(f"the body has a number of {many}; send one of at most {MOST_DIGITS}")


def _check_size(value: Any, name: str) -> None:
    """RequestError if a number in it is beyond what fields take."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, int) and abs(each) > BIGGEST:
            raise RequestError(f"{name} has {shown(each)}; only schemas and messages may have more than 2^53", name)
        waiting += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()


def parse_request(kind: Kind, body: Mapping[str, Any], defaults: Defaults) -> Job:
    """Check a body against what the server can do; RequestError names the first field at fault. A field that is null is
    left out; one that is unknown is ignored, and told, unless the server was started to refuse it.
    """
    body, ignored = not_null(body), list[str]()
    for name, value in body.items():
        if name in NEUTRAL:
            if not any(value == neutral and type(value) in like(neutral) for neutral in NEUTRAL[name]):
                said = "but the server does not support this"
                raise RequestError(f"{name} is {shown(value)}, {said}; leave {name} out", name)
        elif name not in FIELDS[kind] and name not in WITHOUT_EFFECT:
            if defaults.strict_fields:
                raise RequestError(str(unknown_name("field", name[:MAX_NAME], FIELDS[kind])), name[:MAX_NAME])
            ignored.append(f"{name[:MAX_NAME]}: unknown field")
    overrides = overrides_of(body.get("sp"))
    options = options_of(body, overrides, defaults)
    stream, include_usage = _stream_options(body, None if defaults.strict_fields else ignored)
    stop = _stop(body.get("stop"))
    job = Job(kind, options, stop=stop, asked=overrides, stream=stream, include_usage=include_usage,
              choices=Choosing.of(body).n or 1, logprobs=logprobs_of(body, kind), penalties=penalties_of(body),
              format=format_of(body))  # fmt: skip
    if isinstance(options.decode, Speculative) and "decode" in overrides.run:
        watched = {PARAM: job.format, "logprobs": job.logprobs is not None, "penalties or biases": job.penalties}
        if names := [name for name, there in watched.items() if there]:
            raise RequestError(f"sp.decode {overrides.run['decode']} takes no {names[0]}; leave one out", "sp")
    typed(body, "model", (str, type(None)), "a string")
    if kind == "completion":
        prompt, ids = prompt_of(body.get("prompt"))
        return replace(job, prompt=prompt, ids=ids, ignored=told(ignored))
    template = template_request(body, defaults.thinking)
    messages = messages_of(body.get("messages"), None if defaults.strict_fields else ignored)
    return replace(job, messages=messages, tools=tool_use(body), template=template, ignored=told(ignored))


def told(ignored: Sequence[str]) -> tuple[str, ...]:
    """What a reply says of what is not heeded: one line each, and not all of many."""
    most = MOST_IGNORED if len(ignored) <= MOST_IGNORED else MOST_IGNORED - 1
    rest = [f"and {len(ignored) - most} more"] if ignored[most:] else []
    return tuple(text.encode(errors="replace").decode() for text in [*ignored[:most], *rest])


def _stream_options(body: Mapping[str, Any], ignored: list[str] | None) -> tuple[bool, bool]:
    stream = typed(body, "stream", (bool, type(None)), "true or false")
    given = typed(body, "stream_options", (dict, type(None)), "an object") or {}
    given = not_null(given)
    for name, value in given.items():
        where, ours = f"stream_options.{name[:MAX_NAME]}", name in ("include_usage", "include_obfuscation")
        if ours and isinstance(value, bool):
            continue
        if ours or ignored is None:
            raise RequestError(f"{where} is not understood; send {{'include_usage': true}}", "stream_options")
        ignored.append(f"{where}: unknown field")
    return bool(stream), given.get("include_usage", False)


def _stop(given: Any) -> tuple[str, ...]:
    stops = [] if given is None else [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(
        isinstance(stop, str) and 0 < len(stop) <= 256 for stop in stops
    ):  # fmt: skip
        raise RequestError(f"stop must be a string or up to {MAX_STOPS} of them, each of 1 to 256 characters", "stop")
    return tuple(stops)
