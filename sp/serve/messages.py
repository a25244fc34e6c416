"""A chat to the prompt the target was trained on, with every byte's standing: markup, protected, compressible.

What people wrote enters the rendered text only after rendering, in place of random marks. So no message can change
what the template does, and where each message lies is known exactly.
"""

from __future__ import annotations

import json
import re
import secrets
from functools import lru_cache
from typing import Any

from sp.gguf import Tokenizer
from sp.gguf.template import render_chat
from sp.prompt import DOCUMENT_MARK, Prompt, Span
from sp.serve.errors import RequestError
from sp.serve.options import Protect
from sp.serve.protocol import Job


def to_prompt(job: Job, template: str | None, tokenizer: Tokenizer) -> Prompt:
    """The prompt of a request; RequestError if the template cannot show it."""
    if job.kind == "completion":
        return completion_prompt(job.prompt)
    if template is None:
        raise RequestError("this model has no chat template; use /v1/completions with a prompt")
    return chat_prompt(job.messages, job.tools, template, tokenizer, job.protect)


def completion_prompt(text: str) -> Prompt:
    """A prompt as it stands, special tokens recognised; what follows its last blank line is kept as the question."""
    document, mark, question = text.rpartition(DOCUMENT_MARK)
    if not (document and question.strip()):
        return Prompt(text)
    start, end = len((document + mark).encode()), len(text.encode())
    return Prompt(text, (Span("protected", start, end), Span("question", start, end)))


def chat_prompt(
    messages: tuple[dict[str, Any], ...],
    tools: tuple[dict[str, Any], ...],
    template: str,
    tokenizer: Tokenizer,
    protect: Protect = "turn",
) -> Prompt:
    """Render messages of role and text parts.

    Protected are the markup, the tools, system messages and the last user turn: the only part of it, or its last
    part if it has several, so that a client can send documents and then the question. With `protect` "paragraph"
    it is what follows the last blank line of that part. Parts are joined by a blank line. In messages the spelling
    of a special token is only text.
    """
    asked = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=None)
    described = json.dumps(tools, ensure_ascii=False) if tools else ""
    if tools and tokenizer.special_ids & set(tokenizer.encode(described).ids.tolist()):
        raise RequestError("tools spell a special token of the model; describe them without it", "tools")
    first, *shown = _markup(template, tuple(message["role"] for message in messages), described)
    at = _size(first[1])
    text, spans = [first[1]], [Span("protected", 0, at)]
    for index, markup in shown:
        parts = messages[index]["parts"]
        content = [parts[0], *(piece for part in parts[1:] for piece in (DOCUMENT_MARK, part))]
        end = at + sum(map(_size, content))
        kept = _kept(parts, messages[index]["role"], end - at, index == asked, protect)
        spans.append(Span("plain", at, end))
        spans.append(Span("protected", end - kept, end))
        if index == asked:
            spans.append(Span("question", end - kept, end))
        at = end + _size(markup)
        spans.append(Span("protected", end, at))
        text += [*content, markup]
    return Prompt("".join(text), tuple(span for span in spans if span.end > span.start))


def _kept(parts: list[str], role: str, size: int, asked: bool, protect: Protect) -> int:
    """How many bytes at the end of a message of `size` bytes are protected."""
    if role == "system":
        return size
    if not asked:
        return 0
    last = parts[-1]
    if protect == "paragraph":
        last = last.rstrip().rpartition(DOCUMENT_MARK)[2] + last[len(last.rstrip()) :]
    return _size(last)


def _size(text: str) -> int:
    """Bytes of a text; it is long, and mostly known to be ASCII."""
    return len(text) if text.isascii() else len(text.encode())


@lru_cache(maxsize=8)
def _markup(template: str, roles: tuple[str, ...], tools: str) -> tuple[tuple[int, str], ...]:
    """What the template writes before the messages, as that of message -1, and after each, in the order it shows them.

    It depends on no message's text, so it is kept for chats of the same form.
    """
    nonce = secrets.token_hex(8)
    shown = [{"role": role, "content": f"mark{nonce}n{index}end"} for index, role in enumerate(roles)]
    rendered = render_chat(template, shown)
    if tools:
        plain, rendered = rendered, render_chat(template, shown, tools=json.loads(tools))
        if rendered == plain:
            raise RequestError("the chat template of this model does not show tools; leave them out", "tools")
    pieces = re.split(f"mark{nonce}n([0-9]+)end", rendered)
    found = [int(index) for index in pieces[1::2]]
    if sorted(found) != list(range(len(roles))):
        missing = next((i for i in range(len(roles)) if found.count(i) != 1), 0)
        where = f"messages[{missing}]"
        raise RequestError(f"the chat template of this model does not show {where} once; leave it out", where)
    return tuple(zip([-1, *found], pieces[::2], strict=True))
