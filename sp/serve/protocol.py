"""Requests: bodies parsed and checked, field by field and message by message, before anything is queued."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sp.chat.thinking import EFFORT
from sp.decode import Speculative
from sp.errors import unknown_name
from sp.serve.choices.format import PARAM, Format, format_of
from sp.serve.choices.sampling import NUMBERS, Choosing, logprobs_of
from sp.serve.fields import BIGGEST, MAX_NAME, RequestError, like, shown, text_of, typed
from sp.serve.options import Defaults, Overrides, options_of, overrides_of
from sp.serve.thinking import KWARGS, TemplateRequest, template_request
from sp.serve.tools import ToolUse, calls_of, id_of, paired, tool_use
from sp.session import RunOptions

MOST_VALUES = 200_000
"""Strings and parts of lists and objects in a body; a chat of a thousand messages has some ten thousand."""
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def check_shape(raw: bytes) -> None:
    """RequestError for a text with more than `MOST_VALUES` values; takes time in proportion to its bytes.

    It need not be JSON: a string that does not end is for the parser to tell.
    """
    at, found = 0, 0
    while at < len(raw):
        quote = raw.find(b'"', at)
        stop = len(raw) if quote < 0 else quote
        if stop - at > 1:  # between most strings there is a single sign
            found += sum(raw.count(sign, at, stop) for sign in (b",", b"[", b"{"))
        if found > MOST_VALUES:
            raise RequestError(f"the body has more than {MOST_VALUES} values; send fewer messages")
        string = STRING.match(raw, stop) if quote >= 0 else None
        if string is None:
            return
        at, found = string.end(), found + 1


MAX_MESSAGES = 1024


def messages_of(given: Any) -> tuple[dict[str, Any], ...]:
    """Messages as role, list of text parts, an assistant's reasoning and calls, the call that a tool answers.

    RequestError names the first that is none, or that lacks the other half of a call.
    """
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_MESSAGES:
        raise RequestError(f"messages must be a list of 1 to {MAX_MESSAGES} messages", "messages")
    messages = [_message(item, f"messages[{index}]") for index, item in enumerate(given)]
    for index, name in paired(messages).items():
        messages[index]["name"] = name
    return tuple(messages)


def _message(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise RequestError(f"{where} is a {shown(given)}; send an object with role and content", where)
    roles = ("system", "developer", "user", "assistant", "tool")
    role = given.get("role")
    if role not in roles:
        raise RequestError(f"{where}.role is {shown(role)}; use one of {', '.join(roles)}", f"{where}.role")
    own = {"assistant": ("reasoning_content", "tool_calls"), "tool": ("tool_call_id",)}.get(role, ())
    for name, value in given.items():
        if name in ("role", "content", "name", *own) or value in (None, []):
            continue
        place = f"{where}.{name[:MAX_NAME]}"
        what = "not supported" if name in ("function_call", "audio", "refusal", "annotations") else "unknown"
        raise RequestError(f"{place} is {what}; send the turn's text as content", place)
    said: dict[str, Any] = {"role": "system" if role == "developer" else role}
    if role == "assistant":
        thought = given.get("reasoning_content")
        said["reasoning"] = "" if thought is None else text_of(thought, f"{where}.reasoning_content")
        said["calls"] = calls_of(given.get("tool_calls"), f"{where}.tool_calls")
    elif role == "tool":
        said["call_id"] = id_of(given.get("tool_call_id"), f"{where}.tool_call_id")
    spoken = said.get("reasoning") or said.get("calls")
    content = "" if spoken and given.get("content") in (None, []) else given.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for index, part in enumerate(parts):
        place = f"{where}.content[{index}]" if isinstance(content, list) else f"{where}.content"
        if not isinstance(part, dict) or part.get("type") != "text":
            raise RequestError(f"{place} is no text; the models read text only", place)
        texts.append(text_of(part.get("text"), place))
    if not texts:
        raise RequestError(f"{where}.content is empty; leave the message out", f"{where}.content")
    return {**said, "parts": texts}


MAX_STOPS = 16

COMMON = ("model", "max_tokens", "stream", "stream_options", "stop", *NUMBERS, "logprobs", PARAM, "sp")
TOOLS = ("tools", "tool_choice", "parallel_tool_calls")
FIELDS = {
    "chat": (*COMMON, "messages", "max_completion_tokens", "top_logprobs", *TOOLS, KWARGS, EFFORT),
    "completion": (*COMMON, "prompt"),
}
WITHOUT_EFFECT = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1, None),
    "logit_bias": ({}, None),
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "echo": (False, None),
    "suffix": ("", None),
}
"""Fields that are not supported, and the values with which they ask for nothing."""


Kind = Literal["chat", "completion"]


@dataclass(frozen=True)
class Job:
    """A checked request: `messages` of a chat, or the `prompt` of a completion."""

    kind: Kind
    options: RunOptions
    messages: tuple[dict[str, Any], ...] = ()
    tools: ToolUse = field(default_factory=ToolUse)
    prompt: str = ""
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    asked: Overrides = field(default_factory=Overrides)
    template: TemplateRequest = field(default_factory=TemplateRequest)
    choices: int = 1
    logprobs: int | None = None
    format: Format | None = None


def parse_json(raw: bytes) -> dict[str, Any]:
    """The body as an object; RequestError for anything else, and for numbers no field could mean."""

    def integer(text: str) -> int:
        if len(text) > 20 or abs(int(text)) > BIGGEST:
            raise RequestError(f"the body has a number of {len(text)} digits; no field takes more than 2^53")
        return int(text)

    def real(text: str) -> float:
        if not math.isfinite(value := float(text)):
            raise RequestError("the body has a number that is not finite; no field takes one")
        return value

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
    return body


def parse_request(kind: Kind, body: Mapping[str, Any], defaults: Defaults) -> Job:
    """Check a body against what the server can do; RequestError names the first field at fault."""
    for name, value in body.items():
        if name in NEUTRAL:
            if not any(value == neutral and type(value) in like(neutral) for neutral in NEUTRAL[name]):
                said = "but the server does not support this"
                raise RequestError(f"{name} is {shown(value)}, {said}; leave {name} out", name)
        elif name not in FIELDS[kind] and name not in WITHOUT_EFFECT:
            raise RequestError(str(unknown_name("field", name[:MAX_NAME], FIELDS[kind])), name[:MAX_NAME])
    overrides = overrides_of(body.get("sp"))
    options = options_of(body, overrides, defaults)
    stream, include_usage = _stream_options(body)
    stop = _stop(body.get("stop"))
    job = Job(kind, options, stop=stop, asked=overrides, stream=stream, include_usage=include_usage,
              choices=Choosing.of(body).n or 1, logprobs=logprobs_of(body, kind), format=format_of(body))  # fmt: skip
    if (
        isinstance(options.decode, Speculative)
        and "decode" in overrides.run
        and (job.format or job.logprobs is not None)
    ):
        raise RequestError(
            f"sp.decode {overrides.run['decode']} takes neither {PARAM} nor logprobs; leave it out", "sp"
        )
    typed(body, "model", (str, type(None)), "a string")
    if kind == "completion":
        return replace(job, prompt=text_of(body.get("prompt"), "prompt"))
    template = template_request(body, defaults.thinking)
    return replace(job, messages=messages_of(body.get("messages")), tools=tool_use(body), template=template)


def _stream_options(body: Mapping[str, Any]) -> tuple[bool, bool]:
    stream = typed(body, "stream", (bool, type(None)), "true or false")
    given = typed(body, "stream_options", (dict, type(None)), "an object") or {}
    for name, value in given.items():
        if name not in ("include_usage", "include_obfuscation") or not isinstance(value, bool):
            known = "{'include_usage': true}"
            raise RequestError(f"stream_options.{name[:MAX_NAME]} is not understood; send {known}", "stream_options")
    return bool(stream), given.get("include_usage", False)


def _stop(given: Any) -> tuple[str, ...]:
    stops = [] if given is None else [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(
        isinstance(stop, str) and 0 < len(stop) <= 256 for stop in stops
    ):  # fmt: skip
        raise RequestError(f"stop must be a string or up to {MAX_STOPS} of them, each of 1 to 256 characters", "stop")
    return tuple(stops)
