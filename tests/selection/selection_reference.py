"""Selection written the slow way: sets of tokens, one choice at a time, after the rules as their papers state them.

Shares no code with `sp.selection`. Scores are compared as exact fractions of the float32 values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from sp.selection import SelectionRequest

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
        fewest, tokens, free = 0, 0, int((~request.protected).sum())
        while fewest < len(ranked) and tokens < options["least"] * free:
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
            fits = tokens <= math.ceil(round(request.keep_ratio * free, 6))
            if at + 1 >= fewest and fits and values[at] - values[at + 1] > best:
                best, count = values[at] - values[at + 1], at + 1
        return ranked[:count]
    return ranked


def characters_of(request: SelectionRequest) -> list[set[int]]:
    """For each token those that hold parts of the same characters, itself among them."""
    if request.spans is None:
        return [{token} for token in range(len(request.scores))]
    holders: dict[int, set[int]] = {}
    owner = [number for number, letter in enumerate(request.text.decode()) for _ in letter.encode()]
    for token, (start, end) in enumerate(request.spans.tolist()):
        for byte in range(start, end):
            holders.setdefault(owner[byte], set()).add(token)
    found = [{token} for token in range(len(request.scores))]
    for group in holders.values():
        joined = set().union(*(found[token] for token in group))
        for token in joined:
            found[token] = joined
    return found


def whole(tokens: set[int], characters: list[set[int]]) -> set[int]:
    """Those tokens, and all that hold the rest of their characters."""
    return set().union(*(characters[token] for token in tokens))


def forced_of(
    request: SelectionRequest, budget: int, sink: int, tail: int, characters: list[set[int]]
) -> tuple[set[int], int]:
    """Protected tokens, then both ends in step, as far as half of the rest goes; what is torn at its end is left out.

    And how much that is.
    """
    n = len(request.scores)
    forced = set(request.protected.nonzero()[0].tolist())
    room = (budget - len(forced)) // 2
    head = [(i / sink, i) for i in range(min(sink, n))]
    foot = [((n - 1 - i) / tail, i) for i in range(max(0, n - tail), n)]
    nearest: dict[int, float] = {}
    for distance, token in head + foot:
        nearest[token] = min(distance, nearest.get(token, math.inf))
    nearest = {
        token: min(nearest.get(other, math.inf) for other in characters[token])
        for token in whole(set(nearest), characters)
    }
    for token in sorted(nearest, key=lambda token: (nearest[token], token)):
        if token not in forced and room > 0:
            forced.add(token)
            room -= 1
    whole_ones = {token for token in forced if characters[token] <= forced}
    return whole_ones, len(forced) - len(whole_ones)


def evenly(units: int) -> list[int]:
    """Unit numbers sorted by the mirror image of their binary digits."""
    width = max(1, math.ceil(math.log2(max(units, 1))))
    return sorted(range(units), key=lambda number: format(number, f"0{width}b")[::-1])


def slow_select(name: str, request: SelectionRequest, given: Mapping[str, Any]) -> set[int]:
    """Tokens kept by the selector `name` with the options `given`."""
    options = DEFAULTS[name] | dict(given)
    n = len(request.scores)
    if request.keep_ratio == 1:
        return set(range(n))
    units = units_of(name, request, options)
    chosen = choose(name, request, options, units)
    fixed = int(request.protected.sum())
    budget = fixed + min(math.ceil(round(request.keep_ratio * (n - fixed), 6)), options.get("tokens", n))
    characters = characters_of(request)
    kept, torn = forced_of(request, budget, options["sink"], options["tail"], characters)
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
        new = whole(set(range(start, start + length)), characters) - kept
        if len(kept) + len(new) > budget - torn:
            break
        kept |= new
    return kept
