"""`response_format`: what a request asks of the form of answers, and the grammar that holds tokens to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sp.chat.plain_json import MOST_DEPTH, shallow
from sp.errors import plain
from sp.gguf import Tokenizer
from sp.ops.sampling.allowed_logits import Words
from sp.serve.fields import MAX_NAME, RequestError, shown, text_of

LONGEST_SCHEMA = 1 << 16
"""Characters."""
KINDS = ("text", "json_object", "json_schema")
PARAM = "response_format"


@dataclass(frozen=True)
class Format:
    """What an answer must be: JSON of the schema that `schema` spells."""

    schema: str


def format_of(body: Mapping[str, Any]) -> Format | None:
    """The format that a request asks for, checked; None for text.

    RequestError for what is no format, and beside tools that the model may call.

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
    for name in given:
        if name not in ("type", kind if kind == "json_schema" else "type"):
            raise RequestError(f"{PARAM}.{name[:MAX_NAME]} is unknown with type {kind}; leave it out", PARAM)
    if kind == "text":
        return None
    if body.get("tools") and body.get("tool_choice") != "none":
        raise RequestError(f"{PARAM} and tools exclude each other; send tool_choice 'none', or leave one out", PARAM)
    return Format(json.dumps({"type": "object"}) if kind == "json_object" else _schema(given.get("json_schema")))


def _schema(given: Any) -> str:
    where = f"{PARAM}.json_schema"
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(schema, dict):
        raise RequestError(f"{where}.schema is no object; send {{'name': 'x', 'schema': {{...}}}}", where)
    for name in given:
        if name not in ("name", "schema", "strict", "description"):
            raise RequestError(f"{where}.{name[:MAX_NAME]} is unknown; leave it out", where)
    if not shallow(schema, MOST_DEPTH):
        raise RequestError(f"{where}.schema is nested deeper than {MOST_DEPTH}; flatten it", where)
    text = text_of(json.dumps(schema, ensure_ascii=False), f"{where}.schema")
    if len(text) > LONGEST_SCHEMA:
        raise RequestError(f"{where}.schema has over {LONGEST_SCHEMA} characters; send a shorter one", where)
    return text


STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line, as Python writes it: where white space is free, a small model may write nothing else for ever."""
LONGEST_REASON = 160
"""Characters of what the library says of a schema."""


class Grammars:
    """Constraints for answers in one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def check(self, wanted: Format) -> None:
        """RequestError if the library is not there, or cannot do what a schema wants."""
        library = _library()
        problem = _refusal(lambda: library.LLMatcher.validate_grammar(_grammar(library, wanted)))
        if problem:
            raise _unsupported(problem)

    def constraint(self, wanted: Format, waiting: Callable[[], bool]) -> GrammarConstraint:
        """What holds one answer to a format.

        Parameters
        ----------
        wanted : Format
        waiting : callable
            Whether the answer has not begun: the model thinks, in whatever words.
        """
        library = _library()
        matcher = library.LLMatcher(self._words, _grammar(library, wanted), log_level=0)
        if matcher.is_error():
            raise _unsupported(matcher.get_error())
        return GrammarConstraint(matcher, self._tokenizer, waiting)

    @cached_property
    def _words(self) -> Any:
        """The vocabulary as the library wants it."""
        library, tokenizer = _library(), self._tokenizer
        return library.LLTokenizer(
            library.TokenizerWrapper(_Vocabulary(tokenizer)),
            n_vocab=tokenizer.vocab_size,
            eos_token=min(tokenizer.eos_ids, default=None),
        )


class GrammarConstraint:
    """A parser on its way through one answer; see `sp.decode.Constraint`.

    It knows one token that ends an answer, as llguidance before 1.7 does; where that may come, so may the others.
    """

    def __init__(self, matcher: Any, tokenizer: Tokenizer, waiting: Callable[[], bool]) -> None:
        self._matcher, self._waiting = matcher, waiting
        self._end = np.zeros(-(-tokenizer.vocab_size // 32), np.uint32)
        self._ends = tokenizer.eos_ids
        for token in self._ends:
            self._end[token // 32] |= np.uint32(1 << token % 32)
        self._begun = False

    def allowed(self) -> Words | None:
        """See `Constraint`; once nothing can follow, the tokens that end an answer."""
        self._begun = self._begun or not self._waiting()
        if not self._begun:
            return None
        if self._matcher.is_stopped():
            return self._end
        words = np.frombuffer(self._matcher.compute_bitmask(), np.uint32).copy()  # which may be a word longer
        known = words[: len(self._end)]
        if (known & self._end).any():
            known |= self._end
        return words

    def take(self, token: int) -> None:
        if self._begun and not self._matcher.is_stopped():
            self._matcher.consume_token(min(self._ends) if token in self._ends else token)


class _Vocabulary:
    """What `TokenizerWrapper` asks of a vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids | tokenizer.eos_ids)
        self.bos_token_id, self.eos_token_id = tokenizer.bos_id, min(tokenizer.eos_ids, default=None)

    def __call__(self, text: bytes) -> list[int]:
        ids: list[int] = self._encode(text.decode(errors="replace"), begins=False).ids.tolist()
        return ids


def _library() -> Any:
    try:
        import llguidance
    except ModuleNotFoundError:
        said = "needs the package llguidance where the server runs"
        raise RequestError(f"{PARAM} {said}; pip install 'sp-prefill[serve]', or send text", PARAM) from None
    return llguidance


def _grammar(library: Any, wanted: Format) -> str:
    grammar: str = library.LLMatcher.grammar_from_json_schema(wanted.schema, overrides=STYLE)
    return grammar


def _refusal(work: Callable[[], str]) -> str:
    """What the library says against something; it raises as well."""
    try:
        return work()
    except ValueError as error:
        return str(error) or "unknown"


def _unsupported(problem: str) -> RequestError:
    said = plain(problem.split("\n")[0], LONGEST_REASON)
    return RequestError(f"{PARAM}: this schema is not supported: {said}; send a simpler one", PARAM)
