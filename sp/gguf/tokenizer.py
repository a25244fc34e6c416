"""Encode text with a file's own vocabulary and decode tokens, with the exact byte span of every token.

The drafter and the target have different vocabularies, so the selection of one is passed to the other in bytes of the
text. Spans come from the bytes that each token stands for, never from character offsets, which are ambiguous if a
character is split over several tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

from sp.arrays import Bools, Bytes, Ints
from sp.errors import GGUFError, PromptError
from sp.gguf.header import Value
from sp.gguf.reader import GGUFFile
from sp.gguf.tokens.byte_pair import BytePairs
from sp.gguf.tokens.sentencepiece import SentencePieces
from sp.gguf.tokens.text import Fragment, NormalizedText, end_ids
from sp.gguf.vocabulary import (
    ADDED,
    CONTROL,
    MERGED_PIECES,
    SENTENCEPIECE,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    read_vocabulary,
)


def spelled_places(text: Bytes, spelled: Bytes, lacking: Bools) -> Ints | None:
    """Return the position in `text` (n,) of each byte that its tokens spell (m,), ascending; None if they differ.

    Only bytes without a token of their own (`lacking`, bool (256,)) may be missing from `spelled`; they may also be
    present, as part of a longer token.

    >>> lacking = np.arange(256) < 32
    >>> spelled_places(*(np.frombuffer(raw, np.uint8) for raw in (b"a\\x04b\\x05", b"ab")), lacking)
    array([0, 2])
    """
    places = np.flatnonzero(~lacking[text])
    if len(places) == len(spelled) and np.array_equal(text[places], spelled):
        return places
    # Some lacking bytes are spelled, as part of longer tokens: match byte by byte.
    matches, tokens = list[int](), spelled.tolist()
    for place, (byte, may_lack) in enumerate(zip(text.tolist(), lacking[text].tolist(), strict=True)):
        if len(matches) < len(tokens) and tokens[len(matches)] == byte:
            matches.append(place)
        elif not may_lack:
            return None
    return np.array(matches, np.int64) if len(matches) == len(tokens) else None


class TokenDecoder:
    """Decodes tokens one by one. `token_bytes` returns the bytes of a token in the middle of a text, `added` are the
    special tokens. If the tokenizer writes a space in front of a text (`space_prefix`), it is removed at the start of a
    `fresh` text and after special tokens.

    >>> decoder = TokenDecoder({0: b"<s>", 1: b" one", 2: b" two"}.__getitem__, {0}, space_prefix=True)
    >>> [decoder.push(token) for token in (1, 2, 0, 2)]
    [b'one', b' two', b'<s>', b'two']
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], added: Set[int], space_prefix: bool, *, fresh: bool = True
    ) -> None:
        self._token_bytes, self._added = token_bytes, added
        self._space_prefix, self._fresh = space_prefix, fresh

    def push(self, token: int) -> bytes:
        """Return the bytes of the next token, perhaps part of a character; PromptError for an unknown id."""
        raw, fresh, self._fresh = self._token_bytes(token), self._fresh, token in self._added
        return raw.removeprefix(b" ") if fresh and not self._fresh and self._space_prefix else raw


@dataclass(frozen=True)
class Encoding:
    """Tokens of a text.

    Attributes
    ----------
    spans : int64 array (n, 2)
        Bytes ``[start, end)`` of ``text.encode("utf-8")`` that each token stands for; they tile the text. BOS, EOS and
        a space that SentencePiece writes in front have empty spans. Dropped bytes belong to the token after them, at
        the end of the text to the last one.
    dropped : int64 array (m,)
        Offsets of bytes of the text for which the vocabulary has no token.
    """

    ids: Ints
    spans: Ints
    dropped: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.ids)


class SpecialTokens:
    """Finds the special tokens of a vocabulary in text; the longest one where several match.

    Runs of white space that a vocabulary lists as user-defined, as Gemma's does for line ends, tabs and spaces, are not
    markup: they are recognised in plain parts too, as in SentencePiece and llama.cpp.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        pairs = enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        added = {token: (index, kind) for index, (token, kind) in pairs if kind in ADDED and token}
        # The finder's unknown token stands for all text between two special tokens.
        self._text = len(vocabulary.tokens)
        blank = {token: index for token, (index, kind) in added.items() if kind == USER_DEFINED and token.isspace()}
        self._marks = self._finder({token: index for token, (index, _) in added.items() if token not in blank})
        self._blank = self._finder(blank)

    def split(self, raw: bytes, plain: Sequence[tuple[int, int]]) -> list[Fragment]:
        """Split a text at the special tokens that are entirely between plain parts (byte ranges)."""
        fragments: list[Fragment] = []
        begin = 0  # start of the text since the last special token
        gaps = zip([0, *(end for _, end in plain)], [*(start for start, _ in plain), len(raw)], strict=True)
        for offset, end in gaps:
            if self._marks is None:
                break
            text = raw[offset:end].decode()
            marks = self._marks.encode(text, add_special_tokens=False)
            for token, (first, last) in zip(marks.ids, marks.offsets, strict=True):
                after = offset + len(text[first:last].encode())  # `offsets` count characters, `raw` has bytes
                if token != self._text:
                    fragments += [raw[begin:offset].decode(), token]
                    begin = after
                offset = after
        fragments.append(raw[begin:].decode())
        if self._blank:
            whole, fragments = fragments, []
            for part in whole:
                if isinstance(part, str):
                    blanks = self._blank.encode(part, add_special_tokens=False)
                    pairs = zip(blanks.ids, blanks.offsets, strict=True)
                    fragments += [part[i:j] if token == self._text else token for token, (i, j) in pairs]
                else:
                    fragments.append(part)
        return [part for part in fragments if part != ""]

    def _finder(self, special: Mapping[str, int]) -> Backend | None:
        """Return a tokenizer that finds the given tokens in text; None if there are none."""
        if not special:
            return None
        finder = Backend(models.WordLevel({**special, "": self._text}, unk_token=""))
        finder.add_tokens([AddedToken(token, normalized=False) for token in special])
        return finder


class Tokenizer:
    """Encodes text to token ids and decodes them.

    Attributes
    ----------
    special_ids : frozenset of int
        Control tokens, e.g. ``<|im_start|>``, and the unknown one.
    eos_ids : frozenset of int
        Tokens that end the generation.
    eos_id, bos_id, pad_id : int or None
        Ids that the file names. The file also decides if prompts begin with BOS or end with EOS; see `encode`.

    Examples
    --------
    >>> from sp.gguf.tokens.byte_pair import byte_alphabet
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
        types, ids = vocabulary.types, vocabulary.ids
        self.vocab_size = len(types)
        self.eos_id, self.bos_id, self.pad_id = (ids.get(name) for name in ("eos", "bos", "padding"))
        self._around = (self.bos_id if vocabulary.add_bos else None), (self.eos_id if vocabulary.add_eos else None)
        self.special_ids = frozenset(i for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN))
        self.eos_ids = end_ids(vocabulary)
        self._vocabulary = vocabulary
        in_pieces = vocabulary.pre in (SENTENCEPIECE, MERGED_PIECES)
        self._model = SentencePieces(vocabulary) if in_pieces else BytePairs(vocabulary)
        self._special = SpecialTokens(vocabulary)
        self._lengths = np.fromiter(map(len, self._model.spelled), np.int64, len(types))
        self._ends = np.cumsum(self._lengths)
        self._spelled = np.frombuffer(b"".join(self._model.spelled), np.uint8)
        self._added = frozenset(i for i, kind in enumerate(types) if kind in ADDED)

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Tokenizer:
        """Return the tokenizer of a model file; GGUFError if it has none or one that `sp` does not support."""
        return cls.from_metadata(file.metadata, str(file.path))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Value], source: str = "metadata") -> Tokenizer:
        """Build a tokenizer from ``tokenizer.ggml.*`` keys; `source` names the file in errors. GGUFError on a missing
        or malformed key, an unknown tokenizer model or pre-tokenizer."""
        return cls(read_vocabulary(metadata, source))

    @cached_property
    def sha256(self) -> str:
        """Digest of vocabulary, token types, merges and pre-tokenizer: tokenizers with equal digests encode alike."""
        return self._vocabulary.sha256

    def same_as(self, other: Tokenizer) -> bool:
        """Return True if both encode every text to the same tokens."""
        return self is other or self.sha256 == other.sha256

    def encode(
        self, text: str, plain: Sequence[tuple[int, int]] = (), *, begins: bool = True, framed: bool = False
    ) -> Encoding:
        """Encode `text`, recognising special tokens outside the `plain` parts.

        Bytes for which the vocabulary has no token are dropped, as by llama.cpp. `plain`: byte ranges, ascending,
        disjoint and on character boundaries, in which the spelling of a special token is only text: text from strangers
        must not end a turn. Other tokens are the same as without them, also across the ends of the ranges. `begins`:
        False for text that continues other text: SentencePiece writes no space in front of it. `framed`: add BOS and
        EOS if the file asks for them and the text does not spell them already. PromptError if `text` contains a lone
        surrogate, which UTF-8 cannot represent; GGUFError if the tokens spell another text, as those of a damaged
        vocabulary may.
        """
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"character {error.start} of the text is a lone surrogate; read the text as UTF-8"
            ) from None
        fragments = self._special.split(raw, plain)
        normalized = self._model.normalize(fragments, raw, begins=begins)
        encoded = iter(self._model.encode(normalized.texts))
        parts = [next(encoded) if isinstance(part, str) else np.array([part]) for part in fragments]
        index = np.concatenate([np.zeros(0, np.int64), *parts])
        lengths = self._lengths[index]
        ends = np.cumsum(lengths)
        ends, dropped = self._aligned(normalized, index, lengths, ends)
        if normalized.begins is not None:
            ends = normalized.text_ends(ends)
        if framed:
            bos, eos = self._around
            if bos is not None and list(index[:1]) != [bos]:
                index, ends = np.append(bos, index), np.append(0, ends)
            if eos is not None and list(index[-1:]) != [eos]:
                index, ends = np.append(index, eos), np.append(ends, len(raw))
        spans = np.zeros((len(ends), 2), np.int64)
        spans[:, 1], spans[1:, 0] = ends, ends[:-1]
        return Encoding(index, spans, dropped)

    def _aligned(self, normalized: NormalizedText, index: Ints, lengths: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Return the ends of tokens in the normalized text, and the positions in the text of bytes that no token
        spells. GGUFError if the bytes of the tokens, end to end, do not spell the rest."""
        total, nothing = int(ends[-1]) if len(ends) else 0, np.zeros(0, np.int64)
        if self._model.complete and total == len(normalized.spelled):
            return ends, nothing
        # Gather the bytes of all tokens at once: byte j of token i is at `_ends[i] - lengths[i] + j` of `_spelled`.
        spelled = self._spelled[np.arange(total) + np.repeat(self._ends[index] - ends, lengths)]
        expected = np.frombuffer(normalized.spelled, np.uint8)
        if np.array_equal(spelled, expected):
            return ends, nothing
        places = spelled_places(expected, spelled, self._model.lacking)
        if places is None:
            same = spelled[: len(expected)] == expected[:total]
            first = int(same.argmin()) if not same.all() else len(same)
            if normalized.begins is not None:
                first = max(0, int(normalized.text_ends(np.array([first + 1]))[0]) - 1)
            raise GGUFError(
                f"the tokens of the text spell another text from byte {first} on; the vocabulary is damaged, convert "
                "the model again"
            )
        ends = np.append(0, places + 1)[ends]
        ends[-1:] = len(expected)  # bytes dropped at the end belong to the last token
        return ends, normalized.text_places(np.setdiff1d(np.arange(len(expected)), places, assume_unique=True))

    def decode(self, ids: Iterable[int] | Ints, *, skip_special: bool = False) -> str:
        """Return the text of `ids`, the inverse of `encode`; bytes that are not UTF-8 become U+FFFD. PromptError if an
        id is outside the vocabulary."""
        decoder = self.decoder()
        parts = [(int(i), decoder.push(int(i))) for i in ids]
        visible = (raw for i, raw in parts if not (skip_special and i in self.special_ids))
        return b"".join(visible).decode(errors="replace")

    def decoder(self, *, begins: bool = True) -> TokenDecoder:
        """Return a decoder of tokens one by one; `begins` as in `encode`."""
        return TokenDecoder(self.token_bytes, self._added, self._model.space_prefix, fresh=begins)

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes, perhaps part of a character, that `token` stands for."""
        if not 0 <= token < self.vocab_size:
            raise PromptError(f"token id {token} is outside the vocabulary of {self.vocab_size}")
        return self._model.bytes[token]

    def token_text(self, token: int) -> str:
        """Return `token_bytes` as text, with U+FFFD for parts of characters."""
        return self.token_bytes(token).decode(errors="replace")
