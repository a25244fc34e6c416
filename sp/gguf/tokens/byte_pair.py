"""Byte-level BPE: text to tokens by the merges of a vocabulary.

As in llama.cpp there is no NFC step, so the bytes of the text never change."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import numpy as np
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from sp.arrays import Bools, Ints
from sp.gguf.pretokenizers import PRE_TOKENIZERS
from sp.gguf.tokens.text import Fragment, NormalizedText
from sp.gguf.vocabulary import ADDED, Vocabulary

CUT = re.compile("(?<=[A-Za-z0-9]) ")  # pre-tokenizers split before a space that follows a letter or digit
PIECE = 4096  # characters of a part: a millisecond of work


def pieces(text: str, size: int = PIECE) -> list[str]:
    """Split a text into parts of about `size` (at least 1) characters; longer where there is no safe place.

    >>> pieces("one two  three, four", 4)
    ['one two', '  three, four']
    """
    cuts = [0]
    while (match := CUT.search(text, cuts[-1] + size)) is not None:
        cuts.append(match.start())
    cuts.append(len(text))
    return [text[start:end] for start, end in pairwise(cuts)]


class BytePairs:
    """Encodes text without special tokens, and knows the bytes of each token.

    `bytes`, `spelled`: the bytes of each token. `space_prefix`: no space is written in front of a text. `lacking`, bool
    (256,): bytes that have no token of their own; they are dropped. `complete`: True if every byte has a token. Then
    all of a text is spelled, so tokens whose total length equals that of the text spell it.
    """

    space_prefix = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.bytes = self.spelled = token_bytes(vocabulary.tokens, vocabulary.types)
        self._backend, self.lacking = _backend(vocabulary)
        self.complete = not self.lacking.any()

    def normalize(self, fragments: Sequence[Fragment], raw: bytes, *, begins: bool) -> NormalizedText:
        """Return the text unchanged."""
        return NormalizedText([part for part in fragments if isinstance(part, str)], raw)

    def encode(self, texts: Sequence[str]) -> list[Ints]:
        """Return the ids of each text; long texts are split into parts that are encoded in parallel."""
        split = [pieces(text) for text in texts]
        encodings = self._backend.encode_batch_fast(list(chain.from_iterable(split)), add_special_tokens=False)
        # `array` converts a list of integers in half the time that NumPy takes.
        ids = (np.frombuffer(array("I", encoding.ids), np.uint32) for encoding in encodings)
        return [np.concatenate([next(ids) for _ in parts]).astype(np.int64) for parts in split]


def _backend(vocabulary: Vocabulary) -> tuple[Backend, Bools]:
    """Return the tokenizer that does the merges, and the mask of bytes that it drops."""
    pre = PRE_TOKENIZERS[vocabulary.pre]
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    if pre.whole_words:  # words are looked up in `ids`, where a word of the text must not match a special token
        special = {token for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind in ADDED}
        parts = (part for first, second in vocabulary.merges for part in (first, second, first + second))
        for token in special.difference(part for part in parts if part in special):
            del ids[token]
    backend = Backend(models.BPE(vocab=ids, merges=vocabulary.merges, ignore_merges=pre.whole_words))
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in pre.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = [chr(point) for point in byte_alphabet()]
    lacking = np.array([backend.token_to_id(char) is None for char in alphabet])
    steps = [*splits, byte_level]
    if lacking.any():  # no merge joins the text before and after a dropped byte
        dropped = "|".join(re.escape(char) for char, lacks in zip(alphabet, lacking, strict=True) if lacks)
        steps.append(pre_tokenizers.Split(Regex(dropped), behavior="isolated"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return backend, lacking


def byte_alphabet() -> list[int]:
    """Return the code point that represents each of the 256 bytes in a byte-level vocabulary (GPT-2's table).

    >>> chr(byte_alphabet()[ord(" ")]), chr(byte_alphabet()[ord("a")])
    ('Ġ', 'a')
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [byte if byte in printable else next(others) for byte in range(256)]


def token_bytes(tokens: list[str], token_types: list[int]) -> list[bytes]:
    """Return the bytes of every token: byte-level for ordinary ones, plain UTF-8 for special and odd ones."""
    table = dict.fromkeys(range(256), 0xFFFF)  # a character outside the alphabet must fail to encode as Latin-1
    table |= {code: byte for byte, code in enumerate(byte_alphabet())}
    ordinary = [t if kind not in ADDED else "" for t, kind in zip(tokens, token_types, strict=True)]
    try:  # one conversion of the whole vocabulary: a quarter of a million small ones are slow
        joined = "".join(ordinary).translate(table).encode("latin-1")
    except UnicodeEncodeError:
        return [_odd_bytes(t, table, kind) for t, kind in zip(tokens, token_types, strict=True)]
    ends = np.cumsum(np.fromiter(map(len, ordinary), np.int64, len(ordinary))).tolist()
    return [
        joined[end - len(t) : end] if t else token.encode()
        for token, t, end in zip(tokens, ordinary, ends, strict=True)
    ]


def _odd_bytes(token: str, table: Mapping[int, int], kind: int) -> bytes:
    if kind not in ADDED:
        try:
            return token.translate(table).encode("latin-1")
        except UnicodeEncodeError:
            pass
    return token.encode()
