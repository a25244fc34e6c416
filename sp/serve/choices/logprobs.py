"""Log probabilities as clients read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sp.decode import Choice
from sp.gguf import Tokenizer

LOWEST = -9999.0
"""In place of minus infinity, which JSON has no word for."""


@dataclass(frozen=True)
class TokenLogprob:
    """A token of an answer: its bytes, the logarithm of its probability, and the same of the likeliest ones."""

    raw: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()

    @classmethod
    def of(cls, choice: Choice, tokenizer: Tokenizer) -> TokenLogprob:
        """What was chosen, in a vocabulary; a padded head has tokens that are in none."""
        top = zip(choice.tokens.tolist(), choice.logprobs.tolist(), strict=True)
        named = ((tokenizer.token_bytes(each), _finite(value)) for each, value in top if each < tokenizer.vocab_size)
        return cls(tokenizer.token_bytes(choice.token), _finite(choice.logprob), tuple(named))


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The field `logprobs` of a choice of a chat.

    Examples
    --------
    >>> chat_logprobs([TokenLogprob(b"hi", -0.5)])["content"][0]
    {'token': 'hi', 'logprob': -0.5, 'bytes': [104, 105], 'top_logprobs': []}
    """
    told = [_one(each.raw, each.logprob) | {"top_logprobs": [_one(*one) for one in each.top]} for each in tokens]
    return {"content": told, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """The same of a text completion, whose token first told stands at character `offset` of the text.

    Examples
    --------
    >>> completion_logprobs([TokenLogprob(b"hi", -0.5), TokenLogprob(b"!", -1.0, ((b"?", -0.25),))], 10)
    {'tokens': ['hi', '!'], 'token_logprobs': [-0.5, -1.0], 'top_logprobs': [{}, {'?': -0.25}], 'text_offset': [10, 12]}
    """
    texts, offsets = [_text(each.raw) for each in tokens], list[int]()
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    top = [{_text(raw): value for raw, value in each.top} for each in tokens]
    values = [each.logprob for each in tokens]
    return {"tokens": texts, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets}


def _one(raw: bytes, value: float) -> dict[str, Any]:
    return {"token": _text(raw), "logprob": value, "bytes": list(raw)}


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _finite(value: float) -> float:
    return max(float(value), LOWEST)
