"""What is wrong with a request, and single values of its body: of the type and in the range they must have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sp.config import Field
from sp.errors import DeviceError, SpError, plain

LONGEST_MESSAGE = 300
IN_A_REQUEST = {
    "--keep-ratio": "sp.keep_ratio",
    "--max-new-tokens": "max_tokens",
    "give a text with --prompt-file": "give some text",
}
"""What the options that errors of the pipeline speak of are called in a request."""


class RequestError(SpError):
    """A request that cannot be served.

    `message`: what is wrong, where, and what to do; `param`: the field of the body at fault.
    """

    def __init__(
        self, message: str, param: str | None = None, *, status: int = 400, code: str = "invalid_request"
    ) -> None:
        super().__init__(message)
        self.param, self.status, self.code = param, status, code

    def body(self) -> dict[str, Any]:
        """The JSON of the response; what the client sent is shown in part and without control characters."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        message = plain(str(self), LONGEST_MESSAGE)
        param = None if self.param is None else plain(self.param)
        return {"error": {"message": message, "type": kind, "param": param, "code": self.code}}


def as_request_error(error: Exception) -> RequestError:
    """The error a client is shown for whatever went wrong while its request was served."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, SpError):
        message = str(error)
        for option, field in IN_A_REQUEST.items():
            message = message.replace(option, field)
        if isinstance(error, DeviceError):
            return RequestError(message, status=503, code="device_error")
        return RequestError(message)
    if isinstance(error, MemoryError):
        advice = "send a shorter prompt, or one with a lower sp.keep_ratio"
        return RequestError(f"out of memory; {advice}", status=503, code="out_of_memory")
    return RequestError("internal error; the server's log says more", status=500, code="internal_error")


MAX_NAME = 64
BIGGEST = 1 << 53  # what JSON readers agree on


def text_of(given: Any, where: str) -> str:
    """A string that UTF-8 can write, or RequestError."""
    if not isinstance(given, str):
        raise RequestError(f"{where} is {shown(given)}; send a string", where)
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{where} has a lone surrogate at character {error.start}; send UTF-8 text", where) from None
    return given


def typed(body: Mapping[str, Any], name: str, kinds: tuple[type, ...], expected: str) -> Any:
    """The value of a field, None if it was left out; RequestError unless it is of one of the kinds."""
    value = body.get(name)
    if not isinstance(value, kinds):
        raise RequestError(f"{name} is {shown(value)}; send {expected}", name)
    return value


def number(body: Mapping[str, Any], name: str, low: int, high: int, *, whole: bool = False) -> Any:
    """A number from `low` to `high`, None if it was left out; RequestError for any other value."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise RequestError(f"{name} is {shown(value)}; send {kind} from {low} to {high}", name)
    return value


def number_of(body: Mapping[str, Any], field: Field) -> Any:
    """A number as a field of a dataclass has it, None if it was left out; RequestError for any other value."""
    bounds = int(field.option.least or 0), int(field.option.most or BIGGEST)
    return number(body, field.name, *bounds, whole=field.hint == int | None)


def like(neutral: Any) -> tuple[type, ...]:
    """Types in which a neutral value may come: JSON writes 0 and 0.0, but false is no number."""
    return (int, float) if type(neutral) is int else (type(neutral),)


def shown(value: Any) -> str:
    """A value for an error: numbers and short strings as they are, else the JSON type."""
    if value is None or isinstance(value, bool):
        return {None: "missing", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= MAX_NAME else f"string of {len(value)} characters"
    return "list" if isinstance(value, list) else "object"
