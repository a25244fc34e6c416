"""Prompts: text with named spans, made of a document or a chat, and its tokens in one vocabulary."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sp.arrays import Bools, Ints
from sp.chat import Call, Located, Segment, Thinking, Thinks, Turn, render_located, segments_of, spells_markup
from sp.chat.calls import call_of
from sp.chat.messages import known_role, parts_of, role_of, text_of, thought_of
from sp.chat.turn import keys
from sp.errors import PromptError, plain
from sp.gguf.template import ChatTemplate, render_chat
from sp.gguf.tokenizer import Tokenizer
from sp.prompt.spans import Span, SpanKind, character_starts, in_bytes, with_characters, without

DOCUMENT_MARK = "\n\n"
SHOWN = 60  # characters of a text that a short form of its prompt shows


@dataclass(frozen=True)
class Prompt:
    """Text as the model will see it, and the roles of its parts.

    Parameters
    ----------
    text : str
        The rendered prompt, chat markup included.
    spans : tuple of Span
        `protected` text is always kept (chat markup, question, answer prefix); `question` and `needle`
        are used by scorers and reports, `answer` is the prefix of the answer; in `plain` text, ascending and disjoint,
        the spelling of a special token is only text.
    thinks : Thinks, optional
        How thinking is marked in the reply; None if it is not.
    segments : tuple of Segment
        The contents of messages, in order; empty for a text that is known to be no chat.
    """

    text: str
    spans: tuple[Span, ...] = ()
    thinks: Thinks | None = None
    segments: tuple[Segment, ...] = ()

    def __repr__(self) -> str:
        return f"Prompt({plain(self.text[:SHOWN], SHOWN)!r}, {len(self.text):,} characters, {len(self.spans)} spans)"

    @classmethod
    def from_text(cls, text: str) -> Prompt:
        """Return a text as it is, for a model to continue: special tokens are recognised.

        The text after its last blank line is the question, and protected.

        Examples
        --------
        >>> Prompt.from_text("The cat sat.\\n\\nWho sat?").spans
        (Span(kind='protected', start=14, end=22), Span(kind='question', start=14, end=22))
        """
        document, mark, question = text.rpartition(DOCUMENT_MARK)
        if not (document and question.strip()):
            return cls(text)
        start, end = len((document + mark).encode()), len(text.encode())
        return cls(text, (Span("protected", start, end), Span("question", start, end)))

    @classmethod
    def from_document(
        cls,
        document: str,
        question: str,
        template: str | ChatTemplate | None,
        *,
        needle: str | Sequence[str] | None = None,
        needle_at: Sequence[int] = (),
        answer_prefix: str = "",
        thinking: Thinking = Thinking(),  # noqa: B008
    ) -> Prompt:
        """Render `document` and `question` as one user turn; everything but the document is protected.

        Parameters
        ----------
        document, question : str
            The long text and the question about it; both non-empty.
        template : str, ChatTemplate or None
            A chat template (Jinja); None selects plain text: document, blank line, question, newline.
        needle : str or sequence of str, optional
            The pieces of the document that hold the answer, for reports only; scorers never see them.
        needle_at : sequence of int
            Character of `document` at which each piece begins; its first occurrence if omitted.
        answer_prefix : str
            Text after the generation prompt with which the answer must begin.
        thinking : Thinking
            Thinking options for the template.

        Raises
        ------
        PromptError
            If the document or the question is empty, the template does not render them verbatim, the needle is not
            in the document, or a prefix is given for an answer that begins with thinking.

        Examples
        --------
        >>> prompt = Prompt.from_document("The cat sat.", "Who sat?", None)
        >>> prompt.text
        'The cat sat.\\n\\nWho sat?\\n'
        """
        lead, document, question = len(document) - len(document.lstrip()), document.strip(), question.strip()
        if not document:
            raise PromptError("the prompt is empty; pass a text with --prompt-file")
        if not question:
            raise PromptError("the question is missing; pass one with --question")
        user = f"{document}{DOCUMENT_MARK}{question}"
        text, thinks = f"{user}\n", None
        if template:
            template = ChatTemplate.of(template)
            text = render_chat(template, [{"role": "user", "content": user}], **thinking.variables(template))
        user_start = text.find(user)
        if user_start < 0:
            raise PromptError("the chat template changes the user's text, so its parts cannot be located")
        if template:
            closing, thinks = thinking.reply(template, text[user_start + len(user) :])
            text += closing
        if answer_prefix and thinks and (thinks.opened or thinking.mode == "on"):
            raise PromptError(
                "--answer-prefix cannot be combined with an answer that begins with thinking; add --thinking off"
            )
        start = len(text[:user_start].encode())  # characters to bytes
        end = start + len(document.encode())
        question_start = end + len(DOCUMENT_MARK)
        text += answer_prefix
        spans = [
            Span("protected", 0, start),
            Span("protected", end, len(text.encode())),
            Span("question", question_start, question_start + len(question.encode())),
            Span("answer", len(text.encode()) - len(answer_prefix.encode()), len(text.encode())),
            Span("plain", start, question_start + len(question.encode())),
        ]
        pieces = (needle,) if isinstance(needle, str) else needle or ()
        for number, piece in enumerate(pieces):
            offset = needle_at[number] - lead if needle_at else document.find(piece)
            if not piece or offset < 0 or not document.startswith(piece, offset):
                raise PromptError("the needle is not a part of the prompt text")
            first = start + len(document[:offset].encode())
            spans.append(Span("needle", first, first + len(piece.encode())))
        segment = Segment("user", start, question_start + len(question.encode()), 0)
        return cls(text, tuple(span for span in spans if span.end > span.start), thinks, (segment,))

    @classmethod
    def from_chat(
        cls,
        located: Located,
        turns: Sequence[Turn],
        template: ChatTemplate,
        thinking: Thinking = Thinking(),  # noqa: B008
        *,
        kept_from: int = 0,
        kept_to: int = 0,
        protected_ranges: Sequence[tuple[int, int, int]] = (),
        question_ranges: Sequence[tuple[int, int, int]] = (),
        needle: Sequence[str] = (),
    ) -> Prompt:
        """Return a conversation; markup, system messages and the last turn of the user, or its end, are protected.

        Calls of tools are markup, though the strings in their arguments cannot spell any; results of tools
        are as compressible as any text.

        Parameters
        ----------
        located : Located
            The turns as the template renders them.
        turns : sequence of Turn
        template : ChatTemplate
        thinking : Thinking
            Thinking options that the template was rendered with.
        kept_from : int
            Character of the user's last turn with which its protected end begins.
        kept_to : int
            Number of characters at that turn's beginning that are protected as well.
        protected_ranges : sequence of (int, int, int)
            Further protected text: index of a turn, and characters [start, end) of it.
        question_ranges : sequence of (int, int, int)
            Further text of the question, in the same form; it is protected, too.
        needle : sequence of str
            The pieces of the text that hold the answer, for reports only.

        Raises
        ------
        PromptError
            If a needle is not in the text.

        Examples
        --------
        >>> from sp.chat import render_located
        >>> chat = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")
        >>> turns = [Turn("user", "The cat sat."), Turn("assistant", "Did it?"), Turn("user", "Who sat?")]
        >>> prompt = Prompt.from_chat(render_located(chat, turns, {}), turns, chat)
        >>> [prompt.text[span.start:span.end] for span in prompt.spans if span.kind in ("protected", "question")]
        ['[', '][', '][', 'Who sat?', 'Who sat?', ']']
        """
        # The generation prompt follows.
        last = max((copy.stop for copy in (*located.copies, *located.arguments)), default=0)
        closing, thinks = thinking.reply(template, located.text[last:])
        text, spans, rendered = located.text + closing, list[Span](), 0
        question = max((index for index, turn in enumerate(turns) if turn.role == "user"), default=None)
        also: dict[SpanKind, list[tuple[int, int, int]]] = {
            "protected": [*protected_ranges, *question_ranges],
            "question": [*question_ranges],
        }
        for index, start, end in located.regions(turns):
            whole = start if turns[index].role == "system" else end  # system messages are protected from their start
            tail = located.place(index, kept_from, end) if index == question else whole
            spans += [Span("protected", rendered, start), Span("plain", start, end), Span("protected", tail, end)]
            if index == question:
                opening = min(located.place(index, kept_to, end), tail)
                spans += [Span("protected", start, opening), Span("question", tail, end)]
            for kind, ranges in also.items():
                placed = (
                    (located.place(index, a, end), located.place(index, b, end))
                    for turn, a, b in ranges
                    if turn == index
                )
                spans += [Span(kind, first, min(stop, end)) for first, stop in placed]
            rendered = end  # text before it has spans
        spans.append(Span("protected", rendered, len(text)))
        spans += [Span("plain", copy.begin, copy.stop) for copy in located.arguments]
        spans.sort(key=lambda span: span.start)  # `plain` spans have to ascend
        for piece in needle:
            if (first := text.find(piece)) < 0 or not piece:
                raise PromptError("the needle is not a part of the prompt text")
            spans.append(Span("needle", first, first + len(piece)))
        byte_spans = in_bytes(text, [span for span in spans if span.end > span.start])
        return cls(text, tuple(byte_spans), thinks, segments_of(located, turns))

    @cached_property
    def free(self) -> tuple[Segment, ...]:
        """Unprotected parts of messages; of a text that is no chat, all unprotected text."""
        protected = sorted((span.start, span.end) for span in self.spans if span.kind == "protected")
        return tuple(without(self.segments or (Segment("user", 0, len(self.text.encode())),), protected))

    def tokenise(self, tokenizer: Tokenizer) -> TokenisedPrompt:
        """Encode the text, with BOS and EOS if the vocabulary has them; PromptError if no token results."""
        plain = [(span.start, span.end) for span in self.spans if span.kind == "plain"]
        encoding = tokenizer.encode(self.text, plain, framed=True)
        if not self.text:
            raise PromptError("the prompt is empty; pass a text with --prompt-file")
        if len(encoding.dropped) == len(self.text.encode()):
            raise PromptError("the vocabulary has no token for any byte of the prompt; pass another text")
        return TokenisedPrompt(self, encoding.ids, encoding.spans, encoding.dropped)


@dataclass(frozen=True)
class TokenisedPrompt:
    """A prompt in one vocabulary.

    Attributes
    ----------
    prompt : Prompt
    ids : array (n,)
        Token ids.
    bytes : array (n, 2)
        Byte range of the text that each token covers.
    dropped : array (d,)
        Offsets of bytes for which the vocabulary has no token, see `Encoding`.
    """

    prompt: Prompt
    ids: Ints
    bytes: Ints
    dropped: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __repr__(self) -> str:
        return f"TokenisedPrompt({len(self):,} tokens, {self.prompt!r})"

    def __len__(self) -> int:
        return len(self.ids)

    def mask(self, kind: SpanKind) -> Bools:
        """Return the tokens that share at least one byte with a span of `kind`, shape (n,).

        Tokens without a byte are protected as well: BOS, EOS, and the space that SentencePiece puts before a text. So
        are tokens that share a character with a protected one.
        """
        starts, ends = self.bytes[:, 0], self.bytes[:, 1]  # ascending; np.searchsorted would copy each column
        hit = starts == ends if kind == "protected" else np.zeros(len(self.ids), bool)
        for span in self.prompt.spans:
            if span.kind == kind:
                hit[bisect_right(ends, span.start) : bisect_left(starts, span.end)] = True
        if kind != "protected" or self.prompt.text.isascii():
            return hit
        return with_characters(hit, character_starts(self.prompt.text.encode(), self.bytes))

    @property
    def content_end(self) -> int:
        """Number of tokens up to the last one that is no markup: of a message, or of the answer's prefix.

        All tokens, unless the chat template opens or closes thinking behind the last message.
        """
        if self.prompt.thinks is None or not self.prompt.thinks.has_marks:
            return len(self)
        content = (self.mask("question") | self.mask("plain") | self.mask("answer")).nonzero()[0]
        return int(content[-1]) + 1 if len(content) else len(self)


Message = Turn | Mapping[str, Any]


class ChatModel(Protocol):
    """The parts of a model that a prompt is made for; a `Loaded` model has them."""

    @property
    def path(self) -> Path:
        """Path of the model."""

    @property
    def template(self) -> ChatTemplate | None:
        """Chat template, or None if the file has none."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Vocabulary of the model."""


def as_prompt(
    source: Prompt | str | Sequence[Message], loaded: ChatModel, tools: Sequence[Mapping[str, Any]] = ()
) -> Prompt:
    """Convert a prompt, a text (see `Prompt.from_text`), or messages and tools (see `prompt_of`) to a prompt.

    Raises PromptError for any other type, for tools without messages, and as those two do.

    >>> from sp.session import embedded, load
    >>> target = load(embedded("target"), device="cpu")
    >>> as_prompt("The cat sat.", target).text
    'The cat sat.'
    >>> as_prompt({"role": "user", "content": "Who sat?"}, target)
    Traceback (most recent call last):
    sp.errors.PromptError: a prompt is a text, a Prompt or a list of messages, not dict
    """
    if isinstance(source, Prompt | str):
        if tools:
            raise PromptError("tools need a chat: pass a list of messages instead of a text, or omit tools")
        return Prompt.from_text(source) if isinstance(source, str) else source
    if not isinstance(source, list | tuple):
        raise PromptError(f"a prompt is a text, a Prompt or a list of messages, not {type(source).__name__}")
    return prompt_of(source, loaded, tools)


def prompt_of(
    messages: Sequence[Message],
    loaded: ChatModel,
    tools: Sequence[Mapping[str, Any]] = (),
    thinking: Thinking = Thinking(),  # noqa: B008
    *,
    kept_from: int = 0,
) -> Prompt:
    """Render a chat with the model's template; see `Prompt.from_chat`.

    Parameters
    ----------
    messages : sequence of Turn or mapping
        Mappings have a `role`, a `content` (a string, or parts of type `text`), optionally the `reasoning` before
        it, and `tool_calls`, `tool_call_id` and `name` as in OpenAI's API.
    loaded : ChatModel
        The model whose template is used, for example a `Loaded` model.
    tools : sequence of mapping
        Schemas of tools.
    thinking : Thinking
    kept_from : int
        Character of the user's last message with which its question begins; the text before may be left out. By
        default the question is that message, or its last part.

    Raises
    ------
    PromptError
        Without a template or messages, for an invalid message, and for a message or tools that the template does not
        render.
    """
    template = loaded.template
    if template is None:
        raise PromptError(f"{loaded.path.name} has no chat template; pass a text instead of messages")
    template = template.for_tools if tools else template
    parsed = [_turn(index, message) for index, message in enumerate(messages)]
    turns = [turn for turn, _ in parsed]
    if not turns:
        raise PromptError("the conversation is empty; pass at least one message")
    variables: dict[str, Any] = thinking.variables(template)
    if tools:
        variables |= {"tools": [dict(tool) for tool in tools]}
    is_markup = spells_markup(loaded.tokenizer)
    # `render_located` keeps markup out of string values of calls; names and keys are rendered as they are.
    for index, turn in enumerate(turns):
        if any(is_markup(word) for call in turn.calls for word in (call.name, *keys(call.arguments))):
            raise PromptError(f"messages[{index}] has a call that spells a special token in a name; rename it")
    located = render_located(template, turns, variables, is_markup)
    if tools and not located.tools:
        raise PromptError("the chat template of this model does not support tools; omit them")
    last = next((start for turn, start in reversed(parsed) if turn.role == "user"), 0)
    return Prompt.from_chat(located, turns, template, thinking, kept_from=kept_from or last)


def _turn(index: int, message: Message) -> tuple[Turn, int]:
    """Return a message as a turn, and the character at which the last part of its content begins."""
    where = f"messages[{index}]"
    if isinstance(message, Turn):
        known_role(message.role, where)
        text_of(message.content, f"{where}.content")
        return message, 0
    role, calls, reasoning, call_id = role_of(message, where), tuple[Call, ...](), "", ""
    if role == "assistant":
        records = message.get("tool_calls") or ()
        calls = tuple(_call(f"{where}.tool_calls[{number}]", record) for number, record in enumerate(records))
        reasoning = thought_of(message, where)
    elif role == "tool":
        call_id = text_of(message.get("tool_call_id") or "", f"{where}.tool_call_id")
    name = text_of(message.get("name") or "", f"{where}.name")
    *before, last = parts_of(message, where, spoken=bool(calls or reasoning))
    content = DOCUMENT_MARK.join([*before, last])  # parts become one text, as templates take strings
    return Turn(role, content, reasoning, calls, call_id, name), len(content) - len(last)


def _call(where: str, record: Any) -> Call:
    function = record.get("function") if isinstance(record, Mapping) else None
    call = call_of(function) if isinstance(function, Mapping) else None
    if call is None:
        raise PromptError(f"{where} is not a tool call; it needs a function with a name and an object of arguments")
    return replace(call, id=str(record.get("id") or ""))
