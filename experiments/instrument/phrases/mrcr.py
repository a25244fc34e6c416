"""Training phrases of `mrcr`: other kinds, topics and codes, and frames by the hundred."""

from __future__ import annotations

import random

from sp.evals.tasks.mrcr import HELD_OUT, MrcrPhrases
from sp.evals.text.tables import table

from .names_b import COMPOUND_PLACES, MORE_PEOPLE, OTHERS, QUALITIES, SYLLABLES, THINGS, coined
from .plain import around, odd
from .weave import several, spread, weave

TABLES = table(__file__)

KINDS = TABLES["KINDS"]
TOPICS = TABLES["TOPICS"]
TIMES = TABLES["TIMES"]
VERBS = TABLES["VERBS"]
ABOUT = ("about", "on", "concerning")
HEADER_CORES = [
    core
    for pattern in (
        "{who} <verb> a {kind} <about> {topic}", "a {kind} <about> {topic} that {who} <verb>",
        "{who} <verb> {when} a {kind} <about> {topic}", "{when} {who} <verb> a {kind} <about> {topic}",
        "a {kind} <about> {topic}, <verb> by {who} {when}", "this is a {kind} <about> {topic}",
        "here is a {kind} <about> {topic} by {who}", "now comes a {kind} <about> {topic}", "{kind} <about> {topic}",
        "below is a {kind} <about> {topic}, from {who}", "a {kind} by {who} <about> {topic} {when}",
        "then {who} <verb> {when} a {kind} <about> {topic}", "next is a {kind} of {who} <about> {topic}",
        "what follows {who} <verb> {when}: a {kind} <about> {topic}", "{kind} by {who} ({when}) <about> {topic}",
        "<about> {topic} {who} <verb> {when} a {kind}", "<about> {topic}: a {kind} {who} <verb>",
        "the topic is {topic} and the form is a {kind}, as {who} <verb> it {when}",
        "it was {who} who <verb> a {kind} <about> {topic}",
    )
    for core in spread(pattern, verb=VERBS, about=ABOUT)
]  # fmt: skip
BEFORE = TABLES["BEFORE"]
BEHIND = TABLES["BEHIND"]
CLOSING_CORES = TABLES["CLOSING_CORES"]
ENDING = TABLES["ENDING"]
ENDS = {"about": ABOUT, "end": ("end", "finish", "close"), "ends": ("ends", "finishes", "closes")}
FINAL = TABLES["FINAL"]
ASK_BEFORE = TABLES["ASK_BEFORE"]
ASK_ENDS = ("?", "?", "?", ".", ":", "")


def cores(nths: tuple[str, ...]) -> list[str]:
    """Questions for the end of a piece, with these words for its place."""
    return [core for pattern in ENDING for core in spread(pattern, nth=nths, **ENDS)]


OPENINGS = TABLES["OPENINGS"]
PEOPLE = TABLES["PEOPLE"]
DOINGS = TABLES["DOINGS"]
ENDINGS = TABLES["ENDINGS"]

MARKED = TABLES["MARKED"]
"""Words of which one, before or behind a code, tells that a piece closes with it."""
CLOSE = TABLES["CLOSE"]


def closing(rng: random.Random) -> str:
    """A closing line from parts in any order: a word of marking, a place, the code, and odd words."""
    parts = [
        part
        for part in (
            rng.choice(MARKED),
            rng.choice(CLOSE),
            rng.choice(("is", "was", "stands", "reads", "says", "as", "", "")),
        )
        if part
    ]
    rng.shuffle(parts)
    parts.insert(
        rng.randint(0, len(parts)),
        rng.choice(("{code}", "{code}", "{code}", ": {code}", "({code})", "'{code}'", "{code},")),
    )
    return around(" ".join(parts).replace(" :", ":"), rng)


TRAIN = MrcrPhrases(
    kinds=(*KINDS, *several(lambda rng: coined(rng).lower(), 1000, 11)),
    topics=(
        *TOPICS, *(f"{thing}s" for thing in THINGS if not thing.endswith(("s", "x", "f", "y"))),
        *several(lambda rng: f"{rng.choice(QUALITIES)} {rng.choice(THINGS)}s", 1000, 12),
        *several(lambda rng: coined(rng).lower(), 500, 18), *(f"the {place}" for place in COMPOUND_PLACES),
    ),
    people=MORE_PEOPLE,
    times=TIMES,
    headers=(
        *weave(
            HEADER_CORES,
            3000,
            13,
            before=BEFORE,
            behind=BEHIND,
            ends=(".", ":", ":", ".", " -", ";"),
            avoid=HELD_OUT.headers,
        ),
        *several(lambda rng: around(rng.choice(HEADER_CORES), rng), 4000, 61),
    ),
    closings=(
        *weave(
            CLOSING_CORES,
            800,
            14,
            before=BEFORE,
            behind=("now", "of course", "as ever", "too", "again"),
            avoid=HELD_OUT.closings,
        ),
        *several(closing, 5000, 62),
    ),
    asks=weave(cores(("{nth} ",)), 1500, 15, before=ASK_BEFORE, noisy=0.05, ends=ASK_ENDS, avoid=HELD_OUT.asks),
    asks_only=weave(
        cores(("", "only ", "one ", "single ")),
        1500,
        16,
        before=ASK_BEFORE,
        noisy=0.05,
        ends=ASK_ENDS,
        avoid=HELD_OUT.asks_only,
    ),
    asks_final=weave(
        [core for pattern in FINAL for core in spread(pattern, **ENDS)],
        150,
        17,
        before=ASK_BEFORE,
        ends=ASK_ENDS,
        avoid=HELD_OUT.asks_final,
    ),
    prose=(
        (*spread("<a> <b>", a=OPENINGS, b=PEOPLE), *several(lambda rng: odd(rng, 1, 5).capitalize(), 3000, 63)),
        (*DOINGS, *several(lambda rng: odd(rng, 2, 5), 3000, 64)),
        (*ENDINGS, *several(lambda rng: f"{odd(rng, 1, 5)}{rng.choice('...!;')}", 3000, 65)),
    ),
    syllables=(*SYLLABLES, *OTHERS),
)  # fmt: skip
