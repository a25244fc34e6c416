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

from sp.config import from_mapping
from sp.decode import DECODERS, Decoder, Speculative
from sp.errors import ConfigError, unknown_name
from sp.pipeline import RunOptions
from sp.scoring import SCORERS
from sp.scoring.reading import by_length
from sp.selection import SELECTORS
from sp.serve.errors import RequestError

MAX_MESSAGES = 1024
MAX_STOPS = 16
MAX_NAME = 64
BIGGEST = 1 << 53  # what JSON readers agree on

COMMON = ("model", "max_tokens", "stream", "stream_options", "stop", "seed", "temperature", "top_p", "n", "sp")
FIELDS = {
    "chat": (*COMMON, "messages", "max_completion_tokens", "tools"),
    "completion": (*COMMON, "prompt"),
}
WITHOUT_EFFECT = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "top_k")
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1, None),
    "temperature": (0, None),
    "best_of": (1, None),
    "logprobs": (False, None),
    "top_logprobs": (0, None),
    "logit_bias": ({}, None),
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "echo": (False, None),
    "suffix": ("", None),
    "response_format": ({"type": "text"}, None),
    "tool_choice": ("auto", "none", None),
    "parallel_tool_calls": (True, False, None),
}
"""Fields that are not supported, and the values with which they ask for nothing."""

Protect = Literal["turn", "paragraph"]


@dataclass(frozen=True)
class Overrides:
    """`sp` of a request: how this prompt is compressed, where it differs from the server's options.

    Parameters
    ----------
    keep_ratio : float
        Share of the prompt's tokens the target reads.
    scorer, selector : str
        By name.
    alpha : float
        Threshold of the selector, if it has one of that name; else FlashPrefill's, by which the drafter then attends.
    off : bool
        Read the whole prompt.
    compress : {"auto", "always", "off"}
        As `--compress`.
    threshold : int
        As `--threshold`.
    protect : {"turn", "paragraph"}
        Whether all of the last user turn is kept, or of its last part what follows the last blank line.
    decode : str
        How the answer is decoded, by name; the server needs a draft for all but `greedy`.
    """

    keep_ratio: float | None = None
    scorer: str | None = None
    selector: str | None = None
    alpha: float | None = None
    off: bool = False
    compress: Literal["auto", "always", "off"] | None = None
    threshold: int | None = None
    protect: Protect = "turn"
    decode: str | None = None


@dataclass(frozen=True)
class Job:
    """A checked request: `messages` of a chat, or the `prompt` of a completion."""

    kind: Literal["chat", "completion"]
    options: RunOptions
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    prompt: str = ""
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    protect: Protect = "turn"


@dataclass(frozen=True)
class Defaults:
    """Options of the server: those of a run, the longest answer a request may ask for, and whether it has a draft."""

    options: RunOptions = field(default_factory=RunOptions)
    max_new_tokens: int = 1024
    draft: bool = False


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

    try:
        body = json.loads(raw, parse_int=integer, parse_float=real, parse_constant=constant)
    except RecursionError:
        raise RequestError("the body is nested too deeply; send plain messages") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 (byte {error.start}); encode it so") from None
    except json.JSONDecodeError as error:
        raise RequestError(f"the body is no JSON: {error.msg} at character {error.pos}; send one object") from None
    if not isinstance(body, dict):
        raise RequestError(f"the body is a JSON {_shown(body)}; send an object")
    return body


def parse_request(kind: Literal["chat", "completion"], body: Mapping[str, Any], defaults: Defaults) -> Job:
    """Check a body against what the server can do; RequestError names the first field at fault."""
    for name, value in body.items():
        if name in NEUTRAL:
            if not any(value == neutral and type(value) in _like(neutral) for neutral in NEUTRAL[name]):
                said = "decodes greedily" if name == "temperature" else "does not support this"
                raise RequestError(f"{name} is {_shown(value)}, but the server {said}; leave {name} out", name)
        elif name not in FIELDS[kind] and name not in WITHOUT_EFFECT:
            raise RequestError(str(unknown_name("field", name[:MAX_NAME], FIELDS[kind])), name[:MAX_NAME])
    overrides = _overrides(body.get("sp"))
    options = _options(body, overrides, defaults)
    stream, include_usage = _stream_options(body)
    stop = _stop(body.get("stop"))
    job = Job(kind, options, stop=stop, protect=overrides.protect, stream=stream, include_usage=include_usage)
    _typed(body, "model", (str, type(None)), "a string")
    _number(body, "top_p", 0, 1)
    if kind == "completion":
        return replace(job, prompt=_text(body.get("prompt"), "prompt"))
    return replace(job, messages=_messages(body.get("messages")), tools=_tools(body.get("tools")))


def _overrides(given: Any) -> Overrides:
    if given is None:
        return Overrides()
    if not isinstance(given, dict):
        raise RequestError(f"sp is a {_shown(given)}; send an object such as {{'keep_ratio': 0.1}}", "sp")
    for name, value in given.items():
        if len(name) > MAX_NAME or (isinstance(value, str | list | dict) and len(value) > MAX_NAME):
            raise RequestError(f"sp.{name[:MAX_NAME]} is longer than any name; use a known one", "sp")
    try:
        return from_mapping(Overrides, given, "sp")
    except ConfigError as error:
        raise RequestError(str(error), "sp") from None


def _options(body: Mapping[str, Any], given: Overrides, defaults: Defaults) -> RunOptions:
    """The server's options with what the request changes."""
    asked = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    changes: dict[str, Any] = {}
    for name, value in (("max_new_tokens", _number(body, asked, 1, defaults.max_new_tokens, whole=True)),
                        ("seed", _number(body, "seed", 0, BIGGEST, whole=True))):  # fmt: skip
        if value is not None:
            changes[name] = value
    if given.threshold is not None:
        changes["threshold"] = _number({"sp.threshold": given.threshold}, "sp.threshold", 0, BIGGEST, whole=True)
    if given.keep_ratio is not None:
        changes["keep_ratio"] = given.keep_ratio
    if given.off and given.compress not in (None, "off"):
        raise RequestError(f"sp.off is true but sp.compress is {given.compress!r}; send one of them", "sp")
    if given.off or given.compress is not None:
        changes["compress"] = "off" if given.off else given.compress
    try:
        if given.scorer is not None:
            changes["scorer"] = by_length(SCORERS.build(given.scorer))
        if given.selector is not None:
            changes["selector"] = SELECTORS.build(given.selector)
        if given.decode is not None:
            changes["decode"] = _decoder(given.decode, defaults)
        options = replace(defaults.options, **changes)
        return options if given.alpha is None else _with_alpha(options, given.alpha)
    except ConfigError as error:
        raise RequestError(f"sp: {error}", "sp") from None


def _decoder(name: str, defaults: Defaults) -> Decoder:
    """The server's own decoder, options and all, if it is the one named; else that with its defaults."""
    if name == DECODERS.name_of(defaults.options.decode):
        return defaults.options.decode
    decoder = DECODERS.build(name)
    if isinstance(decoder, Speculative) and not defaults.draft:
        raise ConfigError(f"decode {name} needs a draft of the target, and this server has none; leave it out")
    return decoder


def _with_alpha(options: RunOptions, alpha: float) -> RunOptions:
    """A selector that has a threshold `alpha` takes it; else the drafter attends by FlashPrefill with it."""
    scorer: Any = options.scorer
    selector: Any = options.selector
    if hasattr(selector, "alpha"):
        return replace(options, selector=replace(selector, alpha=alpha))
    if hasattr(scorer, "alpha"):
        return replace(options, scorer=replace(scorer, attention="flashprefill", alpha=alpha, density=None))
    raise ConfigError(f"neither {type(selector).__name__} nor {type(scorer).__name__} has an alpha; leave it out")


def _stream_options(body: Mapping[str, Any]) -> tuple[bool, bool]:
    stream = _typed(body, "stream", (bool, type(None)), "true or false")
    given = _typed(body, "stream_options", (dict, type(None)), "an object") or {}
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


def _messages(given: Any) -> tuple[dict[str, Any], ...]:
    """Messages as role and list of text parts."""
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_MESSAGES:
        raise RequestError(f"messages must be a list of 1 to {MAX_MESSAGES} messages", "messages")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(given))


def _message(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise RequestError(f"{where} is a {_shown(given)}; send an object with role and content", where)
    roles = ("system", "developer", "user", "assistant", "tool")
    role = given.get("role")
    if role not in roles:
        raise RequestError(f"{where}.role is {_shown(role)}; use one of {', '.join(roles)}", f"{where}.role")
    for name, value in given.items():
        if name in ("role", "content", "name", "tool_call_id") or value in (None, []):
            continue
        what = "not supported" if name in ("tool_calls", "function_call", "audio", "refusal") else "unknown"
        shown = name[:MAX_NAME]
        raise RequestError(f"{where}.{shown} is {what}; send the turn's text as content", f"{where}.{shown}")
    content = given.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for index, part in enumerate(parts):
        place = f"{where}.content[{index}]" if isinstance(content, list) else f"{where}.content"
        if not isinstance(part, dict) or part.get("type") != "text":
            raise RequestError(f"{place} is no text; the models read text only", place)
        texts.append(_text(part.get("text"), place))
    if not texts:
        raise RequestError(f"{where}.content is empty; leave the message out", f"{where}.content")
    return {"role": "system" if role == "developer" else role, "parts": texts}


def _tools(given: Any) -> tuple[dict[str, Any], ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > 256 or not all(isinstance(tool, dict) for tool in given):
        raise RequestError("tools must be a list of up to 256 objects", "tools")
    _text(json.dumps(given, ensure_ascii=False), "tools")
    return tuple(given)


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise RequestError(f"{where} is {_shown(given)}; send a string", where)
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{where} has a lone surrogate at character {error.start}; send UTF-8 text", where) from None
    return given


def _typed(body: Mapping[str, Any], name: str, kinds: tuple[type, ...], expected: str) -> Any:
    value = body.get(name)
    if not isinstance(value, kinds):
        raise RequestError(f"{name} is {_shown(value)}; send {expected}", name)
    return value


def _number(body: Mapping[str, Any], name: str, low: int, high: int, *, whole: bool = False) -> Any:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise RequestError(f"{name} is {_shown(value)}; send {kind} from {low} to {high}", name)
    return value


def _like(neutral: Any) -> tuple[type, ...]:
    """Types in which a neutral value may come: JSON writes 0 and 0.0, but false is no number."""
    return (int, float) if type(neutral) is int else (type(neutral),)


def _shown(value: Any) -> str:
    """A value for an error: numbers and short strings as they are, else the JSON type."""
    if value is None or isinstance(value, bool):
        return {None: "missing", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= MAX_NAME else f"string of {len(value)} characters"
    return "list" if isinstance(value, list) else "object"
