"""A grammar of questions for nested records: the record, the group and the field in any order and relation.

Held-out questions join group and field by a few words whose direction must be understood. So both directions are said
in many constructions here: a field that lies in its group, a group that has its field, one thing after another, roles
that are named, and a pronoun that stands for what was said before.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sp.evals.story import Question, Story

from .grammar import Grammar, drawn, sentence

MARK = "\x1f"
"""Between the parts of a question that is only taken apart again."""

RULES: dict[str, list[str]] = {
    # --- names of the three
    "rec": [
        "{name}", "{name}", "{name}", "record {name}", "the record {name}", "the record called {name}",
        "the one named {name}", "the entry {name}", "the item {name}", "the thing called {name}",
        "that record {name}", "the record whose name is {name}",
    ],
    "grp": [
        "{group}", "{group}", "{group}", "{group}", "the {group}", "the group {group}", "the {group} group",
        "the section {group}", "the {group} section", "the {group} part", "the block {group}", "the heading {group}",
        "the group called {group}", "the group with the name {group}", "its {group}",
    ],
    "fld": [
        "{key}", "{key}", "{key}", "{key}", "the {key}", "the field {key}", "the field called {key}",
        "the entry {key}", "the {key} entry", "the line {key}", "the item {key}", "the word {key}", "a {key}",
        "the {key} field",
    ],
    "number": ["number", "number", "value", "figure", "entry", "count"],
    "wh": ["which", "what"],
    "in": ["in", "in", "inside", "inside", "within", "within", "under", "under", "below", "beneath", "underneath"],
    "from": ["from", "from inside", "from within", "from under", "out of", "of", "of"],
    "deep": ["deeper <in>", "further down <in>", "one step down <in>", "right <in>", "somewhere <in>", "down <in>"],
    # --- a field that lies in its group
    "lies": [
        "lies", "sits", "stands", "is kept", "is held", "is listed", "is stored", "is noted", "is nested", "appears",
        "comes", "is written", "is placed", "is given", "can be read", "can be seen", "is filed", "has its place",
        "turns up", "is hidden",
    ],
    "lying": [
        "lying", "sitting", "standing", "kept", "held", "stored", "noted", "nested", "written", "placed", "given",
        "filed", "hidden", "that one reads", "that stands", "as it stands", "as given", "as noted",
    ],
    "of": [
        "belongs to", "is part of", "is a part of", "is one of the fields of", "falls under", "comes under",
        "goes with", "is owned by", "is held by", "is a child of", "depends on", "has as its group", "is inside of",
        "is a member of", "is contained in", "is enclosed by", "is surrounded by",
    ],
    "that": ["that", "which", "the one that", "the one which", "- it", "and it", "such as", "and this"],
    "who": ["that", "which", "the one that", "the one which"],
    "inward": [
        "<fld> <in> <grp>", "<fld> <in> <grp>", "<fld> <from> <grp>", "<fld> <deep> <grp>",
        "<fld>, <who> <lies> <in> <grp>", "<fld> that <lies> <in> <grp>", "<fld>, <who> <of> <grp>",
        "<fld> that <of> <grp>", "<fld> <lying> <in> <grp>", "<fld>, <lying> <in> <grp>", "<fld> (<in> <grp>)",
        "<fld> - the one <in> <grp>", "<fld>, and I mean that <from> <grp>", "<fld> as <grp> <has> it",
        "{group}'s {key}", "{group}'s own {key}", "the {key} that {group} <has>", "the {key} which {group} <has>",
        "the {key} {group} <has>", "the {key} <held> by {group}", "<fld>, <held> by <grp>",
        "<fld> with <grp> around it", "<fld> that has {group} as its group", "<fld>, whose group is {group}",
        "<fld>, the group of which is {group}", "<fld>, but only the one <in> <grp>",
        "<fld>, not of any other group but of {group}", "the {key} <in> what is called {group}",
        "<fld> whose place is <in> <grp>", "<fld> with its place <in> <grp>", "<fld>, once you are <in> <grp>",
        "<fld>, after going into <grp>", "<fld> <in> the part that {group} heads",
    ],
    "has": ["has", "has", "holds", "contains", "includes", "keeps", "carries", "encloses", "lists", "owns", "bears"],
    "have": ["have", "hold", "contain", "include", "keep", "carry", "list", "own", "show"],
    "held": ["held", "contained", "enclosed", "kept", "owned", "listed", "covered", "included"],
    # --- a group that has its field
    "into": [
        "in it", "inside it", "within it", "under it", "below it", "beneath it", "of it", "from it", "out of it",
        "there", "therein", "inside", "within", "underneath", "in that", "inside that", "within that", "under that",
        "in this", "within this group", "inside the same", "right there", "down there", "among its fields",
        "among what it holds", "between its lines",
    ],
    "then": ["then", "next", "after that", "and next", "and after that", "and then", "followed by", "and thereafter"],
    "outward": [
        "<grp> and <into> <fld>", "<grp>, and <into> <fld>", "<grp>: <into> <fld>", "<grp>; <into>, <fld>",
        "<grp>, <then> <fld>", "<grp> <then> <fld>", "first <grp>, <then> <fld>", "first <grp> and second <fld>",
        "<grp> first and <fld> second", "<grp> before <fld>", "<in> <grp> <fld>", "<in> <grp>, <fld>",
        "<in> <grp>: <fld>", "<in> <grp> the one called {key}", "<grp> with its {key}", "<grp> and its {key}",
        "<grp>, of which <fld>", "<grp>, in which <fld>", "<grp>, out of which <fld>", "<grp>, whose {key}",
        "<grp>, which <has> <fld>", "<grp>, that <has> <fld>", "<grp>, and what it <has> as {key}",
        "<grp>, there <fld>", "<grp>, down to <fld>", "<grp>, and as part of it <fld>",
        "<in> <grp> what is called {key}", "<grp>, a group that <has> <fld>", "<grp>, being the group of <fld>",
    ],
    "path": ["<inward>", "<outward>"],
    # --- roles that are named
    "roles": [
        "group {group}, field {key}", "field {key}, group {group}", "group: {group}; field: {key}",
        "field: {key}; group: {group}", "the group being {group}, the field {key}",
        "with {key} as the field and {group} as the group", "with {group} as the group and {key} as the field",
        "the field is {key} and its group {group}", "the group is {group} and its field {key}",
        "{group} is the group, {key} the field", "{key} is the field, {group} the group",
        "outer word {group}, inner word {key}", "inner word {key}, outer word {group}", "parent {group}, child {key}",
        "child {key}, parent {group}", "container {group}, content {key}",
    ],
    # --- what is asked
    "stands": [
        "stands", "is", "is written", "is given", "is noted", "can be read", "does one read", "do you find",
        "is to be seen", "do we see", "is printed", "appears", "is kept", "is stored", "does it say",
    ],
    "beside": ["beside", "next to", "for", "with", "against", "behind", "after", "by"],
    "say": [
        "say", "tell me", "read out", "read", "quote", "name", "write down", "state", "look up", "fetch", "copy",
        "find", "get me", "I want", "I am after", "I look for", "please say", "let me have", "show me",
    ],
    "know": [
        "I would like to know", "can you tell me", "could you say", "do you see", "I wonder", "we must know",
        "tell me", "say", "find out", "it is to be found out", "somebody asks", "the question is",
    ],
    "inrec": ["in <rec>", "for <rec>", "of <rec>", "within <rec>", "inside <rec>", "as to <rec>", "from <rec>"],
    "front": [
        "in <rec>", "inside <rec>", "within <rec>", "for <rec>", "as to <rec>", "with <rec>", "of <rec>",
        "take <rec>:", "open <rec>:", "see <rec>:", "it is about <rec>:", "this is about <rec>:",
        "we speak of <rec>;", "we are in <rec>;", "only <rec> counts:", "turn to <rec>:", "look into <rec>:",
    ],
    "behind": [
        "in <rec>", "that is in <rec>", "the record is <rec>", "and that for <rec>", "all this in <rec>",
        "I speak of <rec>", "it is <rec> I mean", "in the record named {name}", "this is for <rec>",
    ],
    "ask": [
        "<front> <wh> <number> <stands> <beside> <path>?", "<front> <wh> <number> <stands> <beside> <path>?",
        "<wh> <number> <stands> <beside> <path> <inrec>?", "<wh> <number> <stands> <beside> <path> <inrec>?",
        "<front> <wh> <number> does <path> <have>?", "<wh> <number> does <inward> <have> <inrec>?",
        "<wh> <number> does <rec> <have> <beside> <path>?", "<wh> <number> does <rec> <have> as <inward>?",
        "<say> <path> <inrec>.", "<say> <path> <inrec>.", "<front> <say> <path>.",
        "<say> the <number> <beside> <path> <inrec>.", "<front> <say> the <number> <beside> <path>.",
        "<say> the <number> of <inward> <inrec>.", "<know> <wh> <number> <rec> <has> <beside> <path>.",
        "<know> <wh> <number> <path> <has> <inrec>.", "<know> <wh> <inward> is <inrec>.", "<front> <wh> is <inward>?",
        "<front> <path> is <wh>?", "<rec> <has> <wh> <number> <beside> <path>?",
        "<path> <inrec> reads <wh> <number>?", "<front> <path>?", "<path>, <behind>.",
        "<path>; <behind>: <wh> <number>?", "<wh> <number> <stands> <beside> <path>? <behind>.",
        "<say> <path>; <behind>.", "<front> <roles>.", "<rec>, <roles>: <wh> <number>?", "<roles>, <behind>.",
        "<wh> <number> <stands> there: <roles>, <behind>?", "<roles>, record {name}: <say> the <number>.", "<two>",
        "<two>", "<two>", "<two>", "<two>", "<wh> <number> is it that <rec> <has> <beside> <path>?",
        "is there <fld> <in> <grp> <inrec>? <say> its <number>.",
        "among all records {name} alone counts. <say> <path>.",
    ],
    "its": [
        "its {key}", "the {key} of it", "the {key} in it", "the {key} inside", "the {key} within", "its field {key}",
        "the {key} there", "the {key} it <has>", "the {key} <held> there", "the {key} under it",
    ],
    "two": [
        "<rec> <has> <grp>. <wh> is <its>?", "<rec> <has> a group {group}. <wh> <number> <stands> <beside> <its>?",
        "there is <grp> in <rec>. <say> <its>.", "one group of <rec> is {group}. <say> the <number> <beside> <its>.",
        "open <rec>, find <grp>, <say> <its>.", "in <rec> there is <grp>, and <into> <fld>: <wh> <number>?",
        "<rec> is made of groups, one of which is {group}; <say> <its>.",
        "see <grp> of <rec>. <wh> <number> <stands> <beside> <its>?",
        "if you open <rec> and look <in> <grp>, <wh> <number> do you read <beside> {key}?",
        "when one comes to <grp> in <rec>, <wh> <number> <stands> <beside> {key}?",
        "many groups have a {key}. <say> that of {group} in <rec>.",
        "every record has {group}. In that of {name}, <wh> is {key}?",
        "{key} stands in more groups than one; I mean that <in> {group}, <inrec>. <wh> <number>?",
        "look for {key}, but <in> {group} only, and <in> <rec>. <wh> <number>?",
        "both words count: {key} is the field and {group} is its group. <say> the <number> in <rec>.",
        "both words count: {group} is the group and {key} is its field. <say> the <number> in <rec>.",
        "do not take {group} for a field: it is the group. <say> its {key} <inrec>.",
        "do not take {key} for a group: it is the field, and <in> {group}. <say> it <inrec>.",
        "<fld> <lies> <in> <grp>, and <grp> <lies> <in> <rec>. <wh> <number> has it?",
        "<grp> <lies> <in> <rec>, and <fld> <lies> <in> <grp>. <wh> <number> has it?",
        "<rec> holds {group}, {group} holds {key}, and {key} holds <wh> <number>?",
        "<wh> is {key}? <in> {group}, I mean, of <rec>.", "<say> {key}. The group is {group} and the record {name}.",
        "<say> {key}. The record is <rec>, the group {group}.", "<fld>, please. It <lies> <in> <grp> <inrec>.",
        "<rec>. <grp>. <fld>.", "<rec>, <grp>, <fld>: <wh> <number>?", "<fld>; <grp>; <rec>; <wh> <number>?",
    ],
    # --- easier questions
    "top": [
        "<wh> {key} <stands> <inrec>?", "<front> <wh> is the {key}?", "<say> the {key} <inrec>.",
        "<front> <say> <topfld>.", "<wh> <number> <stands> <beside> <topfld> <inrec>?",
        "<know> <wh> {key} <rec> <has>.", "<rec> <has> <wh> {key}?", "<rec>: <topfld>?", "<topfld>, <behind>.",
        "<topfld> <inrec>, outside of all groups, is <wh>?", "<front> <wh> <number> <stands> <beside> <topfld>?",
        "{name}'s {key}?", "{name}'s {key} is <wh> <number>?",
    ],
    "topfld": ["{key}", "the {key}", "the field {key}", "its {key}", "the word {key}", "the {key} of its own"],
    "owner": [
        "<wh> <thing> <has> {value}?", "<wh> <thing> <has> the <number> {value}?",
        "<say> the <thing> that <has> {value}.", "{value} <lies> <in> <wh> <thing>?",
        "{value} <lies> <in> a <thing>; <wh> is it?", "<in> <wh> <thing> <stands> {value}?",
        "<know> <wh> <thing> <has> {value}.", "<know> in <wh> <thing> {value} <lies>.",
        "somewhere there is {value}. <in> <wh> <thing>?", "by <wh> <thing> is {value} <held>?",
        "{value} <of> <wh> <thing>?", "<say> the <thing> with {value} <into>.",
        "the <thing> around {value} is named how?", "which of the <thing>s <has> {value}?",
        "<say> which of the <thing>s <has> {value}.", "one of the <thing>s <has> {value}; <know> which.",
        "<wh> name has the <thing> that <has> {value}?",
    ],
}  # fmt: skip


GRAMMAR = RECORD = Grammar(RULES | {"thing": ["record", "record", "item"]})
GROUP = Grammar(RULES | {"thing": ["group", "group", "section"]})


def parts(text: str) -> tuple[str, str, str]:
    """Record, group and field of a question that was asked in marks."""
    name, group, key = text.split(MARK)
    return name, group, key


def asking(phrases: Any, rng: random.Random, asks: int) -> tuple[Any, Callable[[Story], Story]]:
    """Phrases whose questions are asked in this grammar, and what a story must be sent through before it is told."""
    frames = tuple(map(sentence, drawn(GRAMMAR, "ask", rng, asks)))
    asked = replace(
        phrases,
        paths=((MARK, False),),
        asks=(f"{{name}}{MARK}{{path}}",),
        asks_top=tuple(map(sentence, drawn(GRAMMAR, "top", rng, asks // 4))),
        asks_record=tuple(map(sentence, drawn(RECORD, "owner", rng, asks // 4))),
        asks_group=tuple(map(sentence, drawn(GROUP, "owner", rng, asks // 4))),
    )

    def said(one: Question) -> Question:
        if one.kind != "path":
            return one
        name, group, key = parts(one.text)
        return replace(one, text=rng.choice(frames).format(name=name, group=group, key=key))

    return asked, lambda story: replace(story, questions=tuple(map(said, story.questions)))
