"""The task `turns`: an agent calls tools, and after every result something is asked about this one or those before.

Transcripts after what users of long-context agents report: nearly all that is read are results of tools, a turn adds
some thousand tokens to a prompt that was read before, and questions go back to results that no longer are in view.
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
from sp.evals.story import REDRAWS, Question
from sp.evals.text.filler import Sentence, haystack
from sp.evals.transcripts.plan import KINDS, SYSTEM, TOOLBOX, Plan, Slot, Tool, draw_plan
from sp.evals.transcripts.threads import THREADS, Thread, Told
from sp.prompt import DOCUMENT_MARK

Message = Mapping[str, Any]
"""``role`` and ``content``, a text; an assistant's may have ``tool_calls``, a tool's has ``tool_call_id``."""

TASK = "turns"  # what rows call the task
CALL = "<tool_call>\n{}\n</tool_call>"  # how a call is said in words, as Hermes and Qwen write one
TOOLS = "Tools:\n{}"


@dataclass(frozen=True)
class Place:
    """Characters ``[start, end)`` of the content of a message."""

    message: int
    start: int
    end: int


@dataclass(frozen=True)
class Asked:
    """The question that ends a turn."""

    turn: int  # counted from 0
    kind: str  # kind, thread: what is asked about, a name of `KINDS`; and of which facts, a name of `THREADS`
    thread: str
    message: int  # the user's message that asks; the next one holds the right answer
    question: str
    answers: tuple[str, ...]  # what a right answer holds, all of it
    evidence: tuple[Place, ...]  # what the answer rests on, in results of this turn or of those before it
    results: tuple[int, ...]  # turns whose results hold the evidence, ascending
    stale: tuple[str, ...] = ()  # what would have been right earlier on
    words_match: bool = False  # whether question and evidence name the same thing by the same rare word

    @property
    def age(self) -> int:
        """Turns since the oldest result that holds evidence."""
        return self.turn - min(self.results)


@dataclass(frozen=True)
class Transcript:
    """A conversation of an agent with its tools. `messages`: with the right answer at the end of every turn; `tools`:
    schemas, as ``tools`` of a chat API; `asked`: one a turn; `tokens`: length that was asked for."""

    id: str
    messages: tuple[Message, ...]
    tools: tuple[Message, ...]
    asked: tuple[Asked, ...]
    tokens: int

    def until(self, asked: Asked) -> tuple[Message, ...]:
        """What has been said when a question is to be answered; the answers before it are the right ones."""
        return self.messages[: asked.message + 1]

    def evidence(self, asked: Asked) -> tuple[str, ...]:
        """What an answer rests on, verbatim."""
        return tuple(self.messages[at.message]["content"][at.start : at.end] for at in asked.evidence)

    def shown(self, asked: Asked, layout: str = "chat") -> list[dict[str, str]]:
        """What a model is shown to answer a question: messages of role and content. `layout`, one of "chat", "plain":
        with ``plain`` one message of the user, its last paragraph the question."""
        messages = in_words(self.until(asked), self.tools)
        if layout == "chat":
            return messages
        return [{"role": "user", "content": f"{in_one(messages[:-1])}{DOCUMENT_MARK}{asked.question}"}]

    def example(self, asked: Asked, count: Count, layout: str = "chat") -> Example:
        """One question and all that was said before it, as a prompt with a known answer; layouts as in `shown`."""
        plain = layout == "plain"
        [*said, last] = self.shown(asked)
        return Example(
            id=f"{self.id}-{asked.turn}",
            task=TASK,
            document=in_one(said) if plain else "",
            question=last["content"] if plain else "",
            answer_prefix="",
            answers=asked.answers,
            needles=self.evidence(asked),
            facts={
                "transcript": self.id,
                "turn": asked.turn,
                "kind": asked.kind,
                "thread": asked.thread,
                "age": asked.age,
                "words_match": asked.words_match,
                "stale": list(asked.stale),
            },
            tokens=self.tokens,
            max_new_tokens=answer_room(8, asked.answers, count),
            turns=() if plain else tuple(Turn(one["role"], one["content"]) for one in (*said, last)),
        )


def in_one(messages: Sequence[Message]) -> str:
    """Messages as one text, each after its role."""
    return "\n\n".join(f"{one['role']}: {one['content']}" for one in messages)


def in_words(messages: Sequence[Message], tools: Sequence[Message]) -> list[dict[str, str]]:
    """Messages of role and content alone: schemas stand in the system message, calls in the assistant's.

    For chat templates that show neither, the embedded pair's among them.

    >>> call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 2}'}}
    >>> in_words([{"role": "assistant", "content": "", "tool_calls": [call]}], [])
    [{'role': 'assistant', 'content': '<tool_call>\\n{"name": "look", "arguments": {"at": 2}}\\n</tool_call>'}]
    """
    said = []
    for number, message in enumerate(messages):
        parts = [message["content"]]
        if number == 0 and tools and message["role"] == "system":
            parts.append(TOOLS.format("\n".join(map(signature, tools))))
        for call in message.get("tool_calls", ()):
            what = call["function"]
            told = {"name": what["name"], "arguments": json.loads(what["arguments"])}
            parts.append(CALL.format(json.dumps(told)))
        said.append({"role": message["role"], "content": "\n".join(part for part in parts if part)})
    return said


def signature(tool: Message) -> str:
    """A schema in a line.

    >>> parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    >>> signature({"function": {"name": "read_file", "description": "Read a file.", "parameters": parameters}})
    'read_file(path): Read a file.'
    """
    what = tool["function"]
    return f"{what['name']}({', '.join(what['parameters']['properties'])}): {what['description']}"


RUNS = 1, 8  # sentences of one thread's filler where a result has several
FULLEST = 0.9  # share of a result that its passages may take
MOST_TURNS = 20
LEAST, MOST = 512, 8192  # tokens of a result


def result(
    rng: random.Random, tool: Tool, threads: Mapping[str, Thread], passages: Sequence[str], room: int, count: Count
) -> str:
    """A result of at most `room` tokens and little fewer; of JSON it is one value. ConfigError if the passages alone
    take more."""
    frame = count(tool.begin) + count(tool.end) if tool.end else 0
    pieces = [f"{one}{tool.between}" for one in passages]
    depths = sorted(rng.random() for _ in pieces)
    lines = (Sentence(f"{one.text}{tool.between}", True) for one in filler(rng, tool, threads))
    found = haystack(lines, pieces, depths, room - frame, count, rng, header=tool.begin)
    return f"{found.text.removesuffix(tool.between) if tool.between else found.text}{tool.end}"


def filler(rng: random.Random, tool: Tool, threads: Mapping[str, Thread]) -> Iterator[Sentence]:
    """What stands in results of a tool besides the passages, without end."""
    streams = [threads[name].filler(rng, tool.name) for name in tool.threads]
    while True:
        yield from islice(rng.choice(streams), rng.randrange(*RUNS))


def sizes(rng: random.Random, turns: int, room: int) -> list[int]:
    """Tokens of each result, from `LEAST` to `MOST`, half of the mean to one and a half where these allow it.

    ConfigError if so many results are too short or too long.

    >>> found = sizes(random.Random(0), 4, 16_000)
    >>> sum(found) <= 16_000, 2_000 <= min(found), max(found) <= 6_000
    (True, True, True)
    """
    mean = room // turns
    if mean < LEAST:
        told = f"{turns} turns leave {max(mean, 0):,} tokens for each result"
        raise ConfigError(f"{told}, which has at least {LEAST}; ask for more tokens, or fewer turns")
    if mean > MOST:
        told = f"{turns} turns make results of {mean:,} tokens"
        raise ConfigError(f"{told}, at most {MOST:,} each; ask for more turns (at most {MOST_TURNS}) or fewer tokens")
    reach = min(mean / 2, mean - LEAST, MOST - mean)
    drawn = [rng.uniform(-reach, reach) for _ in range(turns)]
    middle = sum(drawn) / turns
    widest = max(1.0, *(abs(one - middle) / reach for one in drawn)) if reach else 1.0
    return [int(mean + (one - middle) / widest) for one in drawn]


EACH = 12  # tokens that a chat template puts round a message, at most
MEAN = 3072  # tokens of a turn where their number is not given
HELD_OUT = {name: THREADS.build(name) for name in THREADS}  # threads as examples have them
A_TURN = 6  # messages: request, call, result, note, question, answer
SAID = 160  # tokens of all these but the result, about


@register_task(TASK)
@dataclass(frozen=True)
class Turns(Task):
    """Questions about the results of an agent's tools, new and old; the last of a transcript's is the one asked.

    Files, searches, JSON of services, test logs and chats; questions about the newest result, an old one, two of
    them, or a value that later results change. They end in a question for a fact by its own name where words match.

    Parameters
    ----------
    turns : int
        Results, each with a question; 0 takes one for every 3,072 tokens, at most 20.
    kind : str
        What the last question is about, one of `KINDS`; any if empty.
    layout : str
        ``chat``: a message is a message of the model's chat template. ``plain``: all that was said before the question
        is a document, as it is in the other tasks.
    """

    seed: int = 0
    turns: int = 0
    kind: str = ""
    layout: Literal["chat", "plain"] = field(default="chat", repr=False)
    # Not in the representation, so that both layouts show the same transcripts.

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        if not 0 <= self.turns <= MOST_TURNS:
            raise ConfigError(f"turns must be from 1 to {MOST_TURNS}, or 0 to go by the length, not {self.turns}")
        if self.kind and self.kind not in KINDS:
            raise unknown_name("kind of question", self.kind, KINDS)

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`."""
        made = self.transcript(index, tokens, count)
        return made.example(made.asked[-1], count, self.layout)

    def example_id(self, index: int, tokens: int) -> str:
        """See `Task.example_id`; it tells of the plain layout."""
        named = super().example_id(index, tokens)
        return named if self.layout == "chat" else named.replace(self.name, f"{self.name}-{self.layout}", 1)

    def transcript(self, index: int, tokens: int, count: Count) -> Transcript:
        """Transcript number `index`, with its last question at most `tokens` tokens and little shorter.

        Parameters and errors as for `Task.example`.

        >>> made = Turns(turns=2).transcript(0, 2000, lambda text: len(text) // 3)
        >>> [one["role"] for one in made.messages[:7]]
        ['system', 'user', 'assistant', 'tool', 'assistant', 'user', 'assistant']
        >>> [made.messages[one.message + 1]["content"] == f"{one.answers[0]}." for one in made.asked]
        [True, True]
        """
        rng = self.rng(index, tokens)
        turns = self.turns or min(MOST_TURNS, max(1, tokens // MEAN))
        for _ in range(REDRAWS):
            plan = draw_plan(rng, turns, self.kind)
            made = write(rng, plan, HELD_OUT, self.example_id(index, tokens), tokens, count)
            if made:
                return made
        raise ConfigError(
            f"task {self.name}: {REDRAWS} transcripts had no room for their evidence; ask for fewer turns"
        )


def write(
    rng: random.Random, plan: Plan, threads: Mapping[str, Thread], name: str, tokens: int, count: Count
) -> Transcript | None:
    """A transcript by its plan; None if evidence stands in it twice, or more is asked of a result than it has room for.
    Whoever trains on transcripts hands in threads with other phrases."""
    turns = len(plan.tools)
    tools = tuple(tool.schema for tool in TOOLBOX.values())
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    head = length(messages, tools, count)
    rooms = sizes(rng, turns, tokens - head - turns * SAID)
    told = tell(rng, plan, threads, rooms)
    questions = {slot.turn: one for part in told.values() for slot, one in part.questions.items()}
    for turn, chosen in enumerate(plan.tools):
        tool, asked = TOOLBOX[chosen], questions[turn]
        value = tool.value(rng)
        call = tool.call(value, turn + 1)
        messages += [
            {"role": "user", "content": rng.choice(tool.requests).format(value=value)},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": ""},
            {"role": "assistant", "content": rng.choice(tool.notes)},
            {"role": "user", "content": asked.text},
            {"role": "assistant", "content": f"{', '.join(asked.answers)}."},
        ]
    spare = (tokens - length(messages, tools, count) - sum(rooms)) // turns
    for turn, room in enumerate(rooms):
        passages = riffled(rng, [part.passages[turn] for part in told.values() if turn in part.passages])
        tool = TOOLBOX[plan.tools[turn]]
        if sum(count(f" {one}{tool.between}\n") for one in passages) > FULLEST * (room + spare):
            return None
        messages[result_at(turn)]["content"] = result(rng, tool, threads, passages, room + spare, count)
    found = [located(slot, told[slot.thread], messages) for slot in plan.slots]
    whole = tuple(one for one in found if one)
    return Transcript(name, tuple(messages), tools, whole, tokens) if len(whole) == turns else None


def length(messages: Sequence[Message], tools: Sequence[Message], count: Count) -> int:
    """Tokens of messages and of what a template puts round them, at most."""
    return sum(count(one["content"]) + EACH for one in in_words(messages, tools))


def result_at(turn: int) -> int:
    """The message with the result of a turn."""
    return 3 + A_TURN * turn


def tell(rng: random.Random, plan: Plan, threads: Mapping[str, Thread], rooms: Sequence[int]) -> dict[str, Told]:
    """What each thread says in the results of its tools, by its name."""
    told = {}
    for name, thread in threads.items():
        spoken = [turn for turn, tool in enumerate(plan.tools) if name in TOOLBOX[tool].threads]
        room = {turn: max(1, rooms[turn] // thread.spacing) for turn in spoken}
        slots = [slot for slot in plan.slots if slot.thread == name]
        if room:
            told[name] = thread.tell(rng, room, slots, plan.tools)
    return told


def riffled(rng: random.Random, parts: Sequence[Sequence[str]]) -> list[str]:
    """Texts of several lists in one, each list in its order."""
    order = [number for number, part in enumerate(parts) for _ in part]
    rng.shuffle(order)
    streams = [iter(part) for part in parts]
    return [next(streams[number]) for number in order]


def located(slot: Slot, told: Told, messages: Sequence[Message]) -> Asked | None:
    """The question of a slot, its evidence found in the results; None if that stands anywhere but in one place."""
    asked: Question = told.questions[slot]
    places, results = [], set[int]()
    for text in asked.evidence:
        holders = [at for at, one in enumerate(messages) if text in one["content"]]
        if len(holders) != 1 or messages[holders[0]]["content"].count(text) != 1:
            return None
        start = messages[holders[0]]["content"].index(text)
        places.append(Place(holders[0], start, start + len(text)))
        results.add((holders[0] - 3) // A_TURN)
    return Asked(
        turn=slot.turn,
        kind=slot.kind,
        thread=slot.thread,
        message=result_at(slot.turn) + 2,
        question=asked.text,
        answers=asked.answers,
        evidence=tuple(places),
        results=tuple(sorted(results)),
        stale=told.stale.get(slot, ()),
        words_match=THREADS.class_of(slot.thread).words_match,
    )
