"""What the target reads of a prompt: the kept tokens and where they stand, or the kept text encoded anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sp.arrays import Bools, Ints
from sp.gguf import Tokenizer
from sp.pipeline.omitted import Omitted
from sp.pipeline.options import Mapping, Positions
from sp.prompt import Prompt, Span, TokenisedPrompt, merge_spans


@dataclass(frozen=True)
class Cut:
    """What there is to say of a selection besides what is kept.

    Parameters
    ----------
    read : array (n, 2), optional
        Bytes that are read of each token, where a part of it is left out; see `Selection`.
    mark : bool
        What is left out is marked; see `Omitted`.
    whole : bool
        Pieces end where words do.
    """

    read: Ints | None = None
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
    cut: Cut = Cut(),  # noqa: B008
) -> Compressed:
    """The kept tokens and where they stand; see `Cut` for what else there is to say of them."""
    if mapping == "text_rejoin":
        ids = rejoin(prompt, kept, cut).tokenise(tokenizer).ids
        return Compressed(ids, np.arange(len(ids)), len(ids))
    ids, index = pieced(prompt, kept, tokenizer, cut)
    if positions == "original":
        return Compressed(ids, index, len(prompt))
    return Compressed(ids, np.arange(len(index)), len(index))


def pieced(prompt: TokenisedPrompt, kept: Bools, tokenizer: Tokenizer, cut: Cut) -> tuple[Ints, Ints]:
    """Ids and positions (m,) of the kept tokens, of marks in their gaps, and of parts of tokens encoded anew.

    What is put in place of a token, or in a gap, stands at the positions of what was left out there; a part that needs
    more of them than are free stays the token it was.
    """
    index = kept.nonzero()[0]
    ids = prompt.ids[index]
    inserted = [*_parts(prompt, kept, tokenizer, cut.read), *_marks(prompt, kept, tokenizer, cut)]
    if not inserted:
        return ids, index
    gone = {token for token, *_ in inserted}
    stay = np.array([token not in gone for token in index.tolist()], bool)
    placed = [(first + number, one) for _, first, new in inserted for number, one in enumerate(new.tolist())]
    places, new = np.array(placed, np.int64).T
    index, ids = np.append(index[stay], places), np.append(ids[stay], new)
    order = np.argsort(index, kind="stable")
    return ids[order], index[order]


Insert = tuple[int, int, Ints]
"""The token that goes (-1 for none), the first position, and the ids that come there."""


def _parts(prompt: TokenisedPrompt, kept: Bools, tokenizer: Tokenizer, read: Ints | None) -> Iterator[Insert]:
    """Tokens of which a part is read, encoded anew."""
    if read is None:
        return
    raw = prompt.prompt.text.encode()
    for token in (kept & (read != prompt.bytes).any(1)).nonzero()[0].tolist():
        start, end = read[token].tolist()
        ids = tokenizer.encode(raw[start:end].decode(), [(0, end - start)], begins=False).ids
        more = len(ids) - 1
        first = token if start == prompt.bytes[token, 0] else token - more  # what is left out follows, or goes before
        around = kept[max(first, 0) : first + more + 1]
        if first >= 0 and len(around) == more + 1 and around.sum() == 1:
            yield token, first, ids


def _marks(prompt: TokenisedPrompt, kept: Bools, tokenizer: Tokenizer, cut: Cut) -> Iterator[Insert]:
    """Marks of what is left out, where they are shorter than that."""
    if not cut.mark:
        return
    omitted, spans = Omitted(prompt.prompt), prompt.bytes if cut.read is None else cut.read
    edges = np.flatnonzero(np.diff(np.concatenate([[True], kept, [True]]))).reshape(-1, 2)
    for first, end in edges.tolist():
        low = int(spans[first - 1, 1]) if first else 0
        high = int(spans[end, 0]) if end < len(spans) else int(spans[-1, 1])
        if mark := omitted.mark(low, high):
            ids = tokenizer.encode(mark, [(0, len(mark))], begins=False).ids
            if len(ids) < end - first:
                yield -1, first, ids


def rejoin(prompt: TokenisedPrompt, kept: Bools, cut: Cut = Cut()) -> Prompt:  # noqa: B008
    """Kept text joined in order, each piece first widened to whitespace so that no word is cut, unless none is.

    What was plain stays so: text that spells a special token, or comes to spell one where pieces meet, stays text.
    """
    raw = prompt.prompt.text.encode()
    spans = prompt.bytes if cut.read is None else cut.read
    shown = spans[kept & (spans[:, 0] < spans[:, 1])]  # BOS and the like come anew
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
