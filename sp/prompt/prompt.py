"""Prompt: text with named spans, made of a document or a chat, and its tokens in one vocabulary."""

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
    """Text as the model will see it, and what its parts are.

    Parameters
    ----------
    text : str
        The rendered prompt, chat markup included.
    spans : tuple of Span
        `protected` text is always kept (chat markup, question, answer prefix); `question` and `needle`
        are what scorers and reports ask for, `answer` is the prefix; in `plain` text, ascending and disjoint,
        the spelling of a special token is only text.
    thinks : Thinks, optional
        How thinking is marked in the reply; None if it is not.
    segments : tuple of Segment
        What messages say, in order; none where the text is known to be no chat.
    """

    text: str
    spans: tuple[Span, ...] = ()
    thinks: Thinks | None = None
    segments: tuple[Segment, ...] = ()

    def __repr__(self) -> str:
        return f"Prompt({plain(self.text[:SHOWN], SHOWN)!r}, {len(self.text):,} characters, {len(self.spans)} spans)"

    @classmethod
    def from_text(cls, text: str) -> Prompt:
        """A text as it stands, for a model to go on with: special tokens are recognised.

        What follows its last blank line is the question, and protected.

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
            The long text and what is asked of it; both non-empty.
        template : str, ChatTemplate or None
            A chat template (Jinja); None asks for plain text: document, blank line, question, newline.
        needle : str or sequence of str, optional
            The pieces of the document that hold the answer, for reports only; scorers never see them.
        needle_at : sequence of int
            Character of `document` at which each piece begins; where it first occurs if left out.
        answer_prefix : str
            Text after the generation prompt with which the answer must begin.
        thinking : Thinking
            What the template is told of thinking.

        Raises
        ------
        PromptError
            If the document or the question is empty, the template does not show them verbatim, the needle is not
            in the document, or a prefix is given for an answer that begins with thinking.

        Examples
        --------
        >>> prompt = Prompt.from_document("The cat sat.", "Who sat?", None)
        >>> prompt.text
        'The cat sat.\\n\\nWho sat?\\n'
        """
        lead, document, question = len(document) - len(document.lstrip()), document.strip(), question.strip()
        if not document:
            raise PromptError("the prompt is empty; give a text with --prompt-file")
        if not question:
            raise PromptError("the question is missing; give one with --question")
        user = f"{document}{DOCUMENT_MARK}{question}"
        text, thinks = f"{user}\n", None
        if template:
            template = ChatTemplate.of(template)
            text = render_chat(template, [{"role": "user", "content": user}], **thinking.told(template))
        at = text.find(user)
        if at < 0:
            raise PromptError("the chat template changes the user's text, so its parts cannot be located")
        if template:
            closing, thinks = thinking.reply(template, text[at + len(user) :])
            text += closing
        if answer_prefix and thinks and (thinks.opened or thinking.mode == "on"):
            raise PromptError("an answer that begins with thinking takes no --answer-prefix; add --thinking off")
        start = len(text[:at].encode())
        end = start + len(document.encode())
        asked = end + len(DOCUMENT_MARK)
        text += answer_prefix
        spans = [
            Span("protected", 0, start),
            Span("protected", end, len(text.encode())),
            Span("question", asked, asked + len(question.encode())),
            Span("answer", len(text.encode()) - len(answer_prefix.encode()), len(text.encode())),
            Span("plain", start, asked + len(question.encode())),
        ]
        pieces = (needle,) if isinstance(needle, str) else needle or ()
        for number, piece in enumerate(pieces):
            found = needle_at[number] - lead if needle_at else document.find(piece)
            if not piece or found < 0 or not document.startswith(piece, found):
                raise PromptError("the needle is not a part of the prompt text")
            first = start + len(document[:found].encode())
            spans.append(Span("needle", first, first + len(piece.encode())))
        said = Segment("user", start, asked + len(question.encode()), 0)
        return cls(text, tuple(span for span in spans if span.end > span.start), thinks, (said,))

    @classmethod
    def from_chat(
        cls,
        found: Located,
        turns: Sequence[Turn],
        template: ChatTemplate,
        thinking: Thinking = Thinking(),  # noqa: B008
        *,
        kept_from: int = 0,
        kept_to: int = 0,
        marked: Sequence[tuple[int, int, int]] = (),
        asked: Sequence[tuple[int, int, int]] = (),
        needle: Sequence[str] = (),
    ) -> Prompt:
        """A conversation; protected are the markup, system messages and the last turn of the user, or its end.

        Calls of tools are markup, though the strings in their arguments can pass for none; what tools answered is
        as compressible as any text.

        Parameters
        ----------
        found : Located
            The turns as the template shows them.
        turns : sequence of Turn
        template : ChatTemplate
        thinking : Thinking
            What the template was told of thinking.
        kept_from : int
            Character of the user's last turn with which what is protected of it begins.
        kept_to : int
            Characters of that turn's beginning that are protected as well.
        marked : sequence of (int, int, int)
            Turns, and of each the characters between which it is protected as well.
        asked : sequence of (int, int, int)
            The same of what belongs to the question.
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
        last = max((copy.stop for copy in (*found.copies, *found.arguments)), default=0)
        closing, thinks = thinking.reply(template, found.text[last:])
        text, spans, at = found.text + closing, list[Span](), 0
        question = max((index for index, turn in enumerate(turns) if turn.role == "user"), default=None)
        also: dict[SpanKind, list[tuple[int, int, int]]] = {"protected": [*marked, *asked], "question": [*asked]}
        for index, start, end in found.regions(turns):
            whole = start if turns[index].role == "system" else end
            kept = found.place(index, kept_from, end) if index == question else whole
            spans += [Span("protected", at, start), Span("plain", start, end), Span("protected", kept, end)]
            if index == question:
                opening = min(found.place(index, kept_to, end), kept)
                spans += [Span("protected", start, opening), Span("question", kept, end)]
            for kind, wanted in also.items():
                mine = (
                    (found.place(index, a, end), found.place(index, b, end)) for turn, a, b in wanted if turn == index
                )
                spans += [Span(kind, first, min(stop, end)) for first, stop in mine]
            at = end
        spans.append(Span("protected", at, len(text)))
        spans += [Span("plain", copy.at, copy.stop) for copy in found.arguments]
        spans.sort(key=lambda span: span.start)
        for piece in needle:
            if (first := text.find(piece)) < 0 or not piece:
                raise PromptError("the needle is not a part of the prompt text")
            spans.append(Span("needle", first, first + len(piece)))
        placed = in_bytes(text, [span for span in spans if span.end > span.start])
        return cls(text, tuple(placed), thinks, segments_of(found, turns))

    @cached_property
    def free(self) -> tuple[Segment, ...]:
        """What messages say that is not protected; of a text that is no chat, all of that."""
        taken = sorted((span.start, span.end) for span in self.spans if span.kind == "protected")
        return tuple(without(self.segments or (Segment("user", 0, len(self.text.encode())),), taken))

    def tokenise(self, tokenizer: Tokenizer) -> TokenisedPrompt:
        """Encode the text, with BOS and EOS if the vocabulary wants them; PromptError if nothing is left."""
        plain = [(span.start, span.end) for span in self.spans if span.kind == "plain"]
        encoding = tokenizer.encode(self.text, plain, framed=True)
        if not self.text:
            raise PromptError("the prompt is empty; give a text with --prompt-file")
        if len(encoding.dropped) == len(self.text.encode()):
            raise PromptError("the vocabulary has no token for any byte of the prompt; give another text")
        return TokenisedPrompt(self, encoding.ids, encoding.spans, encoding.dropped)


@dataclass(frozen=True)
class TokenisedPrompt:
    """A prompt in one vocabulary: ids (n,), the byte range (n, 2) each token covers, and places of bytes that were
    dropped, see `Encoding`.
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
        """Tokens that share at least one byte with a span of `kind`, shape (n,).

        Protected are also those that stand for no byte: BOS, EOS, and what SentencePiece writes in front of a text; and
        those that hold the rest of a character of which a protected one holds a part.
        """
        starts, ends = self.bytes[:, 0], self.bytes[:, 1]  # in order; NumPy's search would first copy each column
        hit = starts == ends if kind == "protected" else np.zeros(len(self.ids), bool)
        for span in self.prompt.spans:
            if span.kind == kind:
                hit[bisect_right(ends, span.start) : bisect_left(starts, span.end)] = True
        if kind != "protected" or self.prompt.text.isascii():
            return hit
        return with_characters(hit, character_starts(self.prompt.text.encode(), self.bytes))

    @property
    def asked(self) -> int:
        """Tokens up to the last one that is no markup: of a message, or of what the answer begins with.

        All of them, unless the chat template opens or closes thinking behind the last message.
        """
        if self.prompt.thinks is None or not self.prompt.thinks.written:
            return len(self)
        known = (self.mask("question") | self.mask("plain") | self.mask("answer")).nonzero()[0]
        return int(known[-1]) + 1 if len(known) else len(self)


Message = Turn | Mapping[str, Any]


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


def as_prompt(
    given: Prompt | str | Sequence[Message], loaded: Speaker, tools: Sequence[Mapping[str, Any]] = ()
) -> Prompt:
    """A prompt as it is, a text as `Prompt.from_text` takes it, or messages, and tools, as `prompt_of` does.

    PromptError for anything else, for tools beside what is no chat, and as those two do.

    >>> from sp.session import embedded, load
    >>> target = load(embedded("target"), device="cpu")
    >>> as_prompt("The cat sat.", target).text
    'The cat sat.'
    >>> as_prompt({"role": "user", "content": "Who sat?"}, target)
    Traceback (most recent call last):
    sp.errors.PromptError: a prompt is a text, a Prompt or a list of messages, not dict
    """
    if isinstance(given, Prompt | str):
        if tools:
            raise PromptError("tools are shown by a chat template; give messages with them, or leave tools out")
        return Prompt.from_text(given) if isinstance(given, str) else given
    if not isinstance(given, list | tuple):
        raise PromptError(f"a prompt is a text, a Prompt or a list of messages, not {type(given).__name__}")
    return prompt_of(given, loaded, tools)


def prompt_of(
    messages: Sequence[Message],
    loaded: Speaker,
    tools: Sequence[Mapping[str, Any]] = (),
    thinking: Thinking = Thinking(),  # noqa: B008
    *,
    kept_from: int = 0,
) -> Prompt:
    """A chat as the model's template shows it; see `Prompt.from_chat`.

    `messages`: mappings have a `role`, a `content` (a string, or parts of type `text`), if any the `reasoning` before
    it, and `tool_calls`, `tool_call_id` and `name` as OpenAI's clients write them; `loaded`: whose template it is; a
    `Loaded` model is one; `kept_from`: character of the user's last message with which its question begins; what stands
    before may be left out; by default the question is that message, or its last part; PromptError without a template,
    without messages, for a message that is none, and for one, or tools, that the template does not show.
    """
    template = loaded.template
    if template is None:
        raise PromptError(f"{loaded.path.name} has no chat template, so it cannot be told who says what")
    template = template.for_tools if tools else template
    read = [_turn(index, message) for index, message in enumerate(messages)]
    turns = [turn for turn, _ in read]
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
    if tools and not found.tools:
        raise PromptError("the chat template of this model does not show tools; leave them out")
    last = next((at for turn, at in reversed(read) if turn.role == "user"), 0)
    return Prompt.from_chat(found, turns, template, thinking, kept_from=kept_from or last)


def _turn(index: int, message: Message) -> tuple[Turn, int]:
    """A message as templates know it, and the character at which the last part of its content begins."""
    where = f"messages[{index}]"
    if isinstance(message, Turn):
        known_role(message.role, where)
        text_of(message.content, f"{where}.content")
        return message, 0
    role, calls, reasoning, call_id = role_of(message, where), tuple[Call, ...](), "", ""
    if role == "assistant":
        given = message.get("tool_calls") or ()
        calls = tuple(_call(f"{where}.tool_calls[{at}]", one) for at, one in enumerate(given))
        reasoning = thought_of(message, where)
    elif role == "tool":
        call_id = text_of(message.get("tool_call_id") or "", f"{where}.tool_call_id")
    name = text_of(message.get("name") or "", f"{where}.name")
    *before, last = parts_of(message, where, spoken=bool(calls or reasoning))
    content = DOCUMENT_MARK.join([*before, last])
    return Turn(role, content, reasoning, calls, call_id, name), len(content) - len(last)


def _call(where: str, given: Any) -> Call:
    function = given.get("function") if isinstance(given, Mapping) else None
    call = call_of(function) if isinstance(function, Mapping) else None
    if call is None:
        raise PromptError(f"{where} is no call; it must have a function with a name and arguments, an object")
    return replace(call, id=str(given.get("id") or ""))
