"""Fields of a request's body, checked for type and range: sampling, penalties, formats."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from sp.chat import messages
from sp.chat.calls import MOST_DEPTH, shallow
from sp.chat.messages import BIGGEST as BIGGEST
from sp.chat.messages import MAX_NAME as MAX_NAME
from sp.chat.messages import FieldError, describe_value
from sp.config import Field, Option, fields_of
from sp.decode import Decoder, Greedy, SamplingDecoder, Speculative
from sp.decode.base import COLDEST
from sp.errors import ChangedError, DeviceError, SpError, TooLongError, plain
from sp.ops.sampling.biased import Penalties

LONGEST_MESSAGE = 300
TOO_LONG = "context_length_exceeded"  # the code by which clients know that they must shorten the conversation
IN_A_REQUEST = {
    "--keep-ratio": "sp.keep_ratio",
    "--max-new-tokens": "max_tokens",
    "pass a text with --prompt-file": "send some text",
}  # options in errors of the pipeline, and their names in a request


class RequestError(SpError):
    """A request that cannot be served.

    `message`: says what is wrong, where, and what to do; `param`: the body's field at fault.
    """

    def __init__(
        self, message: str, param: str | None = None, *, status: int = 400, code: str = "invalid_request"
    ) -> None:
        super().__init__(message)
        self.param, self.status, self.code = param, status, code

    def body(self) -> dict[str, Any]:
        """Return the JSON of the response; text that the client sent is shortened and stripped of control
        characters.
        """
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        message = plain(str(self), LONGEST_MESSAGE)
        param = None if self.param is None else plain(self.param)
        return {"error": {"message": message, "type": kind, "param": param, "code": self.code}}


def as_request_error(error: Exception) -> RequestError:
    """Return the error that a client gets for any exception while its request was served."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, SpError):
        message = str(error)
        for option, field in IN_A_REQUEST.items():
            message = message.replace(option, field)
        if isinstance(error, DeviceError):
            return RequestError(message, status=503, code="device_error")
        if isinstance(error, ChangedError):
            return RequestError(message, status=503, code="model_changed")
        return RequestError(message, code=TOO_LONG) if isinstance(error, TooLongError) else RequestError(message)
    if isinstance(error, MemoryError):
        advice = "send a shorter prompt, or one with a lower sp.keep_ratio"
        return RequestError(f"out of memory; {advice}", status=503, code="out_of_memory")
    return RequestError("internal error; see the server's log", status=500, code="internal_error")


MOST_VALUES = 200_000
"""Strings and members of lists and objects in a body; a chat of a thousand messages has about ten thousand."""
# A JSON string. Possessive quantifiers: no backtracking, whatever a client sends.
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def check_shape(raw: bytes) -> None:
    """Raise RequestError for a text with more than `MOST_VALUES` values, in time proportional to its length.

    It need not be valid JSON: a string without end is left to the parser.
    """
    offset, count = 0, 0
    while offset < len(raw):
        quote = raw.find(b'"', offset)
        stop = len(raw) if quote < 0 else quote
        if stop - offset > 1:  # most strings are separated by a single character
            count += sum(raw.count(sign, offset, stop) for sign in (b",", b"[", b"{"))
        if count > MOST_VALUES:
            raise RequestError(f"the body has more than {MOST_VALUES} values; send fewer messages")
        string = STRING.match(raw, stop) if quote >= 0 else None
        if string is None:
            return
        offset, count = string.end(), count + 1


def text_of(value: Any, where: str) -> str:
    """Return a string that UTF-8 can encode; else raise RequestError."""
    try:
        return messages.text_of(value, where)
    except FieldError as error:
        raise RequestError(str(error), error.param) from None


def not_null(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without its null fields, which many clients send for absent ones.

    >>> not_null({"type": "text", "json_schema": None})
    {'type': 'text'}
    """
    return {name: value for name, value in fields.items() if value is not None}


def prompt_of(value: Any) -> tuple[str, tuple[int, ...]]:
    """Return the prompt of a completion, as text or as tokens; RequestError for anything else, and for several
    prompts.

    >>> prompt_of("Hi"), prompt_of(["Hi"]), prompt_of([5, 7]), prompt_of([[5, 7]])
    (('Hi', ()), ('Hi', ()), ('', (5, 7)), ('', (5, 7)))
    """
    if not isinstance(value, list):
        return text_of(value, "prompt"), ()
    if len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return text_of(value, "prompt"), ()
    # The type itself, because true and false are instances of int.
    if not value or not all(type(token) is int and 0 <= token < 1 << 31 for token in value):
        raise RequestError("prompt must be one text, or one list of token ids; send a request for each", "prompt")
    return "", tuple(value)


def typed(body: Mapping[str, Any], name: str, kinds: tuple[type, ...], expected: str) -> Any:
    """Return the value of a field, None if it is absent; RequestError unless it has one of the types."""
    value = body.get(name)
    if not isinstance(value, kinds):
        raise RequestError(f"{name} is {describe_value(value)}; send {expected}", name)
    return value


def number(body: Mapping[str, Any], name: str, low: float, high: float, *, whole: bool = False) -> Any:
    """Return a number from `low` to `high`, None if the field is absent; RequestError for any other value."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise RequestError(f"{name} is {describe_value(value)}; send {kind} from {low} to {high}", name)
    return value


def number_of(body: Mapping[str, Any], field: Field) -> Any:
    """Return a number in the range of a dataclass field, None if it is absent; RequestError for any other value."""
    least, most = field.option.least or 0, BIGGEST if field.option.most is None else field.option.most
    whole = field.hint == int | None
    bounds = (int(least), int(most)) if whole else (least, most)
    return number(body, field.name, *bounds, whole=whole)


def neutral_types(neutral: Any) -> tuple[type, ...]:
    """Return the types that a neutral value may have: JSON writes 0 and 0.0, but false is not a number."""
    return (int, float) if type(neutral) is int else (type(neutral),)


MOST_CHOICES = 16
MOST_LOGPROBS = 20
LEAST_SHARE = 1e-9  # so that a `top_p` of 0 leaves the likeliest token


@dataclass(frozen=True)
class SamplingFields:
    """Fields of a request that control sampling.

    Parameters
    ----------
    temperature : float, optional
        Above 0 samples, 0 takes the likeliest token; without one the server's default applies.
    top_p, min_p : float, optional
        Filters of sampling, as in vLLM.
    top_k : int, optional
        Likeliest tokens to draw from; 0 or -1 for all.
    seed : int, optional
        Makes an answer repeatable; a negative one counts down from 2^53.
    n : int, optional
        Number of answers.
    presence_penalty, frequency_penalty : float, optional
        Subtracted from the logits of tokens that the answer has: once, and once per occurrence.
    repeat_penalty, repetition_penalty : float, optional
        Divide the positive logits of earlier tokens and multiply the negative ones; 1 has no effect. The first covers
        the last `repeat_last_n` tokens, as in llama.cpp, the second all of prompt and answer, as in vLLM.
    repeat_last_n : int, optional
        Last tokens of prompt and answer that `repeat_penalty` covers; 64 by default, -1 for all.
    """

    temperature: Annotated[float | None, Option(least=0, most=2)] = None
    top_p: Annotated[float | None, Option(least=0, most=1)] = None
    top_k: Annotated[int | None, Option(least=-1, most=(1 << 31) - 1)] = None
    min_p: Annotated[float | None, Option(least=0, most=1)] = None
    seed: Annotated[int | None, Option(least=-BIGGEST, most=BIGGEST)] = None
    n: Annotated[int | None, Option(least=1, most=MOST_CHOICES)] = None
    presence_penalty: Annotated[float | None, Option(least=-2, most=2)] = None
    frequency_penalty: Annotated[float | None, Option(least=-2, most=2)] = None
    repeat_penalty: Annotated[float | None, Option(least=0.01, most=100)] = None
    repetition_penalty: Annotated[float | None, Option(least=0.01, most=100)] = None
    repeat_last_n: Annotated[int | None, Option(least=-1, most=(1 << 31) - 1)] = None

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """Parse those of a body; RequestError for one that is not a number, or out of range."""
        return cls(**{name: number_of(body, field) for name, field in NUMBERS.items()})


NUMBERS = {field.name: field for field in fields_of(SamplingFields)}


def decoder_of(body: Mapping[str, Any], default: Decoder, named: str | None) -> Decoder:
    """Return the decoder of a request.

    A temperature above 0 samples, 0 takes the likeliest token; without one the server's default applies, which is
    greedy unless configured otherwise. Filters and seed have no effect on greedy decoding. Speculative decoding is for
    greedy answers only.

    `default`: the server's, or that of ``sp.decode``, which `named` spells. RequestError for a value out of range, and
    if ``sp.decode`` names a speculative decoder although tokens are sampled.

    >>> decoder_of({"temperature": 0.7, "top_p": 0.9, "seed": 4}, Greedy(), None)
    SamplingDecoder(temperature=0.7, top_k=0, top_p=0.9, min_p=0.0, seed=4)
    >>> decoder_of({"top_p": 0.9}, Greedy(), None)
    Greedy()
    """
    sampling = SamplingFields.of(body)
    temperature, top_p, top_k, min_p, seed = (
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.min_p,
        sampling.seed,
    )
    if temperature is None and not isinstance(default, SamplingDecoder):
        return default
    if temperature is not None and temperature < COLDEST:
        return Greedy() if isinstance(default, SamplingDecoder) else default
    if isinstance(default, Speculative) and named is not None:
        raise RequestError(
            f"sp.decode {named} is speculative decoding, which is greedy; leave it or temperature out", "sp"
        )
    base = default if isinstance(default, SamplingDecoder) else SamplingDecoder()
    # Drawn here, so that the reply can report the seed and further choices can derive theirs.
    default_seed = base.seed if base.seed is not None else secrets.randbelow(BIGGEST)
    return SamplingDecoder(
        temperature=base.temperature if temperature is None else float(temperature),
        top_k=base.top_k if top_k is None else max(top_k, 0),  # in vLLM -1 means all
        top_p=base.top_p if top_p is None else max(float(top_p), LEAST_SHARE),
        min_p=base.min_p if min_p is None else float(min_p),
        seed=default_seed if seed is None else seed % BIGGEST,
    )


NEAREST = 64  # tokens in the range of `repeat_penalty` by default, as in llama.cpp
BIAS = "logit_bias"
MOST_BIAS = 100


def penalties_of(body: Mapping[str, Any]) -> Penalties | None:
    """Return the changes of logits that a request wants; None if it wants none.

    >>> penalties_of({"frequency_penalty": 0.5, "logit_bias": {"7": -100}})
    Penalties(presence=0.0, frequency=0.5, repeat=1.0, last=-1, bias={7: -100.0}, prompt=None)
    >>> penalties_of({"repeat_penalty": 1.1}).last, penalties_of({"repetition_penalty": 1.1}).last
    (64, -1)
    """
    sampling = SamplingFields.of(body)
    both = [name for name in ("repeat_penalty", "repetition_penalty") if getattr(sampling, name) is not None]
    if len(both) > 1:
        raise RequestError("repeat_penalty and repetition_penalty cannot be combined; leave one out", both[1])
    last = -1 if both == ["repetition_penalty"] else NEAREST
    penalties = Penalties(
        presence=float(sampling.presence_penalty or 0),
        frequency=float(sampling.frequency_penalty or 0),
        repeat=float(getattr(sampling, both[0])) if both else 1.0,
        last=(last if both else -1) if sampling.repeat_last_n is None else sampling.repeat_last_n,
        bias=_bias(body.get(BIAS)),
    )
    return penalties if penalties.any else None


def _bias(biases: Any) -> dict[int, float]:
    """Return the values to add to the logits of tokens."""
    if biases is None:
        return {}
    if not isinstance(biases, dict):
        raise RequestError(f"{BIAS} is {describe_value(biases)}; send an object such as {{'1234': -100}}", BIAS)
    for token, value in biases.items():
        if not re.fullmatch(r"0|[1-9][0-9]{0,9}", token):
            raise RequestError(
                f"{BIAS} has the key {describe_value(token)}; send token ids, as /tokenize returns them", BIAS
            )
        number({f"{BIAS}.{token}": value}, f"{BIAS}.{token}", -MOST_BIAS, MOST_BIAS)
        if value is None:
            raise RequestError(f"{BIAS}.{token} is missing; send a number from -{MOST_BIAS} to {MOST_BIAS}", BIAS)
    return {int(token): float(value) for token, value in biases.items()}


def logprobs_of(body: Mapping[str, Any], kind: Literal["chat", "completion"]) -> int | None:
    """Return the number of likeliest tokens to report with each token; None for no log probabilities."""
    if kind == "completion":
        count = body.get("logprobs")
        return None if count is None or count is False else number(body, "logprobs", 0, MOST_LOGPROBS, whole=True)
    enabled, top = body.get("logprobs"), number(body, "top_logprobs", 0, MOST_LOGPROBS, whole=True)
    if not isinstance(enabled, bool | None):
        raise RequestError(f"logprobs is {describe_value(enabled)}; send true or false", "logprobs")
    if top and not enabled:
        raise RequestError("top_logprobs needs logprobs; send it as true", "top_logprobs")
    return (top or 0) if enabled else None


def decoder_of_choice(decode: Decoder, index: int) -> Decoder:
    """Return the decoder of the answer with this index: sampling uses a different seed for each."""
    if not isinstance(decode, SamplingDecoder) or decode.seed is None:
        return decode
    return replace(decode, seed=(decode.seed + index) % BIGGEST)


LONGEST_SCHEMA = 1 << 16  # characters
KINDS = ("text", "json_object", "json_schema")
PARAM = "response_format"


@dataclass(frozen=True)
class Format:
    """The format of an answer: JSON that matches `schema`, itself JSON text."""

    schema: str


def format_of(body: Mapping[str, Any]) -> Format | None:
    """Return the format that a request wants; None for text. RequestError for an invalid one.

    >>> format_of({"response_format": {"type": "json_object"}})
    Format(schema='{"type": "object"}')
    """
    value = body.get(PARAM)
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in KINDS:
        description = describe_value(kind if isinstance(value, dict) else value)
        raise RequestError(f"{PARAM}.type is {description}; send one of {', '.join(KINDS)}", PARAM)
    for name in not_null(value):
        if name not in ("type", kind if kind == "json_schema" else "type"):
            raise RequestError(f"{PARAM}.{name[:MAX_NAME]} is unknown with type {kind}; leave it out", PARAM)
    if kind == "text":
        return None
    return Format(json.dumps({"type": "object"}) if kind == "json_object" else _schema(value.get("json_schema")))


def _schema(value: Any) -> str:
    where = f"{PARAM}.json_schema"
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(schema, dict):
        raise RequestError(f"{where}.schema is not an object; send {{'name': 'x', 'schema': {{...}}}}", where)
    for name in not_null(value):
        if name not in ("name", "schema", "strict", "description"):
            raise RequestError(f"{where}.{name[:MAX_NAME]} is unknown; leave it out", where)
    if not shallow(schema, MOST_DEPTH):
        raise RequestError(f"{where}.schema is nested deeper than {MOST_DEPTH}; flatten it", where)
    text = text_of(json.dumps(schema, ensure_ascii=False), f"{where}.schema")
    if len(text) > LONGEST_SCHEMA:
        raise RequestError(f"{where}.schema has over {LONGEST_SCHEMA} characters; send a shorter one", where)
    return text
