"""Byte-level BPE from a file's own vocabulary, with the exact byte span of every token.

The drafter and the target have different vocabularies, so what one keeps is told to the other in bytes of the
text. Spans come from the bytes each token stands for, never from character offsets, which are ambiguous when a
character is split over several tokens.
As in llama.cpp there is no NFC step, so the bytes of the text are never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from tokenizers import AddedToken, Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from sp.arrays import Ints
from sp.errors import GGUFError, PromptError
from sp.gguf.pieces import may_cut, pieces
from sp.gguf.reader import GGUFFile
from sp.gguf.value_types import Value
from sp.gguf.vocabulary import ADDED, CONTROL, PATTERNS, USER_DEFINED, Vocabulary, read_vocabulary, token_bytes

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
    >>> from sp.gguf.vocabulary import byte_alphabet
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

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens, types, ids = vocabulary.tokens, vocabulary.types, vocabulary.ids
        self.vocab_size = len(tokens)
        self.eos_id, self.bos_id, self.pad_id = (ids.get(name) for name in ("eos", "bos", "padding"))
        self.special_ids = frozenset(i for i, kind in enumerate(types) if kind == CONTROL)
        named_ends = {i for i, kind in enumerate(types) if kind in ADDED and tokens[i] in END_NAMES}
        self.eos_ids = frozenset(named_ends | {ids[name] for name in ("eos", "eot", "eom") if name in ids})
        self._vocabulary = vocabulary
        self._bytes = token_bytes(tokens, types)
        self._lengths = np.fromiter(map(len, self._bytes), np.int64, len(tokens))
        self._ends = np.cumsum(self._lengths)
        self._spelled = np.frombuffer(b"".join(self._bytes), np.uint8)
        self._may_cut = may_cut(vocabulary.pre, [t for t, kind in zip(tokens, types, strict=True) if kind in ADDED])
        self._added = frozenset(i for i, kind in enumerate(types) if kind in ADDED)
        self._backend = _add_special(_backend(vocabulary), vocabulary)

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
        return cls(read_vocabulary(metadata, source))

    @cached_property
    def sha256(self) -> str:
        """Digest of vocabulary, token types, merges and pre-tokenizer: equal digests tokenize alike."""
        return self._vocabulary.sha256

    def same_as(self, other: Tokenizer) -> bool:
        """Whether both give every text the same tokens."""
        return self is other or (self.vocab_size == other.vocab_size and self.sha256 == other.sha256)

    @cached_property
    def _plain_backend(self) -> Backend:
        """Knows no special tokens; made when first needed."""
        return _backend(self._vocabulary)

    def encode(self, text: str, plain: Sequence[tuple[int, int]] = ()) -> Encoding:
        """Tokens of `text`, special tokens recognised outside the `plain` parts, none added.

        Parameters
        ----------
        text : str
        plain : sequence of (int, int)
            Byte ranges, ascending and disjoint, cut between characters, in which the spelling of a special
            token is only text: what strangers wrote must not end a turn. Other tokens come out as without
            them, also across their ends.

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
        index = self._mixed(raw, plain) if plain else self._ids(self._backend, text)
        lengths = self._lengths[index]
        ends = np.cumsum(lengths)
        self._check_spelling(raw, index, lengths, ends)
        return Encoding(index, np.stack([ends - lengths, ends], axis=1))

    def _ids(self, backend: Backend, text: str) -> Ints:
        """Ids of a text in a backend, long texts in parts side by side."""
        parts = pieces(text) if self._may_cut else [text]
        found = [encoding.ids for encoding in backend.encode_batch_fast(parts, add_special_tokens=False)]
        return np.fromiter(chain.from_iterable(found), np.int64, sum(map(len, found)))

    def _check_spelling(self, raw: bytes, index: Ints, lengths: Ints, ends: Ints) -> None:
        """GGUFError unless the bytes of the tokens, end to end, are the text."""
        total = int(ends[-1]) if len(ends) else 0
        spelled = self._spelled[np.arange(total) + np.repeat(self._ends[index] - ends, lengths)]
        text = np.frombuffer(raw, np.uint8)
        if not np.array_equal(spelled, text):
            same = spelled[: len(text)] == text[:total]
            at = int(same.argmin()) if not same.all() else len(same)
            raise GGUFError(f"the vocabulary cannot spell byte {raw[at]:#04x}, at byte {at} of the text")

    def _mixed(self, raw: bytes, plain: Sequence[tuple[int, int]]) -> Ints:
        """Ids of `raw`, cut at the special tokens that lie wholly between plain parts."""
        parts: list[Ints] = []
        begin = 0  # of the text since the last special token
        gaps = zip([0, *(end for _, end in plain)], [*(start for start, _ in plain), len(raw)], strict=True)
        for at, end in gaps:
            for token in self._ids(self._backend, raw[at:end].decode()).tolist():
                if token in self._added:
                    parts += [self._ids(self._plain_backend, raw[begin:at].decode()), np.array([token])]
                    begin = at + len(self._bytes[token])
                at += len(self._bytes[token])
        return np.concatenate([*parts, self._ids(self._plain_backend, raw[begin:].decode())])

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


def _backend(vocabulary: Vocabulary) -> Backend:
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    backend = Backend(models.BPE(vocab=ids, merges=vocabulary.merges))
    split = pre_tokenizers.Split(Regex(PATTERNS[vocabulary.pre]), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    return backend


def _add_special(backend: Backend, vocabulary: Vocabulary) -> Backend:
    """The same backend, recognising special tokens."""
    for kind, add in ((CONTROL, backend.add_special_tokens), (USER_DEFINED, backend.add_tokens)):
        texts = (t for t, token_kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if token_kind == kind)
        add([AddedToken(text, normalized=False, special=kind == CONTROL) for text in texts if text])
    return backend
