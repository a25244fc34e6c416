"""A chat to the prompt the target was trained on, with every byte's standing: markup, protected, compressible.

The template sees what was said, so that it drops or keeps what it was written to. Where each message lies is found by
`sp.chat.located`; in messages the spelling of a special token is only text, so none can pass for markup.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sp.chat import HiddenMessageError, Turn, render_located, spells_markup
from sp.chat.turn import keys
from sp.gguf import ChatTemplate, Tokenizer
from sp.prompt import DOCUMENT_MARK, Prompt, Span
from sp.serve.errors import RequestError
from sp.serve.options import Protect
from sp.serve.protocol import Job
from sp.serve.thinking import KWARGS, TemplateRequest


def to_prompt(job: Job, template: ChatTemplate | None, tokenizer: Tokenizer) -> Prompt:
    """The prompt of a request, with the begin of a call that must be; RequestError if the template cannot show it."""
    if job.kind == "completion":
        return Prompt.from_text(job.prompt)
    if template is None:
        raise RequestError("this model has no chat template; use /v1/completions with a prompt")
    prompt = chat_prompt(job.messages, job.tools.tools, template, tokenizer, job.protect, job.template)
    calling = job.tools.calling(template)
    return begun(prompt, calling.opening) if calling and calling.opening else prompt


def begun(prompt: Prompt, opening: str) -> Prompt:
    """A prompt that begins the answer; RequestError if the answer has begun with thinking."""
    if prompt.thinks is not None and prompt.thinks.opened:
        how = "send tool_choice 'auto', or switch thinking off"
        raise RequestError(f"this model thinks first, so that no call can be forced; {how}", "tool_choice")
    start, end = len(prompt.text.encode()), len((prompt.text + opening).encode())
    spans = (*prompt.spans, Span("protected", start, end), Span("answer", start, end))
    return replace(prompt, text=prompt.text + opening, spans=spans)


def chat_prompt(
    messages: tuple[dict[str, Any], ...],
    tools: tuple[dict[str, Any], ...],
    template: str | ChatTemplate,
    tokenizer: Tokenizer,
    protect: Protect = "turn",
    asked: TemplateRequest | None = None,
) -> Prompt:
    """Render messages of role and text parts.

    Protected are the markup, the tools, system messages and the last user turn: the only part of it, or its last
    part if it has several, so that a client can send documents and then the question. With `protect` "paragraph"
    it is what follows the last blank line of that part. Parts are joined by a blank line.
    """
    template, asked = ChatTemplate.of(template), asked or TemplateRequest()
    is_markup, told = spells_markup(tokenizer), asked.told(template)
    for what, value in (("tools", tools), (KWARGS, asked.variables)):
        if value and is_markup(json.dumps(value, ensure_ascii=False)):
            raise RequestError(f"{what} spell a special token of the model; write them without it", what)
    turns = [_turn(each) for each in messages]
    for index, turn in enumerate(turns):
        if any(is_markup(key) for call in turn.calls for key in keys(call.arguments)):
            where = f"messages[{index}].tool_calls"
            raise RequestError(f"{where} have keys that spell a special token of the model; rename them", where)
    try:
        found = render_located(template, turns, told | ({"tools": list(tools)} if tools else {}), is_markup)
    except HiddenMessageError as error:
        raise RequestError(str(error), f"messages[{error.index}]") from None
    if tools and not found.tools:
        raise RequestError("the chat template of this model does not show tools; leave them out", "tools")
    parts = next((each["parts"] for each in reversed(messages) if each["role"] == "user"), [""])
    return Prompt.from_chat(found, turns, template, asked.thinking, kept_from=_question_start(parts, protect))


def _turn(message: dict[str, Any]) -> Turn:
    """A message as templates know it."""
    rest = {name: value for name, value in message.items() if name not in ("role", "parts")}
    return Turn(message["role"], DOCUMENT_MARK.join(message["parts"]), **rest)


def _question_start(parts: list[str], protect: Protect) -> int:
    """The character of a turn with which what is kept of it begins."""
    last = parts[-1]
    if protect == "paragraph":
        last = last.rstrip().rpartition(DOCUMENT_MARK)[2] + last[len(last.rstrip()) :]
    return len(DOCUMENT_MARK.join(parts)) - len(last)
