"""Rows of turns: every token of a transcript in one state, as masks say it one by one."""

from __future__ import annotations

import json

import numpy as np
from talks import options, pair, said, text

from sp.session import Conversation, ConversationOptions, TurnResult, turn_row


def states(row: dict, n: int) -> np.ndarray:
    """How many states each token is in, and which, from the runs of a row."""
    runs = {**{name: row["spans"][name] for name in ("cached", "kept")}}
    runs["recalled"] = [(each["start"], each["end"]) for each in row["recall"]]
    table = np.zeros((3, n), int)
    for line, name in zip(table, ("cached", "kept", "recalled"), strict=True):
        for start, end in runs[name]:
            line[start:end] += 1
    return table


def check(row: dict, result: TurnResult) -> None:
    n, usage = len(result.prompt), result.usage
    cached, kept, recalled = states(row, n)
    np.testing.assert_array_equal(cached + kept + recalled, result.present.astype(int))
    assert not cached[usage.cached :].any()
    assert not kept[: usage.cached].any()
    assert (kept.sum(), recalled.sum()) == (usage.kept, usage.recalled) == (row["kept"], row["recalled"])
    assert json.loads(json.dumps(row)) == row


def test_every_token_is_in_the_state_that_masks_say() -> None:
    rng = np.random.default_rng(5)
    talk, asked, recalled = Conversation(pair(), options(), ConversationOptions(recall_ratio=0.3)), [], 0
    for number in range(1, 5):
        asked += [said("user", f"{text(rng, 60)} {number} pin"), said("assistant", text(rng, 5)), said("user", "pin ?")]
        result = talk.ask(asked)
        row = turn_row(result, number, [f"{number} pin", "nowhere", ""])
        check(row, result)
        recalled += row["recalled"]
        ((start, end),) = row["spans"]["needle"]
        first, last = result.prompt.bytes[start, 0], result.prompt.bytes[end - 1, 1]
        assert f"{number} pin" in result.prompt.prompt.text.encode()[first:last].decode()
        assert last - first <= len(f" {number} pin ")
        asked.append(said("assistant", result.answer.text))
    assert recalled, "no turn brought anything back, so nothing was tested of that"


def test_what_stands_before_a_question_may_be_left_out() -> None:
    rng = np.random.default_rng(6)
    before = text(rng, 120) + "\n\n"
    asked = [said("user", f"{before}{text(rng, 4)}")]
    whole = Conversation(pair(), options()).ask(asked)
    part = Conversation(pair(), options()).ask(asked, kept_from=len(before))
    assert whole.usage.kept == whole.usage.new == part.usage.new
    assert part.usage.kept < 0.35 * part.usage.new
    question = part.prompt.mask("question")
    assert part.present[question].all()
    assert 0 < question.sum() < 20
