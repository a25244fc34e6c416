"""Messages as the prompt of a turn, and where in its tokens messages end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sp.arrays import Ints
from sp.chat import Call, Thinking, Turn, render_located, spells_markup
from sp.chat.calls import call_of
from sp.chat.turn import keys
from sp.errors import PromptError
from sp.pipeline import Loaded
from sp.prompt import Prompt, TokenisedPrompt

FIELDS = {"role": "role", "content": "content", "reasoning": "reasoning", "call_id": "tool_call_id", "name": "name"}
"""Strings of a `Turn`, and what messages call them."""


def prompt_of(
    messages: Sequence[Turn | Mapping[str, Any]],
    loaded: Loaded,
    tools: Sequence[Mapping[str, Any]] = (),
    thinking: Thinking = Thinking(),  # noqa: B008
    *,
    kept_from: int = 0,
) -> Prompt:
    """A chat as the model's template shows it; see `Prompt.from_chat`.

    Parameters
    ----------
    messages : sequence of Turn or mapping
        Mappings have a `role`, a `content` that is a string, if any the `reasoning` before it, and `tool_calls`,
        `tool_call_id` and `name` as OpenAI's clients write them.
    loaded : Loaded
        Whose template it is.
    tools : sequence of mapping
        As the template takes them.
    thinking : Thinking
    kept_from : int
        Character of the user's last message with which its question begins; what stands before may be left out.

    Raises
    ------
    PromptError
        Without a template, without messages, for a message that is none, or one that the template does not show.
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


def message_ends(prompt: TokenisedPrompt) -> Ints:
    """Tokens at which messages end, ascending: all before the k-th belong to the messages up to it, or to markup.

    A token that reaches over an end stands behind it.
    """
    said = prompt.prompt.segments or [span for span in prompt.prompt.spans if span.kind == "plain"]
    return _edges(prompt, [each.end for each in said])


def message_starts(prompt: TokenisedPrompt) -> Ints:
    """Tokens with which messages begin, ascending; the question of a document counts as one."""
    segments = prompt.prompt.segments
    kinds = ("question",) if segments else ("plain", "question")
    spans = [span for span in prompt.prompt.spans if span.kind in kinds]
    return _edges(prompt, [each.start for each in segments] + [each.start for each in spans])


def _edges(prompt: TokenisedPrompt, at: list[int]) -> Ints:
    return np.unique(np.searchsorted(np.ascontiguousarray(prompt.bytes[:, 1]), at, side="right")).astype(np.int64)


def _turn(index: int, message: Turn | Mapping[str, Any]) -> Turn:
    if isinstance(message, Turn):
        return message
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
