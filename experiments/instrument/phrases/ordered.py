"""A grammar of pieces of writing: how they are announced and closed, and questions for one of them by its order."""

from __future__ import annotations

from .grammar import Grammar

RULES = {
    "about": [
        "about", "about", "on", "concerning", "touching upon", "to do with", "all about", "with a word on", "as to",
        "regarding", "that treats of", "whose subject is",
    ],
    "wrote": [
        "wrote", "made", "composed", "penned", "set down", "noted", "typed", "dictated", "recited", "read out",
        "brought", "sent us", "left us", "finished", "sang", "gave us", "drew up", "scribbled", "offered", "printed",
    ],
    "written": [
        "written", "made", "composed", "penned", "set down", "typed", "dictated", "read out", "finished", "sent in",
        "printed", "signed", "offered", "brought in",
    ],
    "here": [
        "here is", "here comes", "now for", "this is", "now follows", "below stands", "listen to", "see", "there is",
        "then came", "after it comes", "then we have", "it goes on with", "what we have now is", "now you get",
    ],
    "kind": [
        "a {kind}", "a {kind}", "a {kind}", "one {kind}", "another {kind}", "some {kind}", "this {kind}",
        "a short {kind}", "a true {kind}", "one more {kind}",
    ],
    "header": [
        "<here> <kind> <about> {topic}:", "<here> <kind> <about> {topic}, {when} <written> by {who}:",
        "<here> <kind> of {who} <about> {topic}.", "{who} <wrote> <kind> <about> {topic} {when}.",
        "{when} {who} <wrote> <kind> <about> {topic}.", "{who} <wrote>, {when}, <kind> <about> {topic}:",
        "<about> {topic} {who} <wrote> <kind> {when}.", "<kind> <about> {topic} is what {who} <wrote> {when}.",
        "it is <kind> <about> {topic}, {who} <wrote> it {when}.",
        "<kind>, <written> {when} by {who}, <about> {topic}.",
        "<kind> <about> {topic} was <written> by {who} {when}:",
        "<written> by {who} {when}, <here> <kind> <about> {topic}.", "{topic} moved {who} to <kind> {when}:",
        "the text is <kind>, the subject {topic}, the hand that of {who}.",
        "subject: {topic}. sort: {kind}. by: {who}, {when}.", "sort: {kind}. subject: {topic}. {who}, {when}.",
        "{who} has <kind> for us <about> {topic}, {when}.", "{when}: <kind> by {who}, <about> {topic}.",
    ],
    "mark": [
        "seal", "stamp", "mark", "sign", "signature", "last word", "last line", "number", "code", "label", "name",
        "reference", "closing word", "tag",
    ],
    "reads": ["is", "reads", "says", "gives", "runs", "shows", "was"],
    "foot": [
        "", "", "under it", "at its foot", "at the end", "on the back", "in the corner", "at its close",
        "right under it", "in the last line", "on the edge", "with it",
    ],
    "marked": [
        "marked", "sealed", "stamped", "signed", "labelled", "closed", "ended", "tagged", "numbered", "finished",
    ],
    "close": [
        "the <mark> <foot> <reads> {code}.", "its <mark> <reads> {code} <foot>.", "<marked> with {code} <foot>.",
        "{code} is the <mark> <foot>.", "it was <marked> with {code} <foot>.", "<foot> the <mark> <reads> {code}.",
        "{code}: that is the <mark> <foot>.", "it has {code} <foot> as its <mark>.",
        "it bears the <mark> {code} <foot>.", "and it was <marked> {code} <foot>.", "so it ends <foot>, with {code}.",
        "<mark>: {code}.", "somebody <marked> it with {code} <foot>.", "one reads {code} <foot>.",
        "{code} stands <foot> as the <mark>.", "{code}, the <mark> <reads> <foot>.",
    ],
    "nth": ["the {nth} {kind}", "the {nth} {kind}", "the {kind} that is {nth}", "the {kind} that comes {nth}"],
    "only": [
        "the only {kind}", "the single {kind}", "the {kind}", "that {kind}", "the lone {kind}",
        "the one {kind} there is",
    ],
    "on": [
        "about", "about", "on", "on", "concerning", "regarding", "to do with", "as to", "that is about",
        "which is on",
    ],
    "say": [
        "say", "tell me", "look up", "find out", "quote", "I want to know", "can you say", "please say", "read out",
        "copy",
    ],
    "word": ["word or number", "name or number", "word", "sign", "mark", "last word", "final word"],
    "asks": [
        "on which <word> does <it> end?", "<say> on which <word> <it> ends.", "<say> the <word> that closes <it>.",
        "<it> ends on which <word>?", "<it> is closed by which <word>?", "by which <word> is <it> closed?",
        "which <word> closes <it>?", "which <word> stands at the foot of <it>?", "what stands at the foot of <it>?",
        "<say> what stands at the foot of <it>.", "<say> how <it> closes.", "<it>: the <word>?",
        "go to the end of <it>. which <word> is there?", "where <it> ends, which <word> is there?",
        "with what does <it> close?", "what is set under <it>?", "which <word> was put under <it>?",
        "there is <it>. <say> its end.", "I have read <it>, but how did it end?", "under <it> stands which <word>?",
    ],
    "final": [
        "the last of the pieces", "the piece at the end", "the final piece", "the piece nobody follows",
        "the last text", "what comes last", "the last one here",
    ],
    "it": [
        "<nth> <on> {topic}", "<nth> <on> {topic}", "<nth> <on> {topic}", "<nth>, that is, <on> {topic},",
        "<nth> with the subject {topic}",
    ],
}  # fmt: skip
GRAMMAR = Grammar(RULES)
ONLY = Grammar(RULES | {"it": ["<only> <on> {topic}", "<only> <on> {topic}", "<only> with the subject {topic}"]})
FINAL = Grammar(RULES | {"it": ["<final>"]})
FIELDS = {"headers": "header", "closings": "close", "asks": "asks"}
MANY = {"headers": 24, "closings": 24, "asks": 60}
"""Frames of each field that a dialect draws from."""
