"""Bytes without a token: they are dropped, no merge reaches over them, and spans tile the text all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_gguf_sentencepiece import KEY, vocabulary
from tiny_bpe import METADATA, check_spans

from sp.errors import PromptError
from sp.gguf import Tokenizer
from sp.gguf.tokens.byte_pair import byte_alphabet
from sp.prompt import Prompt, Span

ABSENT = (0x04, 0x1D)


def lacking(metadata: dict[str, Any], absent: tuple[int, ...] = ABSENT) -> Tokenizer:
    """A vocabulary without tokens of its own for some bytes, of as many tokens."""
    names = {chr(byte_alphabet()[byte]): f"<no {byte:02x}>" for byte in absent}
    tokens = [names.get(token, token) for token in metadata["tokenizer.ggml.tokens"]]
    return Tokenizer.from_metadata(metadata | {"tokenizer.ggml.tokens": tokens})


WHOLE, LACKING = Tokenizer.from_metadata(METADATA), lacking(METADATA)


@pytest.mark.parametrize(
    ("text", "spans", "dropped"),
    [
        ("a\x04b", [[0, 1], [1, 3]], [1]),
        ("\x04\x1da", [[0, 3]], [0, 1]),
        ("a\x1d", [[0, 2]], [1]),
        ("\x04", [], [0]),
        ("a\x04<|im_end|>\x04", [[0, 1], [1, 13]], [1, 12]),
        ("\x04<|im_end|>b", [[0, 11], [11, 12]], [0]),
    ],
)
def test_dropped_characters_belong_to_the_token_behind_them(
    text: str, spans: list[list[int]], dropped: list[int]
) -> None:
    encoding = LACKING.encode(text)
    assert encoding.spans.tolist() == spans
    assert encoding.dropped.tolist() == dropped
    assert LACKING.decode(encoding.ids) == text.replace("\x04", "").replace("\x1d", "")


def test_no_merge_reaches_over_a_dropped_byte() -> None:
    """The reference is llama.cpp, where the byte is one of the symbols that are merged."""
    alphabet = [chr(code) for code in byte_alphabet()]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*alphabet, "!!"],
        "tokenizer.ggml.merges": ["! !"],
    }
    encoding = lacking(metadata)
    assert encoding.encode("!!").ids.tolist() == [256]
    assert encoding.encode("!\x04!").ids.tolist() == [ord("!")] * 2


@given(st.text(st.sampled_from("ab é語\n\x04\x1d\x05!<"), max_size=40))
def test_the_rest_is_spelled_and_spans_tile(text: str) -> None:
    found, whole = LACKING.encode(text, [(0, len(text.encode()))]), WHOLE.encode(text, [(0, len(text.encode()))])
    raw = text.encode()
    assert found.dropped.tolist() == [place for place, byte in enumerate(raw) if byte in ABSENT]
    assert LACKING.decode(found.ids) == text.replace("\x04", "").replace("\x1d", "")
    if len(found):
        assert found.spans[0, 0] == 0
        assert found.spans[-1, 1] == len(raw)
        np.testing.assert_array_equal(found.spans[1:, 0], found.spans[:-1, 1])
    if not len(found.dropped):
        np.testing.assert_array_equal(found.ids, whole.ids)
        check_spans(LACKING, text)


def test_a_sentencepiece_vocabulary_drops_too() -> None:
    metadata = vocabulary(["a", "\u2581"], [0.0, 0.0])
    metadata[f"{KEY}token_type"][5 + 0xA9] = 1  # a piece that is spelled so
    tokenizer = Tokenizer.from_metadata(metadata)
    encoding = tokenizer.encode("a éa")
    assert encoding.dropped.tolist() == [3], "the second byte of the letter"
    assert encoding.spans[-1].tolist() == [3, 5]
    assert b"".join(tokenizer.token_bytes(token) for token in encoding.ids.tolist()) == b" a \xc3a"


def test_prompts_know_what_was_dropped_and_one_of_nothing_else_is_refused() -> None:
    prompt = Prompt("a\x04b", (Span("protected", 1, 2),)).tokenise(LACKING)
    assert prompt.dropped.tolist() == [1]
    assert prompt.mask("protected").tolist() == [False, True]
    with pytest.raises(PromptError, match="no token for any byte of the prompt"):
        Prompt("\x04\x1d").tokenise(LACKING)
