"""Fields of a request that say how its tokens are chosen: temperature and filters, seed, n, logprobs."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from sp.decode import Decoder, Greedy, Sample, Speculative
from sp.decode.sample import COLDEST
from sp.serve.fields import BIGGEST, RequestError, number, shown

MOST_CHOICES = 16
MOST_LOGPROBS = 20
HOTTEST = 2
LEAST_SHARE = 1e-9
"""A `top_p` of 0 leaves the likeliest token."""
FIELDS = ("temperature", "top_p", "top_k", "min_p", "seed", "n", "logprobs")


def decoder_of(body: Mapping[str, Any], given: Decoder, named: str | None) -> Decoder:
    """How a request's tokens are chosen.

    A temperature above 0 samples, one of 0 takes the likeliest; without one it is as the server was started, which is
    greedily unless it says otherwise. Then the filters and the seed have nothing to do. Drafts guess for greedy
    answers alone.

    Parameters
    ----------
    body : mapping
    given : Decoder
        The server's, or what ``sp.decode`` says.
    named : str or None
        What ``sp.decode`` says.

    Raises
    ------
    RequestError
        For a value out of range, and where ``sp.decode`` names a draft's way though tokens are sampled.

    Examples
    --------
    >>> decoder_of({"temperature": 0.7, "top_p": 0.9, "seed": 4}, Greedy(), None)
    Sample(temperature=0.7, top_k=0, top_p=0.9, min_p=0.0, seed=4)
    >>> decoder_of({"top_p": 0.9}, Greedy(), None)
    Greedy()
    """
    temperature = number(body, "temperature", 0, HOTTEST)
    top_p, min_p = number(body, "top_p", 0, 1), number(body, "min_p", 0, 1)
    top_k = number(body, "top_k", -1, (1 << 31) - 1, whole=True)
    seed = number(body, "seed", 0, BIGGEST, whole=True)
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


def choices_of(body: Mapping[str, Any]) -> int:
    """How many answers a request wants."""
    return number(body, "n", 1, MOST_CHOICES, whole=True) or 1


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
    """The way to decode the answer of that index: sampled with another seed each.

    Examples
    --------
    >>> nth(Sample(seed=7), 2).seed, nth(Greedy(), 2)
    (9, Greedy())
    """
    if not isinstance(decode, Sample) or decode.seed is None:
        return decode
    return replace(decode, seed=(decode.seed + index) % BIGGEST)
