"""What a client is told: one JSON error in OpenAI's shape, never a traceback."""

from __future__ import annotations

from typing import Any

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

    Parameters
    ----------
    message : str
        What is wrong, where, and what to do.
    param : str or None
        The field of the body at fault.
    status : int
        HTTP status.
    code : str
        For programs.
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
