"""A grammar of moves, of what is taken, put down and handed on, and of questions for where and who."""

from __future__ import annotations

from .grammar import Grammar

RULES = {
    "place": ["the {place}", "the {place}", "the {place}", "the {place} itself", "that {place}", "the old {place}"],
    "what": ["the {what}", "the {what}", "the {what}", "that {what}", "the said {what}", "the same {what}"],
    "saw": [
        "I saw that", "we learned that", "it was seen that", "one could see that", "they tell us that", "I believe",
        "it is true that", "nobody doubts that", "I can tell you that", "as I recall,", "you should know that",
    ],
    "so": [
        "so", "now", "then", "soon", "later on", "some time later", "thereupon", "a little later", "at that", "next",
    ],
    # --- moves
    "went": [
        "went", "walked", "ran", "came", "moved", "hurried", "rode", "drove", "strolled", "returned", "climbed",
        "wandered", "marched", "crept", "sailed", "rushed", "limped", "stepped", "headed straight", "made off",
    ],
    "to": [
        "to", "to", "to", "over to", "across to", "back to", "down to", "up to", "on to", "out to", "into", "into",
    ],
    "going": ["going", "walking", "running", "moving", "riding", "on the way", "driving", "heading"],
    "reached": [
        "reached", "entered", "visited", "came to", "got to", "made for", "arrived at", "got as far as", "chose",
        "was next seen in", "is now in", "has gone to", "has moved to", "ended up in", "stepped into",
        "is to be found in", "was taken to", "turned to",
    ],
    "move": [
        "{who} <went> <to> <place> {how}", "{how}, {who} <went> <to> <place>", "{how}, <to> <place> <went> {who}",
        "{who} <reached> <place> {how}", "{how}, {who} <reached> <place>", "<so> {who} <reached> <place>, {how}",
        "<so>, {how}, {who} <went> <to> <place>", "<saw> {who} <went> <to> <place> {how}",
        "<saw> {how}, {who} <reached> <place>", "<to> <place> is where {who} <went> {how}",
        "<place>, {how}, is where {who} <went>", "it was <to> <place> that {who} <went> {how}",
        "{who} rose and <went>, {how}, <to> <place>", "{who} was seen <going> <to> <place> {how}",
        "<going> <to> <place> {how} was {who}", "<place> has a visitor {how}: {who}",
        "<place> became the next stop of {who} {how}", "the next stop of {who} was <place>, {how}",
        "{who} had been elsewhere, but {how} <went> <to> <place>", "where did {who} go {how}? <to> <place>",
        "for {who} it was time to go <to> <place> {how}", "{who} could not stay and <went> <to> <place> {how}",
    ],
    # --- taking
    "took": [
        "took", "took up", "picked", "grabbed", "fetched", "seized", "lifted", "gathered", "got", "claimed",
        "snatched up", "took away", "pocketed", "carried off", "helped themselves to", "got their hands on",
        "laid hands on", "kept", "reached for and took", "packed",
    ],
    "took_it": ["took", "grabbed", "fetched", "seized", "lifted", "got", "claimed", "pocketed", "kept", "packed"],
    "put_it": ["dropped", "abandoned", "unloaded", "left", "lost", "shed"],
    "taken": [
        "taken up", "picked", "grabbed", "fetched", "seized", "lifted", "gathered", "claimed", "pocketed",
        "carried off", "packed", "put into a bag", "put in a pocket", "taken away", "held",
    ],
    "take": [
        "{who} <took> <what> {how}", "{how}, {who} <took> <what>", "{how}, <what> was <taken> by {who}",
        "<what>, <taken> by {who} {how}", "<so> {who}, {how}, <took> <what>", "<saw> {who} <took> <what> {how}",
        "<saw> {how} <what> was <taken> by {who}", "it was {who} who {how} <took> <what>",
        "it was <what> that {who} <took> {how}", "{who} saw <what> and {how} <took_it> it",
        "<what> was there, and {how}, {who} <took_it> it", "<what> is what {who} <took> {how}",
        "by {who}, {how}, <what> was <taken>", "since then <what> is with {who}, who <took_it> it {how}",
        "{who} wanted <what> and <took_it> it {how}", "what did {who} take {how}? <what>",
        "<what> found a holder {how}: {who}", "{who} now has <what>, <taken> {how}",
    ],
    # --- putting down
    "put": [
        "put away", "set down", "laid down", "dropped", "abandoned", "put aside", "laid by", "gave up", "parted with",
        "set aside", "would not keep", "tossed down", "let fall", "unloaded",
    ],
    "let": [
        "set down", "laid down", "abandoned", "put aside", "set aside", "left there", "put on the ground", "let fall",
        "tossed down", "put away", "given up",
    ],
    "drop": [
        "{who} <put> <what> {how}", "{how}, {who} <put> <what>", "{how}, <what> was <let> by {who}",
        "<what> was <let> by {who} {how}", "<so> {who}, {how}, <put> <what>", "<saw> {who} <put> <what> {how}",
        "<saw> {how} <what> was <let> by {who}", "it was {who} who {how} <put> <what>",
        "it was <what> that {who} <put> {how}", "{who} was tired of <what> and {how} <put_it> it",
        "{who} had <what> no longer, having <put_it> it {how}", "<what> is what {who} <put> {how}",
        "by {who}, {how}, <what> was <let>", "<what> stays where {who} <put_it> it {how}",
        "{who} went on without <what>, <let> {how}", "{who} is rid of <what>, which {how} was <let>",
    ],
    # --- handing on
    "gave": ["gave", "handed", "passed", "lent", "sold", "brought", "offered", "tossed", "left", "sent", "granted"],
    "given": [
        "given", "handed", "passed", "lent", "sold", "brought", "tossed", "sent", "granted", "handed on", "passed on",
    ],
    "got": [
        "got", "received", "took", "accepted", "bought", "borrowed", "had", "obtained", "was handed", "was passed",
    ],
    "give": [
        "{who} <gave> <what> to {whom} {how}", "{who} <gave> {whom} <what> {how}",
        "{how}, {who} <gave> <what> to {whom}", "{how}, {who} <gave> {whom} <what>",
        "to {whom}, {how}, {who} <gave> <what>", "<what> was <given> by {who} to {whom} {how}",
        "<what> was <given> to {whom} {how}, and by {who}", "{whom} <got> <what> {how}, and from {who}",
        "{how}, {whom} <got> <what> out of the hands of {who}", "from {who}, {how}, {whom} <got> <what>",
        "<so>, {how}, {who} <gave> {whom} <what>", "<saw> {who} <gave> <what> to {whom} {how}",
        "<saw> {whom} {how} <got> <what> from {who}", "it was {whom} to whom {who} <gave> <what> {how}",
        "it was from {who} that {whom} <got> <what> {how}", "{who} had <what> and {how} <gave> it to {whom}",
        "{whom} asked for <what>, and {who} {how} <gave> it", "not {who} but {whom} has <what> now, <given> {how}",
        "{who} let go and {whom} held <what> {how}", "<what> went {how} to {whom}, as {who} wished",
        "{whom} is the one {who} <gave> <what> {how}",
    ],
    # --- questions
    "say": [
        "say", "tell me", "find out", "I ask you", "can you say", "do you know", "I want to know", "please say",
        "remind me", "look up", "it is asked", "let us hear",
    ],
    "now": [
        "", "", "at last", "when all is done", "after everything", "at the end", "today", "as things stand",
        "after the last move", "when the tale is over", "once all this has happened", "finally",
    ],
    "be": ["be", "lie", "be seen", "stand", "be looked for", "be fetched"],
    "ask_thing": [
        "<now> where can <what> <be>?", "where can <what> <be> <now>?", "<say> where <what> is <now>.",
        "<now>, <say> where <what> is.", "in what place is <what> <now>?", "<what> is where <now>?",
        "at which place did <what> stay <now>?", "<say> the place of <what> <now>.",
        "which place is it that has <what> <now>?", "what place should I go to for <what> <now>?",
        "if I want <what>, where do I go <now>?", "to what place was <what> brought <now>?",
        "<what> came to rest where <now>?", "where was <what> brought to <now>?", "I need <what>. where is it <now>?",
        "<say> what place has <what> in it <now>.", "<what> stands in which place <now>?", "place of <what> <now>?",
    ],
    "ask_holder": [
        "<now> who has got <what>?", "who has got <what> <now>?", "<say> who has <what> <now>.",
        "whom does <what> go with <now>?", "<what> is held by whom <now>?", "by whom is <what> held <now>?",
        "<say> by whom <what> is kept <now>.", "who keeps <what> <now>?",
        "in the hands of which person is <what> <now>?", "which person has <what> <now>?",
        "whose bag has <what> in it <now>?", "if I want <what>, whom do I ask <now>?",
        "I need <what>. who has it <now>?", "<what> ended up with whom <now>?", "who was the last to get <what>?",
        "<say> whose hands are full with <what> <now>.",
    ],
    "ask_person": [
        "<now> where can {who} <be>?", "where can {who} <be> <now>?", "<say> where {who} is <now>.",
        "<now>, <say> where {who} is.", "in what place is {who} <now>?", "{who} is where <now>?",
        "at which place did {who} stay <now>?", "<say> the place of {who} <now>.",
        "what place should I go to for {who} <now>?", "if I want to meet {who}, where do I go <now>?",
        "to what place did {who} go <now>?", "I look for {who}. where is that <now>?",
        "{who} came to rest where <now>?", "which place is it that {who} is in <now>?",
        "<say> what place {who} moved to last.",
    ],
    "first": ["", "", "", "well,", "so,", "one question:", "please:", "mind the order:", "think back:"],
    "mv": ["move", "walk", "journey", "change of place", "step", "trip"],
    "moving": ["moving", "going", "walking", "coming"],
    "ask_before": [
        "<first> where did {who} stay until the last <mv>?", "<say> where {who} was until the last <mv>.",
        "<first> from what place did {who} make the last <mv>?",
        "<first> which place had {who} been in before <moving> there?", "out of which place did {who} come last?",
        "<say> the place {who} came from in the end.", "of {who}, <say> the place one before the last.",
        "{who} was where, one move ago?", "one <mv> ago {who} was in what place?",
        "<first> before <moving> to where {who} is now, what was the place?",
        "<first> {who} is in a place and came from another: which is the other?",
        "<say> which place {who} was in until going to the present one.", "the last but one place of {who} is which?",
        "what was the place of {who} one step earlier?", "undo the last move of {who}: what is the place?",
        "where would {who} be without the last move?", "if {who} had not moved that last time, where would that be?",
    ],
}  # fmt: skip
GRAMMAR = Grammar(RULES)
FIELDS = {
    "moves": "move",
    "takes": "take",
    "drops": "drop",
    "gives": "give",
    "asks_thing": "ask_thing",
    "asks_holder": "ask_holder",
    "asks_person": "ask_person",
    "asks_before": "ask_before",
}
MANY = {field: 30 if field.startswith("asks") else 16 for field in FIELDS}
"""Frames of each field that a dialect draws from."""
