"""The tokenizer against a slow one written from the definition, and its spans against the bytes of the text."""

from __future__ import annotations

import json
import time
from typing import Any

import bpe_reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_bpe import ADDED, FOLDER, METADATA, QWEN2, TOKENIZERS, TOKENS, check_spans, corners

from sp.errors import PromptError

MUCH = 250_000  # bytes: what grows faster than its text takes minutes
VECTORS = json.loads((FOLDER / "tiny-bpe.json").read_text())


@pytest.mark.parametrize("pre", VECTORS)
@pytest.mark.parametrize("index", range(len(VECTORS["qwen2"])))
def test_vectors(pre: str, index: int) -> None:
    text, ids = VECTORS[pre][index]
    assert TOKENIZERS[pre].encode(text).ids.tolist() == ids
    check_spans(TOKENIZERS[pre], text)


def test_vectors_tell_the_patterns_apart() -> None:
    assert sum(a != b for a, b in zip(VECTORS["qwen2"], VECTORS["qwen35"], strict=True)) >= 2


assigned = st.text(st.characters(exclude_categories=("Cs", "Cn", "Co")), max_size=20)
texts = st.one_of(st.lists(corners, max_size=30).map("".join), assigned)


@pytest.mark.parametrize("pre", VECTORS)
@settings(max_examples=120, deadline=None)
@given(text=texts)
def test_ids_equal_the_reference(pre: str, text: str) -> None:
    merges = METADATA["tokenizer.ggml.merges"]
    expected = bpe_reference.encode(text, TOKENS, merges, ADDED, pre == "qwen35")
    assert TOKENIZERS[pre].encode(text).ids.tolist() == expected


@settings(max_examples=150, deadline=None)
@given(text=st.one_of(texts, st.text(max_size=60)))
def test_any_text_comes_back_and_spans_tile_it(text: str) -> None:
    check_spans(QWEN2, text)
    check_spans(TOKENIZERS["qwen35"], text)


def test_a_character_split_over_tokens_has_a_span_for_each_part() -> None:
    text = "a\U00010348b"  # Gothic hwair: four bytes, in no merge
    encoding = QWEN2.encode(text)
    assert encoding.spans.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6]]
    assert [QWEN2.token_bytes(i) for i in encoding.ids.tolist()[1:5]] == [b"\xf0", b"\x90", b"\x8d", b"\x88"]
    assert QWEN2.decode(encoding.ids[:3]) == "a\ufffd"


def test_no_normalisation() -> None:
    composed, decomposed = "é", "e\u0301"
    assert QWEN2.encode(composed).ids.tolist() != QWEN2.encode(decomposed).ids.tolist()
    assert QWEN2.decode(QWEN2.encode(decomposed).ids) == decomposed


def test_decode_can_leave_special_tokens_out() -> None:
    ids = QWEN2.encode("<|im_start|>hi<think><|im_end|>").ids
    assert QWEN2.decode(ids, skip_special=True) == "hi<think>"
    assert QWEN2.decode([]) == ""


@pytest.mark.parametrize("token", [-1, len(TOKENS), 1 << 70])
def test_ids_outside_the_vocabulary(token: int) -> None:
    with pytest.raises(PromptError, match="outside the vocabulary"):
        QWEN2.decode([token])


def test_lone_surrogate() -> None:
    with pytest.raises(PromptError, match="character 1 of the text is a lone surrogate"):
        QWEN2.encode("a\ud800")


def test_empty_text() -> None:
    encoding = QWEN2.encode("")
    assert encoding.ids.shape == (0,)
    assert encoding.spans.shape == (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["the needle isn't hidden. ", "a", " ", "\n", "1", "🦙", " \n"])
def test_much_text_takes_seconds(text: str) -> None:
    """Also for texts that invite a backtracking pattern to be quadratic."""
    long = text * (MUCH // len(text.encode()))
    start = time.process_time()
    encoding = QWEN2.encode(long)
    assert time.process_time() - start < 4  # 0.1 to 0.5 s measured; generous for a busy machine
    assert encoding.spans[-1, 1] == len(long.encode())


def test_special_tokens_are_only_text_in_plain_parts() -> None:
    special = next(t for t in ADDED if t == "<|im_end|>")
    head, body, tail = "<|im_start|>user\n", f"a{special}b{special}", f"{special}\n"
    start = len(head)
    plain = [(start, start + len(body))]
    ids = QWEN2.encode(head + body + tail, plain).ids.tolist()
    wanted = TOKENS.index(special)
    assert ids.count(wanted) == 1
    assert TOKENS.index("<|im_start|>") == ids[0]
    assert QWEN2.decode(ids) == head + body + tail


def test_a_special_token_is_not_put_together_across_the_end_of_a_plain_part() -> None:
    text = "x<|im_end|>y"
    for cut in range(2, len("x<|im_end|>")):
        for plain in ([(0, cut)], [(cut, len(text))]):
            assert not set(QWEN2.encode(text, plain).ids.tolist()) & QWEN2.special_ids


@given(st.lists(st.sampled_from([*ADDED, "a", " the", "\n", "é", "<|", "|>"]), max_size=12), st.data())
@settings(max_examples=60, deadline=None)
def test_plain_parts_without_special_tokens_change_nothing(parts: list[str], data: Any) -> None:
    text = "".join(parts)
    begin = 0
    plain, where = [], []
    for part in parts:
        end = begin + len(part.encode())
        where.append((begin, end, part in ADDED))
        begin = end
    for start, end, added in where:
        if not added and data.draw(st.booleans()):
            plain.append((start, end))
    got, want = QWEN2.encode(text, plain), QWEN2.encode(text)
    if "<|" not in parts and "|>" not in parts:  # halves may come together to a special token
        assert got.ids.tolist() == want.ids.tolist()
        assert got.spans.tolist() == want.spans.tolist()
    assert QWEN2.decode(got.ids) == text
