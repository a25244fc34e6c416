"""Text encoded in parts gives the tokens of the whole, for every pattern and every place it may be cut."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_bpe import METADATA, TOKENIZERS, corners

from sp.gguf import Tokenizer
from sp.gguf.pretokenizers import PRE_TOKENIZERS
from sp.gguf.tokens import byte_pair
from sp.gguf.tokens.byte_pair import pieces
from sp.session.loaded import embedded, load
from sp.studies.sample import sample

# A safe place behind most of what the patterns tell apart.
words = st.sampled_from(
    ["a ", "Z  ", "1 ", "9 \n", "'s ", "can't ", "é ", "½ ", "a\n ", "x <|im_end|> ", "a   <|im_start|>"]
)
DISTINCT = list({record: name for name, record in reversed(PRE_TOKENIZERS.items())}.values())
texts = st.lists(st.one_of(corners, words), max_size=40).map("".join)


@pytest.mark.parametrize("pre", DISTINCT)
@settings(max_examples=150, deadline=None)
@given(text=texts, size=st.integers(1, 12))
def test_parts_give_the_tokens_of_the_whole(pre: str, text: str, size: int) -> None:
    backend, parts = TOKENIZERS[pre]._model._backend, pieces(text, size)
    assert "".join(parts) == text
    whole = backend.encode(text, add_special_tokens=False).ids
    assert [i for part in parts for i in backend.encode(part, add_special_tokens=False).ids] == whole


def test_a_cut_never_falls_into_an_added_token(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [*METADATA["tokenizer.ggml.tokens"][:-1], "two words"]
    types = [*METADATA["tokenizer.ggml.token_type"][:-1], 4]
    named = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": np.array(types, np.int32)}
    tokenizer = Tokenizer.from_metadata({**METADATA, **named})
    monkeypatch.setattr(byte_pair, "pieces", lambda text: pieces(text, 5))
    assert tokenizer.encode("say two words").ids.tolist()[-1] == len(tokens) - 1


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_a_long_text_is_encoded_as_in_one_piece(role: str) -> None:
    tokenizer = load(embedded(role), device="cpu").tokenizer
    text = "\n".join(re.sub("[aeiou]", vowel, sample()[0]) for vowel in "aeiou")
    assert len(pieces(text)) > 10
    whole = tokenizer._model._backend.encode(text, add_special_tokens=False).ids
    np.testing.assert_array_equal(tokenizer.encode(text).ids, whole)


def test_text_without_a_safe_place_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_pair, "pieces", lambda text: pieces(text, 4))
    for text in ("狐" * 100, "a" * 100, "\n" * 100, ""):
        assert TOKENIZERS["qwen2"].decode(TOKENIZERS["qwen2"].encode(text).ids) == text
