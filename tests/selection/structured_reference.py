"""Selectors of whole units written the slow way, with sets, for text that has no JSON, fences or tags in it.

Shares no code with `sp.selection`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from selection_reference import SHARED, characters_of, evenly, sentence_ends, whole

from sp.selection import SelectionRequest
from sp.structure import is_prose

STRUCTURED = ("lines", "json", "segments")


def pieces_of(name: str, text: str, longest: int, starts: list[int]) -> tuple[list[int], dict[int, int]]:
    """Where pieces begin in text without JSON, fences and tags: lines, for `segments` also what prose is made of.

    And which piece each one is kept with: sentences with the line break behind their paragraph.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        line += "\n"
        if lines and (not line.strip() or not "".join(lines).strip()):
            lines[-1] += line
        else:
            lines.append(line)
    lines[-1] = lines[-1][:-1]
    if not lines[-1]:
        lines.pop()
    text_bytes, begins, needs = text.encode(), list[int](), dict[int, int]()

    def put_parts(at: int, whole: str) -> None:
        """Sentences, and equal parts of longer ones, each with the line break behind the last."""
        said, first = whole.rstrip(), len(begins)
        for low, high in pairwise(sorted({0, len(said), *sentence_ends(said)})):
            begin, end = (at + len(said[:place].encode()) for place in (low, high))
            inside = [start for start in starts if begin <= start < end]
            begins.append(begin)
            parts = math.ceil(len(inside) / longest)
            for part in range(1, parts):
                rest = inside[len(inside) * part // parts :]
                begins.extend([start for start in rest if (text_bytes[start] & 0xC0) != 0x80][:1])
        if said != whole:
            needs.update(dict.fromkeys(range(first, len(begins)), len(begins)))
            begins.append(at + len(said.encode()))

    def size_of(at: int, whole: str) -> int:
        return sum(at <= start < at + len(whole.encode()) for start in starts)

    def put_lines(at: int, part: list[str]) -> None:
        for line in part:
            if size_of(at, line) > max(1024, longest):
                put_parts(at, line)
            else:
                begins.append(at)
            at += len(line.encode())

    if name != "segments":
        put_lines(0, lines)
        return begins, needs
    paragraphs: list[list[str]] = []
    for line in lines:
        if paragraphs and paragraphs[-1][-1][len(paragraphs[-1][-1].rstrip()) :].count("\n") < 2:
            paragraphs[-1].append(line)
        else:
            paragraphs.append([line])
    at = 0
    for paragraph in paragraphs:
        whole = "".join(paragraph)
        if not is_prose(whole.encode()):
            put_lines(at, paragraph)
        elif size_of(at, whole) <= longest:
            begins.append(at)
        else:
            put_parts(at, whole)
        at += len(whole.encode())
    return begins, needs


def slow_structured(name: str, request: SelectionRequest, given: Mapping[str, Any]) -> set[int]:
    """Tokens kept by a selector of whole units from a text that has no JSON, fences or tags."""
    options = SHARED | {"longest": 64} | dict(given)
    assert request.spans is not None
    n, spans = len(request.scores), request.spans.tolist()
    if request.keep_ratio == 1:
        return set(range(n))
    cuts, needs = pieces_of(name, request.text.decode(), options["longest"], [start for start, _ in spans])
    cuts.append(len(request.text))
    touched = [list(range(bisect_right(cuts, start) - 1, bisect_left(cuts, end))) for start, end in spans]
    number = list(range(len(cuts) - 1))  # of the unit each piece is in
    for (start, end), pieces in zip(spans, touched, strict=True):
        if any(request.text[at : at + 1] and request.text[at] >> 6 == 2 for at in (start, end)):
            for pair in pairwise(pieces):
                one, other = ({piece} | {needs.get(piece, piece)} for piece in pair)
                together = one | other if one & other <= set(pair) else one ^ other
                held = {number[piece] for piece in together}
                number = [min(held) if unit in held else unit for unit in number]
    alone = set(number) - {unit for piece, unit in enumerate(number) if piece not in needs.values()}
    above = {number[piece]: number[wrapper] for piece, wrapper in needs.items() if number[piece] != number[wrapper]}
    whole = {unit: set[int]() for unit in number}
    for token, pieces in enumerate(touched):
        for piece in pieces:
            whole[number[piece]].add(token)
    joined: dict[int, int] = {}
    counts: dict[int, int] = {}
    last = None
    began = [number[pieces[0]] for pieces in touched]
    for unit in sorted(whole, key=lambda unit: began.index(unit) if unit in began else n):
        begins = unit in began
        counts[unit] = len(whole[unit])
        if not begins:
            continue
        if unit in alone or unit in above.values():
            last = None
        elif last is None or counts[last] >= options["min_run"] or above.get(last) != above.get(unit):
            last = unit
        else:
            joined[unit] = last
            counts[last] += counts[unit]
            whole[last] |= whole.pop(unit)
    names = sorted(whole)
    score = {u: float(np.float32(sum(float(request.scores[t]) for t in whole[u]) / len(whole[u]))) for u in names}
    size = {unit: len(whole[unit]) + len(whole.get(above.get(unit, -1), ())) for unit in names}
    big = {u for u in names if len(whole[u]) > options["longest"] or size[u] > 4 * options["longest"]}
    units = [unit for unit in names if unit not in alone]
    sets = {unit: whole[unit] | whole.get(above.get(unit, -1), set()) for unit in names}
    turns = units_in_turn([score[u] for u in units], [size[u] for u in units], [u in big for u in units], options, n)
    light = [unit for unit in names if unit not in big]
    return chain(request, whole, sets, [units[turn] for turn in turns], light, options)


def units_in_turn(
    score: list[float], size: list[int], heavy: list[bool], options: Mapping[str, Any], n: int
) -> list[int]:
    """Units in the order in which they are taken, with neighbours and backbone; one may come twice."""
    ranked = sorted(range(len(size)), key=lambda unit: (-score[unit], unit))
    chosen, waiting, taken = list[int](), list[int](), 0
    for unit in ranked:
        if heavy[unit] and size[unit] > taken:
            waiting.append(unit)
            continue
        chosen.append(unit)
        taken += size[unit]
        while able := [other for other in waiting if size[other] <= taken]:
            waiting.remove(able[0])
            chosen.append(able[0])
            taken += size[able[0]]
    chosen += sorted(waiting, key=lambda unit: (size[unit], ranked.index(unit)))
    radius = options["neighbours"]
    if radius == "by_length":
        radius = max(1, round((64 if n < 32768 else 128) * len(size) / n))
    turns, spare, turn = list[int](), evenly(len(size)), 0
    while chosen:
        if math.floor((turn + 1) * options["backbone"]) > math.floor(turn * options["backbone"]):
            turns += [unit for unit in [spare.pop(0)] if not heavy[unit]] if spare else []
        else:
            centre = chosen.pop(0)
            turns.append(centre)
            for distance in range(1, radius + 1):
                near = [centre + distance, centre - distance]
                turns += [unit for unit in near if 0 <= unit < len(size) and not heavy[unit]]
        turn += 1
    return turns


def chain(
    request: SelectionRequest,
    own: Mapping[int, set[int]],
    units: Mapping[int, set[int]],
    turns: list[int],
    light: list[int],
    options: Mapping[str, Any],
) -> set[int]:
    """Choices and both ends in turn, an end once as many tokens were chosen as ends were taken; then the budget."""
    n = len(request.scores)
    protected = set(request.protected.nonzero()[0].tolist())
    sink, tail = options["sink"], options["tail"]
    away = {i: i / sink for i in range(min(sink, n))}
    for i in range(max(0, n - tail), n):
        away[i] = min(away.get(i, math.inf), (n - 1 - i) / tail)
    near = {
        unit: min((away.get(token, math.inf) for token in own[unit] - protected), default=math.inf) for unit in light
    }
    ends = sorted((unit for unit in light if near[unit] < math.inf), key=lambda unit: (near[unit], min(own[unit])))
    order, seen, asked = list[int](), set[int](), set[int]()
    for unit in [*turns, None]:
        new = set() if unit is None else units[unit] - seen - protected
        if unit is not None and not new:
            continue
        while ends and (unit is None or len(seen) >= len(asked)):
            order.append(ends.pop(0))
            asked |= units[order[-1]] - protected
        if unit is not None:
            order.append(unit)
            seen |= new
    kept = set(protected)
    characters = characters_of(request)
    for unit in order:
        tokens = whole(units[unit], characters)
        if len(kept | tokens) > request.budget:
            break
        kept |= tokens
    return kept
