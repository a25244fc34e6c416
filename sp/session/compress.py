"""The tokens that the target reads of a prompt: selected ones, marks in their gaps, or the selected text re-encoded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.gguf import Tokenizer
from sp.models import ModelConfig
from sp.prompt import Prompt, Span, TokenisedPrompt, merge_spans
from sp.prompt.spans import without
from sp.selection import ByteRanges, SelectionRequest
from sp.session.options import Mapping, Positions, RunOptions
from sp.structure import json_values


class Omitted:
    """Marks for the gaps of a compressed prompt, such as ``[... 212 lines ...]``.

    No mark is put inside a JSON value, which would not parse with it; a value that is left out whole is counted by its
    lines. No mark is longer than the text it replaces.
    """

    def __init__(self, prompt: Prompt) -> None:
        self.raw = prompt.text.encode()
        self.segments = prompt.free

    @cached_property
    def edges(self) -> set[int]:
        """Bytes at which removable text begins and ends."""
        return {edge for segment in self.segments for edge in (segment.start, segment.end)}

    @cached_property
    def values(self) -> list[tuple[int, int]]:
        """Ranges of JSON values; of quoted text, the range of the quotation."""
        ranges = []
        for segment in self.segments:
            text = self.raw[segment.start : segment.end]  # UTF-8
            if segment.quoted:
                ranges.append((segment.start - 1, segment.end + 1))
            else:
                ranges += [(segment.start + value.start, segment.start + value.end) for value in json_values(text)]
        return ranges

    def inside_json(self, place: int) -> bool:
        """Return True if a place lies between two bytes of a value."""
        index = bisect_right(self.values, (place, 0)) - 1  # the last value that begins before the place
        return index >= 0 and place < self.values[index][1]

    def mark(self, start: int, end: int) -> str:
        """Return the mark of bytes [start, end); empty for none."""
        if self.inside_json(start) or self.inside_json(end):
            return ""
        gap = self.raw[start:end]
        # Whole lines are counted in lines, parts of lines in characters.
        begins = start in self.edges or self.raw[start - 1 : start] in (b"", b"\n")
        ends = end in self.edges or gap[-1:] == b"\n" or self.raw[end : end + 1] in (b"", b"\n", b"\r")
        if begins and ends:
            count, unit = sum(bool(line.strip()) for line in gap.split(b"\n")), "line"
        else:
            count, unit = len(gap.decode(errors="replace").strip()), "character"
        lead = " " if not begins and gap[:1].isspace() else ""
        tail = gap[len(gap.rstrip()) :].count(b"\n")  # line breaks at the end of the gap, of which at most two are kept
        mark = f"{lead}[... {count:,} {unit}{'s' * (count != 1)} ...]" + "\n" * min(tail, 2)
        return mark if count and len(mark) < len(gap) else ""


PART = -2
"""Source of a token that continues a partially read token before it, see `SelectedTokens`."""


@dataclass(frozen=True)
class SelectionDetails:
    """Details of a selection besides its tokens.

    `byte_ranges`: selected tokens that are read in part, see `Selection`; `mark`: mark the gaps, see `Omitted`;
    `whole`: pieces end at word boundaries, see `Selector`.
    """

    byte_ranges: ByteRanges = field(default_factory=dict)
    mark: bool = False
    whole: bool = False


@dataclass(frozen=True)
class CompressedPrompt:
    """The ids and positions (m,) that the target reads, and the position of the first generated token."""

    ids: Ints
    positions: Ints
    next_position: int


def positions_for(options: RunOptions, target: ModelConfig) -> Positions:
    """Return the positions of selected tokens for a target.

    A sliding window is a number of positions, so at original ones it hides selected text that is far away.

    Examples
    --------
    >>> from sp.models.synthetic.shapes import find_shape
    >>> [positions_for(RunOptions(), find_shape(name).config) for name in ("gemma-3-270m", "qwen3-0.6b")]
    ['contiguous', 'original']
    """
    if options.positions != "auto":
        return options.positions
    if options.mapping == "text_rejoin":
        return "contiguous"  # tokens of text that is encoded again have no positions in the prompt
    return "contiguous" if target.windowed_layers and options.state_gaps == "compact" else "original"


def with_positions(options: RunOptions, target: ModelConfig) -> RunOptions:
    """Return the options with positions `auto` decided for a target."""
    return replace(options, positions=positions_for(options, target))


def compress(
    prompt: TokenisedPrompt,
    selected: Bools,
    tokenizer: Tokenizer,
    positions: Positions,
    mapping: Mapping,
    details: SelectionDetails = SelectionDetails(),
) -> CompressedPrompt:
    """Return the selected tokens and their positions.

    The re-encoded part of a token, or a mark in a gap, takes the positions of the text left out there; a part that
    needs more positions than are free stays the whole token.

    Parameters
    ----------
    prompt : TokenisedPrompt
    selected : boolean array (n,)
    tokenizer : Tokenizer
        The target's.
    positions : {"original", "contiguous"}
    mapping : {"byte_span", "text_rejoin"}
    details : SelectionDetails
    """
    if mapping == "text_rejoin":
        ids = rejoin(prompt, selected, details).tokenise(tokenizer).ids
        return CompressedPrompt(ids, np.arange(len(ids)), len(ids))
    index = selected.nonzero()[0]  # positions in the prompt, ascending
    ids = prompt.ids[index]
    inserted = list(_parts(prompt, selected, tokenizer, details.byte_ranges)) if details.byte_ranges else []
    if details.mark:
        occupied = selected.copy()
        for _, first, new in inserted:
            occupied[first : first + len(new)] = True
        inserted += _marks(prompt, selected, occupied, tokenizer, details)
    if inserted:
        gone = {token for token, *_ in inserted}
        stay = np.array([token not in gone for token in index.tolist()], bool)  # (selected,)
        placed = [
            (first + number, token_id) for _, first, new in inserted for number, token_id in enumerate(new.tolist())
        ]
        places, new = np.array(placed, np.int64).T
        index, ids = np.append(index[stay], places), np.append(ids[stay], new)
        # Parts and marks were appended; sorting by position interleaves them with the tokens that stay.
        order = np.argsort(index, kind="stable")
        ids, index = ids[order], index[order]
    if positions == "original":
        return CompressedPrompt(ids, index, len(prompt))
    return CompressedPrompt(ids, np.arange(len(index)), len(index))


Insert = tuple[int, int, Ints]  # token that is replaced (-1 for none), first position, and the ids inserted there


def _parts(prompt: TokenisedPrompt, selected: Bools, tokenizer: Tokenizer, byte_ranges: ByteRanges) -> Iterator[Insert]:
    """Yield the re-encoded parts of tokens that are read in part."""
    raw = prompt.prompt.text.encode() if byte_ranges else b""
    occupied = selected.copy()
    for token, ranges in sorted(byte_ranges.items()):
        text = b"".join(raw[start:end] for start, end in ranges)
        ids = tokenizer.encode(text.decode(), [(0, len(text))], begins=False).ids  # plain text, without BOS
        first, end = token, token + 1  # the token's position and free ones next to it
        while end - first < len(ids) and end < len(occupied) and not occupied[end]:
            end += 1
        while end - first < len(ids) and first > 0 and not occupied[first - 1]:
            first -= 1
        if end - first == len(ids):
            occupied[first:end] = True
            yield token, first, ids


def _marks(
    prompt: TokenisedPrompt, selected: Bools, occupied: Bools, tokenizer: Tokenizer, details: SelectionDetails
) -> Iterator[Insert]:
    """Yield marks of the gaps, where they are shorter than the text left out and positions are free."""
    omitted, size = Omitted(prompt.prompt), len(prompt.prompt.text.encode())
    # Gaps [first, end) in tokens, (gaps, 2).
    edges = np.flatnonzero(np.diff(np.concatenate([[True], selected, [True]]))).reshape(-1, 2)
    for first, end in edges.tolist():
        low = _ranges(prompt, first - 1, details)[-1][1] if first else 0
        high = _ranges(prompt, end, details)[0][0] if end < len(selected) else size
        if mark := omitted.mark(low, high):
            ids = tokenizer.encode(mark, [(0, len(mark))], begins=False).ids
            free = first + np.flatnonzero(~occupied[first:end])  # positions in the gap that no part uses
            if len(ids) < end - first and len(ids) <= len(free):  # a mark must save tokens
                yield -1, int(free[0]), ids


def _ranges(prompt: TokenisedPrompt, token: int, details: SelectionDetails) -> tuple[tuple[int, int], ...]:
    """Return the byte ranges that are read of a token."""
    start, end = prompt.bytes[token].tolist()
    return details.byte_ranges.get(token, ((start, end),))


def rejoin(prompt: TokenisedPrompt, selected: Bools, details: SelectionDetails = SelectionDetails()) -> Prompt:
    """Return the selected text joined in order, pieces widened to white space unless the selector keeps whole words.

    Plain text stays plain: text that spells a special token, also where two pieces meet, stays text.
    """
    raw = prompt.prompt.text.encode()
    tokens = (selected & (prompt.bytes[:, 0] < prompt.bytes[:, 1])).nonzero()[
        0
    ]  # BOS and the like are added when the text is encoded
    spans = prompt.bytes[tokens]
    if details.byte_ranges:
        spans = np.array([part for token in tokens.tolist() for part in _ranges(prompt, token, details)], np.int64)
    pieces = [(int(a), int(b)) if details.whole else widen(raw, int(a), int(b)) for a, b in merge_spans(spans)]
    merged = merge_spans(np.array(pieces, np.int64))  # widened pieces may overlap
    omitted, plain, text, last = Omitted(prompt.prompt), [], b"", 0
    for start, end in merged.tolist():
        if details.mark and last < start and (mark := omitted.mark(last, start).encode()):
            plain.append((len(text), len(text) + len(mark)))
            text += mark
        last = end
        parts = [(max(s.start, start), min(s.end, end)) for s in prompt.prompt.spans if s.kind == "plain"]
        plain += [(len(text) + low - start, len(text) + high - start) for low, high in parts if low < high]
        text += raw[start:end]
    joined = (Span("plain", low, high) for low, high in merge_spans(np.array(plain, np.int64)).tolist())
    return Prompt(text.decode(), tuple(joined))


def widen(raw: bytes, start: int, end: int, reach: int = 64) -> tuple[int, int]:
    """Move both ends outward to the nearest white space, by at most `reach` bytes and never into a character."""
    spaces = b" \n\t\r"
    low, high = max(0, start - reach), min(len(raw), end + reach)
    while start > low and raw[start - 1] not in spaces:
        start -= 1
    while end < high and raw[end] not in spaces:
        end += 1
    # 10xxxxxx is a UTF-8 continuation byte.
    while start > 0 and raw[start] & 0xC0 == 0x80:
        start -= 1
    while end < len(raw) and raw[end] & 0xC0 == 0x80:
        end += 1
    return start, end


@dataclass(frozen=True)
class SelectedTokens:
    """The selected tokens of a transcript, with the re-encoded parts of those that are read in part.

    `ids`: the transcript, except where a part of a token replaces it and those after it; `source`: token of the
    transcript that each one is, `PART` if it continues the part of a token before; `selected`: the tokens to read; all
    (n,).
    """

    ids: Ints
    source: Ints
    selected: Bools

    @classmethod
    def of(
        cls, prompt: TokenisedPrompt, selected: Bools, byte_ranges: ByteRanges, tokenizer: Tokenizer
    ) -> SelectedTokens:
        """Return the selected tokens (n,), and only the given parts of those that are read in part, see `Selection`.

        A part that needs more places than are free after its token stays the whole token. Places before it are not
        used: a transcript that differs from the token on must not contain them.
        """
        ids, source, occupied = prompt.ids.copy(), np.arange(len(prompt)), selected.copy()
        raw = prompt.prompt.text.encode() if byte_ranges else b""
        for token, ranges in sorted(byte_ranges.items()):
            text = b"".join(raw[start:end] for start, end in ranges)
            new = tokenizer.encode(text.decode(), [(0, len(text))], begins=False).ids
            end = token + len(new)
            if end <= len(ids) and not occupied[token + 1 : end].any():
                ids[token:end], source[token + 1 : end], occupied[token:end] = new, PART, True
        return cls(ids, source, occupied)


def selection_request(
    scores: Floats, fixed: Bools, share: float, prompt: TokenisedPrompt, start: int, fineness: int
) -> SelectionRequest:
    """Return the request for a selector about the ``len(fixed)`` tokens of a prompt from `start` on."""
    stop, text = start + len(fixed), prompt.prompt.text.encode()
    spans, free = prompt.bytes[start:stop], prompt.prompt.free
    # The selector sees the new part alone, with offsets that start at zero.
    if stop - start < len(prompt):
        first, last = int(spans[0, 0]), int(spans[-1, 1])
        inside = without(free, [(0, first), (last, len(text))])
        free = tuple(replace(segment, start=segment.start - first, end=segment.end - first) for segment in inside)
        text, spans = text[first:last], spans - first
    return SelectionRequest(scores[start:stop], fixed, share, text, spans, free, fineness)
