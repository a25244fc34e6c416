"""Byte-level BPE the slow way, from its definition and Python's own Unicode tables: an oracle for the tokenizer."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise

SPACES = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B))))
CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


def pieces(text: str, marks_are_letters: bool) -> Iterator[str]:
    """The words the pre-tokenizer cuts `text` into, alternative by alternative of its pattern.

    (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\\r\\n L N]?L+ | N | ?[^\\s L N]+[\\r\\n]* | \\s*[\\r\\n]+ | \\s+(?!\\S) | \\s+
    where for qwen35 a mark (M) may also continue a word, and does not count as punctuation.
    """

    def kind(char: str) -> str:
        if char in SPACES:
            return "space"
        major = unicodedata.category(char)[0]
        return {"L": "letter", "N": "number", "M": "mark"}.get(major, "other")

    def is_word(char: str) -> bool:
        return kind(char) == "letter" or (marks_are_letters and kind(char) == "mark")

    def is_punctuation(char: str) -> bool:
        return kind(char) == "other" or (not marks_are_letters and kind(char) == "mark")

    at = 0
    while at < len(text):
        end = at
        lower = text[at : at + 3].lower()
        contraction = next((c for c in CONTRACTIONS if lower.startswith(c)), None)
        prefix = 1 if text[at] not in "\r\n" and kind(text[at]) not in ("letter", "number") else 0
        prefixed = prefix and at + 1 < len(text) and is_word(text[at + 1])
        blank = 1 if text[at] == " " and at + 1 < len(text) and is_punctuation(text[at + 1]) else 0
        if contraction:
            end = at + len(contraction)
        elif prefixed or is_word(text[at]):
            end = at + (1 if prefixed else 0)
            while end < len(text) and is_word(text[end]):
                end += 1
        elif kind(text[at]) == "number":
            end = at + 1
        elif blank or is_punctuation(text[at]):
            end = at + blank
            while end < len(text) and is_punctuation(text[end]):
                end += 1
            while end < len(text) and text[end] in "\r\n":
                end += 1
        else:
            while end < len(text) and text[end] in SPACES:
                end += 1
            breaks = [i for i in range(at, end) if text[i] in "\r\n"]
            if breaks:
                end = breaks[-1] + 1
            elif end < len(text) and end - at > 1:
                end -= 1  # the last space goes with the word that follows
        yield text[at:end]
        at = end


def byte_symbols(text: str) -> list[str]:
    """One character a byte: GPT-2's bytes_to_unicode table."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    return [table[byte] for byte in text.encode()]


def encode(
    text: str, tokens: Sequence[str], merges: Sequence[str], added: Sequence[str], marks_are_letters: bool
) -> list[int]:
    """Token ids of `text`: added tokens first and longest, then words, then merges by rank."""
    ids = {token: index for index, token in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    found: list[int] = []
    at = 0
    while at < len(text):
        hits = [(text.find(token, at), -len(token), token) for token in added if token in text[at:]]
        start, _, token = min(hits) if hits else (len(text), 0, "")
        for word in pieces(text[at:start], marks_are_letters):
            symbols = byte_symbols(word)
            while len(symbols) > 1:
                pairs = list(pairwise(symbols))
                best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
                if best not in ranks:
                    break
                i = pairs.index(best)
                symbols[i : i + 2] = ["".join(best)]
            found += [ids[symbol] for symbol in symbols]
        if token:
            found.append(ids[token])
        at = start + len(token)
    return found
