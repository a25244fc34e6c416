"""Tokens are those of llama.cpp: for small vocabularies of our own, and for published ones where they are at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from llama_cpp_cases import FILE, cases
from tiny_bpe import check_spans

from sp.gguf import GGUFFile, Tokenizer

FOUND = json.loads(FILE.read_text())
TEXTS = FOUND.pop("texts")
CASES = cases()
DATA = os.environ.get("SP_TEST_DATA")
PUBLISHED = sorted(Path(DATA, "tokenizers").glob("*.inp")) if DATA else []


def test_every_record_has_vectors() -> None:
    assert CASES.keys() == FOUND.keys()


@pytest.mark.parametrize("name", FOUND)
def test_text_without_special_tokens(name: str) -> None:
    tokenizer = Tokenizer.from_metadata(CASES[name])
    for text, (expected, _) in zip(TEXTS, FOUND[name], strict=True):
        assert tokenizer.encode(text, [(0, len(text.encode()))]).ids.tolist() == expected, text
        check_spans(tokenizer, text)


@pytest.mark.parametrize("name", FOUND)
def test_special_tokens_and_bos(name: str) -> None:
    """llama.cpp doubles a BOS that the text spells, with a warning; here it stands once."""
    tokenizer = Tokenizer.from_metadata(CASES[name])
    for text, (_, expected) in zip(TEXTS, FOUND[name], strict=True):
        twice = expected[:2] == [tokenizer.bos_id] * 2
        assert tokenizer.encode(text, framed=True).ids.tolist() == expected[twice:], text


@pytest.mark.skipif(not PUBLISHED, reason="SP_TEST_DATA names no folder with published vocabularies")
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name.removesuffix(".gguf.inp"))
def test_vectors_of_published_vocabularies(path: Path) -> None:
    with GGUFFile.open(path.with_suffix("")) as file:
        tokenizer = Tokenizer.from_gguf(file)
    texts = path.read_bytes().decode().split("\n__ggml_vocab_test__\n")
    expected = path.with_suffix(".out").read_text().split("\n")
    assert len(texts) == len(expected) > 40
    for text, ids in zip(texts, expected, strict=True):
        assert tokenizer.encode(text, [(0, len(text.encode()))]).ids.tolist() == [int(i) for i in ids.split()], text
        check_spans(tokenizer, text)
