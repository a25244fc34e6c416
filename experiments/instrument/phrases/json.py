"""Training phrases of `json`: layouts drawn from parts, vocabularies drawn from other words."""

# ruff: noqa: E501

from __future__ import annotations

import random

from sp.evals.tasks.json import FRESH, HELD_OUT, LARGEST, JsonPhrases, RecordLayout
from sp.evals.text.tables import table

from .names_b import PLACES, QUALITIES, THINGS, coined
from .weave import noise, several, spread, weave
from .wide import PLAIN, WORK

TABLES = table(__file__)

WORDS = TABLES["WORDS"]
HELD = {word for words in HELD_OUT.vocabularies for word in words}
ENGLISH = tuple(word for word in dict.fromkeys((*WORDS, *WORK, *(one.lower() for one in PLAIN))) if word not in HELD)
"""Ordinary words, less those that examples have for groups and fields."""
NAMING = ("name", "record", "id", "key", "item", "title", "entry", "of", "object", "uid", "label", "called")
PADS = (" ", "  ", "  ", "    ", "\t", "- ", "")
QUOTES = ('"', '"', "'", "", "", "`")


def layout(rng: random.Random) -> RecordLayout:
    """A layout in lines or in one line, with marks of some kind."""
    quote, colon = (
        rng.choice(QUOTES),
        rng.choice((": ", ": ", ":", " = ", "=", " -> ", " => ", " ", ":: ", "\t", " is ")),
    )
    key = f"{quote}{{key}}{quote}"
    naming = rng.choice((
        f"{quote}{rng.choice(NAMING)}{quote}{colon}{quote}{{name}}{quote}", f"{rng.choice(NAMING)} {{name}}", "{name}",
        f"{{name}} ({rng.choice(NAMING)})", f"{quote}{{name}}{quote}",
    ))  # fmt: skip
    if rng.random() < 0.15:
        naming = f"{noise(rng)} {naming}".replace("{ ", "").replace("[ ]", "")
    start, end = rng.choice(
        (
            ("{{", "}"),
            ("{{", "}"),
            ("", ""),
            ("", ""),
            ("(", ")"),
            ("[", "]"),
            ("<", ">"),
            ("# ", ""),
            ("== ", " =="),
            ("* ", ""),
            ("begin ", " end"),
            ("- ", ""),
        )
    )
    opened, closed = rng.choice(
        (
            ("{{", "}}"),
            ("{{", "}}"),
            ("[", "]"),
            ("(", ")"),
            ("", ""),
            ("<", ">"),
            ("", " ;"),
            ("begin", "end"),
            ("|", "|"),
        )
    )
    mark = rng.choice(("", "", ",", ",", ";", " |", " /", " &"))
    unit = rng.choice(("", "", "", "", " units", "u", " #", "%"))
    if rng.random() < 0.5:
        pad = rng.choice(PADS)
        head = rng.choice((f"{start}\n{naming}", f"{start}{naming}", f"{start} {naming}"))
        group = rng.choice(
            (
                f"{{pad}}{key}{colon}{opened}",
                f"{{pad}}{key} {opened}",
                f"{{pad}}[{key}] {opened}",
                f"{{pad}}{opened}{key}",
                f"{{pad}}<{key}>",
            )
        )
        return RecordLayout(
            head, f"{mark}\n", f"{group}\n", f"{{pad}}{key}{colon}{{value}}{unit}", f"{mark}\n",
            f"\n{{pad}}{closed}" if closed else "",
            f"\n{end}" if end else "", pad,
        )  # fmt: skip
    between = f"{mark or rng.choice((',', ';', ' ', ' ~'))} "
    group = rng.choice((f"{key}{colon}{opened}", f"{key} {opened or '<'} ", f"{opened or '('}{key} ", f"<{key}> "))
    return RecordLayout(f"{start}{naming}", between, group, f"{key}{colon}{{value}}{unit}", between, closed, end)


def flat(rng: random.Random) -> RecordLayout:
    """A layout whose groups are told by their first lines, sometimes indented, and by nothing that closes them."""
    opened, closed = rng.choice(
        (
            ("[", "]"),
            ("[", "]"),
            ("[[", "]]"),
            ("(", ")"),
            ("<", ">"),
            ("-- ", ""),
            ("- ", " -"),
            ("== ", " =="),
            ("@", ""),
            ("", ":"),
            ("", ""),
            ("# ", ""),
            ("group ", ""),
            ("[/", "]"),
            ("...", ""),
            ("* ", " *"),
        )
    )
    colon = rng.choice((" = ", " = ", "=", ": ", " ", "\t", " := ", ", ", " -> "))
    pad, naming = rng.choice(("", "", "  ", "\t")), rng.choice((*NAMING, ""))
    quote, mark = rng.choice(("", "", "", '"', "'")), rng.choice(("", "", "", ";", ","))
    start, end = rng.choice((("[", "]"), ("{{", "}}"), ("", ""), ("", ":"), ("### ", ""), ("<<", ">>"), ("= ", " =")))
    return RecordLayout(
        f"{start}{naming} {{name}}{end}".strip(), "\n", f"{{pad}}{opened}{quote}{{key}}{quote}{closed}\n",
        f"{{pad}}{quote}{{key}}{quote}{colon}{{value}}{mark}", "\n", "", rng.choice(("", "", "\n", "\n---")), pad,
    )  # fmt: skip


def bracketed(rng: random.Random) -> RecordLayout:
    """A layout that puts every field in brackets of its own, as well as every group."""
    opened, closed = rng.choice((("[", "]"), ("{{", "}}"), ("(", ")"), ("|", "|"), ("'", "'")))
    around_group, behind_group = rng.choice((("[", "]"), ("{{", "}}"), ("(", ")"), ("<<", ">>")))
    # A blank alone between the two, in round brackets, is how examples write them.
    marks = (": ", " = ", ":", "=", ", ", " -> ", " . ", "|") if opened == "(" else (" ", " ", ": ", "=", ", ")
    between = rng.choice((" ", " ", ", ", "; ", "", "\n"))
    mark = rng.choice(("", "", ":", " ="))
    return RecordLayout(
        f"{around_group}{rng.choice(NAMING)} {{name}}", between, f"{around_group}{{key}}{mark} ",
        f"{opened}{{key}}{rng.choice(marks)}{{value}}{closed}", between, behind_group, behind_group.replace("}}", "}"),
    )  # fmt: skip


def vocabulary(rng: random.Random) -> tuple[str, ...]:
    """Words of one sort, or of several."""
    invented = [coined(rng).lower() for _ in range(LARGEST)]
    sort = rng.choice((WORDS, WORDS, ENGLISH, ENGLISH, ENGLISH, THINGS, PLACES, QUALITIES, invented))
    words = (
        rng.sample(sort, LARGEST) if rng.random() < 0.8 else [rng.choice((rng.choice(WORDS), one)) for one in invented]
    )
    form = rng.choice(("{}", "{}", "{}", "{}", "{}_{}", "the_{}", "my{}"))
    if form == "{}_{}":
        words = [f"{word}_{rng.choice(WORDS)}" for word in words]
    return tuple(form.format(word) if form in ("the_{}", "my{}") else word for word in words)


def distinct(found: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    """Those whose words all differ."""
    return tuple(one for one in found if len(set(one)) == LARGEST)


VALUE = ("number", "value", "number", "entry")
ASKS = [
    *spread("which <value> <has> {name} at {path}", value=VALUE, has=("has", "holds", "does one find in")),
    *spread("which <value> does {name} <have> under {path}", value=VALUE, have=("hold", "list", "give", "show")),
    *spread("what is the <value> of {path} in {name}", value=VALUE), *spread("what is {path} of {name}", value=VALUE),
    *spread("give the <value> of {path} for {name}", value=VALUE),
    *spread("look at {path} in {name} and give the <value> there", value=VALUE),
    *spread("{name}: what <value> is at {path}", value=VALUE),
    *spread("in the record {name}, {path} has which <value>", value=VALUE),
    *spread("go to the record {name}; which <value> stands at {path}", value=VALUE),
    *spread("{path} in {name}: give the <value>", value=VALUE),
    *spread("the record is {name} and the path is {path}; which <value>", value=VALUE),
    *spread("find {name}, then {path}, and give the <value>", value=VALUE), "{name} / {path}", "{name}: {path}",
    "read {path} from {name}", "what does {name} say for {path}",
]  # fmt: skip
ASKS_TOP = [
    *(
        one.replace("at {path}", "for {path}").replace("under {path}", "as {path}").replace("{path}", "{key}")
        for one in ASKS
    ),
    "which {key} is that of {name}", "give the {key} of {name}", "{key} of {name}", "what {key} does {name} have",
    "the {key} of the record {name} is", "go to {name} and give its {key}", "{name} and its {key}",
]  # fmt: skip
OWNERS = TABLES["OWNERS"]
ASK_BEFORE = TABLES["ASK_BEFORE"]
ASK_ENDS = ("?", "?", "?", ".", ":", "")


def asks(cores: list[str], seed: int, held_out: tuple[str, ...]) -> tuple[str, ...]:
    """Questions by the hundred."""
    return weave(cores, 700, seed, before=ASK_BEFORE, noisy=0.05, ends=ASK_ENDS, avoid=held_out)


def owners(one: str) -> list[str]:
    """Questions for a record or group by a value."""
    return [core.replace("<one>", one) for core in OWNERS]


TOPS = TABLES["TOPS"]
OUTWARD = (
    ", then ", " then ", " > ", "/", ".", " -> ", " / ", " and then ", ", under it ", " and in it ", ", then in there ",
    ", and there ", " :: ", ", below it ",
    *spread(
        "<mark> <go> <at> ",
        mark=("", ","),
        go=("then", "next", "and next", "after that", "and under it", "further down", "and from there", "in which"),
        at=("", "to", "the field", "one finds"),
    ),
    *spread(
        "<mark> <and> <inside> <that><colon> ",
        mark=("", ","),
        **{"and": ("and", "and there", "and then", "then", "but")},
        inside=("inside", "within", "in", "under", "of", "from", "out of", "deeper in"),
        that=("that", "this", "it", "that group", "this one", "the same"),
        colon=("", ":", ", the"),
    ),
    *spread("<mark> <which> <has> ", mark=("", ","), which=("which", "that", "and it", "whose part"),
    has=("has", "holds", "contains", "is given with", "is followed by", "begins a group with")),
    " with its ", "'s ", " containing ", " holding ", ", open it, ", ", down to ", ", one step down ", ", in whose group ", " >> ", " \\ ",
    *spread(
        "<mark> <and> <look> <there><the> ",
        mark=("", ","),
        **{"and": ("and", "then", "and then")},
        look=("right", "look", "see", "take"),
        there=("there", "in there", "therein"),
        the=("", ",", " the"),
    ),
    *spread("<mark> <there> <the> ", mark=(",", ";", " -"), there=("there", "in there", "therein", "in there at"), the=("", "the", "field")),
    ", and as its part ", ", and a level deeper ", ", in that very group ", " -- ", ", of which I want ", ", with the field ",
)  # fmt: skip
INWARD = (
    " of ", " in ", " inside ", " within ", " under ", " of the group ", " in the group ", " that is in ", " found in ",
    " which is inside ", ", found within ", " from ", " to be found in ", " < ",
    *spread(
        "<mark> <that> <lies> <within> ",
        mark=("", ","),
        that=("which", "that", "and this", "itself"),
        lies=("lies", "stands", "sits", "belongs", "comes"),
        within=("under", "in", "within", "inside", "below", "with"),
    ),
    *spread(
        "<mark> <part> <of> <group>",
        mark=("", ","),
        part=("part", "a part", "a field", "one field", "a child", "the one", "an entry", "member", "itself a part"),
        of=("of", "in", "inside", "within", "from"),
        group=("", "the group ", "the part "),
    ),
    *spread(
        "<mark> <seen> <in> ",
        mark=("", ","),
        seen=("kept", "held", "written", "placed", "nested", "stored", "given", "noted", "taken", "looked up", "as it stands"),
        **{"in": ("in", "inside", "within", "under", "beneath")},
    ),
    *spread(
        "<mark> <which> <is> <in> <group>",
        mark=("", ","),
        which=("which", "that", "this"),
        **{"is": ("is", "is found"), "in": ("in", "inside", "under", "beneath", "part of", "below")},
        group=("", "", "the group ", "the section "),
    ),
    " beneath ", " out of ", " belonging to ", " which belongs to ", " << ", " as part of ", " whose group is ", " (of ", ", that of ", " that is one of ",
    ", a level above it ", ", one step up ", ", whose parent is ", ", with the parent ", ", in the hands of ", ", the group being ",
)  # fmt: skip
WAYS = OUTWARD, INWARD
"""Each of the two is drawn half of the time, or a comma would tell of the more frequent one."""


def paths() -> tuple[tuple[str, bool], ...]:
    """Ways to join a group and a field, as many that name the group first as others; none that examples have."""
    held = {joiner for joiner, _ in (*HELD_OUT.paths, *FRESH.paths)}
    plain = (dict.fromkeys(joiner.replace("  ", " ") for joiner in many) for many in WAYS)
    out, into = ([joiner for joiner in many if joiner not in held] for many in plain)
    size = max(len(out), len(into))
    return tuple((found[at % len(found)], found is into) for found in (out, into) for at in range(size))


TRAIN = JsonPhrases(
    layouts=tuple(
        one
        for one in {
            repr(made): made
            for make, many in ((layout, 1500), (flat, 600), (bracketed, 300))
            for made in map(make, map(random.Random, range(many)))
        }.values()
        if one.head not in {held.head for held in HELD_OUT.layouts}
    ),
    vocabularies=distinct(tuple(vocabulary(random.Random(seed)) for seed in range(2000))),
    tops=TOPS,
    names=(
        (*QUALITIES, *several(lambda rng: coined(rng).lower(), 2000, 51)),
        (
            *THINGS, *PLACES, *several(lambda rng: str(rng.randrange(10, 1000)), 100, 52),
            *several(lambda rng: coined(rng).lower(), 2000, 53),
        ),
    ),
    paths=paths(),
    asks=asks(ASKS, 54, HELD_OUT.asks),
    asks_top=asks(ASKS_TOP, 55, HELD_OUT.asks_top),
    asks_record=asks([*owners("record"), *owners("item")], 56, HELD_OUT.asks_record),
    asks_group=asks([*owners("group"), *owners("section")], 57, HELD_OUT.asks_group),
)  # fmt: skip
