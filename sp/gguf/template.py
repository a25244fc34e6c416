"""The chat template of a model file: turns messages into the prompt format that the model was trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateSyntaxError

from sp.errors import GGUFError, plain
from sp.gguf.reader import GGUFFile
from sp.gguf.sandbox import BoundedEnvironment, Budget
from sp.gguf.tokenizer import Tokenizer

KEY = "tokenizer.chat_template"
TOOL_USE = "tool_use"  # the name of a template for chats with tools
MAX_TEMPLATE = 1 << 16  # characters; the longest known chat template has about 20 thousand
BASE_UNITS = 500_000  # about half a second, and at most 32 million characters
UNITS_PER_INPUT_UNIT = 256  # generous: templates process each message about ten times


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template, and the special tokens it may write.

    `source`: Jinja2, as in the file; `bos_token`, `eos_token`: text of the tokens that templates know by these names,
    empty if the vocabulary has none; `tool_use`: the file's separate template for chats with tools.

    Examples
    --------
    >>> template = ChatTemplate("{{ bos_token }}{% if enable_thinking %}...{% endif %}", bos_token="<s>")
    >>> render_chat(template, [])
    '<s>'
    >>> sorted(template.names)
    ['bos_token', 'enable_thinking']
    """

    source: str
    bos_token: str = ""
    eos_token: str = ""
    tool_use: str | None = None

    @classmethod
    def of_file(cls, source: str | None, tokenizer: Tokenizer, tool_use: str | None = None) -> ChatTemplate | None:
        """Return a file's template with the tokens of its vocabulary, or None if it has none."""
        if source is None:
            return None
        bos, eos = ("" if i is None else tokenizer.token_text(i) for i in (tokenizer.bos_id, tokenizer.eos_id))
        return cls(source, bos, eos, tool_use)

    @classmethod
    def of(cls, template: str | ChatTemplate) -> ChatTemplate:
        """Return a template with its tokens; a bare source has none."""
        return cls(template) if isinstance(template, str) else template

    @property
    def for_tools(self) -> ChatTemplate:
        """The template for chats with tools: the file's `tool_use`, if it has one and this one does not use tools.

        >>> ChatTemplate("{{ messages }}", tool_use="{{ tools }}").for_tools.source
        '{{ tools }}'
        """
        if self.tool_use is None or "tools" in self.names:
            return self
        return replace(self, source=self.tool_use, tool_use=None)

    @property
    def names(self) -> frozenset[str]:
        """Variables that the template reads or sets, and so its options; GGUFError if it does not compile."""
        return _checked(self.source).names

    @property
    def literals(self) -> frozenset[str]:
        """String constants in its expressions, with which it may compare the text of a message."""
        return _checked(self.source).literals


def chat_template(file: GGUFFile, name: str | None = None) -> str | None:
    """Return the template in `file`, or the one of a name; None if there is none. GGUFError if the key is not text."""
    key = KEY if name is None else f"{KEY}.{name}"
    template = file.metadata.get(key)
    if template is not None and not isinstance(template, str):
        raise GGUFError(f"{file.path}: key {key!r} is not a string; convert the model again")
    return template


def check_template(template: str) -> None:
    """Raise GGUFError if `template` does not compile in the sandbox."""
    _checked(template)


def render_chat(
    template: str | ChatTemplate, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **context: Any
) -> str:
    """Render a chat template in an immutable sandbox with bounded work.

    Parameters
    ----------
    template : str or ChatTemplate
        Jinja2 source, with the conventions of Hugging Face's transformers: ``raise_exception``, ``strftime_now``,
        ``tojson``, loop controls, ``generation`` blocks, blocks trimmed.
    messages : list of dict
        Each with ``role`` and ``content``, and other keys that the template uses, such as ``tool_calls``.
    add_generation_prompt : bool
        End with the opening of the assistant's turn.
    **context
        Further variables, e.g. ``enable_thinking=False``.

    Raises
    ------
    GGUFError
        If the template does not compile, rejects the messages, accesses something that the sandbox forbids or exceeds
        its budget. Treat the template like any other untrusted part of a model file.

    Examples
    --------
    >>> source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<bot>"
    >>> render_chat(source, [{"role": "user", "content": "hi"}])
    '<user>hi<bot>'
    """
    variables = {"messages": messages, "add_generation_prompt": add_generation_prompt, **context}
    if isinstance(template, str):
        return _run(template, variables)
    return _run(template.source, {"bos_token": template.bos_token, "eos_token": template.eos_token, **variables})


@dataclass(frozen=True)
class CompiledTemplate:
    """Code of a template, which any environment can run, and the units of work that its compilation cost."""

    code: CodeType
    units: int
    names: frozenset[str]
    literals: frozenset[str]


def _run(template: str, variables: dict[str, Any]) -> str:
    """Render within a fixed amount of work plus a multiple of the cost of reading the input once."""
    compiled = _checked(template)
    try:
        ample = Budget(1 << 40)
        ample.pay_for(variables)
        budget = Budget(BASE_UNITS + UNITS_PER_INPUT_UNIT * ((1 << 40) - ample.left))
        budget.pay(compiled.units)
        environment = BoundedEnvironment(budget, variables)
        return Template.from_code(environment, compiled.code, environment.make_globals(None)).render(variables)
    except Exception as error:  # any failure of an untrusted program is reported as a fault of the file
        raise _failure(error) from None


def _checked(template: str) -> CompiledTemplate:
    """Return the compiled template; GGUFError if it is too long or does not compile."""
    if len(template) > MAX_TEMPLATE:
        raise GGUFError(f"chat template has {len(template)} characters, more than {MAX_TEMPLATE}; use another")
    try:
        return _compiled(template)
    except Exception as error:
        raise _failure(error) from None


def _failure(error: Exception) -> GGUFError:
    line = f" (line {error.lineno})" if isinstance(error, TemplateSyntaxError) else ""
    reason = plain(f"{type(error).__name__}: {error}", 150)
    return GGUFError(f"chat template fails{line}: {reason}; use another file, or give the prompt as plain text")


@lru_cache(maxsize=8)
def _compiled(template: str) -> CompiledTemplate:
    """Compile a template; cached, because a server renders the same one again and again."""
    budget = Budget(BASE_UNITS)
    environment = BoundedEnvironment(budget)
    code = environment.compile(template)
    return CompiledTemplate(
        code, BASE_UNITS - budget.left, frozenset(environment.names), frozenset(environment.literals)
    )
