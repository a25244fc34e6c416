"""Text encoded in parts gives the tokens of the whole, for every pattern and every place it may be cut."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_bpe import METADATA, TOKENIZERS, corners
from tokenizers import AddedToken

from sp.gguf import Tokenizer
from sp.gguf import tokenizer as tokenizer_module
from sp.gguf.pieces import CUTTABLE, may_cut, pieces
from sp.gguf.vocabulary import PATTERNS
from sp.pipeline.load import embedded, load
from sp.studies.sample import sample

# A safe place behind most of what the patterns tell apart.
words = st.sampled_from(
    ["a ", "Z  ", "1 ", "9 \n", "'s ", "can't ", "é ", "½ ", "a\n ", "x <|im_end|> ", "a   <|im_start|>"]
)
texts = st.lists(st.one_of(corners, words), max_size=40).map("".join)


@pytest.mark.parametrize("pre", sorted(CUTTABLE))
@settings(max_examples=400, deadline=None)
@given(text=texts, size=st.integers(1, 12))
def test_parts_give_the_tokens_of_the_whole(pre: str, text: str, size: int) -> None:
    backend, parts = TOKENIZERS[pre]._backend, pieces(text, size)
    assert "".join(parts) == text
    whole = backend.encode(text, add_special_tokens=False).ids
    assert [i for part in parts for i in backend.encode(part, add_special_tokens=False).ids] == whole


def test_every_pattern_is_proven_or_left_whole() -> None:
    assert set(PATTERNS) >= CUTTABLE
    assert not may_cut("a pattern nobody looked at", [])


def test_a_cut_never_falls_into_an_added_token() -> None:
    backend = Tokenizer.from_metadata(METADATA)._backend
    backend.add_tokens([AddedToken("two words", normalized=False)])
    whole = backend.encode("say two words", add_special_tokens=False).ids
    parts = pieces("say two words", 5)
    assert [i for part in parts for i in backend.encode(part, add_special_tokens=False).ids] != whole
    assert not may_cut("qwen2", ["two words"])
    assert may_cut("qwen2", [" leading", "<|im_end|>", "!? "])


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_a_long_text_is_encoded_as_in_one_piece(role: str) -> None:
    tokenizer = load(embedded(role), device="cpu").tokenizer
    text = "\n".join(re.sub("[aeiou]", vowel, sample()[0]) for vowel in "aeiou")
    assert len(pieces(text)) > 10
    whole = tokenizer._backend.encode(text, add_special_tokens=False).ids
    np.testing.assert_array_equal(tokenizer.encode(text).ids, whole)


def test_text_without_a_safe_place_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "pieces", lambda text: pieces(text, 4))
    for text in ("狐" * 100, "a" * 100, "\n" * 100, ""):
        assert TOKENIZERS["qwen2"].decode(TOKENIZERS["qwen2"].encode(text).ids) == text
