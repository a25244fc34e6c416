"""SentencePiece vocabularies against a slow reference: tokens, spans, the space in front, bytes."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import numpy as np
import pytest
import sentencepiece_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_bpe import check_spans

from sp.errors import GGUFError
from sp.gguf import Tokenizer
from sp.gguf.tokens import sentencepiece
from sp.models.synthetic.synthetic_vocab import tokenizer_metadata

KEY = "tokenizer.ggml."
MUCH = 250_000  # bytes: what grows faster than its text takes minutes
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>", "<tool>", "<tool>s"]
TYPES = [2, 3, 3, 4, 4]
SYNTHETIC = tokenizer_metadata("llama", 1500, 1500)


def vocabulary(pieces: list[str], scores: list[float], **flags: Any) -> dict[str, Any]:
    """Keys of a vocabulary of special tokens, all bytes and these pieces."""
    tokens = [*SPECIAL, *BYTES, *pieces]
    return {
        f"{KEY}model": "llama",
        f"{KEY}tokens": tokens,
        f"{KEY}token_type": np.array(TYPES + [6] * 256 + [1] * len(pieces), np.int32),
        f"{KEY}scores": np.array([0.0] * (len(tokens) - len(pieces)) + scores, np.float32),
        **{f"{KEY}{name}": value for name, value in flags.items()},
    }


def expected(metadata: dict[str, Any], text: str, *, prefix: bool = True) -> list[int]:
    """Ids by the reference."""
    tokens, scores, types = (metadata[KEY + name] for name in ("tokens", "scores", "token_type"))
    return reference.encode(text, tokens, list(scores), list(types), prefix=prefix)


letters = st.text(st.sampled_from("ab\u2581é狐"), min_size=1, max_size=5)
texts = st.lists(
    st.sampled_from(["a", "b", "ab", " ", "  ", "é", "狐", "c", "🦙", "\n", "\0", *SPECIAL, "<0x41>", "<to"]),
    max_size=25,
).map("".join)


@st.composite
def vocabularies(draw: st.DrawFn) -> dict[str, Any]:
    """Few letters and scores, so that merges compete, tie and overlap; some pieces can be reached by no merge."""
    pieces = draw(st.lists(letters, unique=True, max_size=25))
    scores = draw(st.lists(st.sampled_from([0.0, -1.0, -2.0, 1.5]), min_size=len(pieces), max_size=len(pieces)))
    return vocabulary(
        ["\u2581", *(p for p in pieces if p != "\u2581")], [-9.0, *scores][: 1 + len(set(pieces) - {"\u2581"})]
    )


@settings(max_examples=200, deadline=None)
@given(metadata=vocabularies(), text=texts, prefix=st.booleans())
def test_ids_equal_the_reference(metadata: dict[str, Any], text: str, prefix: bool) -> None:
    tokenizer = Tokenizer.from_metadata({**metadata, f"{KEY}add_space_prefix": prefix})
    assert tokenizer.encode(text).ids.tolist() == expected(metadata, text, prefix=prefix)
    check_spans(tokenizer, text)


def test_white_space_that_a_vocabulary_lists_is_no_markup() -> None:
    """Gemma lists line ends, tabs and runs of spaces as user-defined: they are tokens in what strangers wrote, too,
    where other such tokens are only text."""
    made = vocabulary(["\u2581", "a"], [-1.0, -2.0])
    listed = ["\n", "\n\n", "\t", "\u2581\u2581", "  "]
    made[f"{KEY}tokens"] += listed
    made[f"{KEY}token_type"] = np.concatenate([made[f"{KEY}token_type"], np.full(len(listed), 4, np.int32)])
    made[f"{KEY}scores"] = np.concatenate([made[f"{KEY}scores"], np.zeros(len(listed), np.float32)])
    tokenizer, text = Tokenizer.from_metadata(made), "a\n\n\n\ta  a\na"
    ids = {token: made[f"{KEY}tokens"].index(token) for token in listed}
    whole = tokenizer.encode(text)
    assert {ids["\n\n"], ids["\n"], ids["\t"], ids["  "]} <= set(whole.ids.tolist())
    for plain in ([(0, len(text))], [(0, 3)], [(2, 5), (5, 9)]):
        np.testing.assert_array_equal(tokenizer.encode(text, plain).ids, whole.ids)
    marked = "a<tool>\n\na"
    tool = SPECIAL.index("<tool>")
    assert tool in tokenizer.encode(marked).ids
    actual = tokenizer.encode(marked, [(0, len(marked))]).ids
    assert tool not in actual
    assert ids["\n\n"] in actual


@cache
def synthetic() -> Tokenizer:
    return Tokenizer.from_metadata(SYNTHETIC)


words = st.sampled_from(["the", "quiet", "harbour", "aaa", "zz", " ", "  ", "\n", ",", "é", "狐", "</s>", "🦙", "A"])


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(st.lists(words, max_size=30).map("".join), st.text(max_size=40)))
def test_a_synthetic_vocabulary_gives_every_text_back(text: str) -> None:
    tokenizer = synthetic()
    text = text.replace("\u2581", "")  # which comes back as a space
    assert tokenizer.encode(text).ids.tolist() == expected(SYNTHETIC, text)
    check_spans(tokenizer, text)


def test_a_clash_of_hashes_leaves_a_place_uncut_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "the quiet harbour, 12 boats;\n and 狐" * 3
    whole = Tokenizer.from_metadata(SYNTHETIC).encode(text).ids.tolist()
    monkeypatch.setattr(sentencepiece, "_pairs", lambda text: np.zeros(max(0, len(text) - 1), np.int64))
    assert Tokenizer.from_metadata(SYNTHETIC).encode(text).ids.tolist() == whole


def test_remembered_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentencepiece, "REMEMBERED", 3)
    tokenizer = Tokenizer.from_metadata(SYNTHETIC)
    text = "one two three four five six one"
    assert tokenizer.encode(text).ids.tolist() == expected(SYNTHETIC, text)
    assert len(tokenizer._model._cache) <= 3


def test_spans_of_the_space_in_front_and_of_a_written_one() -> None:
    tokenizer = Tokenizer.from_metadata(vocabulary(["\u2581", "a", "\u2581a"], [-3.0, -2.0, -1.0]))
    a, blank = 5 + 256 + 2, 5 + 256
    assert tokenizer.encode("a a").ids.tolist() == [a, a]
    assert tokenizer.encode("a a").spans.tolist() == [[0, 1], [1, 3]]
    assert tokenizer.encode(" a").ids.tolist() == [blank, a]
    assert tokenizer.encode(" a").spans.tolist() == [[0, 0], [0, 2]]
    assert tokenizer.encode("é</s>\n").spans.tolist() == [[0, 0], [0, 1], [1, 2], [2, 6], [6, 6], [6, 7]]
    assert tokenizer.encode("a", begins=False).ids.tolist() == [blank + 1]


def test_special_tokens_are_only_text_in_plain_parts_even_if_merges_lead_there() -> None:
    metadata = vocabulary(["<", "/", "s", ">", "</", "s>", "\u2581"], [-1.0] * 7)
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("</s>").ids.tolist() == [2]
    ids = tokenizer.encode("</s>", [(0, 4)]).ids.tolist()
    assert [tokenizer.token_text(i) for i in ids] == [" ", "</", "s>"]
    assert tokenizer.encode("<0x41>").ids.tolist()[-1] != 5 + 0x41


def test_decoding_piece_by_piece() -> None:
    tokenizer = Tokenizer.from_metadata(SYNTHETIC)
    ids = tokenizer.encode("é the</s> the").ids.tolist()
    decoder = tokenizer.decoder()
    parts = [decoder.push(i) for i in ids]
    assert b"".join(parts).decode() == "é the</s> the"
    assert parts[:3] == [b"", b"\xc3", b"\xa9"]
    goes_on = tokenizer.decoder(begins=False)
    assert b"".join(map(goes_on.push, tokenizer.encode("the").ids.tolist())) == b" the"
    assert tokenizer.decode(tokenizer.encode("a</s>b").ids, skip_special=True) == "ab"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("scores", None, "'tokenizer.ggml.scores' is not 262 numbers"),
        ("scores", np.zeros(3, np.float32), "is not 262 numbers"),
        ("scores", ["0"] * 262, "is not 262 numbers"),
        ("scores", np.full(262, np.nan, np.float32), "not finite"),
        ("token_type", None, "'tokenizer.ggml.token_type' is not 262 integers"),
        ("add_space_prefix", 1, "'tokenizer.ggml.add_space_prefix' is not true or false"),
        ("add_bos_token", "yes", "'tokenizer.ggml.add_bos_token' is not true or false"),
        ("bos_token_id", 262, "bos_token_id 262 is outside"),
        ("tokens", [*SPECIAL, *BYTES, "a" * 1025], "token 261 has 1025 characters, more than 1024"),
    ],
)
def test_malformed_metadata(name: str, value: Any, message: str) -> None:
    metadata = {**vocabulary(["a"], [0.0]), KEY + name: value}
    if value is None:
        del metadata[KEY + name]
    with pytest.raises(GGUFError, match=message) as caught:
        Tokenizer.from_metadata(metadata, "m.gguf")
    assert str(caught.value).startswith("m.gguf: ")


def test_digests_tell_scores_and_flags_apart() -> None:
    metadata = vocabulary(["a", "b"], [0.0, -1.0])
    others = [
        vocabulary(["a", "b"], [-1.0, 0.0]),
        metadata | {f"{KEY}add_space_prefix": False},
        metadata | {f"{KEY}add_bos_token": False},
        metadata | {f"{KEY}add_eos_token": True},
    ]
    assert len({Tokenizer.from_metadata(each).sha256 for each in (metadata, *others)}) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "hostile"),
    [("the needle isn't hidden. ", False), ("🦙", False), ("a", True), (" ", True), ("狐", True), ("qx7", True)],
)
def test_much_text_takes_seconds(text: str, hostile: bool) -> None:
    """Also where every run of a letter or of spaces is a token, the longer the better."""
    metadata = SYNTHETIC
    if hostile:
        runs = [letter * size for letter in ("a", "\u2581", "狐") for size in range(1, 1025)]
        metadata = vocabulary(runs, [float(len(run)) for run in runs])
    tokenizer = Tokenizer.from_metadata(metadata)
    long = text * (MUCH // len(text.encode()))
    start = time.process_time()
    encoding = tokenizer.encode(long)
    assert time.process_time() - start < 8  # 0.05 to 2 s measured; generous for a busy machine
    assert encoding.spans[-1, 1] == len(long.encode())
