"""A chat to its prompt, which part of it is the question, and what is told of its use.

The template sees what was said, so that it drops or keeps what it was written to. Where each message lies is found by
`sp.chat.located`; in messages the spelling of a special token is only text, so none can pass for markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal, get_args

from sp.chat import HiddenMessageError, Turn, render_located, spells_markup
from sp.chat.turn import keys
from sp.decode import SamplingDecoder
from sp.gguf import ChatTemplate, Tokenizer
from sp.prompt import DOCUMENT_MARK, Prompt, Span
from sp.prompt.heat import KINDS, edges, kinds, whole_characters
from sp.prompt.spans import SpanKind, in_bytes
from sp.serve.fields import RequestError
from sp.serve.options import Protect
from sp.serve.protocol import KWARGS, Job, Range, TemplateRequest
from sp.session import RunOptions, RunResult, TurnResult

Found = Literal["turn", "part", "task", "paragraph", "sentence", "line", "end"]
"""Whether the question is all of the turn, its last part, parts before a last one that is set off, or of the last part
the last paragraph, sentence, line or words."""
FOUND: tuple[Found, ...] = get_args(Found)

LONG = 512  # tokens of a text that is no question as a whole: a longer one holds a document
LONGEST = 1024  # characters of a question in a longer text; what is longer is no paragraph, sentence or line that asks
LONGEST_OPENING = 256
"""Characters of a first paragraph that is kept as well: it says what the document is, or asks before it."""
CUE = 32  # characters of a paragraph that, with a colon at its end, only says where the answer goes
LONGEST_TOKEN = 16
"""Characters of a token, on average, of texts that may be short; none of that many characters a token is counted."""
SET_OFF = re.compile(r"\s*<([A-Za-z][\w.-]{0,63})(?:\s[^<>]{0,255})?>")
"""How a part begins that a program has set off in a tag, as coding agents do with a task and with the environment."""
BREAK = re.compile(r"(?<=[.!?:;])\s+|(?<=[。！？；：])\s*|\n+")  # between sentences, and between lines
ASKS = ("?", "？", "؟")


@dataclass(frozen=True)
class Question:
    """Where in a turn, whose parts are joined by blank lines, its question begins."""

    start: int  # its first character
    found: Found  # as `Found` says
    opening: int = 0  # characters of the turn's beginning that are kept as well
    tasks: tuple[Range, ...] = ()  # turns, and of each characters, that belong to it as well


def question_in(
    messages: Sequence[Mapping[str, Any]], protect: Protect, tokenizer: Tokenizer, keep_ratio: float = 1.0
) -> Question:
    """The question of a chat: that of the user's last turn, see `question_of`. With "auto", where the last of its parts
    is set off in a tag, that is no question, or not all of it. The first part of that turn belongs to it then, and that
    of the user's first turn, in which agents send the task; then the other parts from the last on, up to `LONG` tokens.
    Of one of the two that is longer its own question and its beginning do.
    """
    turns = [index for index, each in enumerate(messages) if each["role"] == "user"]
    parts = last_turn(messages)
    found = question_of(parts, protect, tokenizer, keep_ratio)
    if protect != "auto" or len(parts) < 2 or not _set_off(parts[-1]):
        return found
    last, first = turns[-1], next(turn for turn in turns if messages[turn]["parts"])
    places = [(last, 0), *([(first, 0)] if first != last else []), *((last, at) for at in range(len(parts) - 2, 0, -1))]
    room, tasks = LONG, list[Range]()
    for turn, number in places:
        before, text = messages[turn]["parts"][:number], messages[turn]["parts"][number]
        start = sum(len(each) + len(DOCUMENT_MARK) for each in before)
        count = LONG + 1 if _long(text, tokenizer) else len(tokenizer.encode(text))
        if count <= room:
            room -= count
            tasks.append((turn, start, start + len(text)))
        elif number == 0:
            at, _ = _asking(text.rstrip())
            tasks += [(turn, 0, min(_opening(text) or LONGEST_OPENING, at)), (turn, at, len(text))]
    return replace(found, found="task", tasks=tuple(sorted(each for each in tasks if each[1] < each[2])))


def _set_off(text: str) -> bool:
    """Whether a text is one element of markup."""
    begin = SET_OFF.match(text)
    return begin is not None and text.rstrip().endswith(f"</{begin[1]}>")


def question_of(parts: Sequence[str], protect: Protect, tokenizer: Tokenizer, keep_ratio: float = 1.0) -> Question:
    """The question of a turn.

    `parts`: of the turn; all but the last are documents; `protect`: "turn": all of the last part. "paragraph": what
    follows its last blank line. "auto": all of it up to `LONG` tokens; of a longer one the last paragraph; where there
    is none, or one of over `LONGEST` characters, the last sentence that asks and what follows; else the last line,
    sentence, or words; `keep_ratio`: share of the turn that may be kept; an opening paragraph stays only if half of
    that holds it and the question.
    """
    last, whole = parts[-1], DOCUMENT_MARK.join(parts)
    before = len(whole) - len(last)
    if protect == "turn":
        return Question(before, "part" if before else "turn")
    if protect == "paragraph":
        return Question(before + _paragraph(last.rstrip()), "paragraph")
    at, found = _asking(last.rstrip()) if _long(last, tokenizer) else (0, "part" if before else "turn")
    opening = _opening(whole)
    fits = 2 * (opening + len(last) - at) <= keep_ratio * len(whole)
    return Question(before + at, found, opening if fits and opening <= before + at else 0)


def _long(text: str, tokenizer: Tokenizer) -> bool:
    """Whether a text has over `LONG` tokens; a long one is not counted to its end."""
    if len(text.encode()) <= LONG:  # a token is a byte at least
        return False
    begin = text[: LONG * LONGEST_TOKEN]
    return len(begin) < len(text) or len(tokenizer.encode(begin)) > LONG


def _asking(body: str) -> tuple[int, Found]:
    """Where in the end of a text its question begins, and what that is."""
    at = _paragraph(body)
    if at and len(body) - at <= CUE and body.endswith(":"):  # "Answer:" asks nothing
        at = _paragraph(body[:at].rstrip())
    if at and len(body) - at <= LONGEST:
        return at, "paragraph"
    first = max(len(body) - LONGEST, 0)
    starts = [match.end() for match in BREAK.finditer(body, first) if match.end() < len(body)]
    for start, end in reversed([*pairwise([*starts, len(body)])]):
        if body[start:end].rstrip().endswith(ASKS):
            return start, "sentence"
    if first < (line := body.rfind("\n") + 1):
        return line, "line"
    if starts:
        return starts[-1], "sentence"
    return max(body.find(" ", first) + 1, first), "end"


def _paragraph(body: str) -> int:
    """Where the last paragraph begins; 0 if there is but one."""
    head, mark, _ = body.rpartition(DOCUMENT_MARK)
    return len(head) + len(mark)


def _opening(text: str) -> int:
    """Characters of a first paragraph that is short, its blank line among them; 0 if it is long."""
    at = text.find(DOCUMENT_MARK, 0, LONGEST_OPENING + len(DOCUMENT_MARK))
    return at + len(DOCUMENT_MARK) if at > 0 else 0


def to_prompt(job: Job, template: ChatTemplate | None, tokenizer: Tokenizer) -> tuple[Prompt, Question | None]:
    """The prompt of a request, with the begin of a call that must be, and what of a chat is taken for its question.
    RequestError: if the template cannot show it.
    """
    if job.kind == "completion":
        return completion_prompt(job, tokenizer)
    if template is None:
        raise RequestError("this model has no chat template; use /v1/completions with a prompt")
    template = job.tools.template(template)
    asked = question_in(job.messages, job.asked.protect, tokenizer, job.options.keep_ratio)
    prompt = chat_prompt(job.messages, job.tools.tools, template, tokenizer, asked, job.template, job.kept)
    calling = job.tools.calling(template, prompt.thinks)
    return (begun(prompt, calling.opening) if calling and calling.opening else prompt), asked


def completion_prompt(job: Job, tokenizer: Tokenizer) -> tuple[Prompt, Question | None]:
    """A text as it stands, for the model to go on with; its question is its last paragraph, if that is short. Otherwise
    it is found as in a chat: a short text is kept whole. Tokens are read back as text, which the drafter needs.
    """
    text = tokenizer.decode(job.ids) if job.ids else job.prompt
    prompt = Prompt.from_text(text)
    if job.asked.protect == "auto" and not any(0 < span.end - span.start <= LONGEST for span in prompt.spans):
        asked = question_of([text], "auto", tokenizer, job.options.keep_ratio)
        kinds: tuple[SpanKind, ...] = ("protected", "question")
        spans = [Span(kind, asked.start, len(text)) for kind in kinds]
        spans += [Span("protected", 0, asked.opening)] if asked.opening else []
        return replace(prompt, spans=tuple(in_bytes(text, spans))), asked
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
    kept: Sequence[Range] = (),
) -> Prompt:
    """Render messages of role and text parts. Protected are the markup, the tools, system messages and of the last user
    turn its `question`: the last part of it, if none is given, so that a client can send documents and then the
    question, and what `kept` says, as `Job` has it. Parts are joined by a blank line.
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
    at, to = question.start, question.opening
    more: dict[str, Any] = {"protected_ranges": kept, "question_ranges": question.tasks}
    return Prompt.from_chat(found, turns, template, asked.thinking, kept_from=at, kept_to=to, **more)


def last_turn(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Parts of the user's last message; an empty one if there is none."""
    return next((each["parts"] for each in reversed(messages) if each["role"] == "user"), [""])


def _turn(message: dict[str, Any]) -> Turn:
    """A message as templates know it."""
    rest = {name: value for name, value in message.items() if name not in ("role", "parts")}
    return Turn(message["role"], DOCUMENT_MARK.join(message["parts"]), **rest)


@dataclass(frozen=True)
class PromptTokens:
    """What became of a prompt's tokens."""

    cached: int  # those that earlier turns have decided, so that they are not read again
    new: int  # the others
    kept: int  # those that the target attends to when the answer begins
    recalled: int  # of `kept`, those that an earlier turn had dropped
    read: int  # what the target read before it answered: in a session less than it attends to
    drafted: int  # what the drafter read, in its own vocabulary

    @classmethod
    def of(cls, result: RunResult | TurnResult) -> PromptTokens:
        """Of a turn of a conversation, or of a run by itself, which knows of no earlier turn."""
        if isinstance(result, TurnResult):
            told = result.usage
            return cls(told.cached, told.new, int(result.present.sum()), told.recalled, told.read, told.drafted)
        drafted = 0 if result.drafted is None else len(result.drafted)
        return cls(0, len(result.prompt), result.kept_tokens, 0, result.kept_tokens, drafted)

    @property
    def total(self) -> int:
        """All of the prompt."""
        return self.cached + self.new

    @property
    def compressed(self) -> bool:
        """Whether the target has only a part of it."""
        return self.kept < self.total


@dataclass
class Told:
    """What else a request comes to. `queued`, `render`: seconds in the queue, and until the prompt was rendered;
    `generated`, `reasoning`: tokens of all answers, and of them those of thinking.
    """

    asked: Question | None = None  # what was taken for the question of a chat
    apart: str | None = None  # why the request had no session
    queued: float = 0.0
    render: float = 0.0
    generated: int = 0
    reasoning: int = 0


def usage(result: RunResult | TurnResult, told: Told, options: RunOptions) -> dict[str, Any]:
    """OpenAI's usage block; under `sp` what compression did, what each stage cost and what a draft's guesses gave.
    `options`: as the request asked for them.
    """
    prompt, generated = PromptTokens.of(result), told.generated
    question = {"found": told.asked.found, "tokens": int(result.prompt.mask("question").sum())} if told.asked else None
    found, recalls = (result.match, result.recalled) if isinstance(result, TurnResult) else (None, ())
    stages = [{"name": "render", "tokens": 0, "ms": 1e3 * told.render}]
    stages += [{"name": s.name, "tokens": s.tokens, "ms": 1e3 * s.seconds} for s in result.answer.trace.stages]
    return {
        "prompt_tokens": prompt.total,
        "completion_tokens": generated,
        "total_tokens": prompt.total + generated,
        "prompt_tokens_details": {"cached_tokens": prompt.cached},
        **({"completion_tokens_details": {"reasoning_tokens": told.reasoning}} if told.reasoning else {}),
        "sp": {
            "compressed": prompt.compressed,
            "reason": result.decision.reason,
            "window": result.answer.trace.facts.get("window"),
            **asdict(prompt),
            "kept_tokens": prompt.kept,
            "session": found or "none",
            "session_reason": told.apart,
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
            "queue_ms": 1e3 * told.queued,
            "ttft_ms": 1e3 * (told.render + result.answer.ttft_s),
            "stages": stages,
        },
    }


def kept_text(result: RunResult | TurnResult) -> list[dict[str, Any]]:
    """Pieces of the rendered prompt, chat markup included. Returns list of dict: ``kind`` (``kept``, ``question``, both
    of which were read, or ``dropped``), ``text``, together all of it, and ``tokens``, how many that is.
    """
    run = None if isinstance(result, TurnResult) else result.selection
    kept = result.present if isinstance(result, TurnResult) else None if run is None else run.selected
    prompt, raw = result.prompt, result.prompt.prompt.text.encode()
    found = kinds(prompt, kept)[whole_characters(prompt)]
    pieces = []
    for start, end in edges(found):
        text = raw[prompt.bytes[start, 0] : prompt.bytes[end - 1, 1]].decode(errors="replace")
        pieces.append({"kind": KINDS[found[start]], "text": text, "tokens": end - start})
    return pieces
