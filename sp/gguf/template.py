"""The chat template of a model file: messages to the prompt the model was trained on."""

from __future__ import annotations

from functools import lru_cache
from types import CodeType
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateSyntaxError

from sp.errors import GGUFError
from sp.gguf.budget import Budget
from sp.gguf.metadata import plain
from sp.gguf.reader import GGUFFile
from sp.gguf.sandbox import BoundedEnvironment

KEY = "tokenizer.chat_template"
MAX_TEMPLATE = 1 << 16  # characters; the longest of the known chat templates has some 20 thousand
BASE_UNITS = 500_000  # about half a second, and at most 32 million characters
UNITS_PER_INPUT_UNIT = 256  # a template handles each message some ten times


def chat_template(file: GGUFFile) -> str | None:
    """The template `file` carries, or None; GGUFError when the key is not text."""
    template = file.metadata.get(KEY)
    if template is not None and not isinstance(template, str):
        raise GGUFError(f"{file.path}: key {KEY!r} is not a string; convert the model again")
    return template


def check_template(template: str) -> None:
    """GGUFError when `template` does not compile in the sandbox."""
    _run(template, None)


def render_chat(
    template: str, messages: list[dict[str, str]], *, add_generation_prompt: bool = True, **context: Any
) -> str:
    """Render a chat template in an immutable sandbox with bounded work.

    Parameters
    ----------
    template : str
        Jinja2 source, with Hugging Face's conventions: ``raise_exception``, ``tojson``, loop controls, blocks
        trimmed.
    messages : list of dict
        Each with ``role`` and ``content``.
    add_generation_prompt : bool
        End with the opening of the assistant's turn.
    **context
        Further variables, e.g. ``enable_thinking=False``.

    Returns
    -------
    str

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
    return _run(template, variables)


def _run(template: str, variables: dict[str, Any] | None) -> str:
    """Compile, and render unless `variables` is None."""
    if len(template) > MAX_TEMPLATE:
        raise GGUFError(f"chat template has {len(template)} characters, more than {MAX_TEMPLATE}; use another")
    try:
        budget = Budget(_allowance(variables))
        code, units = _compiled(template)
        budget.pay(units)
        if variables is None:
            return ""
        environment = BoundedEnvironment(budget)
        return Template.from_code(environment, code, environment.make_globals(None)).render(variables)
    except Exception as error:  # whatever a stranger's program ends in is the file's fault
        line = f" (line {error.lineno})" if isinstance(error, TemplateSyntaxError) else ""
        reason = plain(f"{type(error).__name__}: {error}", 300)
        raise GGUFError(
            f"chat template fails{line}: {reason}; use another file, or give the prompt as plain text"
        ) from None


@lru_cache(maxsize=8)
def _compiled(template: str) -> tuple[CodeType, int]:
    """Code of a template, which any environment can run, and the units of work its compilation took.

    Kept, as a server renders one template again and again.
    """
    budget = Budget(BASE_UNITS)
    code = BoundedEnvironment(budget).compile(template)
    return code, BASE_UNITS - budget.left


def _allowance(variables: dict[str, Any] | None) -> int:
    """Units of work: a fixed sum and a multiple of what it costs to look at the input once."""
    ample = Budget(1 << 40)
    if variables is not None:
        ample.pay_for(variables)
    return BASE_UNITS + UNITS_PER_INPUT_UNIT * ((1 << 40) - ample.left)
