"""Chats rendered to prompts, the part of a chat that is its question, and the usage block.

The template gets the text of messages as it is, because templates drop or keep parts of it. `sp.chat.located` finds
where each message ended up. The spelling of a special token in a message is plain text, so that none can pass for
markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from sp.chat import HiddenMessageError, Turn, render_located, spells_markup
from sp.chat.turn import keys
from sp.decode import SamplingDecoder
from sp.gguf import ChatTemplate, Tokenizer
from sp.prompt import DOCUMENT_MARK, Prompt, Span
from sp.prompt.heat import KINDS, edges, kinds, whole_characters
from sp.prompt.spans import SpanKind, in_bytes
from sp.serve.fields import RequestError
from sp.serve.options import Protect
from sp.serve.protocol import KWARGS, CompletionJob, Range, TemplateRequest
from sp.session import RunOptions, RunResult, TurnResult

QuestionKind = Literal["turn", "part", "task", "paragraph", "sentence", "line", "end"]
"""What was taken for the question: the whole turn, its last part, the task before a tagged last part, or the last
paragraph, sentence, line or words of the last part."""

LONG = 512  # tokens; a longer text is not a question as a whole, because it contains a document
LONGEST = (
    1024  # characters of a question within a longer text; longer paragraphs, sentences and lines are not questions
)
LONGEST_OPENING = 256
"""Characters of a first paragraph that is protected, too: it describes the document, or asks before it."""
CUE = 32  # characters; a last paragraph this short that ends in a colon only marks the place of the answer
LONGEST_TOKEN = 16
"""Mean characters per token above which a text counts as long without being tokenised."""
TAGGED = re.compile(r"\s*<([A-Za-z][\w.-]{0,63})(?:\s[^<>]{0,255})?>")
"""The opening tag of a part that a program enclosed in one, as coding agents do with the task and the environment."""
BREAK = re.compile(r"(?<=[.!?:;])\s+|(?<=[。！？；：])\s*|\n+")  # between sentences, and between lines
ASKS = ("?", "？", "؟")


@dataclass(frozen=True)
class QuestionSpan:
    """The place of the question in a turn, whose parts are joined by blank lines."""

    start: int  # index of its first character
    kind: QuestionKind  # what was taken for it
    opening: int = 0  # characters of the turn's beginning that are protected, too
    tasks: tuple[Range, ...] = ()  # message, first and last character of text elsewhere that belongs to it


def question_in(
    messages: Sequence[Mapping[str, Any]], protect: Protect, tokenizer: Tokenizer, keep_ratio: float = 1.0
) -> QuestionSpan:
    """Return the question of a chat: that of the user's last turn, see `question_of`.

    With "auto", if the turn's last part is enclosed in a tag, it is not the whole question. Then the first part of that
    turn belongs to it as well, and the first part of the user's first turn, in which agents send the task; then the
    turn's other parts from the last on, up to `LONG` tokens. Of a longer one of those two only its own question and its
    opening belong to it.
    """
    turns = [index for index, message in enumerate(messages) if message["role"] == "user"]
    parts = last_turn(messages)
    question = question_of(parts, protect, tokenizer, keep_ratio)
    if protect != "auto" or len(parts) < 2 or not _is_tagged(parts[-1]):
        return question
    last, first = turns[-1], next(turn for turn in turns if messages[turn]["parts"])
    others = ((last, number) for number in range(len(parts) - 2, 0, -1))
    places = [(last, 0), *([(first, 0)] if first != last else []), *others]
    room, tasks = LONG, list[Range]()  # tokens left for parts that are protected whole
    for turn, number in places:
        before, text = messages[turn]["parts"][:number], messages[turn]["parts"][number]
        start = sum(len(part) + len(DOCUMENT_MARK) for part in before)
        count = LONG + 1 if _long(text, tokenizer) else len(tokenizer.encode(text))  # a long one never fits
        if count <= room:
            room -= count
            tasks.append((turn, start, start + len(text)))
        elif number == 0:
            start, _ = _asking(text.rstrip())  # `number` is 0, so that the part starts the turn
            tasks += [(turn, 0, min(_opening(text) or LONGEST_OPENING, start)), (turn, start, len(text))]
    return replace(question, kind="task", tasks=tuple(sorted(span for span in tasks if span[1] < span[2])))


def _is_tagged(text: str) -> bool:
    """Return True if a text is one element of markup."""
    begin = TAGGED.match(text)
    return begin is not None and text.rstrip().endswith(f"</{begin[1]}>")


def question_of(parts: Sequence[str], protect: Protect, tokenizer: Tokenizer, keep_ratio: float = 1.0) -> QuestionSpan:
    """Return the question of a turn.

    `parts`: of the turn; all but the last are documents.

    `protect`: "turn": all of the last part. "paragraph": what follows its last blank line. "auto": all of it up to
    `LONG` tokens; of a longer one the last paragraph; if there is none, or it has over `LONGEST` characters, the last
    sentence that asks and all after it; else the last line, sentence or words.

    `keep_ratio`: share of the turn that may be selected; an opening paragraph is protected only if half of that holds
    it and the question.
    """
    last, whole = parts[-1], DOCUMENT_MARK.join(parts)
    before = len(whole) - len(last)
    if protect == "turn":
        return QuestionSpan(before, "part" if before else "turn")
    if protect == "paragraph":
        return QuestionSpan(before + _paragraph(last.rstrip()), "paragraph")
    start, kind = _asking(last.rstrip()) if _long(last, tokenizer) else (0, "part" if before else "turn")
    opening = _opening(whole)
    fits = 2 * (opening + len(last) - start) <= keep_ratio * len(whole)
    return QuestionSpan(before + start, kind, opening if fits and opening <= before + start else 0)


def _long(text: str, tokenizer: Tokenizer) -> bool:
    """Return True if a text has over `LONG` tokens; a long text is not tokenised to its end."""
    if len(text.encode()) <= LONG:  # a token has at least one byte
        return False
    begin = text[: LONG * LONGEST_TOKEN]  # so that the cost does not grow with the text
    return len(begin) < len(text) or len(tokenizer.encode(begin)) > LONG


def _asking(body: str) -> tuple[int, QuestionKind]:
    """Return the start of the question at the end of a text, and its kind."""
    paragraph = _paragraph(body)
    if paragraph and len(body) - paragraph <= CUE and body.endswith(":"):  # "Answer:" asks nothing
        paragraph = _paragraph(body[:paragraph].rstrip())
    if paragraph and len(body) - paragraph <= LONGEST:
        return paragraph, "paragraph"
    first = max(len(body) - LONGEST, 0)
    starts = [match.end() for match in BREAK.finditer(body, first) if match.end() < len(body)]
    for start, end in reversed([*pairwise([*starts, len(body)])]):
        if body[start:end].rstrip().endswith(ASKS):
            return start, "sentence"
    if first < (line := body.rfind("\n") + 1):
        return line, "line"
    if starts:
        return starts[-1], "sentence"
    return max(body.find(" ", first) + 1, first), "end"  # at a word, if there is one


def _paragraph(body: str) -> int:
    """Return the start of the last paragraph; 0 if there is only one."""
    head, mark, _ = body.rpartition(DOCUMENT_MARK)
    return len(head) + len(mark)


def _opening(text: str) -> int:
    """Return the characters of the first paragraph, including its blank line, if it is short; else 0."""
    end = text.find(DOCUMENT_MARK, 0, LONGEST_OPENING + len(DOCUMENT_MARK))
    return end + len(DOCUMENT_MARK) if end > 0 else 0


def to_prompt(
    job: CompletionJob, template: ChatTemplate | None, tokenizer: Tokenizer
) -> tuple[Prompt, QuestionSpan | None]:
    """Render the prompt of a request, including the start of a forced call, and return it with the question of a chat.

    RequestError: the template cannot render it.
    """
    if job.kind == "completion":
        return completion_prompt(job, tokenizer)
    if template is None:
        raise RequestError("this model has no chat template; use /v1/completions with a prompt")
    template = job.tools.template(template)
    question = question_in(job.messages, job.overrides.protect, tokenizer, job.options.keep_ratio)
    prompt = chat_prompt(
        job.messages, job.tools.tools, template, tokenizer, question, job.template, job.protected_ranges
    )
    calling = job.tools.calling(template, prompt.thinks)
    return (with_opening(prompt, calling.opening) if calling and calling.opening else prompt), question


def completion_prompt(job: CompletionJob, tokenizer: Tokenizer) -> tuple[Prompt, QuestionSpan | None]:
    """Return a text to continue as a prompt. Its question is its last paragraph, if that is short, or else found as in
    a chat, where all of a short text counts as the question. Tokens are decoded to text, which the drafter needs.
    """
    text = tokenizer.decode(job.ids) if job.ids else job.prompt
    prompt = Prompt.from_text(text)
    if job.overrides.protect == "auto" and not any(0 < span.end - span.start <= LONGEST for span in prompt.spans):
        question = question_of([text], "auto", tokenizer, job.options.keep_ratio)
        kinds: tuple[SpanKind, ...] = ("protected", "question")
        spans = [Span(kind, question.start, len(text)) for kind in kinds]
        spans += [Span("protected", 0, question.opening)] if question.opening else []
        return replace(prompt, spans=tuple(in_bytes(text, spans))), question
    return prompt, None


def with_opening(prompt: Prompt, opening: str) -> Prompt:
    """Return a prompt that already contains the start of the answer; RequestError if the answer starts with
    thinking.
    """
    if prompt.thinks is not None and prompt.thinks.opened:
        advice = "send tool_choice 'auto', or turn thinking off"
        raise RequestError(f"this model thinks first, so a call cannot be forced; {advice}", "tool_choice")
    start, end = len(prompt.text.encode()), len((prompt.text + opening).encode())  # spans are in bytes
    spans = (*prompt.spans, Span("protected", start, end), Span("answer", start, end))
    return replace(prompt, text=prompt.text + opening, spans=spans)


def chat_prompt(
    messages: tuple[dict[str, Any], ...],
    tools: tuple[dict[str, Any], ...],
    template: str | ChatTemplate,
    tokenizer: Tokenizer,
    question: QuestionSpan | None = None,
    request: TemplateRequest | None = None,
    protected_ranges: Sequence[Range] = (),
) -> Prompt:
    """Render messages of role and text parts.

    Protected are the markup, the tools, system messages, `protected_ranges` as `CompletionJob` has them, and the
    `question` in the user's last turn. The default question is the last part of that turn, so that a client can send
    documents and then a question. Parts are joined by a blank line.
    """
    template, request = ChatTemplate.of(template), request or TemplateRequest()
    is_markup, variables = spells_markup(tokenizer), request.template_variables(template)
    # Templates write tools, variables and keys of arguments as they are: a special token in them would be markup.
    for field, value in (("tools", tools), (KWARGS, request.variables)):
        if value and is_markup(json.dumps(value, ensure_ascii=False)):
            raise RequestError(f"{field} contain the spelling of a special token of the model; remove it", field)
    turns = [_turn(message) for message in messages]
    for index, turn in enumerate(turns):
        if any(is_markup(key) for call in turn.calls for key in keys(call.arguments)):
            where = f"messages[{index}].tool_calls"
            raise RequestError(
                f"{where} have keys with the spelling of a special token of the model; rename them", where
            )
    try:
        located = render_located(template, turns, variables | ({"tools": list(tools)} if tools else {}), is_markup)
    except HiddenMessageError as error:
        raise RequestError(str(error), f"messages[{error.index}]") from None
    if tools and not located.tools:
        raise RequestError("the chat template of this model does not show tools; leave them out", "tools")
    question = question or question_of(last_turn(messages), "turn", tokenizer)
    start, stop = question.start, question.opening
    more: dict[str, Any] = {"protected_ranges": protected_ranges, "question_ranges": question.tasks}
    return Prompt.from_chat(located, turns, template, request.thinking, kept_from=start, kept_to=stop, **more)


def last_turn(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the parts of the user's last message; one empty part if there is none."""
    return next((message["parts"] for message in reversed(messages) if message["role"] == "user"), [""])


def _turn(message: dict[str, Any]) -> Turn:
    """Return a message as templates expect it."""
    rest = {name: value for name, value in message.items() if name not in ("role", "parts")}
    return Turn(message["role"], DOCUMENT_MARK.join(message["parts"]), **rest)


@dataclass(frozen=True)
class PromptTokens:
    """Counts of a prompt's tokens; the usage block has them by these names."""

    cached: int  # tokens that an earlier turn has processed, so that they are not read again
    new: int  # all others
    kept: int  # tokens that the target attends to when the answer begins
    recalled: int  # tokens of `kept` that an earlier turn had dropped
    read: int  # tokens that the target read for this answer: in a session fewer than it attends to
    drafted: int  # tokens that the drafter read, in its own vocabulary

    @classmethod
    def of(cls, result: RunResult | TurnResult) -> PromptTokens:
        """Count the tokens of a conversation's turn, or of a run without session, which has no earlier turns."""
        if isinstance(result, TurnResult):
            counts = result.usage
            return cls(
                counts.cached, counts.new, int(result.present.sum()), counts.recalled, counts.read, counts.drafted
            )
        drafted = 0 if result.drafted is None else len(result.drafted)
        return cls(0, len(result.prompt), result.kept_tokens, 0, result.kept_tokens, drafted)

    @property
    def total(self) -> int:
        """All tokens of the prompt."""
        return self.cached + self.new

    @property
    def compressed(self) -> bool:
        """True if the target attends to only a part of the prompt."""
        return self.kept < self.total


@dataclass
class RequestStats:
    """Facts of a request for its usage block and the metrics.

    `queue_seconds`, `render_seconds`: seconds in the queue, and of rendering the prompt; `generated_tokens`,
    `reasoning_tokens`: tokens of all answers, and those of thinking among them.
    """

    question: QuestionSpan | None = None  # None if it is the last paragraph of a completion
    session_reason: str | None = None  # why the request could not use a session; None if it could
    queue_seconds: float = 0.0
    render_seconds: float = 0.0
    generated_tokens: int = 0
    reasoning_tokens: int = 0


def usage(result: RunResult | TurnResult, stats: RequestStats, options: RunOptions) -> dict[str, Any]:
    """Return OpenAI's usage block; under `sp` it reports compression, the cost of each stage and the acceptance of
    draft tokens.

    `options`: those of the request.
    """
    prompt, generated = PromptTokens.of(result), stats.generated_tokens
    question = (
        {"found": stats.question.kind, "tokens": int(result.prompt.mask("question").sum())} if stats.question else None
    )
    session_match, recalls = (result.match, result.recalled) if isinstance(result, TurnResult) else (None, ())
    stages = [{"name": "render", "tokens": 0, "ms": 1e3 * stats.render_seconds}]
    stages += [{"name": s.name, "tokens": s.tokens, "ms": 1e3 * s.seconds} for s in result.answer.trace.stages]
    return {
        "prompt_tokens": prompt.total,
        "completion_tokens": generated,
        "total_tokens": prompt.total + generated,
        "prompt_tokens_details": {"cached_tokens": prompt.cached},
        **(
            {"completion_tokens_details": {"reasoning_tokens": stats.reasoning_tokens}}
            if stats.reasoning_tokens
            else {}
        ),
        "sp": {
            "compressed": prompt.compressed,
            "reason": result.decision.reason,
            "window": result.answer.trace.facts.get("window"),
            **asdict(prompt),
            "kept_tokens": prompt.kept,
            "session": session_match or "none",
            "session_reason": stats.session_reason,
            "restored": isinstance(result, TurnResult) and result.restored,
            "question": question,
            "sampling": asdict(options.decode) if isinstance(options.decode, SamplingDecoder) else None,
            "recalls": [{name: value for name, value in asdict(span).items() if name != "text"} for span in recalls],
            "positions": result.answer.trace.facts.get("positions", []),
            "dropped": result.answer.trace.facts.get("dropped", []),
            "retrieval": result.answer.trace.facts.get("retrieval", []),
            "math": result.answer.trace.facts.get("math", []),
            "break_even_tokens": result.decision.break_even_tokens,
            "break_even_source": result.decision.break_even_source,
            "acceptance_length": result.answer.acceptance_length,
            "tokens_by_pass": list(result.answer.passes),
            "queue_ms": 1e3 * stats.queue_seconds,
            "ttft_ms": 1e3 * (stats.render_seconds + result.answer.ttft_s),
            "stages": stages,
        },
    }


def kept_text(result: RunResult | TurnResult) -> list[dict[str, Any]]:
    """Return the pieces of the rendered prompt, including chat markup.

    Each piece has ``kind`` (``kept``, ``question``, both of which were read, or ``dropped``), ``text``, and ``tokens``,
    their number. The texts together are the whole prompt.
    """
    selection = None if isinstance(result, TurnResult) else result.selection
    selected = result.present if isinstance(result, TurnResult) else None if selection is None else selection.selected
    prompt, raw = result.prompt, result.prompt.prompt.text.encode()
    token_kinds = kinds(prompt, selected)[whole_characters(prompt)]
    pieces = []
    for start, end in edges(token_kinds):
        text = raw[prompt.bytes[start, 0] : prompt.bytes[end - 1, 1]].decode(errors="replace")
        pieces.append({"kind": KINDS[token_kinds[start]], "text": text, "tokens": end - start})
    return pieces
