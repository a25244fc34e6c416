"""Answers that follow a grammar, token by token."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from sp.chat import Thinks
from sp.chat.call_grammar import ONE_LINE, CallGrammar, json_rule
from sp.chat.call_splitter import Calling
from sp.chat.calls import CallStyle, call_style_of
from sp.decode import Constraint, Speculative
from sp.errors import plain
from sp.gguf import ChatTemplate, Tokenizer
from sp.ops.sampling.sample import Words
from sp.serve.fields import BIAS, LONGEST_SCHEMA, PARAM, Format, RequestError
from sp.serve.protocol import CompletionJob, ignored_lines
from sp.serve.tools import ToolUse

NONE = {"type": "object", "properties": {}}  # arguments of a tool without parameters, as at OpenAI
LONGEST_REASON = 160  # characters of the library's message about a schema


class Grammars:
    """Constraints for answers in one vocabulary. `template`: shows the format of the model's calls."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None = None) -> None:
        self._tokenizer, self._template = tokenizer, template

    def checked(self, job: CompletionJob) -> CompletionJob:
        """Return a job whose answer can follow its format and schemas, with a line for each that is ignored;
        RequestError if the library is missing or does not support a schema.
        """
        beyond = max(job.penalties.bias, default=0) if job.penalties else 0
        if beyond >= self._tokenizer.vocab_size:
            last = self._tokenizer.vocab_size - 1
            raise RequestError(f"{BIAS} has token {beyond}, but ids are 0 to {last}; leave it out", BIAS)
        if (format_ := job.format) is not None:
            library = _library()
            if problem := _refusal(lambda: library.LLMatcher.validate_grammar(_grammar(library, format_))):
                raise _unsupported(problem, PARAM)
        if not job.tools.tools or self._template is None:
            return job
        return self._tools(job, self._template)

    def _tools(self, job: CompletionJob, template: ChatTemplate) -> CompletionJob:
        """Return a job with tools; its calls follow a grammar if the job wants that and the model's format
        allows it.
        """
        use, lost = job.tools, list[str]()
        strict = {index for index, tool in enumerate(use.tools) if tool["function"].get("strict")}
        if not (use.forced or strict or job.format):
            return job
        style = call_style_of(use.template(template))
        if style is None or not can_constrain(use, template, with_format=job.format is not None):
            why = f" as this model writes calls ({style.name})" if style and has_library() else ""
            return self._free(job, strict, why)
        if not (use.forced or job.format or lazy(style) or style.in_header):
            return self._free(job, strict, f" unless a call is required, as this model writes calls ({style.name})")
        if isinstance(job.options.decode, Speculative) and (named := job.overrides.run.get("decode")):
            why = "cannot follow a grammar, which tool_choice, strict or a format with tools requires"
            raise RequestError(f"sp.decode {named} {why}; leave one out", "sp")
        schemas = {}
        for index, tool in enumerate(use.tools):
            if index not in strict and not use.forced:
                continue
            function, where = tool["function"], f"tools[{index}].function.parameters"
            schema = function.get("parameters") or NONE
            if problem := _problem(CallGrammar(Calling(style, [tool]), {function["name"]: schema}), schema):
                if index in strict:
                    raise RequestError(f"{where}: this schema is not supported: {problem}; leave strict out", where)
                lost.append(f"{where}: not supported, so a call may have any object: {problem}")
            else:
                schemas[function["name"]] = schema
        return replace(job, tools=replace(use, call_schemas=schemas), ignored=ignored_lines([*job.ignored, *lost]))

    def _free(self, job: CompletionJob, strict: Set[int], why: str) -> CompletionJob:
        """Return a job whose calls follow no grammar, with a line about ignored `strict` flags."""
        if job.format is not None:
            reason = "and tools cannot be combined with this model"
            raise RequestError(f"{PARAM} {reason}; send tool_choice 'none', or leave one out", PARAM)
        if not strict:
            return job
        more = f", and of {len(strict) - 1} more" if len(strict) > 1 else ""
        line = f"tools[{min(strict)}].function.strict{more}: arguments are not constrained to a schema{why}"
        return replace(job, ignored=(*job.ignored, line))

    def constraint(
        self,
        job: CompletionJob,
        thinks: Thinks | None,
        waiting: Callable[[], bool],
        recipient: Callable[[], str] = lambda: "",
    ) -> Constraint | None:
        """Return the constraint of one answer: its format, or the schemas of its calls; None if it has neither.

        `waiting`: returns True while the model thinks, which is free text; `recipient`: returns the tool that the
        present message calls, in formats with a message per call; empty for an answer.
        """
        calling = job.tools.calling(self._template, thinks)
        if job.tools.call_schemas is None or calling is None:
            return None if job.format is None else self._constraint_of(_grammar(_library(), job.format), waiting, PARAM)
        texts = {self._tokenizer.token_text(token): token for token in self._tokenizer.special_ids}
        ends = frozenset(self._tokenizer.token_text(token) for token in self._tokenizer.eos_ids)
        allowed = [tool for tool in calling.tools if job.tools.name in (None, tool["function"]["name"])]
        grammar = CallGrammar(replace(calling, tools=allowed), job.tools.call_schemas, texts, ends)
        if job.tools.forced and thinks and thinks.opened:  # the call follows the thinking
            return self._constraint_of(grammar.forced(None), waiting)
        if job.tools.forced:
            return self._constraint_of(grammar.forced(calling.opening), lambda: False)
        if calling.style.in_header:
            return MessageConstraint(
                lambda name: self._message(job, grammar, name), lambda: None if waiting() else recipient()
            )
        if job.format is not None:
            return self._constraint_of(grammar.either(job.format.schema), waiting)
        return self._constraint_of(grammar.lazy(thinks.marks if thinks and not thinks.has_marks else None), waiting)

    def _message(self, job: CompletionJob, grammar: CallGrammar, name: str) -> GrammarConstraint | None:
        """Return the constraint of a message to a tool, or of an answer."""
        if name:
            return self._constraint_of(grammar.message(name), lambda: False) if name in grammar.schemas else None
        return (
            None if job.format is None else self._constraint_of(_grammar(_library(), job.format), lambda: False, PARAM)
        )

    def _constraint_of(self, grammar: str, waiting: Callable[[], bool], param: str = "tools") -> GrammarConstraint:
        matcher = _library().LLMatcher(self._words, grammar, log_level=0)
        if matcher.is_error():
            raise _unsupported(matcher.get_error(), param)
        return GrammarConstraint(matcher, self._tokenizer, waiting)

    @cached_property
    def _words(self) -> Any:
        """The vocabulary in the library's format."""
        library, tokenizer = _library(), self._tokenizer
        return library.LLTokenizer(
            library.TokenizerWrapper(_Vocabulary(tokenizer)),
            n_vocab=tokenizer.vocab_size,
            eos_token=min(tokenizer.eos_ids, default=None),  # see `GrammarConstraint`
        )


class GrammarConstraint:
    """A parser of one answer; see `sp.decode.Constraint`.

    It knows a single token that ends an answer, as llguidance before 1.7 does; where that one is allowed, the others
    are, too.
    """

    def __init__(self, matcher: Any, tokenizer: Tokenizer, waiting: Callable[[], bool]) -> None:
        self._matcher, self._waiting = matcher, waiting
        self._end = np.zeros(-(-tokenizer.vocab_size // 32), np.uint32)
        self._ends = tokenizer.eos_ids  # all that end an answer; the matcher knows the smallest
        for token in self._ends:
            self._end[token // 32] |= np.uint32(1 << token % 32)
        self._active = False

    def allowed(self) -> Words | None:
        """Return the allowed tokens, see `Constraint`; once the text is complete, the tokens that end an answer."""
        self._active = self._active or not self._waiting()
        if not self._active:  # thinking is free
            return None
        if self._matcher.is_stopped():
            return self._end
        words = np.frombuffer(
            self._matcher.compute_bitmask(), np.uint32
        ).copy()  # a copy; the mask may have one word more
        known = words[: len(self._end)]
        if (known & self._end).any():
            known |= self._end
        return words

    def take(self, token: int) -> None:
        if self._active and not self._matcher.is_stopped():
            # The matcher knows one of the end tokens, see the class.
            self._matcher.consume_token(min(self._ends) if token in self._ends else token)


class MessageConstraint:
    """A separate constraint for each message of an answer.

    `build`: makes the constraint for a recipient; `recipient`: returns the recipient of what comes next; None outside
    of messages.
    """

    def __init__(self, build: Callable[[str], Constraint | None], recipient: Callable[[], str | None]) -> None:
        self._build, self._recipient = build, recipient
        self._current: str | None = None  # recipient of the message at hand
        self._constraint: Constraint | None = None

    def allowed(self) -> Words | None:
        """Return the allowed tokens, see `Constraint`."""
        if (recipient := self._recipient()) != self._current:
            self._current, self._constraint = recipient, None if recipient is None else self._build(recipient)
        return None if self._constraint is None else self._constraint.allowed()

    def take(self, token: int) -> None:
        if self._constraint is not None:
            self._constraint.take(token)


class _Vocabulary:
    """The interface of a vocabulary that `TokenizerWrapper` requires."""

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
        reason = "needs the package llguidance where the server runs"
        raise RequestError(f"{PARAM} {reason}; pip install 'sp-prefill[serve]', or send text", PARAM) from None
    return llguidance


def _problem(grammar: CallGrammar, schema: Mapping[str, Any]) -> str:
    """Return the reason why the library cannot constrain arguments to a schema, in calls of one tool; empty if
    it can.
    """
    if len(json.dumps(schema, ensure_ascii=False)) > LONGEST_SCHEMA:
        return f"over {LONGEST_SCHEMA} characters"
    check = _library().LLMatcher.validate_grammar
    # First the schema by itself, then within a call, where the library may refuse it, too.
    refusal = _refusal(lambda: check(f"start: {json_rule(schema)}") or check(grammar.forced("")))
    return plain(refusal.split("\n")[0], LONGEST_REASON)


def can_constrain(use: ToolUse, template: ChatTemplate, *, with_format: bool = False) -> bool:
    """Return True if a grammar can constrain calls in the model's format. `with_format`: the answer may also be
    JSON.
    """
    style = call_style_of(use.template(template))
    if style is None or not has_library():
        return False
    return not with_format or style.between is not None or style.in_header or not style.begin


def has_library() -> bool:
    """Return True if the library is installed."""
    try:
        _library()
    except RequestError:
        return False
    return True


def _grammar(library: Any, format_: Format) -> str:
    """Return the library's grammar for a format's schema."""
    grammar: str = library.LLMatcher.grammar_from_json_schema(format_.schema, overrides=ONE_LINE)
    return grammar


def lazy(style: CallStyle) -> bool:
    """Return True if a call starts with a mark that can be recognised within text."""
    return bool(style.begin) and style.opening("x").startswith(style.begin)


def _refusal(work: Callable[[], str]) -> str:
    """Return the library's objection, which it returns or raises; empty if there is none."""
    try:
        return work()
    except ValueError as error:
        return str(error) or "unknown"


def _unsupported(problem: str, param: str) -> RequestError:
    reason = plain(problem.split("\n")[0], LONGEST_REASON)
    return RequestError(f"{param}: this schema is not supported: {reason}; send a simpler one", param)
