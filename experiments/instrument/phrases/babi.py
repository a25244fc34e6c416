"""Training phrases of `babi`: other people, things, places and manners, and frames by the hundred."""

from __future__ import annotations

from sp.evals.tasks.babi import HELD_OUT, BabiPhrases
from sp.evals.text.tables import table

from .names_b import MORE_PEOPLE, MORE_PLACES, PLACES, QUALITIES, THINGS, coined
from .plain import PLAIN, around, odd
from .weave import several, spread, weave

TABLES = table(__file__)

WENT = TABLES["WENT"]
REACHED = TABLES["REACHED"]
MOVES = [
    *spread("{who} <went> to the {place} {how}", went=WENT), *spread("{who} <went> to the {place}", went=WENT),
    *spread("to the {place} {who} <went> {how}", went=WENT), *spread("to the {place} <went> {who}", went=WENT),
    *spread("{how} {who} <went> to the {place}", went=WENT), *spread("{who} <went>, {how}, to the {place}", went=WENT),
    *spread("{who} {how} <reached> the {place}", reached=REACHED),
    *spread("{who} <reached> the {place}", reached=REACHED),
    *spread("{how} {who} <reached> the {place}", reached=REACHED),
    *spread("the {place} is what {who} <reached>", reached=("reached", "entered", "visited", "headed for")),
    *spread("the {place} was where {who} <went> {how}", went=WENT),
    *spread("it was the {place} that {who} <reached> {how}", reached=REACHED),
    *spread("{who} left and <went> to the {place}", went=WENT),
    *spread("{who} got up, left and <reached> the {place} {how}", reached=REACHED),
    *spread("next, {who} <went> to the {place}", went=WENT),
    *spread("somebody saw how {who} <went> {how} to the {place}", went=WENT),
    *spread("I hear that {who} <reached> the {place} {how}", reached=REACHED), "{who} is in the {place} now",
    "{who}: off to the {place} {how}", "next place of {who}: the {place}", "in the {place} {how} arrived {who}",
    *spread("over to the {place}, {who} <went> {how}", went=WENT),
    *spread("down to the {place} <went> {how} {who}", went=WENT),
    "{who} -> the {place}", "the {place} saw {who} arrive {how}", "the {place} is where {who} arrived next {how}",
    "the {place} was reached by {who} {how}", "the {place} was visited by {who}",
]  # fmt: skip
TOOK = TABLES["TOOK"]
TAKEN = ("taken", "picked up", "grabbed", "collected", "seized", "lifted", "fetched", "snatched", "claimed")
TAKES = [
    *spread("{who} <took> the {what} {how}", took=TOOK), *spread("{who} <took> the {what}", took=TOOK),
    *spread("{how} {who} <took> the {what}", took=TOOK), *spread("{who} {how} <took> the {what}", took=TOOK),
    *spread("the {what} was <taken> by {who} {how}", taken=TAKEN),
    *spread("the {what}, {how}, was <taken> by {who}", taken=TAKEN),
    *spread("it was {who} who <took> the {what} {how}", took=TOOK),
    *spread("next, {who} <took>, {how}, the {what}", took=TOOK),
    *spread("{who} stopped and <took> the {what}", took=TOOK),
    *spread("somebody saw how {who} <took> {how} the {what}", took=TOOK),
    *spread("I hear that {who} <took> the {what} {how}", took=TOOK),
    *spread("{who} bent over and <took> the {what} {how}", took=TOOK), "the {what} is with {who} now",
    "{who} has the {what} now", "{who} is holding the {what} {how}", "the {what} is in the hands of {who}",
    "new holder of the {what}: {who}", "the {what} went into the pocket of {who} {how}",
]  # fmt: skip
DROPPED = TABLES["DROPPED"]
FELL = ("put down", "dropped", "discarded", "laid aside", "laid down", "set down", "abandoned", "left behind", "let go")
DROPS = [
    *spread("{who} <put> the {what} {how}", put=DROPPED), *spread("{who} <put> the {what}", put=DROPPED),
    *spread("{how} {who} <put> the {what}", put=DROPPED), *spread("{who} {how} <put> the {what}", put=DROPPED),
    *spread("the {what} was <put> by {who} {how}", put=FELL),
    *spread("the {what}, {how}, was <put> by {who}", put=FELL),
    *spread("it was {who} who <put> the {what} {how}", put=DROPPED),
    *spread("next, {who} <put>, {how}, the {what}", put=DROPPED),
    *spread("{who} stopped and <put> the {what}", put=DROPPED),
    *spread("somebody saw how {who} <put> {how} the {what}", put=DROPPED),
    *spread("I hear that {who} <put> the {what} {how}", put=DROPPED),
    *spread("{who} bent over and <put> the {what} {how}", put=DROPPED), "{who} left the {what} there {how}",
    "{who}, {how}, left the {what} lying", "the {what} is no longer with {who}, who left it there",
    "{who} left the {what} behind {how}", "the {what} fell from the hands of {who} {how}",
]  # fmt: skip
GAVE = ("handed", "gave", "passed", "brought", "sent", "lent", "sold", "offered", "threw")
GIVEN = ("handed over", "given", "passed", "passed on", "handed", "lent", "sold", "sent")
GOT = ("got", "received", "took over", "was given", "accepted", "bought", "borrowed")
GIVES = [
    *spread("{who} <gave> {whom} the {what} {how}", gave=GAVE), *spread("{who} <gave> the {what} to {whom}", gave=GAVE),
    *spread("{how} {who} <gave> the {what} to {whom}", gave=GAVE),
    *spread("{who} {how} <gave> the {what} over to {whom}", gave=("handed", "gave", "passed")),
    *spread("the {what} was <given> to {whom} by {who} {how}", given=GIVEN),
    *spread("the {what}, {how}, was <given> by {who} to {whom}", given=GIVEN),
    *spread("{whom} <got> the {what} from {who} {how}", got=GOT),
    *spread("from {who} {whom} <got> the {what} {how}", got=GOT),
    *spread("{how} {whom} <got> from {who} the {what}", got=GOT),
    *spread("{whom}, {how}, <got> the {what} from {who}", got=GOT),
    *spread("it was {whom} who <got> the {what} from {who}", got=GOT),
    *spread("next, {who} <gave>, {how}, the {what} to {whom}", gave=GAVE),
    *spread("to {whom} {who} <gave> the {what} {how}", gave=GAVE),
    *spread("somebody saw how {who} <gave> {how} the {what} to {whom}", gave=GAVE),
    *spread("I hear that {whom} <got> the {what} from {who}", got=GOT),
    *spread("{who} stopped and <gave> {whom} the {what} {how}", gave=GAVE),
    "the {what} went from {who} to {whom} {how}", "the {what} is with {whom} now, thanks to {who}",
    "the {what}: {who} -> {whom}",
]  # fmt: skip
WAYS = (
    "in a hurry", "on Monday", "at noon", "with a smile", "in the rain", "by bus", "after lunch", "at last", "again",
    "alone", "with a friend", "in silence", "before dark", "in the morning", "later", "this time", "of course",
    "as usual", "on foot", "without shoes", "for a reason", "by chance", "in a good mood", "in a bad mood",
    "with some luck", "as told", "at dusk", "while singing", "before the meal", "in the snow", "on a whim",
    "at full speed", "half asleep", "for fun", "with care", "as if by magic", "in old clothes", "near midnight",
    "to be sure", "all of a sudden", "with a sigh", "without delay", "during the break", "in the heat",
    "on the third day", "as ordered", "for a bet", "with a red hat", "like a thief", "when asked", "despite the storm",
    "on Tuesday", "on Friday", "one evening", "in plain view", "behind our backs",
    *several(lambda rng: f"with {coined(rng)}", 80, 21),
    *several(lambda rng: f"after {rng.choice(QUALITIES)} days", 60, 22),
    *several(lambda rng: f"at {rng.randrange(1, 13)}:{rng.randrange(60):02}", 150, 23),
    *several(lambda rng: f"with a {rng.choice(QUALITIES)} hat", 60, 24),
)  # fmt: skip
BEFORE = TABLES["BEFORE"]
BEHIND = TABLES["BEHIND"]
ASK_BEFORE = TABLES["ASK_BEFORE"]
ASK_BEHIND = ("now", "in the end", "by now", "at the end", "at this point", "after all that", "finally", "at present")
ASK_ENDS = ("?", "?", "?", ".", ":", "")
THING = TABLES["THING"]
PERSON = tuple(one.replace("the {what}", "{who}").replace("is it", "is that") for one in THING)
HOLDER = TABLES["HOLDER"]
EARLIER = TABLES["EARLIER"]

PREPOSITIONS = TABLES["PREPOSITIONS"]
AROUND = TABLES["AROUND"]

TOWNS = several(lambda rng: coined(rng).capitalize(), 300, 81)
SITES = several(lambda rng: f"{rng.choice(TOWNS)} {rng.choice((*PLACES, *PLAIN))}", 2500, 82)
"""Names of a town and a common word, written as names are: many share the first word, and all of it is the answer."""
PASSING = several(
    lambda rng: around(
        rng.choice(
            (
                "visitors to <town> ask for the {what}", "a {what} costs {number} coins in <town>",
                "the train from <town> to <town> takes {number} minutes", "nobody in <town> heard of it",
                "<town> is {number} years old", "the council of <town> bought {number} lamps",
                "the {what} from <town> is broken", "they say that the trade came to <town> in {number}",
            )
        ).replace("<town>", rng.choice(TOWNS)),
        rng,
    ),
    600,
    83,
)  # fmt: skip
"""What stands around the facts names towns too, and none of them is where a thing is."""

TRAIN = BabiPhrases(
    people=MORE_PEOPLE,
    things=(
        *THINGS, *several(lambda rng: f"{rng.choice(QUALITIES)} {rng.choice(THINGS)}", 4000, 25),
        *several(lambda rng: coined(rng).lower(), 500, 26),
    ),
    places=(
        *MORE_PLACES, *several(lambda rng: odd(rng, 1, 2), 2500, 79),
        *several(lambda rng: odd(rng, 2, 2).title(), 1500, 80), *SITES,
    ),
    around=(*AROUND, *AROUND, *PASSING),
    ways=(*WAYS, *several(lambda rng: f"{rng.choice(PREPOSITIONS)} {odd(rng, 1, 4)}", 4000, 78)),
    moves=(
        *weave(MOVES, 3000, 31, before=BEFORE, behind=BEHIND, avoid=HELD_OUT.moves),
        *several(lambda rng: around(rng.choice(MOVES), rng), 4000, 71),
    ),
    takes=(
        *weave(TAKES, 2500, 32, before=BEFORE, behind=BEHIND, avoid=HELD_OUT.takes),
        *several(lambda rng: around(rng.choice(TAKES), rng), 4000, 72),
    ),
    drops=(
        *weave(DROPS, 2500, 33, before=BEFORE, behind=BEHIND, avoid=HELD_OUT.drops),
        *several(lambda rng: around(rng.choice(DROPS), rng), 4000, 73),
    ),
    gives=(
        *weave(GIVES, 2500, 34, before=BEFORE, behind=BEHIND, avoid=HELD_OUT.gives),
        *several(lambda rng: around(rng.choice(GIVES), rng), 4000, 74),
    ),
    asks_thing=(
        *weave(
            THING, 800, 35, before=ASK_BEFORE, behind=ASK_BEHIND, noisy=0.05, ends=ASK_ENDS, avoid=HELD_OUT.asks_thing
        ),
        *several(lambda rng: around(rng.choice(THING), rng), 600, 75),
    ),
    asks_holder=(
        *weave(
            HOLDER, 800, 36, before=ASK_BEFORE, behind=ASK_BEHIND, noisy=0.05, ends=ASK_ENDS, avoid=HELD_OUT.asks_holder
        ),
        *several(lambda rng: around(rng.choice(HOLDER), rng), 600, 76),
    ),
    asks_person=(
        *weave(
            PERSON, 800, 37, before=ASK_BEFORE, behind=ASK_BEHIND, noisy=0.05, ends=ASK_ENDS, avoid=HELD_OUT.asks_person
        ),
        *several(lambda rng: around(rng.choice(PERSON), rng), 600, 77),
    ),
    asks_before=weave(EARLIER, 800, 38, before=ASK_BEFORE, noisy=0.05, ends=ASK_ENDS, avoid=HELD_OUT.asks_before),
)  # fmt: skip
