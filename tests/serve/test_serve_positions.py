"""A server whose target has sliding windows: selected tokens at contiguous positions, in sessions too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import serving as tool
from serving import chat, client

from sp.session import Conversations, Pipeline, synthetic

openai: Any = pytest.importorskip("openai")


def test_requests_are_told_of_positions_and_sessions_continue(pair: Pipeline) -> None:
    windowed = Pipeline(synthetic("tiny-gemma3", "q8_0", device="cpu"), pair.drafter)
    options = replace(tool.OPTIONS, compress="always", keep_ratio=0.2)
    talks = Conversations(windowed, most=2)
    messages: list[dict[str, Any]] = []
    with tool.serving(windowed, talks=talks, options=options) as server:
        for turn in range(3):
            messages += chat("quiet-coral", 3254257 + turn)
            reply: Any = client(server).chat.completions.create(model="any", messages=messages)
            told = reply.usage.sp
            assert told["compressed"], told["reason"]
            assert told["positions"] == [
                "target: selected tokens have contiguous positions; 6 of 7 layers attend in a window of 96 positions"
            ]
            assert told["session"] == ("hit" if turn else "miss")
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
        messages.append({"role": "user", "content": "Thanks."})  # nothing of it is left out, but much before it was
        later: Any = client(server).chat.completions.create(model="any", messages=messages)
        assert later.usage.sp["positions"] == told["positions"]
        with pytest.raises(openai.BadRequestError, match="positions"):
            client(server).chat.completions.create(
                model="any", messages=messages, extra_body={"sp": {"positions": "original"}}
            )
