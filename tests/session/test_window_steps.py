"""A transcript that grows beyond the drafter's window: scores of every turn are those of a first reading."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conversation_walks import chats, error, message, options

from sp.prompt import transfer_scores
from sp.prompt.prompt import prompt_of
from sp.session import Conversation, ConversationOptions, Pipeline, RunOptions, TurnResult, embedded, load

BOUND = 1e-6
WINDOW, TURNS, SIZE = 300, 5, 700


@pytest.fixture(scope="module")
def pair() -> Pipeline:
    """The drafter is its own target, which reads four times faster."""
    target, drafter = (load(embedded("drafter"), extrapolate=far, device="cpu") for far in (False, True))
    return Pipeline(target, replace(drafter, trained=WINDOW))


def factors(result: TurnResult) -> list[str]:
    """What the report says of positions, of one factor the number alone."""
    lines: list[str] = result.trace.facts.get("positions", [])
    return [line.partition("YaRN, ")[2].partition(" x ")[0] or line for line in lines]


def off(pair: Pipeline, result: TurnResult, run: RunOptions) -> float:
    """How far a turn's scores are from those of its whole prompt read anew."""
    cold = pair.score(result.prompt, RunOptions(keep_ratio=1.0, scorer=run.scorer))
    want = transfer_scores(cold.importance.scores, cold.drafted.bytes, result.prompt.bytes)
    assert result.scores is not None
    return error(result.scores, want)


@pytest.mark.parametrize("how", [{}, {"rotary": "none", "queries": "question"}], ids=str)
def test_warm_is_cold_on_both_sides_of_every_step(pair: Pipeline, how: dict[str, object]) -> None:
    run = options(0.3, "tail", **how)
    talk = Conversation(pair, run, ConversationOptions(recall="off"))
    seen, read, lengths = list[list[str]](), list[int](), list[int]()
    for chat in chats(TURNS, SIZE):
        result = talk.ask(chat)
        assert off(pair, result, run) < BOUND
        seen.append(factors(result))
        read.append(result.usage.drafted)
        lengths.append(result.usage.prompt)
        chat.append(message("assistant", result.answer.text or "."))
    steps = [1 if n <= WINDOW else 2 if n <= 2 * WINDOW else 4 if n <= 4 * WINDOW else 8 for n in lengths]
    assert steps[0] == 1
    assert len(set(steps)) >= 3, lengths
    for turn, (factor, lines, count, n) in enumerate(zip(steps, seen, read, lengths, strict=True)):
        anew = turn > 0 and factor != steps[turn - 1]
        assert lines[:1] == ([] if factor == 1 else [str(factor)])
        assert [line.endswith("are read again, because the scaling of RoPE changed") for line in lines[1:]] == [
            True
        ] * anew
        assert (count == n) == (anew or turn == 0), f"turn {turn}: {count} of {n} read"
    assert sum(read) < 3 * lengths[-1]


def test_a_transcript_cut_back_to_the_window_is_read_as_one_that_never_left_it(pair: Pipeline) -> None:
    run = options(0.3)
    talk = Conversation(pair, run, ConversationOptions(recall="off"))
    first, second = next(chats(1, SIZE)), [message("assistant", "y " * 10), message("user", "What else?")]
    for chat in (
        first,
        [*first, message("assistant", "Well."), message("user", "x " * 300 + "?")],
        [*first[:1], *second],
    ):
        result = talk.ask(chat)
        assert off(pair, result, run) < BOUND
    assert "read again" in factors(result)[-1]
    assert pair.drafter is not None
    assert pair.drafter.model.config.rope.scaling is None


def test_a_fork_beyond_the_step_begins_anew_and_one_within_it_goes_on(pair: Pipeline) -> None:
    run = options(0.3)
    chat = [*next(chats(1, SIZE // 2)), message("assistant", "Well.")]
    more = [message("user", "Why?"), message("assistant", "y " * 60)]  # what is only asked is not scored
    first, near, far = (
        prompt_of([*chat, *new, message("user", f"{word}?")], pair.target)
        for word, new in (("Why", []), ("How", more), (500 * "x ", more))
    )
    talk = Conversation(pair, run, ConversationOptions(recall="off"))
    talk.answer(first)
    results = [talk.fork(prompt).answer(prompt) for prompt in (near, far)]
    assert all(off(pair, result, run) < BOUND for result in results)
    assert results[0].usage.drafted < results[0].usage.prompt // 2
    assert results[1].usage.drafted == results[1].usage.prompt
