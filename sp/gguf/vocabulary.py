"""The vocabulary a file carries, checked key by key, and the bytes each of its tokens stands for.

Keys are llama.cpp's (``tokenizer.ggml.*``). Pre-tokenizer patterns are those of the Qwen2 and Qwen3.5 tokenizers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.errors import GGUFError
from sp.gguf.value_types import Value

PATTERNS: Mapping[str, str] = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""Pre-tokenizer regex by the name in ``tokenizer.ggml.pre``."""

CONTROL, USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type
ADDED = (CONTROL, USER_DEFINED)
MAX_VOCAB = 1 << 20
MAX_ADDED_BYTES = 1 << 20  # text of all special tokens; bounds the automaton that finds them


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE vocabulary.

    Attributes
    ----------
    tokens : list of str
        In the byte alphabet, except special ones, which are plain text.
    types : list of int
        Of each token, as in ``tokenizer.ggml.token_type``.
    merges : list of (str, str)
        Best first.
    pre : str
        Which of `PATTERNS` cuts the text up.
    ids : mapping of str to int
        Special ids by name: eos, eot, eom, bos, padding; those the file has.
    """

    tokens: list[str]
    types: list[int]
    merges: list[tuple[str, str]]
    pre: str
    ids: Mapping[str, int]

    @property
    def sha256(self) -> str:
        """Digest of all that decides how text is cut: equal digests tokenize alike."""
        merges = (f"{left} {right}" for left, right in self.merges)
        digest = hashlib.sha256()
        for part in (self.pre, *self.tokens, *map(str, self.types), *merges):
            raw = part.encode()
            digest.update(len(raw).to_bytes(8, "little") + raw)
        return digest.hexdigest()


def read_vocabulary(metadata: Mapping[str, Value], source: str) -> Vocabulary:
    """Check and collect the tokenizer keys of untrusted `metadata`; GGUFError, naming `source`, when amiss."""
    checker = _Checker(metadata, source)
    pre = checker.pattern_name()  # tell of a foreign tokenizer before finding fault with its tokens
    tokens = checker.tokens()
    types = checker.token_types(tokens)
    return Vocabulary(tokens, types, checker.merges(tokens), pre, checker.token_ids(len(tokens)))


def byte_alphabet() -> list[int]:
    """Code point that stands for each of the 256 bytes in a byte-level vocabulary (GPT-2's table).

    >>> chr(byte_alphabet()[ord(" ")]), chr(byte_alphabet()[ord("a")])
    ('Ġ', 'a')
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [byte if byte in printable else next(others) for byte in range(256)]


def token_bytes(tokens: list[str], token_types: list[int]) -> list[bytes]:
    """Bytes of every token: byte-level for ordinary ones, plain UTF-8 for special and odd ones."""
    table = dict.fromkeys(range(256), 0xFFFF)  # what is outside the alphabet must fail to encode
    table |= {code: byte for byte, code in enumerate(byte_alphabet())}
    ordinary = [t if kind not in ADDED else "" for t, kind in zip(tokens, token_types, strict=True)]
    try:  # one pass over the whole vocabulary: a quarter of a million small ones are slow
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


class _Checker:
    """Reads the tokenizer keys of untrusted metadata."""

    def __init__(self, metadata: Mapping[str, Value], source: str) -> None:
        self._metadata, self._source = metadata, source

    def _fail(self, problem: str, advice: str = "convert the model again with a current tool") -> GGUFError:
        return GGUFError(f"{self._source}: {problem}; {advice}")

    def _get(self, name: str, kind: type, expected: str) -> Any:
        key = f"tokenizer.ggml.{name}"
        value = self._metadata.get(key)
        if value is None:
            raise self._fail(f"key {key!r} is missing, so there is no tokenizer")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self._fail(f"key {key!r} is not {expected}")
        return value

    def pattern_name(self) -> str:
        """Which pre-tokenizer, after a look at the tokenizer's model."""
        model = self._get("model", str, "a string")
        if model != "gpt2":
            raise self._fail(f"tokenizer model {model[:40]!r} is not supported", "use a model with byte-level BPE")
        pre: str = self._get("pre", str, "a string")
        if pre not in PATTERNS:
            known = ", ".join(PATTERNS)
            raise self._fail(f"pre-tokenizer {pre[:40]!r} is not supported", f"use a model with one of: {known}")
        return pre

    def tokens(self) -> list[str]:
        tokens = self._strings("tokens")
        if not 1 <= len(tokens) <= MAX_VOCAB:
            raise self._fail(f"the vocabulary has {len(tokens)} tokens, not 1 to {MAX_VOCAB}")
        if len(set(tokens)) != len(tokens):
            seen: set[str] = set()
            twice = next(token for token in tokens if token in seen or seen.add(token))  # type: ignore[func-returns-value]
            raise self._fail(f"token {twice[:40]!r} is in the vocabulary twice")
        return tokens

    def token_types(self, tokens: list[str]) -> list[int]:
        """Type of each token; all normal when the file does not say."""
        count = len(tokens)
        if "tokenizer.ggml.token_type" not in self._metadata:
            return [1] * count
        value = np.asarray(self._metadata["tokenizer.ggml.token_type"])
        if value.ndim != 1 or value.dtype.kind not in "iu" or len(value) != count:
            raise self._fail(f"key 'tokenizer.ggml.token_type' is not {count} integers")
        types: list[int] = value.tolist()
        added = sum(len(t) for t, kind in zip(tokens, types, strict=True) if kind in ADDED)
        if added > MAX_ADDED_BYTES:
            raise self._fail(f"special tokens take {added} characters, more than {MAX_ADDED_BYTES}")
        return types

    def merges(self, tokens: list[str]) -> list[tuple[str, str]]:
        known = set(tokens)
        merges = []
        for index, merge in enumerate(self._strings("merges")):
            at = merge.find(" ", 1)
            left, right = merge[:at], merge[at + 1 :]
            if at < 0 or left not in known or right not in known or left + right not in known:
                raise self._fail(f"merge {index}, {merge[:40]!r}, does not join two tokens into a third")
            merges.append((left, right))
        return merges

    def token_ids(self, count: int) -> dict[str, int]:
        """The special token ids the file names, e.g. ``{"eos": 151645}``."""
        ids: dict[str, int] = {}
        for name in ("eos", "eot", "eom", "bos", "padding"):
            if f"tokenizer.ggml.{name}_token_id" in self._metadata:
                ids[name] = self._get(f"{name}_token_id", int, "an integer")
                if not 0 <= ids[name] < count:
                    raise self._fail(f"{name}_token_id {ids[name]} is outside the vocabulary of {count}")
        return ids

    def _strings(self, name: str) -> list[str]:
        value: list[Any] = self._get(name, list, "an array of strings")
        if not all(isinstance(item, str) for item in value):
            raise self._fail(f"key 'tokenizer.ggml.{name}' is not an array of strings")
        return value
