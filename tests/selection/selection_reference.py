"""Selection written the slow way: sets of tokens, one choice at a time, after the rules as their papers state them.

Shares no code with `sp.selection`. Scores are compared as exact fractions of the float32 values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from sp.selection import SelectionRequest
from sp.structure import is_prose

STRUCTURED = ("lines", "json", "segments")
SHARED: dict[str, Any] = {"neighbours": 1, "min_run": 1, "backbone": 0.0, "sink": 32, "tail": 32}
CHUNKS: dict[str, Any] = SHARED | {"chunk_size": 32}
DEFAULTS: dict[str, dict[str, Any]] = {
    "top_chunks": CHUNKS,
    "top_tokens": SHARED | {"neighbours": 0},
    "token_budget": CHUNKS | {"tokens": 1024},
    "alpha": CHUNKS | {"alpha": 0.1, "of": "max"},
    "top_p": CHUNKS | {"p": 0.5},
    "zscore": CHUNKS | {"z": 2.0, "spread": "std"},
    "adaptive": CHUNKS | {"rule": "elbow", "least": 0.01},
    "sentence": SHARED | {"longest": 128},
}


def units_of(name: str, request: SelectionRequest, options: Mapping[str, Any]) -> list[list[int]]:
    """Lists of tokens the rule compares."""
    n = len(request.scores)
    if name == "sentence":
        return sentences_of(request, options["longest"])
    size = 1 if name == "top_tokens" else options["chunk_size"]
    return [list(range(at, min(n, at + size))) for at in range(0, n, size)]


def sentence_ends(text: str) -> list[int]:
    """Read the text character by character; a sentence ends at a stop before white space, or with a line."""
    ends, i = [], 0
    while i < len(text):
        j = i
        if text[i] in ".!?…" or text[i] in "。！？":
            stops = ".!?…" if text[i] in ".!?…" else "。！？"
            while j < len(text) and text[j] in stops:
                j += 1
            while j < len(text) and text[j] in "\"')]”’»」』）":
                j += 1
            blank = j
            while blank < len(text) and text[blank] in " \t\n\r\f\v":
                blank += 1
            if stops == "。！？" or "\n" in text[j:blank]:
                ends.append(blank)
                i = blank
                continue
            if blank > j:
                ends.append(j)
            i = j
        elif text[i] == "\n":
            while j < len(text) and text[j] in " \t\n\r\f\v":
                j += 1
            ends.append(j)
            i = j
        else:
            i += 1
    return ends


def sentences_of(request: SelectionRequest, longest: int) -> list[list[int]]:
    """Sentences as tokens; a token is of the sentence it begins in."""
    text, spans = request.text.decode(), request.spans
    assert spans is not None
    ends = sentence_ends(text)
    marks = [len(text[:end].encode()) for end in ends]
    sentences: list[list[int]] = [[]]
    for token, (start, _) in enumerate(spans.tolist()):
        while marks and start >= marks[0]:
            marks.pop(0)
            if sentences[-1]:
                sentences.append([])
        sentences[-1].append(token)
    cut = []
    for sentence in sentences:
        parts = math.ceil(len(sentence) / longest)
        edges = [len(sentence) * part // parts for part in range(parts + 1)] if parts else []
        cut += [sentence[a:b] for a, b in pairwise(edges)]
    return cut


def choose(name: str, request: SelectionRequest, options: Mapping[str, Any], units: list[list[int]]) -> list[int]:
    """Numbers of the units the rule chooses, best first."""
    n = len(request.scores)
    masked = set(request.protected.nonzero()[0].tolist())
    masked |= set(range(min(options["sink"], n))) | set(range(max(0, n - options["tail"]), n))
    thresholded = name in ("alpha", "top_p", "zscore", "adaptive")
    score: dict[int, float] = {}
    for number, unit in enumerate(units):
        counted = [token for token in unit if not (thresholded and token in masked)]
        if counted:
            # Scores of the tests are small integers or their like, so that float32 sums are exact.
            score[number] = float(np.float32(sum(float(request.scores[token]) for token in counted) / len(counted)))
    ranked = sorted(score, key=lambda number: (-score[number], number))
    values = [score[number] for number in ranked]
    if not values:
        return []
    if name == "alpha":
        level = options["alpha"] * (max(values) if options["of"] == "max" else np.mean(values))
        return [number for number in ranked if score[number] > level]
    if name == "zscore":
        if options["spread"] == "std":
            centre, spread = np.mean(values), np.std(values)
        else:
            centre = np.median(values)
            spread = 1.4826 * np.median([abs(value - centre) for value in values])
        return [number for number in ranked if score[number] > centre + options["z"] * spread]
    positive = [max(value, 0.0) for value in values]
    if name == "top_p":
        chosen: list[int] = []
        total, held = float(np.cumsum(positive)[-1]), 0.0
        while held < options["p"] * total:
            held += positive[len(chosen)]
            chosen.append(ranked[len(chosen)])
        return chosen
    if name == "adaptive":
        fewest, tokens = 0, 0
        while fewest < len(ranked) and tokens < options["least"] * n:
            tokens += len(units[ranked[fewest]])
            fewest += 1
        if options["rule"] == "entropy":
            total = sum(positive)
            shares = [value / total for value in positive if value > 0] if total > 0 else []
            wanted = math.exp(-sum(share * math.log(share) for share in shares)) if shares else 0
            return ranked[: max(math.ceil(wanted - 1e-9), fewest)]
        best, count, tokens = -math.inf, fewest, 0
        for at in range(len(ranked) - 1):
            tokens += len(units[ranked[at]])
            if at + 1 >= fewest and tokens <= request.budget and values[at] - values[at + 1] > best:
                best, count = values[at] - values[at + 1], at + 1
        return ranked[:count]
    return ranked


def forced_of(request: SelectionRequest, budget: int, sink: int, tail: int) -> set[int]:
    """Protected tokens, then both ends in step, as far as half of the rest goes."""
    n = len(request.scores)
    forced = set(request.protected.nonzero()[0].tolist())
    room = (budget - len(forced)) // 2
    head = [(i / sink, i) for i in range(min(sink, n))]
    foot = [((n - 1 - i) / tail, i) for i in range(max(0, n - tail), n)]
    nearest: dict[int, float] = {}
    for distance, token in head + foot:
        nearest[token] = min(distance, nearest.get(token, math.inf))
    for token in sorted(nearest, key=lambda token: (nearest[token], token)):
        if token not in forced and room > 0:
            forced.add(token)
            room -= 1
    return forced


def evenly(units: int) -> list[int]:
    """Unit numbers sorted by the mirror image of their binary digits."""
    width = max(1, math.ceil(math.log2(max(units, 1))))
    return sorted(range(units), key=lambda number: format(number, f"0{width}b")[::-1])


def slow_select(name: str, request: SelectionRequest, given: Mapping[str, Any]) -> set[int]:
    """Tokens kept by the selector `name` with the options `given`; the protected text must fit."""
    if name in STRUCTURED:
        return slow_structured(name, request, SHARED | {"longest": 64} | dict(given))
    options = DEFAULTS[name] | dict(given)
    n = len(request.scores)
    if request.keep_ratio == 1:
        return set(range(n))
    units = units_of(name, request, options)
    chosen = choose(name, request, options, units)
    budget = min(request.budget, options.get("tokens", n))
    kept = forced_of(request, budget, options["sink"], options["tail"])
    radius = options["neighbours"]
    if radius == "by_length":
        tokens = 64 if n < 32768 else 128 if n < 65536 else 256
        radius = max(1, round(tokens * len(units) / n))
    turns, spare, turn = [], evenly(len(units)), 0
    while chosen:
        if math.floor((turn + 1) * options["backbone"]) > math.floor(turn * options["backbone"]):
            turns += [spare.pop(0)] if spare else []
        else:
            centre = chosen.pop(0)
            turns.append(centre)
            for distance in range(1, radius + 1):
                turns += [near for near in (centre + distance, centre - distance) if 0 <= near < len(units)]
        turn += 1
    for number in turns:
        unit = units[number]
        length = min(n, max(len(unit), options["min_run"]))
        start = min(max(unit[0] - (length - len(unit)) // 2, 0), n - length)
        new = set(range(start, start + length)) - kept
        if len(kept) + len(new) > budget:
            break
        kept |= new
    return kept


def pieces_of(name: str, text: str, longest: int, starts: list[int]) -> list[int]:
    """Bytes at which units begin, in text without JSON, fences and tags: lines, for `segments` also what prose is made of."""
    lines: list[str] = []
    for line in text.splitlines(keepends=True) if "\n" in text else [text]:
        if lines and (not line.strip() or not "".join(lines).strip()):
            lines[-1] += line
        else:
            lines.append(line)
    if name != "segments":
        return list(accumulate((len(line.encode()) for line in lines), initial=0))[:-1]
    paragraphs: list[list[str]] = []
    for line in lines:
        if paragraphs and "\n" not in paragraphs[-1][-1].rstrip(" \t").removesuffix("\n")[len(paragraphs[-1][-1].rstrip()) :]:
            paragraphs[-1].append(line)
        else:
            paragraphs.append([line])
    found, at = [], 0
    for paragraph in paragraphs:
        whole = "".join(paragraph)
        if not is_prose(whole.encode()):
            units = paragraph
        elif sum(at <= start < at + len(whole.encode()) for start in starts) <= longest:
            units = [whole]
        else:
            edges = sorted({0, len(whole), *sentence_ends(whole)})
            units = [whole[low:high] for low, high in pairwise(edges)]
        for unit in units:
            inside = [start for start in starts if at <= start < at + len(unit.encode())]
            found.append(at)
            if units is not paragraph:
                parts = math.ceil(len(inside) / longest)
                raw = unit.encode()
                for part in range(1, parts):
                    rest = [start for start in inside[len(inside) * part // parts :] if raw[start - at] & 0xC0 != 0x80]
                    found += rest[:1]
            at += len(unit.encode())
    return found


def slow_structured(name: str, request: SelectionRequest, options: Mapping[str, Any]) -> set[int]:
    """Tokens kept by a selector of whole units from a text that has no JSON, fences or tags."""
    assert request.spans is not None
    n, spans = len(request.scores), request.spans.tolist()
    if request.keep_ratio == 1:
        return set(range(n))
    cuts = [*pieces_of(name, request.text.decode(), options["longest"], [start for start, _ in spans]), len(request.text)]
    touched = [[p for p, (low, high) in enumerate(pairwise(cuts)) if low < end and high > start] for start, end in spans]
    number = list(range(len(cuts) - 1))  # of the unit each piece is in
    for (start, end), pieces in zip(spans, touched, strict=True):
        if len(pieces) > 1 and any(request.text[at : at + 1] and request.text[at] >> 6 == 2 for at in (start, end)):
            one = {number[piece] for piece in pieces}
            number = [min(one) if other in one else other for other in number]
    units: list[set[int]] = []
    counts: list[int] = []
    last = None
    for unit in sorted(set(number)):
        tokens = {token for token, pieces in enumerate(touched) if unit in {number[piece] for piece in pieces}}
        begins = any(number[pieces[0]] == unit for pieces in touched)
        if begins and last is not None and counts[last] < options["min_run"]:
            units[last] |= tokens
            counts[last] += len(tokens)
        else:
            units.append(tokens)
            counts.append(len(tokens))
            last = len(units) - 1 if begins else last
    size = [len(tokens) for tokens in units]
    score = [float(np.float32(sum(float(request.scores[t]) for t in tokens) / len(tokens))) for tokens in units]
    heavy = [number for number, tokens in enumerate(size) if tokens > options["longest"]]
    ranked = sorted(range(len(units)), key=lambda number: (-score[number], number))
    chosen, waiting, taken = [], list[int](), 0
    for unit in ranked:
        if unit in heavy and size[unit] > taken:
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
        radius = max(1, round((64 if n < 32768 else 128) * len(units) / n))
    turns, spare, turn = list[int](), evenly(len(units)), 0
    while chosen:
        if math.floor((turn + 1) * options["backbone"]) > math.floor(turn * options["backbone"]):
            turns += [unit for unit in [spare.pop(0)] if unit not in heavy] if spare else []
        else:
            centre = chosen.pop(0)
            turns.append(centre)
            for distance in range(1, radius + 1):
                near = [centre + distance, centre - distance]
                turns += [unit for unit in near if 0 <= unit < len(units) and unit not in heavy]
        turn += 1
    return chain(request, units, turns, [unit for unit in range(len(units)) if unit not in heavy], options)


def chain(
    request: SelectionRequest, units: list[set[int]], turns: list[int], light: list[int], options: Mapping[str, Any]
) -> set[int]:
    """Choices and both ends in turn, each of the ends once as many tokens were chosen as ends were taken; then the budget."""
    n = len(request.scores)
    protected = set(request.protected.nonzero()[0].tolist())
    sink, tail = options["sink"], options["tail"]
    away = {i: i / sink for i in range(min(sink, n))}
    for i in range(max(0, n - tail), n):
        away[i] = min(away.get(i, math.inf), (n - 1 - i) / tail)
    near = {unit: min((away.get(token, math.inf) for token in units[unit] - protected), default=math.inf) for unit in light}
    ends = sorted((unit for unit in light if near[unit] < math.inf), key=lambda unit: (near[unit], min(units[unit])))
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
    for unit in order:
        if len(kept | units[unit]) > request.budget:
            break
        kept |= units[unit]
    return kept
