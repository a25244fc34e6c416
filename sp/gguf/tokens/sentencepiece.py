"""SentencePiece (``tokenizer.ggml.model`` = ``llama``): neighbours are merged by the score of the resulting token.

The algorithm is that of llama.cpp's ``llm_tokenizer_spm``: spaces are written as U+2581, and one may be written in
front; of all neighbours that together are a token those with the best score are merged, the leftmost among equals,
until there are none; a character that is no token then becomes its bytes, tokens ``<0x00>`` to ``<0xFF>``. A U+2581 in
the text is decoded as a space. ``remove_extra_whitespaces`` has no effect there, nor here. Files of Gemma 4
(``gemma4``) list the merges, best first, instead of scores; in these a run of line ends is separate from other text,
and one token if the vocabulary has it.

Two things differ. Special tokens and bytes are never the result of a merge, as in SentencePiece itself: text that
spells ``</s>`` is text. And the text is first split wherever no token contains the two adjacent characters: no merge
crosses such a place, so each part is merged separately, and the results for short parts are cached."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np

from sp.arrays import Bools, Ints
from sp.gguf.tokens.text import Fragment, NormalizedText
from sp.gguf.vocabulary import ADDED, BYTE, LONGEST_PIECE, MERGED_PIECES, Vocabulary

SPACE = "\u2581"
PAIR_BITS = 22  # bits of a hash of two characters; a collision only misses a place to split at
REMEMBERED, LONGEST_REMEMBERED = 1 << 17, 32  # most cached parts, and most characters of one
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class SentencePieces:
    """Encodes text without special tokens, and knows the bytes of each token.

    `bytes`: the text that each token stands for; `spelled`: its spelling, with spaces as U+2581; `space_prefix`: True
    if a space is written in front of a text; `lacking`, bool (256,): bytes without a token of their own: in a character
    that is no token they are dropped; `complete`: False, as it is not known, see `BytePairs`.
    """

    complete = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.space_prefix = vocabulary.add_space_prefix
        self._listed = vocabulary.pre == MERGED_PIECES
        self._joint = " " if self._listed else ""  # between the two parts of a merge in the keys of `_ranks`
        self._ranks = {f"{left} {right}": rank for rank, (left, right) in enumerate(vocabulary.merges)}
        scores = vocabulary.scores or [0.0] * len(vocabulary.tokens)
        ranks = np.unique(-np.array(scores), return_inverse=True)[1].tolist()  # 0 is best; equal scores share a rank
        self._ids: dict[str, int] = {}
        self._byte_ids: dict[int, int] = {}
        self.bytes, self.spelled = [], []
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
            spelled = stands_for = token.encode()
            if kind == BYTE and (byte := _BYTE.fullmatch(token)):
                spelled = stands_for = bytes([int(byte[1], 16)])
                self._byte_ids[spelled[0]] = index
            elif kind not in ADDED and kind != BYTE and token:
                self._ids[token] = index
                if not self._listed:
                    self._ranks[token] = ranks[index]
                stands_for = token.replace(SPACE, " ").encode()
            self.bytes.append(stands_for)
            self.spelled.append(spelled)
        self.lacking = np.array([byte not in self._byte_ids for byte in range(256)])
        self._cache: dict[str, list[int]] = {}

    def normalize(self, fragments: Sequence[Fragment], raw: bytes, *, begins: bool) -> NormalizedText:
        """Replace spaces by U+2581, and write one in front of the text if it `begins` and after every special token."""
        texts, spelled = [], []
        # Bytes that each byte of the text takes in the result, and bytes inserted in front of it.
        widths, in_front = np.ones(len(raw), np.int64), np.zeros(len(raw) + 1, np.int64)
        spaces = np.frombuffer(raw, np.uint8) == ord(" ")
        pos, fresh = 0, begins
        for part in fragments:
            if isinstance(part, int):
                spelled.append(self.spelled[part])
                spaces[pos : pos + len(spelled[-1])] = False
                pos, fresh = pos + len(spelled[-1]), True
                continue
            texts.append(SPACE * (fresh and self.space_prefix) + part.replace(" ", SPACE))
            spelled.append(texts[-1].encode())
            in_front[pos] = len(SPACE.encode()) * (fresh and self.space_prefix)
            pos, fresh = pos + len(part.encode()), False
        widths[spaces] = len(SPACE.encode())
        return NormalizedText(texts, b"".join(spelled), np.cumsum(widths) - widths + np.cumsum(in_front)[:-1])

    def encode(self, texts: Sequence[str]) -> list[Ints]:
        """Return the ids of each normalized text."""
        return [np.array(self._encode(text), np.int64) for text in texts]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        cache = self._cache
        for start, end in pairwise([0, *self._cuts(text), len(text)] if text else []):
            part = text[start:end]
            part_ids = cache.get(part)
            if part_ids is None:
                whole = self._listed and part[0] == "\n" and part in self._ids
                part_ids = [self._ids[part]] if whole else self._merge(part)
                if len(part) <= LONGEST_REMEMBERED:
                    if len(cache) >= REMEMBERED:
                        cache.clear()
                    cache[part] = part_ids
            ids += part_ids
        return ids

    def _cuts(self, text: str) -> list[int]:
        """Return the indices of characters that no merge joins with the one before."""
        apart = ~self._side_by_side[_pairs(text)]
        if self._listed:  # split at both ends of a run of line ends, and not inside
            ends = np.frombuffer(text.encode("utf-32-le"), "<u4") == ord("\n")
            apart = (apart & ~(ends[:-1] & ends[1:])) | (ends[:-1] != ends[1:])
        cuts: list[int] = (np.flatnonzero(apart) + 1).tolist()
        return cuts

    @cached_property
    def _side_by_side(self) -> Bools:
        """Mask of hashes of two adjacent characters in some token."""
        table = np.zeros(1 << PAIR_BITS, bool)
        table[_pairs("\0".join(self._ids))] = True
        return table

    def _merge(self, text: str) -> list[int]:
        """Return the ids of a part: a heap of possible merges, over symbols linked to their neighbours."""
        symbols, rank_of, ids, joint = list(text), self._ranks.get, self._ids, self._joint
        count = len(symbols)
        after, before = list(range(1, count + 1)), list(range(-1, count - 1))
        heap = [
            _key(rank, first, 2)
            for first, pair in enumerate(map(joint.join, pairwise(symbols)))
            if (rank := rank_of(pair)) is not None
        ]
        heapify(heap)
        while heap:
            key = heappop(heap)
            first, size = key >> 11 & 0xFFFFFFFF, key & 0x7FF
            second, symbol = after[first], symbols[first]
            if not symbol or second == count or len(symbol) + len(symbols[second]) != size:
                continue  # stale: one of the two has been merged with another symbol
            merged = symbols[first] = symbol + symbols[second]
            symbols[second] = ""
            follower, previous = after[second], before[first]
            after[first] = follower
            if follower < count:
                before[follower] = first
                reach = size + len(symbols[follower])
                if reach <= LONGEST_PIECE and (rank := rank_of(merged + joint + symbols[follower])) is not None:
                    heappush(heap, _key(rank, first, reach))
            if previous >= 0:
                reach = size + len(symbols[previous])
                if reach <= LONGEST_PIECE and (rank := rank_of(symbols[previous] + joint + merged)) is not None:
                    heappush(heap, _key(rank, previous, reach))
        tokens: list[int] = []
        for symbol in filter(None, symbols):
            token = ids.get(symbol)
            if token is not None:
                tokens.append(token)
            else:  # a byte without a token is dropped
                tokens += [self._byte_ids[byte] for byte in symbol.encode() if byte in self._byte_ids]
        return tokens


def _key(rank: int, first: int, size: int) -> int:
    """Encode a merge as one integer that sorts by rank, then position; the size shows if it is still possible."""
    return (rank << 32 | first) << 11 | size


def _pairs(text: str) -> Ints:
    """Hash each character with the next one."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    mixed = codes[:-1] * np.uint32(0x9E3779B1) ^ codes[1:] * np.uint32(0x85EBCA77)
    return np.asarray(mixed >> np.uint32(32 - PAIR_BITS), np.int64)
