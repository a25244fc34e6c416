"""The task `turns`: an agent calls tools, and a question about this or an earlier result follows every result.

The transcripts model what users of long-context agents report: nearly all of a prompt are results of tools, a turn adds
some thousand tokens to a prompt that was processed before, and questions refer to results of earlier turns.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from sp.chat import Turn
from sp.config import check_fields
from sp.errors import ConfigError, unknown_name
from sp.evals.base import Count, Example, Task, answer_room, register_task
from sp.evals.story import REDRAWS, StoryQuestion
from sp.evals.text.filler import Sentence, haystack
from sp.evals.transcripts.plan import KINDS, SYSTEM, TOOLBOX, Slot, Tool, TranscriptPlan, draw_plan
from sp.evals.transcripts.threads import THREADS, Narration, Thread
from sp.prompt import DOCUMENT_MARK

Message = Mapping[str, Any]
"""``role`` and ``content``, a text; an assistant's may have ``tool_calls``, a tool's has ``tool_call_id``."""

TASK = "turns"  # name of the task in rows
CALL = "<tool_call>\n{}\n</tool_call>"  # a call as text, in the format of Hermes and Qwen
TOOLS = "Tools:\n{}"


@dataclass(frozen=True)
class MessageSpan:
    """Characters ``[start, end)`` of the content of a message."""

    message: int
    start: int
    end: int


@dataclass(frozen=True)
class TranscriptQuestion:
    """The question that ends a turn."""

    turn: int  # counted from 0
    kind: str  # a name of `KINDS`
    thread: str  # a name of `THREADS`
    message: int  # index of the user's message with the question; the next one has the right answer
    question: str
    answers: tuple[str, ...]  # texts that a right answer contains, all of them
    evidence: tuple[MessageSpan, ...]  # evidence for the answer, in results of this turn or of earlier ones
    results: tuple[int, ...]  # turns whose results hold the evidence, ascending
    stale: tuple[str, ...] = ()  # answers that were right in earlier turns
    words_match: bool = False  # True if question and evidence name the same thing by the same rare word

    @property
    def age(self) -> int:
        """Number of turns since the oldest result with evidence."""
        return self.turn - min(self.results)


@dataclass(frozen=True)
class Transcript:
    """A conversation of an agent with its tools.

    Attributes
    ----------
    messages : tuple of mapping
        Messages, with the right answer at the end of every turn.
    tools : tuple of mapping
        Schemas, in the format of ``tools`` of a chat API.
    questions : tuple of TranscriptQuestion
        The question of each turn.
    tokens : int
        Requested length.
    """

    id: str
    messages: tuple[Message, ...]
    tools: tuple[Message, ...]
    questions: tuple[TranscriptQuestion, ...]
    tokens: int

    def until(self, question: TranscriptQuestion) -> tuple[Message, ...]:
        """Return the messages up to a question; the answers before it are the right ones."""
        return self.messages[: question.message + 1]

    def evidence(self, question: TranscriptQuestion) -> tuple[str, ...]:
        """Return the evidence for an answer, verbatim."""
        return tuple(self.messages[span.message]["content"][span.start : span.end] for span in question.evidence)

    def messages_for(self, question: TranscriptQuestion, layout: str = "chat") -> list[dict[str, str]]:
        """Return the messages for a model to answer a question, as mappings of role and content.

        `layout` is "chat", or "plain": one message of the user, with the question as its last paragraph.
        """
        messages = in_words(self.until(question), self.tools)
        if layout == "chat":
            return messages
        return [{"role": "user", "content": f"{in_one(messages[:-1])}{DOCUMENT_MARK}{question.question}"}]

    def example(self, question: TranscriptQuestion, count: Count, layout: str = "chat") -> Example:
        """Return a question and all messages before it as an example; layouts as in `messages_for`."""
        plain = layout == "plain"
        [*earlier, last] = self.messages_for(question)
        return Example(
            id=f"{self.id}-{question.turn}",
            task=TASK,
            document=in_one(earlier) if plain else "",
            question=last["content"] if plain else "",
            answer_prefix="",
            answers=question.answers,
            needles=self.evidence(question),
            facts={
                "transcript": self.id,
                "turn": question.turn,
                "kind": question.kind,
                "thread": question.thread,
                "age": question.age,
                "words_match": question.words_match,
                "stale": list(question.stale),
            },
            tokens=self.tokens,
            max_new_tokens=answer_room(8, question.answers, count),
            turns=() if plain else tuple(Turn(message["role"], message["content"]) for message in (*earlier, last)),
        )


def in_one(messages: Sequence[Message]) -> str:
    """Join messages to one text, each after its role."""
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def in_words(messages: Sequence[Message], tools: Sequence[Message]) -> list[dict[str, str]]:
    """Return messages of role and content alone, with schemas in the system message and calls in the assistant's.

    It is for chat templates that support neither, such as that of the embedded pair.

    >>> call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 2}'}}
    >>> in_words([{"role": "assistant", "content": "", "tool_calls": [call]}], [])
    [{'role': 'assistant', 'content': '<tool_call>\\n{"name": "look", "arguments": {"at": 2}}\\n</tool_call>'}]
    """
    words = []
    for number, message in enumerate(messages):
        parts = [message["content"]]
        if number == 0 and tools and message["role"] == "system":
            parts.append(TOOLS.format("\n".join(map(signature, tools))))
        for call in message.get("tool_calls", ()):
            function = call["function"]
            content = {"name": function["name"], "arguments": json.loads(function["arguments"])}
            parts.append(CALL.format(json.dumps(content)))
        words.append({"role": message["role"], "content": "\n".join(part for part in parts if part)})
    return words


def signature(tool: Message) -> str:
    """Return a schema as a line of text.

    >>> parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    >>> signature({"function": {"name": "read_file", "description": "Read a file.", "parameters": parameters}})
    'read_file(path): Read a file.'
    """
    function = tool["function"]
    return f"{function['name']}({', '.join(function['parameters']['properties'])}): {function['description']}"


RUNS = 1, 8  # least number of consecutive sentences of one thread's filler, and the bound of it
FULLEST = 0.9  # largest share of a result that its passages may take
MOST_TURNS = 20
LEAST, MOST = 512, 8192  # tokens of a result


def result(
    rng: random.Random, tool: Tool, threads: Mapping[str, Thread], passages: Sequence[str], room: int, count: Count
) -> str:
    """Make a result of at most `room` tokens and little fewer; a result in JSON is one value.

    ConfigError: the passages alone have more tokens.
    """
    frame = count(tool.begin) + count(tool.end) if tool.end else 0
    pieces = [f"{text}{tool.between}" for text in passages]
    depths = sorted(rng.random() for _ in pieces)
    lines = (Sentence(f"{text.text}{tool.between}", True) for text in filler(rng, tool, threads))
    document = haystack(lines, pieces, depths, room - frame, count, rng, header=tool.begin)
    return f"{document.text.removesuffix(tool.between) if tool.between else document.text}{tool.end}"


def filler(rng: random.Random, tool: Tool, threads: Mapping[str, Thread]) -> Iterator[Sentence]:
    """Yield the text between passages in results of a tool, without end."""
    streams = [threads[name].filler(rng, tool.name) for name in tool.threads]
    while True:
        yield from islice(rng.choice(streams), rng.randrange(*RUNS))


def sizes(rng: random.Random, turns: int, room: int) -> list[int]:
    """Draw the tokens of each result, from `LEAST` to `MOST`, within 50 % of the mean where these limits allow it.

    ConfigError: the results would be too short or too long.

    >>> found = sizes(random.Random(0), 4, 16_000)
    >>> sum(found) <= 16_000, 2_000 <= min(found), max(found) <= 6_000
    (True, True, True)
    """
    mean = room // turns
    if mean < LEAST:
        problem = f"{turns} turns leave {max(mean, 0):,} tokens for each result"
        raise ConfigError(f"{problem}, which needs at least {LEAST}; use more tokens, or fewer turns")
    if mean > MOST:
        problem = f"{turns} turns make results of {mean:,} tokens"
        raise ConfigError(f"{problem}, at most {MOST:,} each; use more turns (at most {MOST_TURNS}) or fewer tokens")
    reach = min(mean / 2, mean - LEAST, MOST - mean)
    drawn = [rng.uniform(-reach, reach) for _ in range(turns)]
    middle = sum(drawn) / turns
    widest = max(1.0, *(abs(size - middle) / reach for size in drawn)) if reach else 1.0
    return [int(mean + (size - middle) / widest) for size in drawn]


FRAME_TOKENS = 12  # tokens that a chat template adds to a message, at most
MEAN = 3072  # tokens of a turn where the number of turns is not given
HELD_OUT = {name: THREADS.build(name) for name in THREADS}  # the threads of examples
A_TURN = 6  # messages of a turn: request, call, result, note, question, answer
OTHER_TOKENS = 160  # average tokens of these messages without the result


@register_task(TASK)
@dataclass(frozen=True)
class Turns(Task):
    """Questions about the results of an agent's tools, new and old; the last of a transcript is that of the example.

    The results are files, searches, JSON of services, test logs and chats; the questions are about the newest result,
    an old one, two of them, a value that later results change, or a fact by its own name, where words match.

    Parameters
    ----------
    turns : int
        Number of results, each with a question; 0 means one for every 3,072 tokens, at most 20.
    kind : str
        Kind of the last question, one of `KINDS`; any if empty.
    layout : str
        ``chat``: messages are those of the model's chat template. ``plain``: all messages before the question are a
        document, as in the other tasks.
    """

    seed: int = 0
    turns: int = 0
    kind: str = ""
    layout: Literal["chat", "plain"] = field(default="chat", repr=False)
    # Not in the representation, which seeds the generator, so that both layouts have the same transcripts.

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        if not 0 <= self.turns <= MOST_TURNS:
            raise ConfigError(f"turns must be from 1 to {MOST_TURNS}, or 0 to depend on the length, not {self.turns}")
        if self.kind and self.kind not in KINDS:
            raise unknown_name("kind of question", self.kind, KINDS)

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """Return the last question of a transcript."""
        transcript = self.transcript(index, tokens, count)
        return transcript.example(transcript.questions[-1], count, self.layout)

    def example_id(self, index: int, tokens: int) -> str:
        """Return the id of an example, with the layout if it is ``plain``."""
        named = super().example_id(index, tokens)
        return named if self.layout == "chat" else named.replace(self.name, f"{self.name}-{self.layout}", 1)

    def transcript(self, index: int, tokens: int, count: Count) -> Transcript:
        """Make transcript number `index`, of at most `tokens` tokens up to its last question, and little fewer.

        Parameters and errors are those of `Task.example`.

        >>> made = Turns(turns=2).transcript(0, 2000, lambda text: len(text) // 3)
        >>> [one["role"] for one in made.messages[:7]]
        ['system', 'user', 'assistant', 'tool', 'assistant', 'user', 'assistant']
        >>> [made.messages[one.message + 1]["content"] == f"{one.answers[0]}." for one in made.questions]
        [True, True]
        """
        rng = self.rng(index, tokens)
        turns = self.turns or min(MOST_TURNS, max(1, tokens // MEAN))
        for _ in range(REDRAWS):
            plan = draw_plan(rng, turns, self.kind)
            transcript = write(rng, plan, HELD_OUT, self.example_id(index, tokens), tokens, count)
            if transcript:
                return transcript
        raise ConfigError(f"task {self.name}: {REDRAWS} transcripts had no room for their evidence; use fewer turns")


def write(
    rng: random.Random, plan: TranscriptPlan, threads: Mapping[str, Thread], name: str, tokens: int, count: Count
) -> Transcript | None:
    """Write a transcript by its plan; None if evidence occurs in it twice, or does not fit into a result.

    Training on transcripts passes threads with other phrases.
    """
    turns = len(plan.tools)
    tools = tuple(tool.schema for tool in TOOLBOX.values())
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    head = length(messages, tools, count)
    rooms = sizes(rng, turns, tokens - head - turns * OTHER_TOKENS)
    narrations = tell(rng, plan, threads, rooms)
    questions = {slot.turn: text for part in narrations.values() for slot, text in part.questions.items()}
    for turn, chosen in enumerate(plan.tools):
        tool, question = TOOLBOX[chosen], questions[turn]
        value = tool.value(rng)
        call = tool.call(value, turn + 1)
        messages += [
            {"role": "user", "content": rng.choice(tool.requests).format(value=value)},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": ""},
            {"role": "assistant", "content": rng.choice(tool.notes)},
            {"role": "user", "content": question.text},
            {"role": "assistant", "content": f"{', '.join(question.answers)}."},
        ]
    spare = (tokens - length(messages, tools, count) - sum(rooms)) // turns
    for turn, room in enumerate(rooms):
        passages = riffled(rng, [part.passages[turn] for part in narrations.values() if turn in part.passages])
        tool = TOOLBOX[plan.tools[turn]]
        if sum(count(f" {text}{tool.between}\n") for text in passages) > FULLEST * (room + spare):
            return None
        messages[result_at(turn)]["content"] = result(rng, tool, threads, passages, room + spare, count)
    located_questions = [located(slot, narrations[slot.thread], messages) for slot in plan.slots]
    whole = tuple(text for text in located_questions if text)
    return Transcript(name, tuple(messages), tools, whole, tokens) if len(whole) == turns else None


def length(messages: Sequence[Message], tools: Sequence[Message], count: Count) -> int:
    """Return the tokens of messages in a chat template, at most."""
    return sum(count(message["content"]) + FRAME_TOKENS for message in in_words(messages, tools))


def result_at(turn: int) -> int:
    """Return the index of the message with the result of a turn."""
    return 3 + A_TURN * turn


def tell(
    rng: random.Random, plan: TranscriptPlan, threads: Mapping[str, Thread], rooms: Sequence[int]
) -> dict[str, Narration]:
    """Let each thread write its part of the results, by its name."""
    narrations = {}
    for name, thread in threads.items():
        spoken = [turn for turn, tool in enumerate(plan.tools) if name in TOOLBOX[tool].threads]
        room = {turn: max(1, rooms[turn] // thread.spacing) for turn in spoken}
        slots = [slot for slot in plan.slots if slot.thread == name]
        if room:
            narrations[name] = thread.tell(rng, room, slots, plan.tools)
    return narrations


def riffled(rng: random.Random, parts: Sequence[Sequence[str]]) -> list[str]:
    """Merge lists of texts at random, each in its own order."""
    order = [number for number, part in enumerate(parts) for _ in part]
    rng.shuffle(order)
    streams = [iter(part) for part in parts]
    return [next(streams[number]) for number in order]


def located(slot: Slot, narration: Narration, messages: Sequence[Message]) -> TranscriptQuestion | None:
    """Return the question of a slot with the places of its evidence; None unless each text occurs exactly once."""
    question: StoryQuestion = narration.questions[slot]
    places, results = [], set[int]()
    for text in question.evidence:
        holders = [number for number, message in enumerate(messages) if text in message["content"]]
        if len(holders) != 1 or messages[holders[0]]["content"].count(text) != 1:
            return None
        start = messages[holders[0]]["content"].index(text)
        places.append(MessageSpan(holders[0], start, start + len(text)))
        results.add((holders[0] - 3) // A_TURN)
    return TranscriptQuestion(
        turn=slot.turn,
        kind=slot.kind,
        thread=slot.thread,
        message=result_at(slot.turn) + 2,
        question=question.text,
        answers=question.answers,
        evidence=tuple(places),
        results=tuple(sorted(results)),
        stale=narration.stale.get(slot, ()),
        words_match=THREADS.class_of(slot.thread).words_match,
    )
