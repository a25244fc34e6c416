"""What the target reads of a prompt: the kept tokens and where they stand, or the kept text encoded anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp.arrays import Bools, Ints
from sp.gguf import Tokenizer
from sp.pipeline.options import Mapping, Positions
from sp.prompt import Prompt, Span, TokenisedPrompt, merge_spans


@dataclass(frozen=True)
class Compressed:
    """What the target reads: ids and positions (m,), and the position of the first generated token."""

    ids: Ints
    positions: Ints
    next_position: int


def compress(
    prompt: TokenisedPrompt, kept: Bools, tokenizer: Tokenizer, positions: Positions, mapping: Mapping
) -> Compressed:
    """The kept tokens and where they stand."""
    if mapping == "text_rejoin":
        ids = rejoin(prompt, kept).tokenise(tokenizer).ids
        return Compressed(ids, np.arange(len(ids)), len(ids))
    index = kept.nonzero()[0]
    if positions == "original":
        return Compressed(prompt.ids[index], index, len(prompt))
    return Compressed(prompt.ids[index], np.arange(len(index)), len(index))


def rejoin(prompt: TokenisedPrompt, kept: Bools) -> Prompt:
    """Kept text joined in order, each piece first widened to whitespace so that no word is cut.

    What was plain stays so: text that spells a special token, or comes to spell one where pieces meet, stays text.
    """
    raw = prompt.prompt.text.encode()
    shown = prompt.bytes[kept & (prompt.bytes[:, 0] < prompt.bytes[:, 1])]  # BOS and the like come anew
    pieces = [widen(raw, int(start), int(end)) for start, end in merge_spans(shown)]
    merged = merge_spans(np.array(pieces, np.int64))
    plain, at = [], 0
    for start, end in merged.tolist():
        parts = [(max(s.start, start), min(s.end, end)) for s in prompt.prompt.spans if s.kind == "plain"]
        plain += [(at + low - start, at + high - start) for low, high in parts if low < high]
        at += end - start
    spans = (Span("plain", low, high) for low, high in merge_spans(np.array(plain, np.int64)).tolist())
    return Prompt(b"".join(raw[start:end] for start, end in merged).decode(), tuple(spans))


def widen(raw: bytes, start: int, end: int, reach: int = 64) -> tuple[int, int]:
    """Move both ends outward to the nearest whitespace, by at most `reach` bytes and never into a character."""
    spaces = b" \n\t\r"
    low, high = max(0, start - reach), min(len(raw), end + reach)
    while start > low and raw[start - 1] not in spaces:
        start -= 1
    while end < high and raw[end] not in spaces:
        end += 1
    while start > 0 and raw[start] & 0xC0 == 0x80:
        start -= 1
    while end < len(raw) and raw[end] & 0xC0 == 0x80:
        end += 1
    return start, end
