"""The chat template of a model file: messages to the prompt the model was trained on."""

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
MAX_TEMPLATE = 1 << 16  # characters; the longest of the known chat templates has some 20 thousand
BASE_UNITS = 500_000  # about half a second, and at most 32 million characters
UNITS_PER_INPUT_UNIT = 256  # a template handles each message some ten times


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template, and the special tokens it may write.

    `source`: Jinja2, as a file carries it; `bos_token`, `eos_token`: as templates call the first token of a text and
    the last of a turn; empty where the vocabulary has none; `tool_use`: another one of the file, for chats with tools.

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
        """A file's template with the tokens of its vocabulary; None if it has none."""
        if source is None:
            return None
        bos, eos = ("" if i is None else tokenizer.token_text(i) for i in (tokenizer.bos_id, tokenizer.eos_id))
        return cls(source, bos, eos, tool_use)

    @classmethod
    def of(cls, template: str | ChatTemplate) -> ChatTemplate:
        """A template with its tokens; of a bare one, none."""
        return cls(template) if isinstance(template, str) else template

    @property
    def for_tools(self) -> ChatTemplate:
        """The template of chats with tools: the file's `tool_use`, if it has one and the other shows no tools.

        >>> ChatTemplate("{{ messages }}", tool_use="{{ tools }}").for_tools.source
        '{{ tools }}'
        """
        if self.tool_use is None or "tools" in self.names:
            return self
        return replace(self, source=self.tool_use, tool_use=None)

    @property
    def names(self) -> frozenset[str]:
        """Variables the template reads or sets, so those it can be told by; GGUFError if it does not compile."""
        return _checked(self.source).names

    @property
    def literals(self) -> frozenset[str]:
        """Strings that stand in its expressions: with these it may compare what a message says."""
        return _checked(self.source).literals


def chat_template(file: GGUFFile, name: str | None = None) -> str | None:
    """The template `file` carries, or that of a name; None if it has none. GGUFError when the key is not text."""
    key = KEY if name is None else f"{KEY}.{name}"
    template = file.metadata.get(key)
    if template is not None and not isinstance(template, str):
        raise GGUFError(f"{file.path}: key {key!r} is not a string; convert the model again")
    return template


def check_template(template: str) -> None:
    """GGUFError when `template` does not compile in the sandbox."""
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
        Each with ``role`` and ``content``, and whatever else the template knows, such as ``tool_calls``.
    add_generation_prompt : bool
        End with the opening of the assistant's turn.
    **context
        Further variables, e.g. ``enable_thinking=False``.

    Raises
    ------
    GGUFError
        When the template does not compile, refuses the messages, reaches for what the sandbox denies or works
        without end. Treat the template as any other untrusted part of a model file.

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
class Compiled:
    """Code of a template, which any environment can run, and the units of work its compilation took."""

    code: CodeType
    units: int
    names: frozenset[str]
    literals: frozenset[str]


def _run(template: str, variables: dict[str, Any]) -> str:
    """Rendered within a fixed sum of work, and a multiple of what it costs to look at the input once."""
    compiled = _checked(template)
    try:
        ample = Budget(1 << 40)
        ample.pay_for(variables)
        budget = Budget(BASE_UNITS + UNITS_PER_INPUT_UNIT * ((1 << 40) - ample.left))
        budget.pay(compiled.units)
        environment = BoundedEnvironment(budget, variables)
        return Template.from_code(environment, compiled.code, environment.make_globals(None)).render(variables)
    except Exception as error:  # whatever a stranger's program ends in is the file's fault
        raise _failure(error) from None


def _checked(template: str) -> Compiled:
    """The template compiled; GGUFError where it is too long or does not compile."""
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
def _compiled(template: str) -> Compiled:
    """Kept, as a server renders one template again and again."""
    budget = Budget(BASE_UNITS)
    environment = BoundedEnvironment(budget)
    code = environment.compile(template)
    return Compiled(code, BASE_UNITS - budget.left, frozenset(environment.names), frozenset(environment.literals))
