"""Request bodies, checked field by field before anything is queued.

What would change the answer and is not supported is refused, as is any field nobody knows: nothing is dropped
silently but what cannot matter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sp.chat.thinking import EFFORT
from sp.conversation.options import Recall
from sp.decode import Speculative
from sp.errors import unknown_name
from sp.pipeline import RunOptions
from sp.serve.choices.format import PARAM, Format, format_of
from sp.serve.choices.sampling import FIELDS as CHOOSING
from sp.serve.choices.sampling import choices_of, logprobs_of
from sp.serve.content import messages_of
from sp.serve.errors import RequestError
from sp.serve.fields import BIGGEST, MAX_NAME, like, shown, text_of, typed
from sp.serve.http.shape import check_shape
from sp.serve.options import Defaults, Protect, options_of, overrides_of
from sp.serve.thinking import KWARGS, TemplateRequest, template_request
from sp.serve.tools import ToolUse, tool_use

MAX_STOPS = 16

COMMON = ("model", "max_tokens", "stream", "stream_options", "stop", *CHOOSING, PARAM, "sp")
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
    protect: Protect = "auto"
    template: TemplateRequest = field(default_factory=TemplateRequest)
    session: bool = True
    recall: Recall | None = None
    return_kept: bool = False
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
    job = Job(kind, options, stop=stop, protect=overrides.protect, stream=stream, include_usage=include_usage,
              session=overrides.session, recall=overrides.recall, return_kept=overrides.return_kept,
              choices=choices_of(body), logprobs=logprobs_of(body, kind), format=format_of(body))  # fmt: skip
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
