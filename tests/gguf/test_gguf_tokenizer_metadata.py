"""The tokenizer that a file's metadata describes: read, odd, malformed and hostile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_bpe import FOLDER, METADATA, QWEN2, TOKENIZERS, TOKENS, check_spans

from sp.errors import GGUFError
from sp.gguf import GGUFFile, Tokenizer
from sp.gguf.tokens.byte_pair import byte_alphabet, token_bytes
from sp.models.synthetic.synthetic_vocab import tokenizer_metadata


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
    for text, place in (("abc", 2), ("cab", 0), ("a b", 1)):
        assert tokenizer.encode(text).ids.tolist() == [0, 1]
        assert tokenizer.encode(text).dropped.tolist() == [place]


def test_vocabulary_of_all_bytes_one_of_which_is_a_control_token() -> None:
    alphabet = [chr(code) for code in byte_alphabet()]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": alphabet,
        "tokenizer.ggml.token_type": [3 if token == "Ġ" else 1 for token in alphabet],
        "tokenizer.ggml.merges": [],
    }
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("a狐").ids.tolist() == [97, *"狐".encode()]
    with pytest.raises(GGUFError, match="spell another text from byte 1 on"):
        tokenizer.encode("a b")


TYPES = METADATA["tokenizer.ggml.token_type"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", None, "'tokenizer.ggml.model' is missing"),
        (
            "model",
            "t5",
            r"tokenizer model 't5' \(unigrams\) is not supported; use a model with byte pairs .* or SentencePiece",
        ),
        ("model", 7, "is not a string"),
        ("pre", None, "'tokenizer.ggml.pre' is missing"),
        (
            "pre",
            "kimi-k2",
            "pre-tokenizer 'kimi-k2' is not supported; use a model with one of: qwen2, qwen35, llama-bpe",
        ),
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


@settings(max_examples=200, deadline=1000)
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
        tokenizer = Tokenizer.from_metadata(metadata)
        if not len(tokenizer.encode(text).dropped):
            check_spans(tokenizer, text)
    except GGUFError as error:
        assert str(error)  # noqa: PT017  # the one exception that may come out


def test_padding_makes_no_other_tokenizer() -> None:
    """Qwen2.5 has 151936 tokens in its small sizes and 152064 in its large ones, of which the last ones are unused."""
    small, large, other = (
        Tokenizer.from_metadata(tokenizer_metadata("qwen2", *sizes))
        for sizes in ((900, 1000), (900, 1128), (901, 1000))
    )
    assert (small.vocab_size, large.vocab_size) == (1000, 1128)
    assert small.same_as(large)
    assert large.same_as(small)
    assert not small.same_as(other)
    text = "<|im_start|>user\nthe quick brown fox [PAD930] [PAD1100]<|im_end|>"
    assert small.encode(text).ids.tolist() == large.encode(text).ids.tolist()
