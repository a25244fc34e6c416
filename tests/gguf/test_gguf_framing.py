"""Tokens around a prompt and at the end of an answer: BOS and EOS by the file, and tokens that stop a generation."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tiny_bpe import METADATA

from sp.errors import GGUFError
from sp.gguf import Tokenizer
from sp.gguf.pretokenizers import PRE_TOKENIZERS
from sp.gguf.tokens.byte_pair import byte_alphabet
from sp.models.synthetic.synthetic_vocab import tokenizer_metadata
from sp.prompt import Prompt, Span, transfer_scores
from sp.session.compress import rejoin

KEY = "tokenizer.ggml."
LLAMA3 = tokenizer_metadata("llama-bpe", 2000, 2048)
LLAMA2 = tokenizer_metadata("llama", 1500, 1500)
QWEN = tokenizer_metadata("qwen2", 2000, 2048)


def made(metadata: dict[str, Any], **keys: Any) -> Tokenizer:
    """A tokenizer of changed keys; None takes one away."""
    changed = {**metadata, **{KEY + name: value for name, value in keys.items()}}
    return Tokenizer.from_metadata({key: value for key, value in changed.items() if value is not None})


@pytest.mark.parametrize(
    ("metadata", "keys", "before", "after"),
    [
        (LLAMA3, {}, [2000], []),
        (LLAMA3, {"add_bos_token": None}, [2000], []),  # as its pre-tokenizer says
        (LLAMA3, {"add_bos_token": False}, [], []),
        (LLAMA3, {"add_eos_token": True}, [2000], [2009]),
        (LLAMA2, {}, [1], []),
        (LLAMA2, {"add_bos_token": None, "add_eos_token": None, "bos_token_id": None}, [1], []),
        (LLAMA2, {"add_bos_token": False, "add_eos_token": True}, [], [2]),
        (QWEN, {}, [], []),
        (QWEN, {"add_bos_token": None, "bos_token_id": 2000}, [], []),
        (QWEN, {"add_bos_token": True, "bos_token_id": 2000}, [2000], []),
    ],
)
def test_prompts_are_framed_as_the_file_asks(
    metadata: dict[str, Any], keys: dict[str, Any], before: list[int], after: list[int]
) -> None:
    tokenizer = made(metadata, **keys)
    bare, framed = tokenizer.encode("hi there"), tokenizer.encode("hi there", framed=True)
    assert framed.ids.tolist() == [*before, *bare.ids.tolist(), *after]
    assert framed.spans.tolist() == [*([[0, 0]] * len(before)), *bare.spans.tolist(), *([[8, 8]] * len(after))]
    assert tokenizer.encode("", framed=True).ids.tolist() == before + after


def test_neither_bos_nor_eos_is_doubled() -> None:
    tokenizer = made(LLAMA2, add_eos_token=True)
    assert tokenizer.encode("<s>hi</s>", framed=True).ids.tolist() == tokenizer.encode("<s>hi</s>").ids.tolist()
    assert tokenizer.encode("</s>hi<s>", framed=True).ids.tolist()[:2] == [1, 2]
    said = tokenizer.encode("<s>", [(0, 3)], framed=True)
    assert said.ids[0] == 1, "a message that spells BOS is none"
    assert len(said) > 3


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_a_file_that_asks_for_a_token_it_does_not_name(name: str) -> None:
    keys = {f"add_{name}_token": True, f"{name}_token_id": None}
    with pytest.raises(GGUFError, match=f"'tokenizer.ggml.{name}_token_id' is missing"):
        made(LLAMA3, **keys)


def test_tokens_that_stand_for_no_text_are_protected_and_stay_out_of_rejoined_text() -> None:
    text = "one two</s>\nthree four five"
    prompt = Prompt(text, (Span("question", 20, 25),)).tokenise(Tokenizer.from_metadata(LLAMA2))
    empty = prompt.bytes[:, 0] == prompt.bytes[:, 1]
    assert empty.sum() >= 2
    assert prompt.ids[0] == 1
    assert (prompt.mask("protected") == empty).all()
    assert not (prompt.mask("question") & empty).any()
    assert rejoin(prompt, empty).text == ""
    kept = empty | (prompt.bytes[:, 0] >= 22)
    assert rejoin(prompt, kept).text == " four five".lstrip()


def test_scores_of_tokens_that_stand_for_no_text() -> None:
    source = np.array([[0, 0], [0, 2], [2, 2], [2, 4]])
    target = np.array([[0, 0], [0, 1], [1, 3], [3, 3], [3, 4], [4, 4]])
    scores = np.array([9, 1, 9, 5], np.float32)
    assert transfer_scores(scores, source, target).tolist() == [1, 1, 5, 5, 5, 5]


def ends(names: list[str], kinds: list[int], **keys: Any) -> set[str]:
    """Names of the tokens that end a generation."""
    tokens = [*map(chr, byte_alphabet()), *names]
    metadata = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": tokens,
        "merges": [],
        "token_type": [1] * 256 + kinds,
        **keys,
    }
    tokenizer = Tokenizer.from_metadata({KEY + name: value for name, value in metadata.items()})
    return {tokens[i] for i in tokenizer.eos_ids}


def test_tokens_that_end_a_generation() -> None:
    assert ends(["<|eot_id|>", "</s>", "<x>"], [3, 3, 3]) == {"<|eot_id|>", "</s>"}
    assert ends(["<x>", "<y>", "<z>"], [3, 3, 3], eos_token_id=256, eot_token_id=257, eom_token_id=258) == {
        *("<x>", "<y>", "<z>")
    }
    assert ends(["</s>", "<|im_end|>"], [1, 4]) == {"<|im_end|>"}, "a word of the text ends nothing"
    assert ends(["<|end|>", "<|call|>"], [3, 3]) == {"<|end|>", "<|call|>"}
    assert ends(["<|end|>", "<|call|>", "<|return|>"], [3, 3, 3]) == {"<|call|>", "<|return|>"}
    assert Tokenizer.from_metadata(LLAMA3).eos_ids == {2001, 2008, 2009}
    assert Tokenizer.from_metadata(LLAMA2).eos_ids == {2}


def test_names_of_one_record_tokenize_alike() -> None:
    made_of = {name: made(METADATA, pre=name, add_bos_token=False).sha256 for name in PRE_TOKENIZERS}
    assert made_of["qwen2"] == made_of["deepseek-r1-qwen"] == made_of["kormo"] == made_of["f2llmv2"]
    assert made_of["llama-bpe"] == made_of["llama3"]
    assert made_of["llama-bpe"] != made_of["smaug-bpe"] != made_of["qwen2"]


@pytest.mark.parametrize(
    ("pre", "text", "parts"),
    [
        ("gpt-4o", "HTTPServer'll getÀÉ ÀÉgo éÀ e\u0301\u0301A", "HTTPServer'll| get|ÀÉ| ÀÉgo| é|À| e\u0301\u0301|A"),
        ("gpt-4o", "क\u093eक 漢字Ab don'T 12345/x //\n", "क\u093eक| 漢字Ab| don'T| |123|45|/x| //\n"),
        ("tekken", "HTTPServer don't 123", "HTTPServer| don|'t| |1|2|3"),
        ("llama-bpe", "x=12345 don'T\n\n y", "x|=|123|45| don|'T|\n\n| y"),
        ("deepseek-v3", "x.abc 12345漢字か!?\n", "x|.abc| |123|45|漢字か|!?\n"),
        ("smollm", "ab12 !", "ab|1|2| !"),
        ("seed-coder", "a!!\n\nb", "a|!!|\n\n|b"),
    ],
)
def test_patterns_cut_text_up(pre: str, text: str, parts: str) -> None:
    """Cases by hand, from what the patterns say; llama.cpp's adapted ones differ in capitals and marks beyond ASCII."""
    split = made(METADATA, pre=pre, add_bos_token=False)._model._backend.pre_tokenizer.pre_tokenize_str(text)
    raw = text.encode()
    lengths = [len(shown) for shown, _ in split]  # a character of the byte alphabet for every byte
    places = np.cumsum([0, *lengths]).tolist()
    assert "|".join(raw[a:b].decode() for a, b in pairwise(places)) == parts
