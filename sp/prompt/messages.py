"""What a caller gives as a prompt: a text, a prompt, or messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from sp.chat import Call, Thinking, Turn, render_located, spells_markup
from sp.chat.calls import call_of
from sp.chat.turn import keys
from sp.errors import PromptError
from sp.gguf.template import ChatTemplate
from sp.gguf.tokenizer import Tokenizer
from sp.prompt.prompt import Prompt

Message = Turn | Mapping[str, Any]
FIELDS = {"role": "role", "content": "content", "reasoning": "reasoning", "call_id": "tool_call_id", "name": "name"}
"""Strings of a `Turn`, and what messages call them."""


class Speaker(Protocol):
    """Who is to read a prompt."""

    @property
    def path(self) -> Path:
        """Where the model came from."""

    @property
    def template(self) -> ChatTemplate | None:
        """How it is told who says what, if its file says so."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its vocabulary."""


def as_prompt(given: Prompt | str | Sequence[Message], loaded: Speaker) -> Prompt:
    """A prompt as it is, a text as `Prompt.from_text` takes it, or messages as `prompt_of` does.

    PromptError for anything else, and as those two do.

    >>> from sp.session import embedded, load
    >>> target = load(embedded("target"), device="cpu")
    >>> as_prompt("The cat sat.", target).text
    'The cat sat.'
    >>> as_prompt({"role": "user", "content": "Who sat?"}, target)
    Traceback (most recent call last):
    sp.errors.PromptError: a prompt is a text, a Prompt or a list of messages, not dict
    """
    if isinstance(given, Prompt):
        return given
    if isinstance(given, str):
        return Prompt.from_text(given)
    if not isinstance(given, list | tuple):
        raise PromptError(f"a prompt is a text, a Prompt or a list of messages, not {type(given).__name__}")
    return prompt_of(given, loaded)


def prompt_of(
    messages: Sequence[Message],
    loaded: Speaker,
    tools: Sequence[Mapping[str, Any]] = (),
    thinking: Thinking = Thinking(),  # noqa: B008
    *,
    kept_from: int = 0,
) -> Prompt:
    """A chat as the model's template shows it; see `Prompt.from_chat`.

    `messages`: mappings have a `role`, a `content` that is a string, if any the `reasoning` before it, and
    `tool_calls`, `tool_call_id` and `name` as OpenAI's clients write them; `loaded`: whose template it is; a `Loaded`
    model is one; `kept_from`: character of the user's last message with which its question begins; what stands before
    may be left out; PromptError without a template, without messages, for a message that is none, or one that the
    template does not show.
    """
    template = loaded.template
    if template is None:
        raise PromptError(f"{loaded.path.name} has no chat template, so it cannot be told who says what")
    turns = [_turn(index, message) for index, message in enumerate(messages)]
    if not turns:
        raise PromptError("the conversation is empty; give at least one message")
    told: dict[str, Any] = thinking.told(template)
    if tools:
        told |= {"tools": [dict(tool) for tool in tools]}
    is_markup = spells_markup(loaded.tokenizer)
    for index, turn in enumerate(turns):  # of calls the rendering looks after the strings among the values
        if any(is_markup(word) for call in turn.calls for word in (call.name, *keys(call.arguments))):
            raise PromptError(f"messages[{index}] has a call that spells a special token in a name; rename it")
    found = render_located(template, turns, told, is_markup)
    return Prompt.from_chat(found, turns, template, thinking, kept_from=kept_from)


def _turn(index: int, message: Message) -> Turn:
    if isinstance(message, Turn):
        return message
    if not isinstance(message, Mapping):
        raise PromptError(f"messages[{index}] must have a role and a content, and is of type {type(message).__name__}")
    given = {field: message.get(name) for field, name in FIELDS.items()}
    strings = {field: "" if value is None else value for field, value in given.items()}
    if not all(isinstance(value, str) for value in strings.values()) or not strings["role"]:
        raise PromptError(f"messages[{index}] must have a role and a content, both strings")
    where = f"messages[{index}].tool_calls"
    calls = tuple(_call(f"{where}[{at}]", one) for at, one in enumerate(message.get("tool_calls") or ()))
    return Turn(**strings, calls=calls)


def _call(where: str, given: Any) -> Call:
    function = given.get("function") if isinstance(given, Mapping) else None
    call = call_of(function) if isinstance(function, Mapping) else None
    if call is None:
        raise PromptError(f"{where} is no call; it must have a function with a name and arguments, an object")
    return replace(call, id=str(given.get("id") or ""))
