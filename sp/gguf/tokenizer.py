"""Text to tokens of a file's own vocabulary and back, with the exact byte span of every token.

The drafter and the target have different vocabularies, so what one keeps is told to the other in bytes of the
text. Spans come from the bytes each token stands for, never from character offsets, which are ambiguous when a
character is split over several tokens.
"""

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
from sp.gguf.tokens.sentencepiece import Pieces
from sp.gguf.tokens.text import Fragment, Written, end_ids
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


def spelled_places(wanted: Bytes, spelled: Bytes, lacking: Bools) -> Ints | None:
    """Where in a text (n,) each byte stands that its tokens spell (m,), ascending; None if they spell something else.

    Bytes without a token of their own (`lacking`, bool (256,)) alone may be absent from what is spelled, and may be
    there all the same, in a longer token.

    >>> lacking = np.arange(256) < 32
    >>> spelled_places(*(np.frombuffer(one, np.uint8) for one in (b"a\\x04b\\x05", b"ab")), lacking)
    array([0, 2])
    """
    places = np.flatnonzero(~lacking[wanted])
    if len(places) == len(spelled) and np.array_equal(wanted[places], spelled):
        return places
    found, left = list[int](), spelled.tolist()
    for place, (byte, may_lack) in enumerate(zip(wanted.tolist(), lacking[wanted].tolist(), strict=True)):
        if len(found) < len(left) and left[len(found)] == byte:
            found.append(place)
        elif not may_lack:
            return None
    return np.array(found, np.int64) if len(found) == len(left) else None


class Decoder:
    """Hands out what each token stands for where it stands. `token_bytes` are those of a token anywhere, `added` the
    special tokens. Of a text that was `fresh` (begun) with a space written in front (`space_prefix`), that space is
    left out, and likewise behind special tokens.

    >>> decoder = Decoder({0: b"<s>", 1: b" one", 2: b" two"}.__getitem__, {0}, space_prefix=True)
    >>> [decoder.push(token) for token in (1, 2, 0, 2)]
    [b'one', b' two', b'<s>', b'two']
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], added: Set[int], space_prefix: bool, *, fresh: bool = True
    ) -> None:
        self._token_bytes, self._added = token_bytes, added
        self._space_prefix, self._fresh = space_prefix, fresh

    def push(self, token: int) -> bytes:
        """Bytes of one more token, perhaps a part of a character; PromptError outside the vocabulary."""
        raw, fresh, self._fresh = self._token_bytes(token), self._fresh, token in self._added
        return raw.removeprefix(b" ") if fresh and not self._fresh and self._space_prefix else raw


@dataclass(frozen=True)
class Encoding:
    """Tokens of a text.

    Attributes
    ----------
    spans : int64 array (n, 2)
        Bytes ``[start, end)`` of ``text.encode("utf-8")`` each token stands for; they tile the text. BOS, EOS and
        a space that SentencePiece writes in front take none. What was dropped goes with the token behind it, or at
        the end of the text with the last one.
    dropped : int64 array (m,)
        Bytes of the text that the vocabulary has no token for, by place.
    """

    ids: Ints
    spans: Ints
    dropped: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.ids)


class SpecialTokens:
    """Finds the special tokens of a vocabulary in text; the longest where several begin.

    Runs of white space that a vocabulary lists as user-defined, as Gemma's does those of line ends, tabs and spaces,
    are no markup: they are found in plain parts, too, as SentencePiece and llama.cpp find them.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        pairs = enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        added = {token: (index, kind) for index, (token, kind) in pairs if kind in ADDED and token}
        # All text between two special tokens becomes one token that is none of them.
        self._text = len(vocabulary.tokens)
        blank = {token: index for token, (index, kind) in added.items() if kind == USER_DEFINED and token.isspace()}
        self._marks = self._finder({token: index for token, (index, _) in added.items() if token not in blank})
        self._blank = self._finder(blank)

    def split(self, raw: bytes, plain: Sequence[tuple[int, int]]) -> list[Fragment]:
        """Fragments of a text, cut at the special tokens that lie wholly between plain parts (byte ranges)."""
        fragments: list[Fragment] = []
        begin = 0  # of the text since the last special token
        gaps = zip([0, *(end for _, end in plain)], [*(start for start, _ in plain), len(raw)], strict=True)
        for at, end in gaps:
            if self._marks is None:
                break
            text = raw[at:end].decode()
            found = self._marks.encode(text, add_special_tokens=False)
            for token, (first, last) in zip(found.ids, found.offsets, strict=True):
                after = at + len(text[first:last].encode())
                if token != self._text:
                    fragments += [raw[begin:at].decode(), token]
                    begin = after
                at = after
        fragments.append(raw[begin:].decode())
        if self._blank:
            whole, fragments = fragments, []
            for part in whole:
                if isinstance(part, str):
                    found = self._blank.encode(part, add_special_tokens=False)
                    pairs = zip(found.ids, found.offsets, strict=True)
                    fragments += [part[i:j] if token == self._text else token for token, (i, j) in pairs]
                else:
                    fragments.append(part)
        return [part for part in fragments if part != ""]

    def _finder(self, special: Mapping[str, int]) -> Backend | None:
        """What finds some tokens; None where there are none."""
        if not special:
            return None
        finder = Backend(models.WordLevel({**special, "": self._text}, unk_token=""))
        finder.add_tokens([AddedToken(token, normalized=False) for token in special])
        return finder


class Tokenizer:
    """Text to token ids and back.

    Attributes
    ----------
    special_ids : frozenset of int
        Control tokens, e.g. ``<|im_start|>``, and the unknown one.
    eos_ids : frozenset of int
        Tokens that end the generation.
    eos_id, bos_id, pad_id : int or None
        As the file names them. Whether prompts begin or end with any is up to the file too; see `encode`.

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
        spelled = vocabulary.pre in (SENTENCEPIECE, MERGED_PIECES)
        self._model = Pieces(vocabulary) if spelled else BytePairs(vocabulary)
        self._special = SpecialTokens(vocabulary)
        self._lengths = np.fromiter(map(len, self._model.spelled), np.int64, len(types))
        self._ends = np.cumsum(self._lengths)
        self._spelled = np.frombuffer(b"".join(self._model.spelled), np.uint8)
        self._added = frozenset(i for i, kind in enumerate(types) if kind in ADDED)

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Tokenizer:
        """The tokenizer a model file carries; GGUFError when it has none or one `sp` does not know."""
        return cls.from_metadata(file.metadata, str(file.path))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Value], source: str = "metadata") -> Tokenizer:
        """Build from ``tokenizer.ggml.*`` keys; `source` names the file in errors. GGUFError on a missing or malformed
        key, an unknown tokenizer model or pre-tokenizer."""
        return cls(read_vocabulary(metadata, source))

    @cached_property
    def sha256(self) -> str:
        """Digest of vocabulary, token types, merges and pre-tokenizer: equal digests tokenize alike."""
        return self._vocabulary.sha256

    def same_as(self, other: Tokenizer) -> bool:
        """Whether both give every text the same tokens."""
        return self is other or self.sha256 == other.sha256

    def encode(
        self, text: str, plain: Sequence[tuple[int, int]] = (), *, begins: bool = True, framed: bool = False
    ) -> Encoding:
        """Tokens of `text`, special tokens recognised outside the `plain` parts.

        Bytes that the vocabulary has no token for are dropped, as by llama.cpp.
        `plain`: byte ranges, ascending and disjoint, cut between characters, in which the spelling of a special token
        is only text: what strangers wrote must not end a turn. Other tokens come out as without them, also across their
        ends. `begins`: false for text that continues other text: SentencePiece writes no space in front of it.
        `framed`: add BOS and EOS if the file asks for them and the text does not spell them already. PromptError when
        `text` holds a lone surrogate, which no UTF-8 can spell; GGUFError when the tokens spell another text, as those
        of a damaged vocabulary may.
        """
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"character {error.start} of the text is a lone surrogate; read the text as UTF-8"
            ) from None
        fragments = self._special.split(raw, plain)
        written = self._model.write(fragments, raw, begins=begins)
        found = iter(self._model.encode(written.texts))
        parts = [next(found) if isinstance(part, str) else np.array([part]) for part in fragments]
        index = np.concatenate([np.zeros(0, np.int64), *parts])
        lengths = self._lengths[index]
        ends = np.cumsum(lengths)
        ends, dropped = self._aligned(written, index, lengths, ends)
        if written.begins is not None:
            ends = written.text_ends(ends)
        if framed:
            bos, eos = self._around
            if bos is not None and list(index[:1]) != [bos]:
                index, ends = np.append(bos, index), np.append(0, ends)
            if eos is not None and list(index[-1:]) != [eos]:
                index, ends = np.append(index, eos), np.append(ends, len(raw))
        spans = np.zeros((len(ends), 2), np.int64)
        spans[:, 1], spans[1:, 0] = ends, ends[:-1]
        return Encoding(index, spans, dropped)

    def _aligned(self, written: Written, index: Ints, lengths: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Where tokens end in the text as written, and the places in the text of bytes that no token spells. GGUFError:
        the bytes of the tokens, end to end, are not what else is written."""
        total, nothing = int(ends[-1]) if len(ends) else 0, np.zeros(0, np.int64)
        if self._model.complete and total == len(written.spelled):
            return ends, nothing
        spelled = self._spelled[np.arange(total) + np.repeat(self._ends[index] - ends, lengths)]
        wanted = np.frombuffer(written.spelled, np.uint8)
        if np.array_equal(spelled, wanted):
            return ends, nothing
        places = spelled_places(wanted, spelled, self._model.lacking)
        if places is None:
            same = spelled[: len(wanted)] == wanted[:total]
            at = int(same.argmin()) if not same.all() else len(same)
            if written.begins is not None:
                at = max(0, int(written.text_ends(np.array([at + 1]))[0]) - 1)
            raise GGUFError(f"the vocabulary spells another text from byte {at} on; convert the model again")
        ends = np.append(0, places + 1)[ends]
        ends[-1:] = len(wanted)
        return ends, written.text_places(np.setdiff1d(np.arange(len(wanted)), places, assume_unique=True))

    def decode(self, ids: Iterable[int] | Ints, *, skip_special: bool = False) -> str:
        """Text of `ids`, the way back from `encode`; bytes that are not UTF-8 become U+FFFD. PromptError when an id
        lies outside the vocabulary."""
        decoder = self.decoder()
        parts = [(int(i), decoder.push(int(i))) for i in ids]
        kept = (raw for i, raw in parts if not (skip_special and i in self.special_ids))
        return b"".join(kept).decode(errors="replace")

    def decoder(self, *, begins: bool = True) -> Decoder:
        """For tokens one by one; `begins` as for `encode`, and true of what follows a special token."""
        return Decoder(self.token_bytes, self._added, self._model.space_prefix, fresh=begins)

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes, perhaps part of a character, that `token` stands for."""
        if not 0 <= token < self.vocab_size:
            raise PromptError(f"token id {token} is outside the vocabulary of {self.vocab_size}")
        return self._model.bytes[token]

    def token_text(self, token: int) -> str:
        """`token_bytes` as text, with U+FFFD for parts of characters."""
        return self.token_bytes(token).decode(errors="replace")
