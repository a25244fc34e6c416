"""Messages as the prompt of a turn, and where in its tokens messages end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sp.arrays import Ints
from sp.chat import Thinking, Turn, render_located, spells_markup
from sp.errors import PromptError
from sp.pipeline import Loaded
from sp.prompt import Prompt, TokenisedPrompt


def prompt_of(
    messages: Sequence[Turn | Mapping[str, Any]],
    loaded: Loaded,
    tools: Sequence[Mapping[str, Any]] = (),
    thinking: Thinking = Thinking(),  # noqa: B008
) -> Prompt:
    """A chat as the model's template shows it; see `Prompt.from_chat`.

    Parameters
    ----------
    messages : sequence of Turn or mapping
        Mappings have a `role`, a `content` that is a string and, if any, the `reasoning` before it.
    loaded : Loaded
        Whose template it is.
    tools : sequence of mapping
        As the template takes them.
    thinking : Thinking

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
    found = render_located(template, turns, told, spells_markup(loaded.tokenizer))
    return Prompt.from_chat(found, turns, template, thinking)


def message_ends(prompt: TokenisedPrompt) -> Ints:
    """Tokens at which messages end, ascending: all before the k-th belong to the messages up to it, or to markup.

    A token that reaches over an end stands behind it.
    """
    return _edges(prompt, [span.end for span in prompt.prompt.spans if span.kind == "plain"])


def message_starts(prompt: TokenisedPrompt) -> Ints:
    """Tokens with which messages begin, ascending; the question of a document counts as one."""
    kinds = ("plain", "question")
    return _edges(prompt, [span.start for span in prompt.prompt.spans if span.kind in kinds])


def _edges(prompt: TokenisedPrompt, at: list[int]) -> Ints:
    return np.unique(np.searchsorted(np.ascontiguousarray(prompt.bytes[:, 1]), at, side="right")).astype(np.int64)


def _turn(index: int, message: Turn | Mapping[str, Any]) -> Turn:
    if isinstance(message, Turn):
        return message
    parts = [message.get(name, "") for name in ("role", "content", "reasoning")]
    if not all(isinstance(part, str) for part in parts) or not parts[0]:
        raise PromptError(f"messages[{index}] must have a role and a content, both strings")
    return Turn(*parts)
