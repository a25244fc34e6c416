"""Answers held to a grammar, token by token."""

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
from sp.serve.protocol import Job, told
from sp.serve.tools import ToolUse

NONE = {"type": "object", "properties": {}}  # arguments of a tool without parameters, as OpenAI has it
LONGEST_REASON = 160  # characters of what the library says of a schema


class Grammars:
    """Constraints for answers in one vocabulary. `template`: how the model's calls are written."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None = None) -> None:
        self._tokenizer, self._template = tokenizer, template

    def checked(self, job: Job) -> Job:
        """A request whose answer can be held to what it asks for, and what of that has no effect; RequestError where
        the library is not there, or cannot do what a schema wants.
        """
        beyond = max(job.penalties.bias, default=0) if job.penalties else 0
        if beyond >= self._tokenizer.vocab_size:
            last = self._tokenizer.vocab_size - 1
            raise RequestError(f"{BIAS} has token {beyond}, of which there are 0 to {last}; leave it out", BIAS)
        if (wanted := job.format) is not None:
            library = _library()
            if problem := _refusal(lambda: library.LLMatcher.validate_grammar(_grammar(library, wanted))):
                raise _unsupported(problem, PARAM)
        if not job.tools.tools or self._template is None:
            return job
        return self._tools(job, self._template)

    def _tools(self, job: Job, template: ChatTemplate) -> Job:
        """A request with tools; its calls are held to a grammar where it wants that and there is one."""
        use, lost = job.tools, list[str]()
        strict = {at for at, tool in enumerate(use.tools) if tool["function"].get("strict")}
        if not (use.forced or strict or job.format):
            return job
        style = call_style_of(use.template(template))
        if style is None or not can_hold(use, template, beside=job.format is not None):
            why = f" as this model writes calls ({style.name})" if style and there() else ""
            return self._free(job, strict, why)
        if not (use.forced or job.format or lazy(style) or style.in_header):
            return self._free(job, strict, f" unless a call is required, as this model writes calls ({style.name})")
        if isinstance(job.options.decode, Speculative) and (named := job.asked.run.get("decode")):
            why = "takes no calls that a grammar holds, as tool_choice, strict or a format beside tools asks for"
            raise RequestError(f"sp.decode {named} {why}; leave one out", "sp")
        held = {}
        for at, tool in enumerate(use.tools):
            if at not in strict and not use.forced:
                continue
            function, where = tool["function"], f"tools[{at}].function.parameters"
            schema = function.get("parameters") or NONE
            if problem := _problem(CallGrammar(Calling(style, [tool]), {function["name"]: schema}), schema):
                if at in strict:
                    raise RequestError(f"{where}: this schema is not supported: {problem}; leave strict out", where)
                lost.append(f"{where}: not supported, so that a call may have any object: {problem}")
            else:
                held[function["name"]] = schema
        return replace(job, tools=replace(use, held=held), ignored=told([*job.ignored, *lost]))

    def _free(self, job: Job, strict: Set[int], why: str) -> Job:
        """A request whose calls are held to nothing."""
        if job.format is not None:
            said = "and tools exclude each other with this model"
            raise RequestError(f"{PARAM} {said}; send tool_choice 'none', or leave one out", PARAM)
        if not strict:
            return job
        more = f", and of {len(strict) - 1} more" if len(strict) > 1 else ""
        line = f"tools[{min(strict)}].function.strict{more}: arguments are not held to a schema{why}"
        return replace(job, ignored=(*job.ignored, line))

    def constraint(
        self,
        job: Job,
        thinks: Thinks | None,
        waiting: Callable[[], bool],
        tool: Callable[[], str] = lambda: "",
    ) -> Constraint | None:
        """What holds one answer to the format of its request, or its calls to their schemas; None for nothing.
        `waiting`: whether the answer has not begun: the model thinks, in whatever words; `tool`: whom the message at
        hand calls, where calls are messages; empty for an answer.
        """
        calling = job.tools.calling(self._template, thinks)
        if job.tools.held is None or calling is None:
            return None if job.format is None else self._held(_grammar(_library(), job.format), waiting, PARAM)
        texts = {self._tokenizer.token_text(each): each for each in self._tokenizer.special_ids}
        ends = frozenset(self._tokenizer.token_text(each) for each in self._tokenizer.eos_ids)
        may = [each for each in calling.tools if job.tools.name in (None, each["function"]["name"])]
        grammar = CallGrammar(replace(calling, tools=may), job.tools.held, texts, ends)
        if job.tools.forced and thinks and thinks.opened:
            return self._held(grammar.forced(None), waiting)
        if job.tools.forced:
            return self._held(grammar.forced(calling.opening), lambda: False)
        if calling.style.in_header:
            return MessageConstraint(
                lambda name: self._message(job, grammar, name), lambda: None if waiting() else tool()
            )
        if job.format is not None:
            return self._held(grammar.either(job.format.schema), waiting)
        return self._held(grammar.lazy(thinks.marks if thinks and not thinks.has_marks else None), waiting)

    def _message(self, job: Job, grammar: CallGrammar, name: str) -> GrammarConstraint | None:
        """What holds a message for a tool, or an answer."""
        if name:
            return self._held(grammar.message(name), lambda: False) if name in grammar.schemas else None
        return None if job.format is None else self._held(_grammar(_library(), job.format), lambda: False, PARAM)

    def _held(self, grammar: str, waiting: Callable[[], bool], param: str = "tools") -> GrammarConstraint:
        matcher = _library().LLMatcher(self._words, grammar, log_level=0)
        if matcher.is_error():
            raise _unsupported(matcher.get_error(), param)
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


class MessageConstraint:
    """Holds each message of an answer by itself. `made`: from whom it is for, what holds it; `at`: for whom what comes
    next is; None outside of messages.
    """

    def __init__(self, made: Callable[[str], Constraint | None], at: Callable[[], str | None]) -> None:
        self._made, self._at = made, at
        self._for: str | None = None
        self._held: Constraint | None = None

    def allowed(self) -> Words | None:
        """See `Constraint`."""
        if (now := self._at()) != self._for:
            self._for, self._held = now, None if now is None else self._made(now)
        return None if self._held is None else self._held.allowed()

    def take(self, token: int) -> None:
        if self._held is not None:
            self._held.take(token)


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


def _problem(grammar: CallGrammar, schema: Mapping[str, Any]) -> str:
    """Why the library cannot hold arguments to a schema, in calls of one tool; empty if it can."""
    if len(json.dumps(schema, ensure_ascii=False)) > LONGEST_SCHEMA:
        return f"over {LONGEST_SCHEMA} characters"
    check = _library().LLMatcher.validate_grammar
    found = _refusal(lambda: check(f"start: {json_rule(schema)}") or check(grammar.forced("")))
    return plain(found.split("\n")[0], LONGEST_REASON)


def can_hold(use: ToolUse, template: ChatTemplate, *, beside: bool = False) -> bool:
    """Whether a grammar can hold calls, as the model writes them. `beside`: where the answer may also be JSON."""
    style = call_style_of(use.template(template))
    if style is None or not there():
        return False
    return not beside or style.between is not None or style.in_header or not style.begin


def there() -> bool:
    """Whether the library is."""
    try:
        _library()
    except RequestError:
        return False
    return True


def _grammar(library: Any, wanted: Format) -> str:
    """JSON of the schema that a format names."""
    grammar: str = library.LLMatcher.grammar_from_json_schema(wanted.schema, overrides=ONE_LINE)
    return grammar


def lazy(style: CallStyle) -> bool:
    """Whether a call is known by its mark within text."""
    return bool(style.begin) and style.opening("x").startswith(style.begin)


def _refusal(work: Callable[[], str]) -> str:
    """What the library says against something; it raises as well."""
    try:
        return work()
    except ValueError as error:
        return str(error) or "unknown"


def _unsupported(problem: str, param: str) -> RequestError:
    said = plain(problem.split("\n")[0], LONGEST_REASON)
    return RequestError(f"{param}: this schema is not supported: {said}; send a simpler one", param)
