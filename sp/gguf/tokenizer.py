"""Byte-level BPE from a file's own vocabulary, with the exact byte span of every token.

The drafter and the target have different vocabularies, so what one keeps is told to the other in bytes of the
text. Spans come from the bytes each token stands for, never from character offsets, which are ambiguous when a
character is split over several tokens.

Pre-tokenizer patterns are those of the Qwen2 and Qwen3.5 tokenizers. As in llama.cpp there is no NFC step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from sp.arrays import Ints
from sp.errors import GGUFError, PromptError
from sp.gguf.keys import Value
from sp.gguf.reader import GGUFFile

PATTERNS: Mapping[str, str] = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""Pre-tokenizer regex by the name in ``tokenizer.ggml.pre``."""

CONTROL, USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type
MAX_VOCAB = 1 << 20
MAX_ADDED_BYTES = 1 << 20  # text of all special tokens; bounds the automaton that finds them
# Tokens that end a turn or a document whatever eos_token_id says; llama.cpp's end-of-generation set.
END_NAMES = frozenset(
    {
        *("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>"),
        *("<end_of_turn>", "<EOT>", "_<EOT>", "</s>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    }
)


@dataclass(frozen=True)
class Encoding:
    """Tokens of a text.

    Attributes
    ----------
    ids : int64 array (n,)
    spans : int64 array (n, 2)
        Bytes ``[start, end)`` of ``text.encode("utf-8")`` each token stands for; they tile the text.
    """

    ids: Ints
    spans: Ints

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """Text to token ids and back.

    Attributes
    ----------
    vocab_size : int
    special_ids : frozenset of int
        Control tokens, e.g. ``<|im_start|>``.
    eos_ids : frozenset of int
        Tokens that end the generation.
    eos_id, bos_id, pad_id : int or None
        As the file names them. `encode` never adds any; Qwen models want no BOS.

    Examples
    --------
    >>> alphabet = [chr(c) for c in byte_alphabet()]
    >>> tokenizer = Tokenizer.from_metadata({
    ...     "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2",
    ...     "tokenizer.ggml.tokens": [*alphabet, "hi", "<|im_end|>"],
    ...     "tokenizer.ggml.token_type": [1] * 257 + [3],
    ...     "tokenizer.ggml.merges": ["h i"], "tokenizer.ggml.eos_token_id": 257})
    >>> encoding = tokenizer.encode("hi é<|im_end|>")
    >>> encoding.ids.tolist(), encoding.spans.tolist()
    ([256, 32, 195, 169, 257], [[0, 2], [2, 3], [3, 4], [4, 5], [5, 15]])
    >>> tokenizer.decode(encoding.ids)
    'hi é<|im_end|>'
    """

    def __init__(
        self,
        tokens: list[str],
        token_types: list[int],
        merges: list[tuple[str, str]],
        pre: str,
        ids: Mapping[str, int],
    ) -> None:
        self.vocab_size = len(tokens)
        self.pre = pre
        self.eos_id, self.bos_id, self.pad_id = (ids.get(name) for name in ("eos", "bos", "padding"))
        self.special_ids = frozenset(i for i, kind in enumerate(token_types) if kind == CONTROL)
        named_ends = {i for i, kind in enumerate(token_types) if kind in (3, 4) and tokens[i] in END_NAMES}
        self.eos_ids = frozenset(named_ends | {ids[name] for name in ("eos", "eot", "eom") if name in ids})
        self._tokens, self._types, self._merges = tokens, token_types, merges
        self._bytes = _token_bytes(tokens, token_types)
        self._lengths = np.fromiter(map(len, self._bytes), np.int64, len(tokens))
        self._backend = _backend(tokens, token_types, merges, pre)

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Tokenizer:
        """The tokenizer a model file carries; GGUFError when it has none or one `sp` does not know."""
        return cls.from_metadata(file.metadata, str(file.path))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Value], source: str = "metadata") -> Tokenizer:
        """Build from ``tokenizer.ggml.*`` keys; `source` names the file in errors.

        Raises
        ------
        GGUFError
            On a missing or malformed key, an unknown tokenizer model or pre-tokenizer.
        """
        checked = _Checked(metadata, source)
        tokens = checked.tokens()
        return cls(
            tokens,
            checked.token_types(len(tokens)),
            checked.merges(tokens),
            checked.pattern_name(),
            checked.token_ids(len(tokens)),
        )

    @cached_property
    def sha256(self) -> str:
        """Digest of vocabulary, token types, merges and pre-tokenizer: equal digests tokenize alike."""
        parts = (self.pre, *self._tokens, *map(str, self._types), *(f"{a} {b}" for a, b in self._merges))
        digest = hashlib.sha256()
        for part in parts:
            raw = part.encode()
            digest.update(len(raw).to_bytes(8, "little") + raw)
        return digest.hexdigest()

    def encode(self, text: str) -> Encoding:
        """Tokens of `text`, special tokens recognised, none added.

        Raises
        ------
        PromptError
            When `text` holds a lone surrogate, which no UTF-8 can spell.
        GGUFError
            When the vocabulary lacks a byte of `text`.
        """
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"character {error.start} of the text is a lone surrogate; read the text as UTF-8"
            ) from None
        ids = self._backend.encode(text, add_special_tokens=False).ids
        spelled = b"".join([self._bytes[i] for i in ids])
        if spelled != raw:
            at = next((i for i, (a, b) in enumerate(zip(spelled, raw, strict=False)) if a != b), len(spelled))
            raise GGUFError(f"the vocabulary cannot spell byte {raw[at]:#04x}, at byte {at} of the text")
        index = np.array(ids, dtype=np.int64)
        ends = np.cumsum(self._lengths[index])
        return Encoding(index, np.stack([ends - self._lengths[index], ends], axis=1))

    def decode(self, ids: Iterable[int] | Ints, *, skip_special: bool = False) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Raises
        ------
        PromptError
            When an id lies outside the vocabulary.
        """
        kept = [i for i in map(int, ids) if not (skip_special and i in self.special_ids)]
        return b"".join([self.token_bytes(i) for i in kept]).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes, perhaps part of a character, that `token` stands for."""
        if not 0 <= token < self.vocab_size:
            raise PromptError(f"token id {token} is outside the vocabulary of {self.vocab_size}")
        return self._bytes[token]

    def token_text(self, token: int) -> str:
        """`token_bytes` as text, with U+FFFD for parts of characters."""
        return self.token_bytes(token).decode(errors="replace")


def byte_alphabet() -> list[int]:
    """Code point that stands for each of the 256 bytes in a byte-level vocabulary (GPT-2's table).

    >>> chr(byte_alphabet()[ord(" ")]), chr(byte_alphabet()[ord("a")])
    ('Ġ', 'a')
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [byte if byte in printable else next(others) for byte in range(256)]


def _token_bytes(tokens: list[str], token_types: list[int]) -> list[bytes]:
    """Bytes of every token: byte-level for ordinary ones, plain UTF-8 for special and odd ones."""
    table = dict.fromkeys(range(256), 0xFFFF)  # what is outside the alphabet must fail to encode
    table |= {code: byte for byte, code in enumerate(byte_alphabet())}
    ordinary = [t if kind not in (CONTROL, USER_DEFINED) else "" for t, kind in zip(tokens, token_types, strict=True)]
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
    if kind not in (CONTROL, USER_DEFINED):
        try:
            return token.translate(table).encode("latin-1")
        except UnicodeEncodeError:
            pass
    return token.encode()


def _backend(tokens: list[str], token_types: list[int], merges: list[tuple[str, str]], pre: str) -> Backend:
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERNS[pre]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    for kind, add in ((CONTROL, backend.add_special_tokens), (USER_DEFINED, backend.add_tokens)):
        special = kind == CONTROL
        add(
            [
                AddedToken(token, normalized=False, special=special)
                for token, token_type in zip(tokens, token_types, strict=True)
                if token_type == kind and token
            ]
        )
    return backend


class _Checked:
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
        self.pattern_name()  # tell of a foreign tokenizer before finding fault with its tokens
        tokens = self._strings("tokens")
        if not 1 <= len(tokens) <= MAX_VOCAB:
            raise self._fail(f"the vocabulary has {len(tokens)} tokens, not 1 to {MAX_VOCAB}")
        if len(set(tokens)) != len(tokens):
            seen: set[str] = set()
            twice = next(token for token in tokens if token in seen or seen.add(token))  # type: ignore[func-returns-value]
            raise self._fail(f"token {twice[:40]!r} is in the vocabulary twice")
        return tokens

    def token_types(self, count: int) -> list[int]:
        """Type of each token; all normal when the file does not say."""
        if "tokenizer.ggml.token_type" not in self._metadata:
            return [1] * count
        value = np.asarray(self._metadata["tokenizer.ggml.token_type"])
        if value.ndim != 1 or value.dtype.kind not in "iu" or len(value) != count:
            raise self._fail(f"key 'tokenizer.ggml.token_type' is not {count} integers")
        types: list[int] = value.tolist()
        added = sum(len(t) for t, kind in zip(self._strings("tokens"), types, strict=True) if kind in (3, 4))
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
