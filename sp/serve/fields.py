"""Single values of a request's body, of the type and in the range they must have: numbers of sampling, formats."""

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

shown = describe_value
LONGEST_MESSAGE = 300
TOO_LONG = "context_length_exceeded"  # by which clients know that they have to shorten a conversation
IN_A_REQUEST = {
    "--keep-ratio": "sp.keep_ratio",
    "--max-new-tokens": "max_tokens",
    "pass a text with --prompt-file": "send some text",
}  # what the options that errors of the pipeline speak of are called in a request


class RequestError(SpError):
    """A request that cannot be served. `message`: what is wrong, where, and what to do; `param`: the field of the body
    at fault.
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
        if isinstance(error, ChangedError):
            return RequestError(message, status=503, code="model_changed")
        return RequestError(message, code=TOO_LONG) if isinstance(error, TooLongError) else RequestError(message)
    if isinstance(error, MemoryError):
        advice = "send a shorter prompt, or one with a lower sp.keep_ratio"
        return RequestError(f"out of memory; {advice}", status=503, code="out_of_memory")
    return RequestError("internal error; the server's log says more", status=500, code="internal_error")


MOST_VALUES = 200_000
"""Strings and parts of lists and objects in a body; a chat of a thousand messages has some ten thousand."""
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def check_shape(raw: bytes) -> None:
    """RequestError for a text with more than `MOST_VALUES` values; takes time in proportion to its bytes. It need not
    be JSON: a string that does not end is for the parser to tell.
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


def text_of(given: Any, where: str) -> str:
    """A string that UTF-8 can write, or RequestError."""
    try:
        return messages.text_of(given, where)
    except FieldError as error:
        raise RequestError(str(error), error.param) from None


def not_null(given: Mapping[str, Any]) -> dict[str, Any]:
    """An object without its fields that are null, which many clients send for what they leave out.

    >>> not_null({"type": "text", "json_schema": None})
    {'type': 'text'}
    """
    return {name: value for name, value in given.items() if value is not None}


def prompt_of(given: Any) -> tuple[str, tuple[int, ...]]:
    """The prompt of a completion: a text, or tokens. RequestError for what is neither, and for several prompts.

    >>> prompt_of("Hi"), prompt_of(["Hi"]), prompt_of([5, 7]), prompt_of([[5, 7]])
    (('Hi', ()), ('Hi', ()), ('', (5, 7)), ('', (5, 7)))
    """
    if not isinstance(given, list):
        return text_of(given, "prompt"), ()
    if len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if isinstance(given, str):
        return text_of(given, "prompt"), ()
    if not given or not all(type(each) is int and 0 <= each < 1 << 31 for each in given):
        raise RequestError("prompt must be one text, or one list of token ids; send a request for each", "prompt")
    return "", tuple(given)


def typed(body: Mapping[str, Any], name: str, kinds: tuple[type, ...], expected: str) -> Any:
    """The value of a field, None if it was left out; RequestError unless it is of one of the kinds."""
    value = body.get(name)
    if not isinstance(value, kinds):
        raise RequestError(f"{name} is {shown(value)}; send {expected}", name)
    return value


def number(body: Mapping[str, Any], name: str, low: float, high: float, *, whole: bool = False) -> Any:
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
    least, most = field.option.least or 0, BIGGEST if field.option.most is None else field.option.most
    whole = field.hint == int | None
    bounds = (int(least), int(most)) if whole else (least, most)
    return number(body, field.name, *bounds, whole=whole)


def like(neutral: Any) -> tuple[type, ...]:
    """Types in which a neutral value may come: JSON writes 0 and 0.0, but false is no number."""
    return (int, float) if type(neutral) is int else (type(neutral),)


MOST_CHOICES = 16
MOST_LOGPROBS = 20
LEAST_SHARE = 1e-9  # a `top_p` of 0 leaves the likeliest token


@dataclass(frozen=True)
class Choosing:
    """Numbers of a request that say how its tokens are chosen.

    Parameters
    ----------
    temperature : float, optional
        Above 0 samples, 0 takes the likeliest token; as the server was started without one.
    top_p, min_p : float, optional
        Filters of sampling, as in vLLM.
    top_k : int, optional
        Likeliest tokens to draw from; 0 or -1 for all.
    seed : int, optional
        Repeats an answer; one below 0 is counted from 2^53 down.
    n : int, optional
        Answers.
    presence_penalty, frequency_penalty : float, optional
        Taken from the logits of tokens that the answer has, once and as often as it has them.
    repeat_penalty, repetition_penalty : float, optional
        By which logits of tokens said before are divided, or if negative multiplied; 1 changes nothing. As in
        llama.cpp, among the last `repeat_last_n` tokens, and as in vLLM, among all of prompt and answer.
    repeat_last_n : int, optional
        Tokens of prompt and answer that `repeat_penalty` looks at; 64 if left out, -1 for all.
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
        """Those of a body; RequestError for one that is none, or out of bounds."""
        return cls(**{name: number_of(body, one) for name, one in NUMBERS.items()})


NUMBERS = {one.name: one for one in fields_of(Choosing)}


def decoder_of(body: Mapping[str, Any], given: Decoder, named: str | None) -> Decoder:
    """How a request's tokens are chosen.

    A temperature above 0 samples, one of 0 takes the likeliest; without one it is as the server was started, which is
    greedily unless it says otherwise. Then the filters and the seed have nothing to do. Drafts guess for greedy
    answers alone.

    `given`: the server's, or what ``sp.decode`` says; RequestError for a value out of range, and where ``sp.decode``
    names a draft's way though tokens are sampled.

    >>> decoder_of({"temperature": 0.7, "top_p": 0.9, "seed": 4}, Greedy(), None)
    SamplingDecoder(temperature=0.7, top_k=0, top_p=0.9, min_p=0.0, seed=4)
    >>> decoder_of({"top_p": 0.9}, Greedy(), None)
    Greedy()
    """
    asked = Choosing.of(body)
    temperature, top_p, top_k, min_p, seed = asked.temperature, asked.top_p, asked.top_k, asked.min_p, asked.seed
    if temperature is None and not isinstance(given, SamplingDecoder):
        return given
    if temperature is not None and temperature < COLDEST:
        return Greedy() if isinstance(given, SamplingDecoder) else given
    if isinstance(given, Speculative) and named is not None:
        raise RequestError(f"sp.decode {named} guesses for greedy answers alone; leave it or temperature out", "sp")
    base = given if isinstance(given, SamplingDecoder) else SamplingDecoder()
    kept = base.seed if base.seed is not None else secrets.randbelow(BIGGEST)
    return SamplingDecoder(
        temperature=base.temperature if temperature is None else float(temperature),
        top_k=base.top_k if top_k is None else max(top_k, 0),  # -1 is vLLM's word for all
        top_p=base.top_p if top_p is None else max(float(top_p), LEAST_SHARE),
        min_p=base.min_p if min_p is None else float(min_p),
        seed=kept if seed is None else seed % BIGGEST,
    )


NEAREST = 64  # tokens that `repeat_penalty` looks at where a request does not say, as in llama.cpp
BIAS = "logit_bias"
MOST_BIAS = 100


def penalties_of(body: Mapping[str, Any]) -> Penalties | None:
    """What a request adds to logits and takes from them; None if it asks for nothing.

    >>> penalties_of({"frequency_penalty": 0.5, "logit_bias": {"7": -100}})
    Penalties(presence=0.0, frequency=0.5, repeat=1.0, last=-1, bias={7: -100.0}, prompt=None)
    >>> penalties_of({"repeat_penalty": 1.1}).last, penalties_of({"repetition_penalty": 1.1}).last
    (64, -1)
    """
    asked = Choosing.of(body)
    both = [name for name in ("repeat_penalty", "repetition_penalty") if getattr(asked, name) is not None]
    if len(both) > 1:
        raise RequestError("repeat_penalty and repetition_penalty exclude each other; leave one out", both[1])
    last = -1 if both == ["repetition_penalty"] else NEAREST
    found = Penalties(
        presence=float(asked.presence_penalty or 0),
        frequency=float(asked.frequency_penalty or 0),
        repeat=float(getattr(asked, both[0])) if both else 1.0,
        last=(last if both else -1) if asked.repeat_last_n is None else asked.repeat_last_n,
        bias=_bias(body.get(BIAS)),
    )
    return found if found.any else None


def _bias(given: Any) -> dict[int, float]:
    """Tokens and what is added to their logits."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise RequestError(f"{BIAS} is {shown(given)}; send an object such as {{'1234': -100}}", BIAS)
    for token, value in given.items():
        if not re.fullmatch(r"0|[1-9][0-9]{0,9}", token):
            raise RequestError(f"{BIAS} has the key {shown(token)}; send token ids, as /tokenize tells them", BIAS)
        number({f"{BIAS}.{token}": value}, f"{BIAS}.{token}", -MOST_BIAS, MOST_BIAS)
        if value is None:
            raise RequestError(f"{BIAS}.{token} is missing; send a number from -{MOST_BIAS} to {MOST_BIAS}", BIAS)
    return {int(token): float(value) for token, value in given.items()}


def logprobs_of(body: Mapping[str, Any], kind: Literal["chat", "completion"]) -> int | None:
    """How many of the likeliest tokens are told beside each one; None if not even that one is."""
    if kind == "completion":
        given = body.get("logprobs")
        return None if given is None or given is False else number(body, "logprobs", 0, MOST_LOGPROBS, whole=True)
    wanted, top = body.get("logprobs"), number(body, "top_logprobs", 0, MOST_LOGPROBS, whole=True)
    if not isinstance(wanted, bool | None):
        raise RequestError(f"logprobs is {shown(wanted)}; send true or false", "logprobs")
    if top and not wanted:
        raise RequestError("top_logprobs needs logprobs; send it as true", "top_logprobs")
    return (top or 0) if wanted else None


def nth(decode: Decoder, index: int) -> Decoder:
    """The way to decode the answer of that index: sampled with another seed each."""
    if not isinstance(decode, SamplingDecoder) or decode.seed is None:
        return decode
    return replace(decode, seed=(decode.seed + index) % BIGGEST)


LONGEST_SCHEMA = 1 << 16  # characters
KINDS = ("text", "json_object", "json_schema")
PARAM = "response_format"


@dataclass(frozen=True)
class Format:
    """What an answer must be: JSON of the schema that `schema` spells."""

    schema: str


def format_of(body: Mapping[str, Any]) -> Format | None:
    """The format that a request asks for, checked; None for text.

    RequestError for what is no format.

    >>> format_of({"response_format": {"type": "json_object"}})
    Format(schema='{"type": "object"}')
    """
    given = body.get(PARAM)
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or kind not in KINDS:
        seen = shown(kind if isinstance(given, dict) else given)
        raise RequestError(f"{PARAM}.type is {seen}; send one of {', '.join(KINDS)}", PARAM)
    for name in not_null(given):
        if name not in ("type", kind if kind == "json_schema" else "type"):
            raise RequestError(f"{PARAM}.{name[:MAX_NAME]} is unknown with type {kind}; leave it out", PARAM)
    if kind == "text":
        return None
    return Format(json.dumps({"type": "object"}) if kind == "json_object" else _schema(given.get("json_schema")))


def _schema(given: Any) -> str:
    where = f"{PARAM}.json_schema"
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(schema, dict):
        raise RequestError(f"{where}.schema is no object; send {{'name': 'x', 'schema': {{...}}}}", where)
    for name in not_null(given):
        if name not in ("name", "schema", "strict", "description"):
            raise RequestError(f"{where}.{name[:MAX_NAME]} is unknown; leave it out", where)
    if not shallow(schema, MOST_DEPTH):
        raise RequestError(f"{where}.schema is nested deeper than {MOST_DEPTH}; flatten it", where)
    text = text_of(json.dumps(schema, ensure_ascii=False), f"{where}.schema")
    if len(text) > LONGEST_SCHEMA:
        raise RequestError(f"{where}.schema has over {LONGEST_SCHEMA} characters; send a shorter one", where)
    return text
