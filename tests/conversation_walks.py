"""Properties of conversations on any device, checked by the tests of both CPU and GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sp.session.answer
from sp.errors import PromptError
from sp.models import prefill
from sp.prompt import TokenisedPrompt, transfer_scores
from sp.prompt.prompt import prompt_of
from sp.scoring import SCORERS
from sp.session import (
    Conversation,
    ConversationOptions,
    Conversations,
    Loaded,
    Pipeline,
    RunOptions,
    TurnResult,
    embedded,
    load,
    synthetic,
)
from sp.session.compress import selection_request
from sp.session.decision import fixed
from sp.session.disk.shelf import Shelf
from sp.studies.sample import sample

PAIRS = (("tiny-qwen35", "drafter"), ("tiny-qwen3", "tiny-qwen35"))
"""A recurrent target with a drafter of attention only, and the other way round."""
Chat = list[dict[str, str]]
SIZE = 900
"""Characters of the document that a turn brings."""
ROUNDED = 1 << 20
"""Most bytes by which pinned host memory of a small cache is rounded up."""


@cache
def model(name: str, role: str, device: str) -> Loaded:
    """The embedded one of a role, or random weights in a shape."""
    if name == role:
        return load(embedded(role), extrapolate=role == "drafter", device=device)
    return synthetic(name, "q8_0", extrapolate=role == "drafter", device=device)


@cache
def pair(target: str, drafter: str, device: str) -> Pipeline:
    return Pipeline(model(target, "target", device), model(drafter, "drafter", device))


def options(keep_ratio: float, scorer: str = "tail", **scorer_options: object) -> RunOptions:
    built = SCORERS.build(scorer, scorer_options)
    return RunOptions(keep_ratio=keep_ratio, scorer=built, compress="always", max_new_tokens=6)


def chats(turns: int, size: int = SIZE) -> Iterator[Chat]:
    """A chat that grows by a piece of the sample and a question each time; answers are to be appended."""
    document, example = sample()
    chat: Chat = []
    for turn in range(turns):
        text = document[size * turn : size * (turn + 1)]
        chat += [message("user", text), message("assistant", "Read."), message("user", f"{example.question} ({turn})")]
        yield chat


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def walk(talk: Conversation, turns: int, size: int = SIZE) -> Iterator[TurnResult]:
    """Ask turn after turn."""
    for chat in chats(turns, size):
        result = talk.ask(chat)
        yield result
        chat.append(message("assistant", result.answer.text or "."))


def chosen(scores, prompt: TokenisedPrompt, start: int, run: RunOptions):  # type: ignore[no-untyped-def]
    """Mask of the tokens from `start` on that a turn selects by scores, (n - start,)."""
    request = selection_request(scores, fixed(prompt, start), run.keep_ratio, prompt, start, 32)
    return run.selector(request).selected | request.protected


@contextmanager
def first_logits() -> Iterator[list[np.ndarray]]:
    """Collect the first logits of every answer, in order."""
    seen: list[np.ndarray] = []
    module = sp.session.answer
    generate = module.generate

    def spy(model, logits, *rest, **keywords):  # type: ignore[no-untyped-def]
        seen.append(on_host(logits))
        return generate(model, logits, *rest, **keywords)

    module.generate = spy
    try:
        yield seen
    finally:
        module.generate = generate


def on_host(array) -> np.ndarray:  # type: ignore[no-untyped-def]
    return np.array(array.get() if hasattr(array, "get") else array)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Squared error over squared size; a NaN is never below a bound."""
    return float(((got - want) ** 2).sum() / (want**2).sum())


def replayed(talk: Conversation, result: TurnResult) -> np.ndarray:
    """Logits of one prefill of all tokens that were in the cache when the turn answered."""
    model, tokens = talk.pipeline.target.model, result.usage.held
    slots, run = talk.slots.first(tokens), talk.options
    cache = model.new_cache(tokens, run.kv)
    return on_host(prefill(model, slots.ids, slots.positions, cache, gaps=run.state_gaps))


def whole_turns(where: Pipeline, turns: int = 4, size: int = SIZE) -> list[float]:
    """Errors of each turn's logits against one prefill of the whole prompt."""
    talk, errors = Conversation(where, options(1.0)), []
    with first_logits() as seen:
        for result in walk(talk, turns, size):
            ids, model = result.prompt.ids, where.target.model
            assert result.present.all()
            want = prefill(model, ids, np.arange(len(ids)), model.new_cache(len(ids), "f16"))
            errors.append(error(seen[-1], on_host(want)))
    return errors


def compressed_turns(where: Pipeline, recall: str, turns: int = 4, size: int = SIZE) -> tuple[list[float], int]:
    """Errors of compressed turns against one prefill of the tokens in the cache; and the number of recalled tokens."""
    memory = ConversationOptions(recall=recall, recall_ratio=0.3, recall_tokens=100)
    talk, errors, recalled = Conversation(where, options(0.3), memory), [], 0
    with first_logits() as seen:
        for number, chat in enumerate(chats(turns, size)):
            result = talk.ask(chat)
            errors.append(error(seen[-1], replayed(talk, result)))
            recalled += result.usage.recalled
            if number == 1:  # the client edits its last message
                chat[-1] = message("user", "What else?")
                result = talk.ask(chat)
                errors.append(error(seen[-1], replayed(talk, result)))
                assert result.usage.cached > result.usage.prompt // 2
            chat.append(message("assistant", result.answer.text or "."))
    return errors, recalled


def warm_and_cold(
    where: Pipeline, keys: str, scorer: str, turns: int = 3, size: int = SIZE, **scorer_options: object
) -> list[tuple[float, float, int]]:
    """Compare each turn with scoring the whole prompt again: the error of its scores, the share of the reference's
    score sum that it selects, and the number of tokens by which the two selections differ."""
    run = options(0.3, scorer, **scorer_options)
    talk, rows = Conversation(where, run, ConversationOptions(recall="off", keys=keys)), []
    for result in walk(talk, turns, size):
        cold = where.score(result.prompt, RunOptions(keep_ratio=1.0, scorer=run.scorer))
        want = transfer_scores(cold.importance.scores, cold.drafted.bytes, result.prompt.bytes)
        start = result.usage.cached
        own, reference = result.present[start:], chosen(want, result.prompt, start, run)
        worth = float(want[start:][own].sum() / want[start:][reference].sum())
        rows.append((error(result.scores, want), worth, int((own ^ reference).sum())))
        assert result.usage.drafted < result.usage.prompt - start + 60
    return rows


def parked_turns(where: Pipeline, turns: int = 4, size: int = SIZE) -> None:
    """Check that offloading the caches after every turn changes no answer."""
    stay, leave = (Conversation(where, options(0.4)) for _ in range(2))
    for resident, offloaded in zip(walk(stay, turns, size), walk(leave, turns, size), strict=True):
        assert resident.answer.tokens == offloaded.answer.tokens
        assert resident.usage == offloaded.usage
        np.testing.assert_array_equal(resident.present, offloaded.present)
        before = leave.nbytes + leave.host_nbytes
        assert leave.offload()
        assert leave.nbytes == 0 < leave.host_nbytes <= before + ROUNDED * len(leave._memory.caches)
        assert not leave.offload()
    leave.clear()
    assert leave.host_nbytes == leave.nbytes == 0


def restarted_turns(where: Pipeline, folder: Path, turns: int = 4, size: int = SIZE) -> None:
    """Check that continuing each turn from files, in other conversations, changes no answer."""
    run = options(0.4)
    stay = Conversation(where, run)
    for number, chat in enumerate(chats(turns, size)):
        expected, talks = stay.ask(chat), Conversations(where, shelf=Shelf(folder, 1 << 30, "the same pair", print))
        other = talks.answer(prompt_of(chat, where.target), run)
        assert other.restored == (number > 0)
        assert expected.answer.tokens == other.answer.tokens
        assert expected.usage == other.usage
        np.testing.assert_array_equal(expected.present, other.present)
        if number % 2:  # files are then written from host memory
            talks._entries[0].talk.offload()
        talks.close()
        chat.append(message("assistant", expected.answer.text or "."))


@contextmanager
def failing_head(model: Any, call: int) -> Iterator[None]:
    """Let a model fail at a call of its head, counted from 1; other models of its class do not."""
    head, calls = type(model).head, list[Any]()

    def failing(self: Any, x: Any, norm: Any = None) -> Any:
        if self is model:
            calls.append(x)
            if len(calls) == call:
                raise PromptError("enough")
        return head(self, x, norm)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(model), "head", failing)
        yield
