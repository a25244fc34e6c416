"""Pieces that are merged in the order of a list, as Gemma 4's vocabulary has them: against tokenizers, and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_bpe import check_spans
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from sp.errors import GGUFError
from sp.gguf import Tokenizer
from sp.models.synthetic.synthetic_vocab import tokenizer_metadata

KEY = "tokenizer.ggml."
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<pad>", "<eos>", "<bos>", "<|turn>"]
LETTERS = ["a", "b", "é", "\u2581", "\n"]


def vocabulary(merges: list[tuple[str, str]], *more: str) -> dict[str, Any]:
    """Keys of a vocabulary of special tokens, all bytes, a few letters, and what merges make of them."""
    made = dict.fromkeys([*LETTERS, *(left + right for left, right in merges), *more])
    keys = {
        "model": "gemma4",
        "tokens": [*SPECIAL, *BYTES, *made],
        "token_type": np.array([3] * len(SPECIAL) + [6] * 256 + [1] * len(made), np.int32),
        "merges": [f"{left} {right}" for left, right in merges],
        "bos_token_id": 2,
        "eos_token_id": 1,
    }
    return {KEY + name: value for name, value in keys.items()}


@st.composite
def merge_lists(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Merges of what is there, in any order, so that they compete and overlap."""
    known, merges = ["a", "b", "é", "\u2581"], list[tuple[str, str]]()
    for _ in range(draw(st.integers(0, 14))):
        pair = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        if pair not in merges and len("".join(pair)) < 9:
            merges.append(pair)
            known.append("".join(pair))
    return merges


texts = st.lists(st.sampled_from(["a", "b", "ab", " ", "  ", "é", "c", "🦙", "\n", "\n\n", "<0x41>"]), max_size=25).map(
    "".join
)


@settings(max_examples=200, deadline=None)
@given(merges=merge_lists(), text=texts)
def test_ids_are_those_of_tokenizers(merges: list[tuple[str, str]], text: str) -> None:
    metadata = vocabulary(merges)
    tokens = metadata[f"{KEY}tokens"]
    backend = Backend(models.BPE({t: i for i, t in enumerate(tokens)}, merges, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), "isolated")
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode(text).ids.tolist() == backend.encode(text.replace(" ", "\u2581")).ids
    check_spans(tokenizer, text)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_order_of_the_list_decides_and_only_its_pairs_are_merged() -> None:
    tokenizer = Tokenizer.from_metadata(vocabulary([("b", "a"), ("a", "b"), ("a", "ba")], "abab"))
    shown = [tokenizer.token_text(token) for token in tokenizer.encode("ababb").ids.tolist()]
    assert shown == ["aba", "b", "b"]


def test_a_run_of_line_ends_is_one_token_where_there_is_one_and_apart_from_all_else() -> None:
    tokenizer = Tokenizer.from_metadata(vocabulary([("\n", "\n"), ("a", "\n")], "\n\n\n"))
    shown = [tokenizer.token_text(token) for token in tokenizer.encode("a\nb\n\n\na\n\n\n\n\n").ids.tolist()]
    assert shown == ["a", "\n", "b", "\n\n\n", "a", "\n\n", "\n\n", "\n"]


def test_no_space_is_written_in_front_and_bos_begins_prompts() -> None:
    tokenizer = Tokenizer.from_metadata(vocabulary([("\u2581", "a")]))
    assert tokenizer.encode("<|turn>a a", framed=True).ids.tolist() == [2, 3, 260, 265]
    assert tokenizer.eos_ids == {1}


def test_a_synthetic_vocabulary_cuts_text_as_that_of_scores() -> None:
    listed, scored = (Tokenizer.from_metadata(tokenizer_metadata(model, 1500, 1500)) for model in ("gemma4", "llama"))
    text = "the quiet harbour, 8301947 naïve 猫 aaaa"
    assert listed.encode(" " + text).ids.tolist() == scored.encode(text).ids.tolist()
    assert not listed.same_as(scored)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"merges": None}, "'tokenizer.ggml.merges' is missing"),
        ({"merges": ["a c"]}, "merge 0, 'a c', does not join two tokens"),
        ({"token_type": None}, "'tokenizer.ggml.token_type' is not"),
        ({"bos_token_id": None}, "prompts need a bos token"),
    ],
)
def test_the_error_names_the_problem(changes: dict[str, Any], problem: str) -> None:
    metadata = vocabulary([("a", "b")]) | {KEY + name: value for name, value in changes.items()}
    held = {key: value for key, value in metadata.items() if value is not None}
    with pytest.raises(GGUFError, match=problem):
        Tokenizer.from_metadata(held)


def test_pieces_too_long_to_merge_are_refused() -> None:
    with pytest.raises(GGUFError, match="has 1025 characters, more than 1024"):
        Tokenizer.from_metadata(vocabulary([], "a" * 1025))
