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
from sp.prompt.spans import SpanKind, in_bytes
from sp.serve.fields import RequestError
from sp.serve.protocol import Job
from sp.serve.question import LONGEST, Question, question_of
from sp.serve.thinking import KWARGS, TemplateRequest


def to_prompt(job: Job, template: ChatTemplate | None, tokenizer: Tokenizer) -> tuple[Prompt, Question | None]:
    """The prompt of a request, with the begin of a call that must be, and what of a chat is taken for its question.

    Raises
    ------
    RequestError
        If the template cannot show it.
    """
    if job.kind == "completion":
        return completion_prompt(job, tokenizer)
    if template is None:
        raise RequestError("this model has no chat template; use /v1/completions with a prompt")
    asked = question_of(last_turn(job.messages), job.asked.protect, tokenizer, job.options.keep_ratio)
    prompt = chat_prompt(job.messages, job.tools.tools, template, tokenizer, asked, job.template)
    calling = job.tools.calling(template)
    return (begun(prompt, calling.opening) if calling and calling.opening else prompt), asked


def completion_prompt(job: Job, tokenizer: Tokenizer) -> tuple[Prompt, Question | None]:
    """A text as it stands, for the model to go on with; its question is its last paragraph, if that is short.

    Otherwise it is found as in a chat: a short text is kept whole.
    """
    prompt = Prompt.from_text(job.prompt)
    if job.asked.protect == "auto" and not any(0 < span.end - span.start <= LONGEST for span in prompt.spans):
        asked = question_of([job.prompt], "auto", tokenizer, job.options.keep_ratio)
        kinds: tuple[SpanKind, ...] = ("protected", "question")
        spans = [Span(kind, asked.start, len(job.prompt)) for kind in kinds]
        spans += [Span("protected", 0, asked.opening)] if asked.opening else []
        return replace(prompt, spans=tuple(in_bytes(job.prompt, spans))), asked
    return prompt, None


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
    question: Question | None = None,
    asked: TemplateRequest | None = None,
) -> Prompt:
    """Render messages of role and text parts.

    Protected are the markup, the tools, system messages and of the last user turn its `question`: the last part of
    it, if none is given, so that a client can send documents and then the question. Parts are joined by a blank line.
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
    question = question or question_of(last_turn(messages), "turn", tokenizer)
    kept_from, kept_to = question.start, question.opening
    return Prompt.from_chat(found, turns, template, asked.thinking, kept_from=kept_from, kept_to=kept_to)


def last_turn(messages: tuple[dict[str, Any], ...]) -> list[str]:
    """Parts of the user's last message; an empty one if there is none."""
    return next((each["parts"] for each in reversed(messages) if each["role"] == "user"), [""])


def _turn(message: dict[str, Any]) -> Turn:
    """A message as templates know it."""
    rest = {name: value for name, value in message.items() if name not in ("role", "parts")}
    return Turn(message["role"], DOCUMENT_MARK.join(message["parts"]), **rest)
