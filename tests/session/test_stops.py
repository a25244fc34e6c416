"""How often a turn stops to take a snapshot, and where the next one goes on."""

from __future__ import annotations

import numpy as np
import pytest
from conversation_walks import PAIRS, Chat, message, options, pair

from sp.session import Conversation, answer, memory


@pytest.mark.parametrize("size", [300, 120])
def test_ends_that_are_close_share_a_stop(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    passes: list[int] = []
    real = answer.prefill

    def counted(model, ids, *rest, **how):  # type: ignore[no-untyped-def]
        passes.append(len(ids))
        return real(model, ids, *rest, **how)

    monkeypatch.setattr(answer, "prefill", counted)
    talk = Conversation(pair(*PAIRS[0], "cpu"), options(1.0))
    words = np.random.default_rng(0).choice(["river", "stone", "lamp", "paper"], (3, size))
    chat: Chat = []
    for turn, text in enumerate(words):
        chat += [message("user", " ".join(text)), message("assistant", "Read."), message("user", f"What is {turn}?")]
        before = talk.slots
        passes.clear()
        result = talk.ask(chat)
        assert len(passes) == 1 + (sum(passes) > memory.CLOSE), "up to the end of a long text, and the rest"
        assert sum(passes) == result.usage.read
        assert passes[-1] < memory.CLOSE
        if turn:
            again = before.before(result.usage.cached) - (result.usage.held - sum(passes))
            assert 0 <= again < memory.CLOSE, "of what was read before"
        chat[-1] = message("user", "Or what?")
        passes.clear()
        talk.ask(chat)
        assert sum(passes) < memory.CLOSE, "another question reads little more than itself"
        chat.append(message("assistant", "Nothing."))
