"""What the target reads of a prompt: kept tokens, marks in their gaps, or the kept text encoded anew."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.gguf import Tokenizer
from sp.prompt import Prompt, Span, TokenisedPrompt, merge_spans
from sp.prompt.spans import without
from sp.selection import ByteRanges, SelectionRequest
from sp.session.options import Mapping, Positions
from sp.structure import json_values


class Omitted:
    """What to write in the gaps of a prompt. There is no mark inside a JSON value, which would not parse with it; one
    that is left out whole is told as its lines are. Nor is there one that is no shorter than what it stands for.
    """

    def __init__(self, prompt: Prompt) -> None:
        self.raw = prompt.text.encode()
        self.segments = prompt.free

    @cached_property
    def edges(self) -> set[int]:
        """Where what may be left out begins and ends."""
        return {edge for segment in self.segments for edge in (segment.start, segment.end)}

    @cached_property
    def values(self) -> list[tuple[int, int]]:
        """Where JSON values begin and end; of quoted text, where that does."""
        found = []
        for segment in self.segments:
            text = self.raw[segment.start : segment.end]
            if segment.quoted:
                found.append((segment.start - 1, segment.end + 1))
            else:
                found += [(segment.start + value.start, segment.start + value.end) for value in json_values(text)]
        return found

    def inside_json(self, place: int) -> bool:
        """Whether a place lies between two bytes of a value."""
        at = bisect_right(self.values, (place, 0)) - 1
        return at >= 0 and place < self.values[at][1]

    def mark(self, start: int, end: int) -> str:
        """The mark of bytes [start, end); empty for none."""
        if self.inside_json(start) or self.inside_json(end):
            return ""
        gap = self.raw[start:end]
        begins = start in self.edges or self.raw[start - 1 : start] in (b"", b"\n")
        ends = end in self.edges or gap[-1:] == b"\n" or self.raw[end : end + 1] in (b"", b"\n", b"\r")
        if begins and ends:
            count, unit = sum(bool(line.strip()) for line in gap.split(b"\n")), "line"
        else:
            count, unit = len(gap.decode(errors="replace").strip()), "character"
        lead = " " if not begins and gap[:1].isspace() else ""
        tail = gap[len(gap.rstrip()) :].count(b"\n")
        mark = f"{lead}[... {count:,} {unit}{'s' * (count != 1)} ...]" + "\n" * min(tail, 2)
        return mark if count and len(mark) < len(gap) else ""


PART = -2
"""In place of a token of the transcript: this one continues what is read of a token before, of which only a part is."""


@dataclass(frozen=True)
class Cut:
    """What there is to say of a selection besides what is kept. Kept tokens that are `read` in part, see `Selection`;
    whether what is left out is marked, see `Omitted`; and whether pieces end where words do, `whole`.
    """

    read: ByteRanges = field(default_factory=dict)
    mark: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Compressed:
    """What the target reads: ids and positions (m,), and the position of the first generated token."""

    ids: Ints
    positions: Ints
    next_position: int


def compress(
    prompt: TokenisedPrompt,
    kept: Bools,
    tokenizer: Tokenizer,
    positions: Positions,
    mapping: Mapping,
    cut: Cut = Cut(),
) -> Compressed:
    """The kept tokens and where they stand; see `Cut` for what else there is to say of them. What is put in place of a
    token, or in a gap, stands at the positions of what was left out there; a part that needs more of them than are free
    stays the token it was.
    """
    if mapping == "text_rejoin":
        ids = rejoin(prompt, kept, cut).tokenise(tokenizer).ids
        return Compressed(ids, np.arange(len(ids)), len(ids))
    index = kept.nonzero()[0]
    ids = prompt.ids[index]
    inserted = list(_parts(prompt, kept, tokenizer, cut.read)) if cut.read else []
    if cut.mark:
        taken = kept.copy()
        for _, first, new in inserted:
            taken[first : first + len(new)] = True
        inserted += _marks(prompt, kept, taken, tokenizer, cut)
    if inserted:
        gone = {token for token, *_ in inserted}
        stay = np.array([token not in gone for token in index.tolist()], bool)
        placed = [(first + number, one) for _, first, new in inserted for number, one in enumerate(new.tolist())]
        places, new = np.array(placed, np.int64).T
        index, ids = np.append(index[stay], places), np.append(ids[stay], new)
        order = np.argsort(index, kind="stable")
        ids, index = ids[order], index[order]
    if positions == "original":
        return Compressed(ids, index, len(prompt))
    return Compressed(ids, np.arange(len(index)), len(index))


Insert = tuple[int, int, Ints]  # the token that goes (-1 for none), the first position, and the ids that come there


def _parts(prompt: TokenisedPrompt, kept: Bools, tokenizer: Tokenizer, read: ByteRanges) -> Iterator[Insert]:
    """Tokens of which a part is read, encoded anew."""
    raw = prompt.prompt.text.encode() if read else b""
    taken = kept.copy()
    for token, ranges in sorted(read.items()):
        text = b"".join(raw[start:end] for start, end in ranges)
        ids = tokenizer.encode(text.decode(), [(0, len(text))], begins=False).ids
        first, end = token, token + 1  # places that are free, as what else stood there is left out
        while end - first < len(ids) and end < len(taken) and not taken[end]:
            end += 1
        while end - first < len(ids) and first > 0 and not taken[first - 1]:
            first -= 1
        if end - first == len(ids):
            taken[first:end] = True
            yield token, first, ids


def _marks(prompt: TokenisedPrompt, kept: Bools, taken: Bools, tokenizer: Tokenizer, cut: Cut) -> Iterator[Insert]:
    """Marks of what is left out, where they are shorter than that and places are free."""
    omitted, size = Omitted(prompt.prompt), len(prompt.prompt.text.encode())
    edges = np.flatnonzero(np.diff(np.concatenate([[True], kept, [True]]))).reshape(-1, 2)
    for first, end in edges.tolist():
        low = _ranges(prompt, first - 1, cut)[-1][1] if first else 0
        high = _ranges(prompt, end, cut)[0][0] if end < len(kept) else size
        if mark := omitted.mark(low, high):
            ids = tokenizer.encode(mark, [(0, len(mark))], begins=False).ids
            free = first + np.flatnonzero(~taken[first:end])
            if len(ids) < end - first and len(ids) <= len(free):
                yield -1, int(free[0]), ids


def _ranges(prompt: TokenisedPrompt, token: int, cut: Cut) -> tuple[tuple[int, int], ...]:
    """Bytes that are read of a token."""
    start, end = prompt.bytes[token].tolist()
    return cut.read.get(token, ((start, end),))


def rejoin(prompt: TokenisedPrompt, kept: Bools, cut: Cut = Cut()) -> Prompt:
    """Kept text joined in order, each piece first widened to whitespace so that no word is cut, unless none is. What
    was plain stays so: text that spells a special token, or comes to spell one where pieces meet, stays text.
    """
    raw = prompt.prompt.text.encode()
    tokens = (kept & (prompt.bytes[:, 0] < prompt.bytes[:, 1])).nonzero()[0]  # BOS and the like come anew
    shown = prompt.bytes[tokens]
    if cut.read:
        shown = np.array([part for token in tokens.tolist() for part in _ranges(prompt, token, cut)], np.int64)
    pieces = [(int(a), int(b)) if cut.whole else widen(raw, int(a), int(b)) for a, b in merge_spans(shown)]
    merged = merge_spans(np.array(pieces, np.int64))
    omitted, plain, text, last = Omitted(prompt.prompt), [], b"", 0
    for start, end in merged.tolist():
        if cut.mark and last < start and (mark := omitted.mark(last, start).encode()):
            plain.append((len(text), len(text) + len(mark)))
            text += mark
        last = end
        parts = [(max(s.start, start), min(s.end, end)) for s in prompt.prompt.spans if s.kind == "plain"]
        plain += [(len(text) + low - start, len(text) + high - start) for low, high in parts if low < high]
        text += raw[start:end]
    joined = (Span("plain", low, high) for low, high in merge_spans(np.array(plain, np.int64)).tolist())
    return Prompt(text.decode(), tuple(joined))


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


@dataclass(frozen=True)
class Shown:
    """What new tokens are read as."""

    ids: Ints  # the transcript, but where a part of a token stands in its place and in those behind it
    source: Ints  # which token of the transcript each is; `PART` for what continues the part of one before
    kept: Bools  # what is read

    @classmethod
    def of(cls, prompt: TokenisedPrompt, kept: Bools, read: ByteRanges, tokenizer: Tokenizer) -> Shown:
        """Kept tokens (n,), and of those that are read in part only that, see `Selection`. A part that needs more
        places than are free behind its token stays the token it was. Places before it are not taken: a transcript that
        goes another way from the token on must not have them.
        """
        ids, source, taken = prompt.ids.copy(), np.arange(len(prompt)), kept.copy()
        raw = prompt.prompt.text.encode() if read else b""
        for token, ranges in sorted(read.items()):
            text = b"".join(raw[start:end] for start, end in ranges)
            new = tokenizer.encode(text.decode(), [(0, len(text))], begins=False).ids
            end = token + len(new)
            if end <= len(ids) and not taken[token + 1 : end].any():
                ids[token:end], source[token + 1 : end], taken[token:end] = new, PART, True
        return cls(ids, source, taken)


def selection_request(
    scores: Floats, fixed: Bools, share: float, prompt: TokenisedPrompt, start: int, fineness: int
) -> SelectionRequest:
    """What a selector is asked of the ``len(fixed)`` tokens of a prompt from `start` on."""
    stop, text = start + len(fixed), prompt.prompt.text.encode()
    spans, free = prompt.bytes[start:stop], prompt.prompt.free
    if stop - start < len(prompt):
        first, last = int(spans[0, 0]), int(spans[-1, 1])
        inside = without(free, [(0, first), (last, len(text))])
        free = tuple(replace(each, start=each.start - first, end=each.end - first) for each in inside)
        text, spans = text[first:last], spans - first
    return SelectionRequest(scores[start:stop], fixed, share, text, spans, free, fineness)
