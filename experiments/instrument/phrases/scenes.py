"""Relations said and asked for in many ways: what lies in what, or over it, who gave what to whom, what came first.

A relation has slots, ways to say it, and questions for one of the slots. Two of a kind are told against each other
where words decide which is which: the cup in the bowl is not the bowl in the cup.
"""

from __future__ import annotations

from dataclasses import dataclass

from .grammar import Grammar


@dataclass(frozen=True)
class Relation:
    """Rules that tell of it, and rules that ask, each with the slot it asks for.

    Parameters
    ----------
    slots : dict of str to str
        The sort of every slot: "thing", "place", "person", "value", "job", "town" or "event".
    told : str
        Rule of the statements.
    asks : tuple of (str, str)
        Rule of a question, and the slot that answers it.
    mirrored : bool
        Whether a second statement with `a` and `b` exchanged and another value is told as well.
    """

    slots: dict[str, str]
    told: str
    asks: tuple[tuple[str, str], ...]
    mirrored: bool = False


RULES = {
    "A": ["the {a}", "the {a}", "the {a}", "a {a}", "that {a}", "one {a}"],
    "B": ["the {b}", "the {b}", "the {b}", "a {b}", "that {b}", "one {b}"],
    "tA": ["the {a}", "the {a}", "that {a}", "this {a}"],
    "tB": ["the {b}", "the {b}", "that {b}", "this {b}"],
    "in": ["in", "inside", "within", "deep in", "right inside", "well within", "in the middle of", "somewhere in"],
    "lin": ["in", "inside", "within", "within", "under", "below", "beneath", "underneath", "deep in", "right inside"],
    "lies": [
        "lies", "stands", "sits", "rests", "is kept", "is hidden", "is held", "stays", "is stored", "has its place",
        "hangs", "was put", "is lying", "is placed", "was left", "belongs", "can be seen",
    ],
    "that": ["that", "which"],
    "has": ["has", "holds", "contains", "includes", "keeps", "encloses", "carries", "owns"],
    "kept": ["kept", "held", "stored", "hidden", "placed", "lying", "standing", "left", "put", "enclosed", "stuck"],
    # --- one of two that lie in each other; the first named need not be the inner one
    "inner": [
        "<tA> <lin> <tB>", "<tA> <lin> <tB>", "<tA> that <lies> <lin> <tB>", "<tA>, which <lies> <lin> <tB>,",
        "<tA> <kept> <lin> <tB>", "the {b}'s {a}", "the {a} of <tB>", "<tA> that <tB> <has>", "<tA> <tB> <has>",
        "<tA>, the one <lin> <tB>,", "<tA> with <tB> around it", "<tA> from <lin> <tB>", "<tA> out of <tB>",
        "<tA> whose place is <lin> <tB>", "<tA> that belongs to <tB>", "<tA> that is part of <tB>",
        "<tA> among what <tB> <has>", "<tA> contained in <tB>", "<lin> <tB> <tA>", "<lin> <tB> <tA>",
        "<lin> <tB>, <tA>", "<tB>: <tA> <lin> it", "<tB>, and <lin> it <tA>", "<tB>, and there <tA>",
        "<tB>, whose {a}", "<tB>, of which <tA>", "<tB> first and then <tA> <lin> it",
        "<tB>, followed by <tA> <lin> it", "<tB>, to be exact <tA> of it",
        "<tA>, though not any {a} but that of <tB>,", "of all that <tB> <has>, <tA>",
    ],
    "inner_told": [
        "<inner> costs {v}.", "<inner> has the number {v}.", "<inner> is marked {v}.", "<inner> bears {v}.",
        "for <inner> one pays {v}.", "the number {v} goes with <inner>.", "{v} stands on <inner>.",
        "{v}: that is <inner>.", "<inner> - {v}.", "<inner> was given {v}.", "they wrote {v} on <inner>.",
        "<inner> is worth {v}.", "I read {v} on <inner>.", "as for <inner>, it has {v}.", "<inner>: {v}.",
    ],
    "inner_value": [
        "what number has <inner>?", "which number goes with <inner>?", "what does it say on <inner>?",
        "<inner> has which number?", "say the number of <inner>.", "what is written on <inner>?",
        "read the number on <inner>.", "which number stands on <inner>?", "<inner>: which number?",
        "give me what <inner> bears.", "how much does one pay for <inner>?", "I want the number of <inner>.",
        "tell me which number <inner> has.", "of <inner>, what is the number?",
    ],
    # --- where a thing is
    "inside_told": [
        "<A> <lies> <in> <B>.", "<in> <B> <lies> <A>.", "<B> <has> <A>.", "<A> is <kept> <in> <B>.",
        "there is <A> <in> <B>.", "<in> <B> there is <A>.", "take <B>: <in> it <lies> <A>.",
        "<B> is not empty; <A> <lies> <in> it.", "somebody put <A> <in> <B>.", "<A> went <in> <B>.",
        "<B> is where <A> <lies>.", "<A> is surrounded by <B>.", "<B> surrounds <A>.", "<B> is all around <A>.",
        "<A> has <B> around it.", "open <B> and see <A>.", "it is <in> <B> that <A> <lies>.",
        "it is <A> that <lies> <in> <B>.", "<A>, and nothing else, <lies> <in> <B>.", "what <B> <has> is <A>.",
        "what <has> <A> is <B>.", "<A> is part of <B>.", "<A> belongs to <B>.", "to <B> belongs <A>.",
        "a part of <B> is <A>.", "whoever looks <in> <B> sees <A>.",
    ],
    "inside_what": [
        "what <lies> <in> <tB>?", "what does <tB> hold?", "what is there <in> <tB>?", "<in> <tB> <lies> what?",
        "<tB> <has> what?", "say what <tB> <has>.", "what is <kept> <in> <tB>?", "name what <lies> <in> <tB>.",
        "what does one see <in> <tB>?", "which thing is part of <tB>?", "what belongs to <tB>?",
        "what has <tB> around it?", "<tB> is around what?", "what did somebody put <in> <tB>?",
    ],
    "inside_where": [
        "where does <tA> lie?", "in what does <tA> lie?", "what <has> <tA>?", "what is <tA> part of?",
        "<tA> <lies> <in> what?", "say what <tA> <lies> <in>.", "what must one open to get <tA>?",
        "what is around <tA>?", "what surrounds <tA>?", "<tA> belongs to what?", "where is <tA> <kept>?",
        "name what <has> <tA>.",
    ],
    # --- over and under
    "over": ["over", "above", "on top of", "higher than", "higher up than"],
    "under": ["under", "below", "beneath", "underneath", "lower than", "lower down than"],
    "above_told": [
        "<A> is <over> <B>.", "<B> is <under> <A>.", "<over> <B> hangs <A>.", "<under> <A> stands <B>.",
        "<A> has <B> <under> it.", "<B> has <A> <over> it.", "look <under> <A>: there is <B>.",
        "look <over> <B>: there is <A>.", "<A>, and <under> it <B>.", "<B>, and <over> it <A>.",
        "first from the top <A>, next <B>.",
    ],
    "above_upper": [
        "what is <over> <tB>?", "which is higher, <tA> or <tB>?", "<over> <tB> is what?", "what has <tB> <under> it?",
        "<tB> is <under> what?",
    ],
    "above_lower": [
        "what is <under> <tA>?", "which is lower, <tA> or <tB>?", "<under> <tA> is what?", "what has <tA> <over> it?",
        "<tA> is <over> what?",
    ],
    # --- before and after
    "order_told": [
        "first came the {a}, then the {b}, last the {c} <adv>.",
        "the {a} came before the {b}, and the {c} after both <adv>.",
        "after the {a} came the {b}, and after that the {c} <adv>.",
        "last came the {c}; before it the {b}; before that the {a} <adv>.",
        "the {b} followed the {a}, and the {c} followed the {b} <adv>.",
        "the {a} was first, the {b} second, the {c} third <adv>.",
        "one: the {a}. two: the {b}. three: the {c} <adv>.",
        "it began with the {a}, went on with the {b} and ended with the {c} <adv>.",
        "the {c} was the last of three; the {a} had come first and the {b} next <adv>.",
        "between the {a} and the {c} there came the {b}, the {a} being first <adv>.",
        "no sooner was the {a} over than the {b} came, and later the {c} <adv>.",
        "the {b} had to wait for the {a}, and the {c} for the {b} <adv>.",
        "the {c} came only after the {b}, which had come after the {a} <adv>.",
    ],
    "order_first": [
        "<pre> what came first, the {b}, the {c} or the {a}?",
        "<pre> which of the {c}, the {a} and the {b} was first?", "<pre> what did the {b} come right after?",
        "<pre> what came just before the {b}?", "<pre> the {b} followed what?",
        "<pre> what began it, if the {c} ended it?",
    ],
    "order_second": [
        "<pre> what came between the {a} and the {c}?", "<pre> which of the {a}, the {b} and the {c} was second?",
        "<pre> what came right after the {a}?", "<pre> what came just before the {c}?",
        "<pre> what followed the {a}?", "<pre> the {a} was followed by what?",
    ],
    "order_last": [
        "<pre> what came last, the {c}, the {a} or the {b}?",
        "<pre> which of the {b}, the {c} and the {a} was third?", "<pre> what came right after the {b}?",
        "<pre> what followed the {b}?", "<pre> what ended it, if the {a} began it?",
        "<pre> the {b} was followed by what?",
    ],
    "adv": [
        "", "", "", "now", "by the look of it", "for sure", "of course", "as told", "indeed", "in truth",
        "so it seems",
    ],
    "pre": [
        "", "", "", "", "well,", "so,", "please:", "one question:", "next,", "think:", "in short,", "if you know it:",
    ],
    # --- who gave what to whom
    "gave": ["gave", "handed", "lent", "sold", "passed", "sent", "brought", "offered", "left"],
    "given": ["given", "handed", "lent", "sold", "passed", "sent", "brought"],
    "got": ["got", "received", "took", "accepted", "bought", "borrowed"],
    "gift_told": [
        "{p} <gave> {q} the {a}.", "{p} <gave> the {a} to {q}.", "{q} <got> the {a} from {p}.",
        "the {a} was <given> to {q} by {p}.", "from {p} {q} <got> the {a}.", "to {q} {p} <gave> the {a}.",
        "it was {p} who <gave> {q} the {a}.", "it was {q} who <got> the {a} from {p}.",
        "{p} had the {a} until {q} <got> it.", "the {a} went from {p} to {q}.", "the {a} came to {q} from {p}.",
        "{q} has the {a} now, thanks to {p}.", "by {p}, {q} was <given> the {a}.", "{q}, not {p}, has the {a} now.",
        "what {p} <gave> to {q} was the {a}.", "whom did {p} <gave2> the {a}? {q}.",
    ],
    "gave2": ["give", "hand", "lend", "sell", "pass", "send", "bring"],
    "gift_from": [
        "<pre> who <gave> {q} the {a}?", "<pre> from whom did {q} get the {a}?", "<pre> who had the {a} before {q}?",
        "<pre> by whom was the {a} <given> to {q}?", "<pre> whose was the {a} before {q} <got> it?",
    ],
    "gift_to": [
        "<pre> who <got> the {a} from {p}?", "<pre> to whom did {p} <gave2> the {a}?", "<pre> who has the {a} now?",
        "<pre> whom did {p} <gave2> the {a} to?", "<pre> who was <given> the {a}?",
        "<pre> whose hands is the {a} in now?",
    ],
    "gift_what": [
        "<pre> what did {p} <gave2> {q}?", "<pre> what did {q} get from {p}?", "<pre> what has {q} now?",
        "<pre> what went from {p} to {q}?",
    ],
    # --- whose it is
    "own_told": [
        "{p} has a {a} <adv>.", "the {a} is {p}'s <adv>.", "{p} owns the {a} <adv>.", "the {a} belongs to {p} <adv>.",
        "it is {p} who owns the {a} <adv>.", "{p} is the owner of the {a} <adv>.", "this is {p}'s {a} <adv>.",
        "the owner of the {a} is {p} <adv>.", "{p} calls the {a} their own <adv>.",
        "the {a} of {p} is known to all <adv>.", "nobody but {p} owns the {a} <adv>.",
        "to {p} belongs the {a} <adv>.",
    ],
    "own_who": [
        "<pre> whose is the {a}?", "<pre> who owns the {a}?", "<pre> to whom does the {a} belong?",
        "<pre> who is the owner of the {a}?", "<pre> the {a} is whose?", "<pre> the {a} belongs to whom?",
    ],
    "own_what": [
        "<pre> what does {p} own?", "<pre> what belongs to {p}?", "<pre> what is {p}'s?",
        "<pre> {p} is the owner of what?", "<pre> which thing is {p} the owner of?",
    ],
    # --- persons to each other
    "older_told": [
        "{p} is older than {q} <adv>.", "{q} is younger than {p} <adv>.",
        "of {p} and {q}, {p} is the older one <adv>.", "{q} was born after {p} <adv>.",
        "{p} was born before {q} <adv>.", "{q} is not as old as {p} <adv>.", "next to {p}, {q} is young <adv>.",
        "{p} has more years than {q} <adv>.", "{q} has fewer years than {p} <adv>.",
    ],
    "older_old": [
        "<pre> who is older, {p} or {q}?", "<pre> who is older, {q} or {p}?", "<pre> who was born first, {q} or {p}?",
        "<pre> {q} is younger than who?", "<pre> than whom is {q} younger?", "<pre> who was born before {q}?",
    ],
    "older_young": [
        "<pre> who is younger, {p} or {q}?", "<pre> who is younger, {q} or {p}?",
        "<pre> who was born last, {q} or {p}?", "<pre> {p} is older than who?", "<pre> than whom is {p} older?",
        "<pre> who was born after {p}?",
    ],
    # --- what was and what is
    "moved_told": [
        "{p} went from the {x} to the {y} <adv>.", "{p} left the {x} for the {y} <adv>.",
        "from the {x} {p} went to the {y} <adv>.", "to the {y} went {p}, from the {x} <adv>.",
        "{p} is in the {y} now and was in the {x} before <adv>.", "{p} was in the {x} before going to the {y} <adv>.",
        "{p} is no longer in the {x} but in the {y} <adv>.",
        "not the {x} but the {y} is where {p} is now, having left the former <adv>.",
        "after the {x}, {p} went to the {y} <adv>.", "before the {y}, {p} had been in the {x} <adv>.",
        "{p} turned from the {x} to the {y} <adv>.",
    ],
    "moved_now": [
        "<pre> where is {p} now?", "<pre> where is {p}?", "<pre> where did {p} go?",
        "<pre> to which place did {p} move?", "<pre> in what place is {p} at the end?",
        "<pre> what place is {p} in now?",
    ],
    "moved_before": [
        "<pre> where was {p} before?", "<pre> where did {p} come from?", "<pre> which place did {p} leave behind?",
        "<pre> from which place did {p} move?", "<pre> what place was {p} in at first?",
        "<pre> where was {p} earlier?",
    ],
    "job_told": [
        "{p}, once a {x}, is a {y} now <adv>.", "{p} was a {x} and is a {y} today <adv>.",
        "{p} is no longer a {x} but a {y} <adv>.", "{p} gave up the work of a {x} to be a {y} <adv>.",
        "not as a {x} but as a {y} {p} works now, the former being over <adv>.",
        "from a {x} {p} turned into a {y} <adv>.", "{p} became a {y} after being a {x} <adv>.",
        "{p} is a {y}, but used to be a {x} <adv>.", "before being a {y}, {p} was a {x} <adv>.",
    ],
    "job_now": [
        "<pre> what is {p} now?", "<pre> what does {p} work as now?", "<pre> as what does {p} work?",
        "<pre> what has {p} become?", "<pre> by what work does {p} live today?",
    ],
    "job_before": [
        "<pre> what was {p} before?", "<pre> what did {p} use to be?", "<pre> what was {p} once?",
        "<pre> what is {p} no longer?", "<pre> which work did {p} give up?",
    ],
    "gap_told": [
        "the {a} holds a {b}, and the {c} a {d} <adv>.", "in the {a} lies a {b}, in the {c} a {d} <adv>.",
        "a {b} is in the {a} and a {d} in the {c} <adv>.", "the {a} has a {b}; the {c}, a {d} <adv>.",
        "the {a} and the {c} hold a {b} and a {d}, in this order <adv>.",
        "the {b} belongs in the {a}, the {d} in the {c} <adv>.", "{b} goes to {a}, {d} to {c} <adv>.",
        "not the {c} but the {a} has the {b}; the {c} has the {d} <adv>.",
    ],
    "gap_b": [
        "<pre> what is in the {a}?", "<pre> what does the {a} hold?", "<pre> what has the {a}?",
        "<pre> the {a} has what in it?",
    ],
    "gap_d": [
        "<pre> what is in the {c}?", "<pre> what does the {c} hold?", "<pre> what has the {c}?",
        "<pre> the {c} has what in it?",
    ],
    "gap_a": ["<pre> where is the {b}?", "<pre> what holds the {b}?", "<pre> the {b} is in what?"],
    "gap_c": ["<pre> where is the {d}?", "<pre> what holds the {d}?", "<pre> the {d} is in what?"],
    # --- names
    "name_told": [
        "the {a} is called {n} <adv>.", "{n} is what they call the {a} <adv>.", "they call the {a} {n} <adv>.",
        "{n} is the name of the {a} <adv>.", "the {a} has a name: {n} <adv>.", "the {a} answers to {n} <adv>.",
        "by {n} they mean the {a} <adv>.", "the {a} is known as {n} <adv>.",
        "under the name of {n} goes the {a} <adv>.", "somebody named the {a} {n} <adv>.",
    ],
    "name_what": [
        "<pre> what is the {a} called?", "<pre> how is the {a} called?", "<pre> by what name is the {a} known?",
        "<pre> say the name that the {a} has.", "<pre> what do they call the {a}?",
    ],
    "name_of": [
        "<pre> what is called {n}?", "<pre> what do they call {n}?", "<pre> {n} is the name of what?",
        "<pre> what is known as {n}?", "<pre> which thing answers to {n}?", "<pre> what is meant by {n}?",
    ],
}  # fmt: skip
GRAMMAR = Grammar(RULES)
TWO = {"a": "thing", "b": "thing"}
THREE = {"a": "event", "b": "event", "c": "event"}
RELATIONS = (
    Relation(TWO | {"v": "value"}, "inner_told", (("inner_value", "v"), ("inner_value", "v")), mirrored=True),
    Relation(TWO, "inside_told", (("inside_what", "a"), ("inside_where", "b"))),
    Relation(TWO, "above_told", (("above_upper", "a"), ("above_lower", "b"))),
    Relation(THREE, "order_told", (("order_first", "a"), ("order_second", "b"), ("order_last", "c"))),
    Relation({"p": "person", "q": "person", "a": "thing"}, "gift_told",
             (("gift_from", "p"), ("gift_to", "q"), ("gift_what", "a"))),
    Relation({"p": "person", "a": "thing"}, "own_told", (("own_who", "p"), ("own_what", "a"))),
    Relation({"p": "person", "q": "person"}, "older_told", (("older_old", "p"), ("older_young", "q"))),
    Relation({"p": "person", "x": "place", "y": "place"}, "moved_told", (("moved_now", "y"), ("moved_before", "x"))),
    Relation({"p": "person", "x": "job", "y": "job"}, "job_told", (("job_now", "y"), ("job_before", "x"))),
    Relation(TWO | {"c": "thing", "d": "thing"}, "gap_told",
             (("gap_a", "a"), ("gap_b", "b"), ("gap_c", "c"), ("gap_d", "d"))),
    Relation({"a": "thing", "n": "name"}, "name_told", (("name_what", "n"), ("name_of", "a"))),
)  # fmt: skip
WEIGHTS = (5, 3, 1, 2, 2, 1, 1, 2, 2, 1, 1)
"""How often each is told; `json` is wrong in the direction of what lies in what."""
