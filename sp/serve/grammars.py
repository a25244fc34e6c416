"""Answers held to a grammar, token by token."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from sp.errors import plain
from sp.gguf import Tokenizer
from sp.ops.sampling.sample import Words
from sp.serve.fields import BIAS, PARAM, Format, RequestError
from sp.serve.protocol import Job

STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line, as Python writes it: where white space is free, a small model may write nothing else for ever."""
LONGEST_REASON = 160  # characters of what the library says of a schema


class Grammars:
    """Constraints for answers in one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def checked(self, job: Job) -> Job:
        """A request whose answer can be held to what it asks for; RequestError where it cannot."""
        if job.format is not None:
            self.check(job.format)
        beyond = max(job.penalties.bias, default=0) if job.penalties else 0
        if beyond >= self._tokenizer.vocab_size:
            last = self._tokenizer.vocab_size - 1
            raise RequestError(f"{BIAS} has token {beyond}, of which there are 0 to {last}; leave it out", BIAS)
        return job

    def check(self, wanted: Format) -> None:
        """RequestError if the library is not there, or cannot do what a schema wants."""
        library = _library()
        problem = _refusal(lambda: library.LLMatcher.validate_grammar(_grammar(library, wanted)))
        if problem:
            raise _unsupported(problem)

    def constraint(self, wanted: Format, waiting: Callable[[], bool]) -> GrammarConstraint:
        """What holds one answer to a format. `waiting`: whether the answer has not begun: the model thinks, in whatever
        words.
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
    """A parser on its way through one answer; see `sp.decode.Constraint`. It knows one token that ends an answer, as
    llguidance before 1.7 does; where that may come, so may the others.
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
