"""Requests in OpenAI's format, checked: completions, chats, thinking, tools."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from sp.chat import Thinking
from sp.chat.messages import FieldError, describe_value, parts_of, role_of, thought_of
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
    Format,
    RequestError,
    SamplingFields,
    check_shape,
    format_of,
    logprobs_of,
    neutral_types,
    not_null,
    penalties_of,
    prompt_of,
    text_of,
    typed,
)
from sp.serve.options import Defaults, Overrides, options_of, overrides_of
from sp.serve.tools import ToolUse, calls_of, id_of, tool_use
from sp.session import RunOptions

KWARGS = "chat_template_kwargs"
LONGEST_KWARGS = 1 << 16  # characters, as JSON
RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
"""Variables that a request must not set."""


@dataclass(frozen=True)
class TemplateRequest:
    """The variables of the chat template that a request sets."""

    thinking: Thinking = field(default_factory=Thinking)  # the server's default with the request's changes
    variables: Mapping[str, Any] = field(default_factory=dict)  # all others of `chat_template_kwargs`
    param: str | None = None  # the field that set thinking; None if none did

    def template_variables(self, template: ChatTemplate) -> dict[str, Any]:
        """Return all variables; RequestError for one that the template does not read."""
        for name in self.variables:
            if name not in template.names:
                where = f"{KWARGS}.{name}"
                raise RequestError(f"the chat template of this model does not read {where}; leave it out", where)
        if self.param and (note := self.thinking.note(template)):
            raise RequestError(f"{note}; leave {self.param} out", self.param)
        return {**self.variables, **self.thinking.variables(template)}


def template_request(body: Mapping[str, Any], default: Thinking) -> TemplateRequest:
    """Parse the fields ``chat_template_kwargs`` and ``reasoning_effort`` of a body."""
    kwargs = dict(typed(body, KWARGS, (dict, type(None)), "an object such as {'enable_thinking': false}") or {})
    if len(json.dumps(kwargs, ensure_ascii=False)) > LONGEST_KWARGS:
        raise RequestError(f"{KWARGS} has more than {LONGEST_KWARGS} characters; send less", KWARGS)
    text_of(json.dumps(kwargs, ensure_ascii=False), KWARGS)  # refuses lone surrogates, which UTF-8 cannot encode
    thinking, param = default, None
    for name in SWITCHES:
        if name in kwargs:
            value, param = kwargs.pop(name), f"{KWARGS}.{name}"
            if not isinstance(value, bool):
                raise RequestError(f"{param} is {describe_value(value)}; send true or false", param)
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
            raise RequestError(f"{where} is set by the server; leave it out", where)
    return TemplateRequest(thinking, kwargs, param)


def result_tool_names(messages: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return the name of the tool of each result, by message index; RequestError for a call without result, or a result
    without call.
    """
    names = dict[int, str]()
    open_calls, caller = dict[str, str](), 0  # names of calls without result by id, and the message that has them
    for index, message in enumerate([*messages, {"role": "end"}]):
        if message["role"] == "tool":
            where, call_id = f"messages[{index}].tool_call_id", message["call_id"]
            if call_id not in open_calls:
                raise RequestError(
                    f"{where} {describe_value(call_id)} matches no call of the assistant's turn before it", where
                )
            names[index] = open_calls.pop(call_id)
            continue
        if open_calls:
            where, missing = f"messages[{caller}].tool_calls", describe_value(next(iter(open_calls)))
            raise RequestError(f"{where}: no message of role tool answers {missing}; send its result", where)
        open_calls, caller = {call.id: call.name for call in message.get("calls", ())}, index
    return names


MAX_MESSAGES = 1024


def messages_of(value: Any, ignored: list[str] | None = None) -> tuple[dict[str, Any], ...]:
    """Parse messages into role, list of text parts, an assistant's reasoning and calls, and the call that a tool's
    message answers.

    RequestError names the first message that is invalid, or the first call or result without its counterpart.
    `ignored`: receives unknown fields; without it they are refused.
    """
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise RequestError(f"messages must be a list of 1 to {MAX_MESSAGES} messages", "messages")
    try:
        messages = [_message(item, f"messages[{index}]", ignored) for index, item in enumerate(value)]
    except FieldError as error:
        raise RequestError(str(error), error.param) from None
    for index, name in result_tool_names(messages).items():
        messages[index]["name"] = name
    return tuple(messages)


def _message(message: Any, where: str, ignored: list[str] | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": role_of(message, where, ignored)}
    if fields["role"] == "assistant":
        fields["reasoning"] = thought_of(message, where)
        fields["calls"] = calls_of(message.get("tool_calls"), f"{where}.tool_calls")
    elif fields["role"] == "tool":
        fields["call_id"] = id_of(message.get("tool_call_id"), f"{where}.tool_call_id")
    # A turn with reasoning or calls may have no text.
    spoken = bool(fields.get("reasoning") or fields.get("calls"))
    return {**fields, "parts": parts_of(message, where, spoken=spoken)}


MAX_STOPS = 16
MOST_IGNORED = 32  # lines that a reply reports

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
}  # unsupported fields, and the values that have no effect


Kind = Literal["chat", "completion"]
Range = tuple[int, int, int]


@dataclass(frozen=True)
class CompletionJob:
    """A checked request: the `messages` of a chat, or the `prompt` of a completion.

    `protected_ranges`: ranges of text that compression leaves: the index of a message, and the first and last character
    in its parts, joined by blank lines.
    """

    kind: Kind
    options: RunOptions
    messages: tuple[dict[str, Any], ...] = ()
    protected_ranges: tuple[Range, ...] = ()
    tools: ToolUse = field(default_factory=ToolUse)
    prompt: str = ""
    ids: tuple[int, ...] = ()  # token ids of the target instead of `prompt`
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    overrides: Overrides = field(default_factory=Overrides)
    template: TemplateRequest = field(default_factory=TemplateRequest)
    choices: int = 1
    logprobs: int | None = None
    penalties: Penalties | None = None
    format: Format | None = None
    ignored: tuple[str, ...] = ()  # a line for each part of the request without effect


MOST_DIGITS = 4300  # of a number; Python's own limit of str(int)
DATA = ("messages", "input", "tools", PARAM, "text", "output_config", "metadata")
"""Fields in which numbers are data, such as the bounds of a schema."""


def parse_json(raw: bytes) -> dict[str, Any]:
    """Parse a body as an object; RequestError for anything else, and for numbers that no field can mean.

    In the fields `DATA` numbers may have any size that can be written again: one beyond the range of floats becomes the
    exact integer that it spells.
    """
    large = False

    def integer(text: str) -> int:
        nonlocal large
        if len(text.removeprefix("-")) > MOST_DIGITS:  # int() itself would raise ValueError
            raise _too_large(len(text))
        large |= abs(value := int(text)) > BIGGEST  # checked below, once the field is known
        return value

    def real(text: str) -> float:
        nonlocal large
        if math.isfinite(value := float(text)):
            return value
        try:
            exact = Decimal(text)
        except InvalidOperation:  # its exponent has 19 digits or more
            raise _too_large(None) from None
        if exact.adjusted() >= MOST_DIGITS:
            raise _too_large(exact.adjusted() + 1)
        large = True
        return int(exact)

    def constant(name: str) -> float:
        raise RequestError(f"the body contains {name}, which is not JSON; leave the field out")

    check_shape(raw)  # before Python builds an object for each value
    try:
        body = json.loads(raw, parse_int=integer, parse_float=real, parse_constant=constant)
    except RecursionError:
        raise RequestError("the body is nested too deeply; send plain messages") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 (byte {error.start}); encode it so") from None
    except json.JSONDecodeError as error:
        raise RequestError(
            f"the body is not valid JSON: {error.msg} at character {error.pos}; send one object"
        ) from None
    if not isinstance(body, dict):
        raise RequestError(f"the body is a JSON {describe_value(body)}; send an object")
    if large:
        for name, value in body.items():
            if name not in DATA:
                _check_size(value, name[:MAX_NAME])
    return body


def _too_large(digits: int | None) -> RequestError:
    many = "more digits than can be converted" if digits is None else f"{digits} digits"
    return RequestError(f"the body has a number with {many}; send one of at most {MOST_DIGITS}")


def _check_size(value: Any, name: str) -> None:
    """Raise RequestError if a value contains a number beyond the range of fields."""
    waiting = [value]  # a stack: recursion could overflow
    while waiting:
        item = waiting.pop()
        if isinstance(item, int) and abs(item) > BIGGEST:
            raise RequestError(
                f"{name} has {describe_value(item)}; only schemas and messages may contain numbers beyond 2^53", name
            )
        waiting += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()


def parse_request(kind: Kind, body: Mapping[str, Any], defaults: Defaults) -> CompletionJob:
    """Parse a body; RequestError names the first invalid field.

    A null field counts as absent. An unknown field is ignored and reported, unless the server was started to refuse it.
    """
    body, ignored = not_null(body), list[str]()
    for name, value in body.items():
        if name in NEUTRAL:
            if not any(value == neutral and type(value) in neutral_types(neutral) for neutral in NEUTRAL[name]):
                reason = "which this server does not support"
                raise RequestError(f"{name} is {describe_value(value)}, {reason}; leave {name} out", name)
        elif name not in FIELDS[kind] and name not in WITHOUT_EFFECT:
            if defaults.strict_fields:
                raise RequestError(str(unknown_name("field", name[:MAX_NAME], FIELDS[kind])), name[:MAX_NAME])
            ignored.append(f"{name[:MAX_NAME]}: unknown field")
    overrides = overrides_of(body.get("sp"))
    options = options_of(body, overrides, defaults)
    stream, include_usage = _stream_options(body, None if defaults.strict_fields else ignored)
    stop = _stop(body.get("stop"))
    job = CompletionJob(kind, options, stop=stop, overrides=overrides, stream=stream, include_usage=include_usage,
              choices=SamplingFields.of(body).n or 1, logprobs=logprobs_of(body, kind), penalties=penalties_of(body),
              format=format_of(body))  # fmt: skip
    if isinstance(options.decode, Speculative) and "decode" in overrides.run:
        exclusive = {PARAM: job.format, "logprobs": job.logprobs is not None, "penalties or biases": job.penalties}
        if names := [name for name, there in exclusive.items() if there]:
            raise RequestError(
                f"sp.decode {overrides.run['decode']} cannot be combined with {names[0]}; leave one out", "sp"
            )
    typed(body, "model", (str, type(None)), "a string")
    if kind == "completion":
        prompt, ids = prompt_of(body.get("prompt"))
        return replace(job, prompt=prompt, ids=ids, ignored=ignored_lines(ignored))
    template = template_request(body, defaults.thinking)
    messages = messages_of(body.get("messages"), None if defaults.strict_fields else ignored)
    return replace(job, messages=messages, tools=tool_use(body), template=template, ignored=ignored_lines(ignored))


def ignored_lines(ignored: Sequence[str]) -> tuple[str, ...]:
    """Return the lines that a reply reports about ignored fields; many are shortened to `MOST_IGNORED`."""
    most = MOST_IGNORED if len(ignored) <= MOST_IGNORED else MOST_IGNORED - 1
    rest = [f"and {len(ignored) - most} more"] if ignored[most:] else []
    # Names of fields may contain lone surrogates, which a reply cannot.
    return tuple(text.encode(errors="replace").decode() for text in [*ignored[:most], *rest])


def _stream_options(body: Mapping[str, Any], ignored: list[str] | None) -> tuple[bool, bool]:
    stream = typed(body, "stream", (bool, type(None)), "true or false")
    options = typed(body, "stream_options", (dict, type(None)), "an object") or {}
    options = not_null(options)
    for name, value in options.items():
        where, known = f"stream_options.{name[:MAX_NAME]}", name in ("include_usage", "include_obfuscation")
        if known and isinstance(value, bool):
            continue
        if known or ignored is None:
            raise RequestError(f"{where} is not supported; send {{'include_usage': true}}", "stream_options")
        ignored.append(f"{where}: unknown field")
    return bool(stream), options.get("include_usage", False)


def _stop(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(
        isinstance(stop, str) and 0 < len(stop) <= 256 for stop in stops
    ):  # fmt: skip
        raise RequestError(f"stop must be a string or up to {MAX_STOPS} of them, each of 1 to 256 characters", "stop")
    return tuple(stops)
