"""SentencePiece (``tokenizer.ggml.model`` = ``llama``): neighbours are merged by the score of what they make.

The rule is that of llama.cpp's ``llm_tokenizer_spm``: spaces are written as U+2581, one may be written in front; of all
neighbours that together are a token those with the best score are merged, the leftmost among equals, until there are
none; a character that is no token then becomes its bytes, tokens ``<0x00>`` to ``<0xFF>``. A U+2581 of the text comes
back as a space. ``remove_extra_whitespaces`` does nothing there, and here. Files of Gemma 4 (``gemma4``) list the
merges that there are, best first, in place of scores; there a run of line ends is apart from all else, and one token
if it is one.

Two things are done differently. Special tokens and bytes are never made by merging, as in SentencePiece itself: what
spells ``</s>`` is text. And the text is first cut wherever no token holds the two characters side by side: no merge
reaches over such a place, so each part is merged alone, and those that come again are remembered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np

from sp.arrays import Bools, Ints
from sp.gguf.tokens.text import Fragment, Written
from sp.gguf.vocabulary import ADDED, BYTE, LONGEST_PIECE, MERGED_PIECES, Vocabulary

SPACE = "\u2581"
PAIR_BITS = 22  # of a hash of two characters; a clash only leaves a place uncut
REMEMBERED, LONGEST_REMEMBERED = 1 << 17, 32  # parts whose tokens are kept, and the characters of the longest of them
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class Pieces:
    """Text without special tokens to ids, and what each token stands for.

    `bytes`: of each token: what it stands for in text; `spelled`: what it spells, spaces as U+2581; `space_prefix`:
    whether a space is written in front; `lacking`, bool (256,): bytes without a token of their own: of a character that
    is no token they are dropped; `complete`: not known, see `BytePairs`.
    """

    complete = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.space_prefix = vocabulary.add_space_prefix
        self._listed = vocabulary.pre == MERGED_PIECES
        self._joint = " " if self._listed else ""  # between the two of a merge, by whose spelling it is looked up
        self._ranks = {f"{left} {right}": rank for rank, (left, right) in enumerate(vocabulary.merges)}
        scores = vocabulary.scores or [0.0] * len(vocabulary.tokens)
        ranks = np.unique(-np.array(scores), return_inverse=True)[1].tolist()  # best first, equals alike
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
        self._known: dict[str, list[int]] = {}

    def write(self, fragments: Sequence[Fragment], raw: bytes, *, begins: bool) -> Written:
        """A text with its spaces as U+2581, and one in front of it if it `begins` and behind every special token."""
        texts, spelled = [], []
        widths, in_front = np.ones(len(raw), np.int64), np.zeros(len(raw) + 1, np.int64)
        spaces = np.frombuffer(raw, np.uint8) == ord(" ")
        at, fresh = 0, begins
        for part in fragments:
            if isinstance(part, int):
                spelled.append(self.spelled[part])
                spaces[at : at + len(spelled[-1])] = False
                at, fresh = at + len(spelled[-1]), True
                continue
            texts.append(SPACE * (fresh and self.space_prefix) + part.replace(" ", SPACE))
            spelled.append(texts[-1].encode())
            in_front[at] = len(SPACE.encode()) * (fresh and self.space_prefix)
            at, fresh = at + len(part.encode()), False
        widths[spaces] = len(SPACE.encode())
        return Written(texts, b"".join(spelled), np.cumsum(widths) - widths + np.cumsum(in_front)[:-1])

    def encode(self, texts: Sequence[str]) -> list[Ints]:
        """Ids of each text, as written."""
        return [np.array(self._encode(text), np.int64) for text in texts]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        known = self._known
        for start, end in pairwise([0, *self._cuts(text), len(text)] if text else []):
            part = text[start:end]
            found = known.get(part)
            if found is None:
                whole = self._listed and part[0] == "\n" and part in self._ids
                found = [self._ids[part]] if whole else self._merge(part)
                if len(part) <= LONGEST_REMEMBERED:
                    if len(known) >= REMEMBERED:
                        known.clear()
                    known[part] = found
            ids += found
        return ids

    def _cuts(self, text: str) -> list[int]:
        """Characters that no merge joins with the one before."""
        apart = ~self._side_by_side[_pairs(text)]
        if self._listed:
            ends = np.frombuffer(text.encode("utf-32-le"), "<u4") == ord("\n")
            apart = (apart & ~(ends[:-1] & ends[1:])) | (ends[:-1] != ends[1:])
        cuts: list[int] = (np.flatnonzero(apart) + 1).tolist()
        return cuts

    @cached_property
    def _side_by_side(self) -> Bools:
        """Whether some token holds two characters side by side, by their hash."""
        table = np.zeros(1 << PAIR_BITS, bool)
        table[_pairs("\0".join(self._ids))] = True
        return table

    def _merge(self, text: str) -> list[int]:
        """Ids of a part: a heap of the merges that are possible, and symbols linked to their neighbours."""
        symbols, rank_of, ids, joint = list(text), self._ranks.get, self._ids, self._joint
        count = len(symbols)
        after, before = list(range(1, count + 1)), list(range(-1, count - 1))
        heap = [
            _key(rank, left, 2)
            for left, pair in enumerate(map(joint.join, pairwise(symbols)))
            if (rank := rank_of(pair)) is not None
        ]
        heapify(heap)
        while heap:
            key = heappop(heap)
            left, size = key >> 11 & 0xFFFFFFFF, key & 0x7FF
            right, symbol = after[left], symbols[left]
            if not symbol or right == count or len(symbol) + len(symbols[right]) != size:
                continue  # one of the two was merged with another since
            merged = symbols[left] = symbol + symbols[right]
            symbols[right] = ""
            follower, previous = after[right], before[left]
            after[left] = follower
            if follower < count:
                before[follower] = left
                reach = size + len(symbols[follower])
                if reach <= LONGEST_PIECE and (rank := rank_of(merged + joint + symbols[follower])) is not None:
                    heappush(heap, _key(rank, left, reach))
            if previous >= 0:
                reach = size + len(symbols[previous])
                if reach <= LONGEST_PIECE and (rank := rank_of(symbols[previous] + joint + merged)) is not None:
                    heappush(heap, _key(rank, previous, reach))
        found: list[int] = []
        for symbol in filter(None, symbols):
            token = ids.get(symbol)
            if token is not None:
                found.append(token)
            else:  # a byte without a token is dropped
                found += [self._byte_ids[byte] for byte in symbol.encode() if byte in self._byte_ids]
        return found


def _key(rank: int, left: int, size: int) -> int:
    """A merge as one number, smaller for those that come first; its size tells whether it is still possible."""
    return (rank << 32 | left) << 11 | size


def _pairs(text: str) -> Ints:
    """A hash of each character and the next."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    mixed = codes[:-1] * np.uint32(0x9E3779B1) ^ codes[1:] * np.uint32(0x85EBCA77)
    return np.asarray(mixed >> np.uint32(32 - PAIR_BITS), np.int64)
