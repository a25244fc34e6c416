"""The tokenizer against a slow one written from the definition, and its spans against the bytes of the text."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import bpe_reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sp.errors import GGUFError, PromptError
from sp.gguf import GGUFFile, Tokenizer
from sp.gguf.vocabulary import PATTERNS, byte_alphabet, token_bytes

FOLDER = Path(__file__).parent
VECTORS = json.loads((FOLDER / "tiny-bpe.json").read_text())


def load_metadata() -> dict[str, Any]:
    with GGUFFile.open(FOLDER / "tiny-bpe.gguf") as file:
        return dict(file.metadata)


METADATA = load_metadata()
TOKENS: list[str] = METADATA["tokenizer.ggml.tokens"]
ADDED = [t for t, kind in zip(TOKENS, METADATA["tokenizer.ggml.token_type"], strict=True) if kind in (3, 4)]
TOKENIZERS = {pre: Tokenizer.from_metadata({**METADATA, "tokenizer.ggml.pre": pre}) for pre in PATTERNS}
QWEN2 = TOKENIZERS["qwen2"]


def check_spans(tokenizer: Tokenizer, text: str) -> None:
    """Spans tile the bytes, and each holds just the bytes of its token."""
    raw = text.encode()
    encoding = tokenizer.encode(text)
    assert encoding.ids.dtype == encoding.spans.dtype == np.int64
    assert encoding.spans.shape == (len(encoding), 2)
    assert [0, *encoding.spans[:, 1]] == [*encoding.spans[:, 0], len(raw)]
    for token, (start, end) in zip(encoding.ids.tolist(), encoding.spans.tolist(), strict=True):
        assert raw[start:end] == tokenizer.token_bytes(token)
    assert tokenizer.decode(encoding.ids) == text


@pytest.mark.parametrize("pre", PATTERNS)
@pytest.mark.parametrize("index", range(len(VECTORS["qwen2"])))
def test_vectors(pre: str, index: int) -> None:
    text, ids = VECTORS[pre][index]
    assert TOKENIZERS[pre].encode(text).ids.tolist() == ids
    check_spans(TOKENIZERS[pre], text)


def test_vectors_tell_the_patterns_apart() -> None:
    assert sum(a != b for a, b in zip(VECTORS["qwen2"], VECTORS["qwen35"], strict=True)) >= 2


def test_from_gguf_reads_what_the_file_says() -> None:
    with GGUFFile.open(FOLDER / "tiny-bpe.gguf") as file:
        tokenizer = Tokenizer.from_gguf(file)
    assert tokenizer.vocab_size == len(TOKENS)
    assert tokenizer.sha256 == QWEN2.sha256 != TOKENIZERS["qwen35"].sha256
    assert {tokenizer.token_text(i) for i in tokenizer.special_ids} == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    assert {tokenizer.token_text(i) for i in tokenizer.eos_ids} == {"<|endoftext|>", "<|im_end|>"}
    assert tokenizer.token_text(tokenizer.eos_id or 0) == "<|im_end|>"
    assert tokenizer.token_text(tokenizer.pad_id or 0) == "[PAD0]"
    assert tokenizer.bos_id is None


# Text that hits the pattern's corners far more often than arbitrary Unicode would.
corners = st.sampled_from(
    [
        *(
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "'",
            "'s",
            "'LL",
            "a",
            "Z",
            "ab",
            "1",
            "٢",
            "½",
            "!",
            "...",
            "\u0301",
            "\u093e",
        ),
        *(
            "é",
            "е",
            "狐",
            "🦙",
            "👩‍👧",
            "\u200d",
            "\ufe0f",
            "\xa0",
            "\u3000",
            "\u2028",
            "\x85",
            "\x00",
            "\x1c",
            "\ufeff",
        ),
        *(*ADDED, "<|im_", "_end|>", "prefill", " special", "needle"),
    ]
)
assigned = st.text(st.characters(exclude_categories=("Cs", "Cn", "Co")), max_size=20)
texts = st.one_of(st.lists(corners, max_size=30).map("".join), assigned)


@pytest.mark.parametrize("pre", PATTERNS)
@settings(max_examples=300, deadline=None)
@given(text=texts)
def test_ids_equal_the_reference(pre: str, text: str) -> None:
    merges = METADATA["tokenizer.ggml.merges"]
    expected = bpe_reference.encode(text, TOKENS, merges, ADDED, pre == "qwen35")
    assert TOKENIZERS[pre].encode(text).ids.tolist() == expected


@settings(max_examples=400, deadline=None)
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


def test_token_bytes_of_odd_tokens() -> None:
    """Tokens outside the byte alphabet, which padding and added tokens may be, stand for their own text."""
    tokens, types = ["Ġa", "raw space", "Ġ", "狐", ""], [1, 1, 3, 1, 3]
    assert token_bytes(tokens, types) == [b" a", b"raw space", "Ġ".encode(), "狐".encode(), b""]
    assert token_bytes(tokens[:1], types[:1]) == [b" a"]
    everything = [chr(code) for code in byte_alphabet()]
    assert token_bytes(everything, [1] * 256) == [bytes([byte]) for byte in range(256)]


def test_vocabulary_that_lacks_a_byte() -> None:
    tokenizer = Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": ["a", "b"],
            "tokenizer.ggml.merges": [],
        }
    )
    assert tokenizer.encode("abba").ids.tolist() == [0, 1, 1, 0]
    for text, byte in (("abc", "0x63, at byte 2"), ("cab", "0x63, at byte 0"), ("a b", "0x20, at byte 1")):
        with pytest.raises(GGUFError, match=f"cannot spell byte {byte}"):
            tokenizer.encode(text)


TYPES = METADATA["tokenizer.ggml.token_type"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", None, "'tokenizer.ggml.model' is missing"),
        ("model", "llama", "tokenizer model 'llama' is not supported"),
        ("model", 7, "is not a string"),
        ("pre", None, "'tokenizer.ggml.pre' is missing"),
        ("pre", "deepseek-v3", "pre-tokenizer 'deepseek-v3' is not supported; use a model with one of: qwen2, qwen35"),
        ("tokens", None, "is missing"),
        ("tokens", [], "has 0 tokens"),
        ("tokens", "abc", "not an array of strings"),
        ("tokens", np.zeros(3), "not an array of strings"),
        ("tokens", [*TOKENS[:-1], TOKENS[0]], "is in the vocabulary twice"),
        ("token_type", TYPES[:-1], "is not 600 integers"),
        ("token_type", TYPES.astype(np.float32), "is not 600 integers"),
        ("token_type", "1", "is not 600 integers"),
        ("merges", None, "is missing"),
        ("merges", ["ab"], "merge 0, 'ab', does not join"),
        ("merges", ["a  "], "does not join"),
        ("merges", [""], "does not join"),
        ("merges", ["a b c"], "does not join"),
        ("merges", ["a zzzz"], "does not join"),
        ("eos_token_id", 600, "eos_token_id 600 is outside"),
        ("eos_token_id", -1, "outside"),
        ("eos_token_id", "2", "is not an integer"),
        ("bos_token_id", True, "is not an integer"),
        ("padding_token_id", 1 << 63, "outside"),
    ],
)
def test_malformed_metadata(key: str, value: Any, message: str) -> None:
    metadata = {**METADATA, f"tokenizer.ggml.{key}": value}
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(GGUFError, match=message) as caught:
        Tokenizer.from_metadata(metadata, "m.gguf")
    assert str(caught.value).startswith("m.gguf: ")


def test_special_tokens_of_absurd_size() -> None:
    tokens = [*TOKENS, *(f"{i:04d}" * 250 for i in range(1100))]
    types = np.concatenate([TYPES, np.full(1100, 3, np.int32)])
    with pytest.raises(GGUFError, match="special tokens take"):
        Tokenizer.from_metadata({**METADATA, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types})


names = st.text(st.sampled_from("abĠé \x00<|>"), max_size=4)
hostile = st.fixed_dictionaries(
    {},
    optional={
        "tokenizer.ggml.model": st.sampled_from(["gpt2", "bert", 3]),
        "tokenizer.ggml.pre": st.sampled_from(["qwen2", "qwen35", "", "x" * 1000]),
        "tokenizer.ggml.tokens": st.lists(names, max_size=12),
        "tokenizer.ggml.token_type": st.lists(st.integers(-1, 7), max_size=12).map(lambda v: np.array(v, np.int32)),
        "tokenizer.ggml.merges": st.lists(st.one_of(names, st.tuples(names, names).map(" ".join)), max_size=6),
        "tokenizer.ggml.eos_token_id": st.integers(-1, 12),
        "tokenizer.ggml.eot_token_id": st.one_of(st.booleans(), st.integers(), st.floats()),
    },
)


@settings(max_examples=500, deadline=1000)
@given(metadata=hostile, unique=st.booleans(), text=st.text(st.sampled_from("abĠé \x00<|>"), max_size=20))
def test_hostile_metadata_gives_a_tokenizer_or_an_error(metadata: dict[str, Any], unique: bool, text: str) -> None:
    defaults = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.merges": []}
    metadata = {**defaults, **metadata}
    tokens = metadata.get("tokenizer.ggml.tokens")
    if unique and tokens is not None:
        metadata["tokenizer.ggml.tokens"] = list(dict.fromkeys(tokens))
        count = len(metadata["tokenizer.ggml.tokens"])
        if "tokenizer.ggml.token_type" in metadata:
            metadata["tokenizer.ggml.token_type"] = np.resize(metadata["tokenizer.ggml.token_type"], count)
    try:
        check_spans(Tokenizer.from_metadata(metadata), text)
    except GGUFError as error:
        assert str(error)  # noqa: PT017  # the one exception that may come out


@pytest.mark.slow
@pytest.mark.parametrize("text", ["the needle isn't hidden. ", "a", " ", "\n", "1", "🦙", " \n"])
def test_a_megabyte_of_text_takes_seconds(text: str) -> None:
    """Also for texts that invite a backtracking pattern to be quadratic."""
    long = text * (1_000_000 // len(text.encode()))
    start = time.process_time()
    encoding = QWEN2.encode(long)
    assert time.process_time() - start < 10  # 0.5 to 2 s measured; generous for a busy machine
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
