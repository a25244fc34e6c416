"""Training phrases of `code`: surfaces of many languages that do not exist, drawn from parts of those that do."""

from __future__ import annotations

import random
import re

from sp.evals.tasks.code import HELD_OUT, CodePhrases
from sp.evals.text.tables import table

from .names_b import PLACES, QUALITIES, THINGS, coined
from .weave import noise, several, spread, weave

TABLES = table(__file__)

KEYWORDS = TABLES["KEYWORDS"]
ARGUMENTS = TABLES["ARGUMENTS"]
OPENERS = TABLES["OPENERS"]
CLOSERS = {"{": ("}}", "}};", "}} // done"), "": ("", "", "end", "end", "done", "fin", "# end")}
RETURNS = TABLES["RETURNS"]
CONSTANT_WORDS = TABLES["CONSTANT_WORDS"]
TYPES = ("", "", "", "", ": int", ": Int", ": number", " int", ": u32", ": Final", "[0]", ": usize", " as int")
ASSIGNS = TABLES["ASSIGNS"]
ENDS = ("", "", "", "", ";", ";", ",", "  # tuned", " // see notes", " -- fixed", ".", "  ;", "u;", " /* old */")


def function(rng: random.Random) -> str:
    """A frame of a function."""
    opener = rng.choice(OPENERS)
    closer = rng.choice(CLOSERS["{" if "{" in opener else ""])
    head = f"{rng.choice(KEYWORDS)} {{name}}{rng.choice(ARGUMENTS)}{opener}"
    if rng.random() < 0.15:
        head = f"{rng.choice(('#', '//', '--', '@'))} {noise(rng)}\n{head}"
    return f"{head}\n{{body}}{rng.choice(('    ', '    ', '  '))}{rng.choice(RETURNS)}" + (
        f"\n{closer}" if closer else ""
    )


def constant(rng: random.Random) -> str:
    """A frame of a constant, seldom with the number in front."""
    if rng.random() < 0.1:
        return rng.choice(
            (
                "{value} = {name}",
                "{value} -> {name}",
                "{value} as {name}",
                "put {value} into {name}",
                "store {value}, {name}",
            )
        )
    assign = rng.choice(ASSIGNS)
    end = ")" if "(" in assign else rng.choice(ENDS)
    if rng.random() < 0.1:
        end += f"  # {noise(rng)}"
    return f"{rng.choice(CONSTANT_WORDS)}{{name}}{rng.choice(TYPES)}{assign}{{value}}{end}"


def kept(frames: tuple[str, ...], held_out: tuple[str, ...]) -> tuple[str, ...]:
    """Those that are not held out."""
    return tuple(one for one in frames if one not in held_out)


NUMBER = ("number", "number", "value", "figure", "result")
ASKS = [
    *spread("what does {name} <give>", give=("return", "give back", "yield", "hand out", "produce", "evaluate to")),
    *spread("which <number> does {name} <give>", number=NUMBER,
    give=("return", "give back", "yield", "produce", "come to")),
    *spread("what <number> <results> when {name} is called", number=NUMBER,
    results=("results", "comes out", "comes back", "do we get")),
    *spread("which <number> does one get <by> {name}", number=NUMBER,
    by=("from", "out of", "when running", "from a call of", "if one calls")),
    *spread("give the <number> that {name} <gives>", number=NUMBER,
    gives=("returns", "yields", "hands out", "produces", "gives back")),
    *spread("work out what {name} <gives>", gives=("returns", "yields", "hands out", "produces", "results in")),
    *spread("calling {name} <gives> which <number>", number=NUMBER, gives=("returns", "yields", "gives", "results in")),
    *spread("run {name}: which <number> <results>", number=NUMBER, results=("results", "comes out", "is it")),
    *spread("I call {name}, and what <number> <results>", number=NUMBER, results=("results", "comes out", "do I get")),
    "{name}() == ?", "the return value of {name}", "return of {name}", "{name} runs and gives",
    "after running {name} we have", "someone calls {name} and gets",
]  # fmt: skip
ASKS_CONSTANT = [
    *spread("what is the <number> of {name}", number=NUMBER),
    *spread("which <number> is {name} <set>", number=NUMBER, set=("set to", "given", "bound to", "equal to")),
    *spread("give the <number> of {name}", number=NUMBER),
    *spread("what <number> does {name} <have>", number=NUMBER, have=("have", "hold", "stand for", "carry")),
    *spread("look up the <number> <of> {name}", number=NUMBER, of=("of", "behind", "that belongs to", "for")),
    *spread("{name} stands for which <number>", number=NUMBER),
    *spread("find {name} and say its <number>", number=NUMBER), *spread("the <number> behind {name} is", number=NUMBER),
    "{name} = ?", "{name} is set to what", "what is {name}",
]  # fmt: skip
DEPENDS = ("depend on", "rely on", "use", "refer to", "need", "return", "hand out", "read")
ASKS_USES = [
    *spread("which constant does {name} <use>", use=DEPENDS), *spread("what constant does {name} <use>", use=DEPENDS),
    *spread("name the constant that {name} <uses>",
    uses=("uses", "depends on", "relies on", "needs", "returns", "reads")),
    *spread("{name} <uses> which constant", uses=("uses", "depends on", "relies on", "needs", "returns", "hands out")),
    *spread("on which constant does {name} <use>", use=("depend", "rest", "build")), "constant of {name}",
    "the constant in {name}",
    "which constant stands in {name}", "tell me the name of the constant in {name}", "name it: the constant of {name}",
]  # fmt: skip
ASKS_CALLS = [
    *(one.replace("constant", "function").replace("in {name}", "called in {name}") for one in ASKS_USES),
    *spread("which function <does> {name} <call>", does=("does",), call=("call", "run", "ask", "invoke")),
    "{name} calls what", "{name} calls which other function", "what is called by {name}",
    "name the function called by {name}", "the callee of {name}", "whom does {name} call",
    "another function is called in {name}: which",
]  # fmt: skip
ASK_BEFORE = TABLES["ASK_BEFORE"]
ASK_ENDS = ("?", "?", "?", ".", ":", "")


def asks(cores: list[str], seed: int, held_out: tuple[str, ...]) -> tuple[str, ...]:
    """Questions by the hundred."""
    return weave(cores, 800, seed, before=ASK_BEFORE, noisy=0.05, ends=ASK_ENDS, avoid=held_out)


VERBS = TABLES["VERBS"]
COINED = several(lambda rng: coined(rng).lower(), 3000, 41)
STATEMENTS = (
    *spread(
        "<pre>{a}<op><val><end>",
        pre=("", "", "let ", "local ", "var ", "int "),
        op=(" = ", " += ", " -= ", " := ", " ^= "),
        val=(
            "{n}", "{b}", "{b} + {n}", "{b} * {n}", "{n} - {b}", "abs({b})", "min({b}, {n})", "[{b}, {n}]", "not {b}",
            "{b} // {n}",
        ),
        end=("", ";", "  # {n}"),
    ),
    "if {a} > {n}: pass", "print({a}, {n})", "while ({a} < {n}) {a}++;", "assert {a} != {n}", "console.log({a});",
    "for {a} in range({n}): pass", "{a}.append({n})", "echo ${a}", "if not {a} then {b} = {n} end", "-- {n} is enough",
    "// {a} and {b}", "try: {a} = {n}",
)  # fmt: skip
OPERATORS = ("+", "-", "*", "/", "<<", "|", "&", "^", "//", "..", "or", "and", "<", ">", "<=", "==", "!=", "~", "**")
CALLED = TABLES["CALLED"]
STORES = ("=", "=", "=", "+=", "-=", "<-", "|=", "//=", "==", "<<", ":", "->", "/=", "=~", "<<=")
DECLARES = TABLES["DECLARES"]
LINES = TABLES["LINES"]


def value(rng: random.Random, depth: int = 2) -> str:
    """An expression of local names and small numbers."""
    roll = rng.random()
    if not depth or roll < 0.4:
        return rng.choice(
            ("{a}", "{b}", "{n}", "{n}", "'{a}'", '"{b}"', "-{n}", "{a}[{n}]", "{a}.{b}", "&{a}", "0.{n}")
        )
    if roll < 0.75:
        return f"{value(rng, depth - 1)} {rng.choice(OPERATORS)} {value(rng, depth - 1)}"
    if roll < 0.9:
        return f"{rng.choice(CALLED)}({value(rng, depth - 1)})"
    return f"({value(rng, depth - 1)})"


def statement(rng: random.Random) -> str:
    """A line that does not matter."""
    choices = {"declare": DECLARES, "store": STORES, "called": CALLED, "end": ENDS, "mark": ("#", "//", "--", ";", "%")}
    return re.sub(
        "<([a-z]+)>",
        lambda slot: value(rng) if slot[1] == "value" else rng.choice(choices[slot[1]]),
        rng.choice(LINES),
    ).strip()


def remark(rng: random.Random) -> str:
    """A line between definitions: a mark and words, two of them the story's."""
    words = [rng.choice(("{a}", "{b}", coined(rng).lower(), *COMMON)) for _ in range(rng.randint(0, 4))]
    for one in ("{a}", "{b}"):
        if rng.random() < 0.8:
            words.insert(rng.randint(0, len(words)), one)
    begin, end = rng.choice(MARKS)
    return f"{begin}{rng.choice((' ', ' ', '', '::', '.', '/', ', ')).join(words) or '{a}'}{end}"


COMMON = TABLES["COMMON"]
MARKS = TABLES["MARKS"]
REMARKS = (
    *spread(
        "<mark> <say>",
        mark=("#", "//", "--", ";", "%", "/*"),
        say=("{a} and {b}", "part {a}", "the {b} of {a}", "todo: {a}", "{a}, {b}", "old {a}"),
    ),
    "import {a}", "import {a}.{b}", "from {a} import {b}", "const {a} = require('{b}');", "local {a} = require '{b}'",
    "include <{a}>", "use {a}::{b};", "class {a}:", "namespace {a}", "module {a}.{b}", "[{a}]", "@{a}",
    "export {{ {a} }};", "file {a}/{b}", "unit {a};", "package {a}.{b};",
)  # fmt: skip
CALLS = TABLES["CALLS"]
FUNCTION_NAMES = TABLES["FUNCTION_NAMES"]
CONSTANT_NAMES = TABLES["CONSTANT_NAMES"]
LOCALS = (
    "a", "b", "i", "j", "k", "n", "x", "y", "tmp", "res", "out", "buf", "idx", "val", "item", "row", "col", "total",
)  # fmt: skip

# Calls, ways of joining words to names, and the word "return" carry the meaning, so the held-out ones stand here, too.
TRAIN = CodePhrases(
    functions=kept(several(function, 4000, 42), HELD_OUT.functions),
    constants=kept(several(constant, 1500, 43), HELD_OUT.constants),
    statements=kept((*STATEMENTS, *several(statement, 4000, 48)), HELD_OUT.statements),
    remarks=kept((*REMARKS, *several(remark, 3000, 49)), HELD_OUT.remarks),
    calls=CALLS,
    function_names=FUNCTION_NAMES,
    constant_names=CONSTANT_NAMES,
    verbs=VERBS,
    objects=(*THINGS[0::2], *COINED[0::3]),
    qualities=QUALITIES,
    things=(*THINGS[1::2], *COINED[1::3]),
    others=(*PLACES, *COINED[2::3]),
    locals=LOCALS,
    indent="    ",
    asks=asks(ASKS, 44, HELD_OUT.asks),
    asks_constant=asks(ASKS_CONSTANT, 45, HELD_OUT.asks_constant),
    asks_uses=asks(ASKS_USES, 46, HELD_OUT.asks_uses),
    asks_calls=asks(ASKS_CALLS, 47, HELD_OUT.asks_calls),
)
