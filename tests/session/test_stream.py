"""Answers as streams, for loops and async loops: what they say, how they end, and what is left when they are left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import sp
from sp.chat import Call
from sp.chat.answer import AnswerText, calling_of, read_calls
from sp.chat.reasoning import Thinks, marks_of
from sp.errors import ConfigError, PromptError
from sp.session import Pipeline

TEXT = "The sky is blue. The grass is green. The special magic number for quiet-lantern is 8301947. " * 12
QUESTION = "What is the special magic number for quiet-lantern?"
CHAT = [{"role": "user", "content": [{"type": "text", "text": text} for text in (TEXT, QUESTION)]}]
SHORT = sp.RunOptions(keep_ratio=0.3, compress="always", max_new_tokens=6)
ENDLESS, LONG = "The sky is blue.", sp.RunOptions(max_new_tokens=1000)  # an answer that ends nowhere before
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@cache
def pair() -> Pipeline:
    return sp.load(device="cpu")


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sp-stream"]


class BoomError(Exception):
    """What a caller raises."""


def stopping(stage: str, after: int) -> tuple[Callable[[str, int, int], None], list[tuple[str, int, int]]]:
    """Progress that raises in a stage once it was called so often there, and what it was told."""
    seen: list[tuple[str, int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        seen.append((what, done, total))
        if sum(name == stage for name, _, _ in seen) > after:
            raise BoomError

    return progress, seen


@pytest.mark.parametrize("prompt", [f"{TEXT}\n\n{QUESTION}", CHAT])
def test_a_stream_says_what_a_run_answers(prompt: Any) -> None:
    told: list[tuple[str, int, int]] = []
    expected = pair().run(prompt, SHORT)
    stream = pair().stream(prompt, SHORT, progress=lambda *each: told.append(each))
    with pytest.raises(ConfigError, match="has not ended"):
        _ = stream.result
    pieces = list(stream)
    assert "".join(pieces) == expected.answer.text
    assert len(pieces) > 1
    assert stream.result.answer.tokens == expected.answer.tokens
    assert [*stream] == []
    assert {name for name, _, _ in told} == {"scoring", "target prefill"}
    for name in ("scoring", "target prefill"):
        dones = [(done, total) for what, done, total in told if what == name]
        assert dones == sorted(dones)
        assert dones[0][0] == 0
        assert dones[-1][0] == dones[-1][1]
    assert not workers()


def test_a_loop_that_is_left_ends_the_answer() -> None:
    stream = pair().stream(ENDLESS, LONG)
    for piece in stream:  # noqa: B007
        break
    assert not workers()  # it has been waited for
    assert 0 < len(stream.result.answer.tokens) < 500
    assert stream.result.answer.text.startswith(piece)
    with pair().stream(ENDLESS, LONG) as other:
        next(other)
    assert not workers()
    assert pair().run(CHAT, SHORT).answer.tokens


@pytest.mark.parametrize("stage", ["scoring", "target prefill"])
def test_what_progress_raises_ends_the_run_within_a_layer(stage: str) -> None:
    layers = (pair().target if stage == "target prefill" else pair().drafter).model.config.layers  # type: ignore[union-attr]
    whole: list[tuple[str, int, int]] = []
    expected = pair().run(CHAT, SHORT, progress=lambda *each: whole.append(each)).answer.tokens
    assert sum(name == stage for name, _, _ in whole) > layers // 2  # layer by layer
    for call in (pair().run, lambda *given, **more: list(pair().stream(*given, **more))):
        progress, seen = stopping(stage, 3)
        with pytest.raises(BoomError):
            call(CHAT, SHORT, progress=progress)
        assert [name for name, _, _ in seen].count(stage) == 4  # nothing was done afterwards
        assert seen[-1][1] < seen[-1][2]
        assert not workers()
        assert pair().run(CHAT, SHORT).answer.tokens == expected


def test_a_stream_closed_while_the_prompt_is_read_has_no_result() -> None:
    begun, layers = threading.Event(), list[int]()

    def progress(what: str, done: int, total: int) -> None:
        layers.append(done)
        begun.set()

    stream = pair().stream(CHAT, SHORT, progress=progress)
    reader = threading.Thread(target=lambda: list(stream))
    reader.start()
    assert begun.wait(20)
    stream.close()
    seen = len(layers)
    reader.join(20)
    assert not reader.is_alive()
    assert len(layers) <= seen + 1
    with pytest.raises(ConfigError, match="closed before the answer began"):
        _ = stream.result
    unread = pair().stream(CHAT)
    unread.close()
    assert list(unread) == []


def test_wrong_input_is_told_before_there_is_a_stream() -> None:
    with pytest.raises(PromptError, match=r"messages\[0\]\.role is 'usr'"):
        pair().stream([{"role": "usr", "content": "a"}])
    failing = pair().stream("a b", sp.RunOptions(max_new_tokens=1_000_000))
    for take in (list, lambda stream: stream.result):  # and what only the work finds
        with pytest.raises(PromptError, match="context"):
            take(failing)


def test_a_conversation_streams_turn_by_turn() -> None:
    one, other = (sp.Conversation(pair(), SHORT) for _ in range(2))
    said: list[Any] = list(CHAT)
    for question in ("", "And what is green?"):
        said += [{"role": "user", "content": question}] if question else []
        stream, expected = one.stream(said), other.ask(said)
        assert "".join(stream) == expected.answer.text
        assert stream.result.usage == expected.usage
        said.append({"role": "assistant", "content": expected.answer.text})
    progress, _ = stopping("scoring", 1)
    again = [*said, {"role": "user", "content": "Which sky is blue?"}]
    with pytest.raises(BoomError):
        one.ask(again, progress=progress)
    for _ in one.stream(again):
        break
    assert one.ask(again).answer.tokens == other.ask(again).answer.tokens


def test_an_async_stream_says_the_same_and_leaves_the_loop_free() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    async def main() -> tuple[str, str]:
        beside = asyncio.create_task(tick())
        stream = pair().astream(CHAT, SHORT)
        text = "".join([piece async for piece in stream])
        beside.cancel()
        return text, stream.result.answer.text

    text, answer = asyncio.run(main())
    assert text == answer == pair().run(CHAT, SHORT).answer.text
    assert ticks > 5

    async def talk() -> str:
        return "".join([piece async for piece in sp.Conversation(pair(), SHORT).astream(CHAT)])

    assert asyncio.run(talk()) == answer


def test_a_cancelled_task_ends_the_work() -> None:
    async def read(stream: Any, begun: asyncio.Event) -> None:
        async for _ in stream:
            begun.set()

    async def main(cut: str) -> None:
        begun, loop = asyncio.Event(), asyncio.get_running_loop()
        progress = (lambda *_: loop.call_soon_threadsafe(begun.set)) if cut == "prompt" else None
        stream = pair().astream(ENDLESS, LONG, progress=progress)
        task = asyncio.create_task(read(stream, begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.01)  # the thread has told of its end, and is about to leave
        assert not workers()

    async def left() -> int:
        stream = pair().astream(ENDLESS, LONG)
        async for _ in stream:
            break
        await stream.aclose()
        return len(stream.result.answer.tokens)

    for cut in ("prompt", "answer"):
        asyncio.run(main(cut))
    assert 0 < asyncio.run(left()) < 500
    assert pair().run(CHAT, SHORT).answer.tokens


@pytest.mark.parametrize("text", ["añ日 🎉", "  hm </think>\n\n Yes, 日.\n\n ", "ok\n<tool_call>\n{}"])
def test_pieces_are_whole_characters_and_together_the_answer(text: str) -> None:
    tokenizer, thinks = pair().target.tokenizer, None
    if "</think>" in text:
        thinks = Thinks(marks_of("</think>"), opened=True)  # type: ignore[arg-type]
    said = AnswerText(tokenizer, thinks, calling_of(pair().target.template, [LOOK]))
    pieces = [said.push(int(token)) for token in tokenizer.encode(text).ids]
    pieces.append(said.finish())
    assert "".join(pieces) == text.partition("</think>")[2 if thinks else 0].strip()
    assert "\ufffd" not in "".join(pieces)


def test_no_piece_has_half_a_character() -> None:
    tokenizer = pair().target.tokenizer
    *ids, last = tokenizer.encode("so 🎉").ids.tolist()
    assert tokenizer.token_text(last) == "\ufffd"
    said = AnswerText(tokenizer)
    assert "".join([*(said.push(token) for token in ids), said.finish()]) == "so"


def test_calls_are_no_text() -> None:
    tokenizer, calling = pair().target.tokenizer, calling_of(pair().target.template, [LOOK])
    text = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"at": "日"}}\n</tool_call>'
    said = AnswerText(tokenizer, None, calling)
    assert "".join([*(said.push(int(token)) for token in tokenizer.encode(text).ids), said.finish()]) == "I look."
    assert read_calls(text, calling) == ("I look.", (Call("look", {"at": "日"}),))
    assert read_calls(text, None) == (text, ())
    with pytest.raises(PromptError, match=r"tools\[0\] has no function with a name"):
        pair().run(CHAT, tools=[{"name": "look"}])
    with pytest.raises(PromptError, match="tools need a chat"):
        pair().run("a text", tools=[LOOK])
