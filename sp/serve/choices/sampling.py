"""Fields of a request that say how its tokens are chosen: temperature and filters, seed, n, logprobs."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from sp.config import Option
from sp.decode import Decoder, Greedy, Sample, Speculative
from sp.decode.sample import COLDEST
from sp.options import fields_of
from sp.serve.fields import BIGGEST, RequestError, number, number_of, shown

MOST_CHOICES = 16
MOST_LOGPROBS = 20
LEAST_SHARE = 1e-9
"""A `top_p` of 0 leaves the likeliest token."""


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
        Repeats an answer.
    n : int, optional
        Answers.
    """

    temperature: Annotated[float | None, Option(least=0, most=2)] = None
    top_p: Annotated[float | None, Option(least=0, most=1)] = None
    top_k: Annotated[int | None, Option(least=-1, most=(1 << 31) - 1)] = None
    min_p: Annotated[float | None, Option(least=0, most=1)] = None
    seed: Annotated[int | None, Option(least=0, most=BIGGEST)] = None
    n: Annotated[int | None, Option(least=1, most=MOST_CHOICES)] = None

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
    Sample(temperature=0.7, top_k=0, top_p=0.9, min_p=0.0, seed=4)
    >>> decoder_of({"top_p": 0.9}, Greedy(), None)
    Greedy()
    """
    asked = Choosing.of(body)
    temperature, top_p, top_k, min_p, seed = asked.temperature, asked.top_p, asked.top_k, asked.min_p, asked.seed
    if temperature is None and not isinstance(given, Sample):
        return given
    if temperature is not None and temperature < COLDEST:
        return Greedy() if isinstance(given, Sample) else given
    if isinstance(given, Speculative) and named is not None:
        raise RequestError(f"sp.decode {named} guesses for greedy answers alone; leave it or temperature out", "sp")
    base = given if isinstance(given, Sample) else Sample()
    kept = base.seed if base.seed is not None else secrets.randbelow(BIGGEST)
    return Sample(
        temperature=base.temperature if temperature is None else float(temperature),
        top_k=base.top_k if top_k is None else max(top_k, 0),  # -1 is vLLM's word for all
        top_p=base.top_p if top_p is None else max(float(top_p), LEAST_SHARE),
        min_p=base.min_p if min_p is None else float(min_p),
        seed=kept if seed is None else seed,
    )


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
    if not isinstance(decode, Sample) or decode.seed is None:
        return decode
    return replace(decode, seed=(decode.seed + index) % BIGGEST)
