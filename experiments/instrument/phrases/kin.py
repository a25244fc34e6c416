"""A grammar of what a chat tells of relatives and others: who somebody is, where they live, what they do, their number.

Values stand among other towns, trades and idioms, so that the clause must be read: "no longer a baker but a cook",
"as a cook, for a laugh".
"""

from __future__ import annotations

import random

from .grammar import Grammar
from .wide import JOBS, PLACE_NAMES


def town(rng: random.Random) -> str:
    """A town that is no answer."""
    return PLACE_NAMES[rng.getrandbits(39)]


def job(rng: random.Random) -> str:
    """A trade that is no answer."""
    return JOBS[rng.getrandbits(39)]


RULES = {
    "town": town,
    "job": job,
    "one": ["I", "we", "you", "they", "somebody", "everybody", "anybody", "the neighbours", "friends", "people"],
    "since": [
        "", "", "", "now", "these days", "at present", "by now", "since spring", "since last year", "for good",
        "for years", "from next week", "as of today", "once more", "at last", "still", "since the wedding",
    ],
    # Idioms with "a" and "as", behind which no trade comes.
    "idiom": [
        "", "", "", "for a while", "for a laugh", "for a start", "in a hurry", "with a smile", "as a rule",
        "at a pinch", "on a whim", "as a favour", "without a doubt", "for a month or two", "in a way", "to a degree",
        "as a matter of fact", "with a sigh", "in a word", "for a bit", "as a last resort", "on a bad day",
        "for a penny", "once in a while", "with a friend", "as a treat", "in a sense",
    ],
    "aside": [
        "", "", "", ", who is well,", ", the poor thing,", ", of all people,", ", bless them,", ", I hear,",
        ", so they say,", ", as you know,", " - yes, {name} -", ", to our joy,", ", who sends greetings,",
    ],
    # --- who somebody is
    "mine": [
        "my {kin}", "my {kin}", "my {kin}", "a {kin} of mine", "the {kin} I have", "my own {kin}", "my dear {kin}",
        "the {kin} in my life", "my only {kin}", "my good {kin}", "that {kin} of mine", "this {kin} of mine",
    ],
    "is": [
        "is", "is", "was always", "has long been", "has been", "will stay", "remains", "turned out to be", "must be",
    ],
    "named": ["called", "named", "known as", "spoken of as", "written", "addressed as", "always called", "baptised"],
    "known": ["called", "named", "addressed", "spelt"],
    "met": [
        "saw", "met", "visited", "wrote to", "thought of", "waited for", "talked with", "cooked for", "dreamt of",
        "ran into", "had tea with", "heard from", "sat beside", "danced with", "argued with",
    ],
    "when": [
        "yesterday", "last week", "on Sunday", "at noon", "this morning", "again", "in the rain", "by chance",
        "after work", "before breakfast", "at the market", "on the train",
    ],
    "does": [
        "sends greetings", "is well", "sings in the choir", "loves tea", "was here", "says hello", "snores",
        "collects stamps", "hates rain", "makes me laugh", "plays chess", "never writes", "is on the phone",
    ],
    "link": [
        "<mine> <is> <named> {name}", "{name} <is> <mine>", "{name} <is> <mine>", "I have a {kin}, {name}",
        "I have a {kin} and that is {name}", "I have a {kin} <named> {name}", "<when> I <met> {name}, <mine>",
        "<when> I <met> <mine>, {name}", "I <met> <mine> {name} <when>", "I <met> {name} <when>; that is <mine>",
        "{name}, <mine>, <does>", "{name}, who <is> <mine>, <does>", "<mine>, {name}, <does>",
        "<mine> <does>; the name is {name}", "if you see {name}, that is <mine>", "when I say {name} I mean <mine>",
        "by {name} I mean <mine>", "with {name} I speak of <mine>", "do not mix them up: {name} <is> <mine>",
        "the one who <is> <mine>: {name}", "the person I call <mine> is {name}", "who <mine> is? {name}",
        "{name}? <mine>, of course", "<mine>? that is {name}", "as for <mine>, the name is {name}",
        "for a {kin} I have {name}", "it is {name} who <is> <mine>", "nobody but {name} <is> <mine>",
        "<mine> signs letters as {name}", "<mine> has a name, {name}", "{name} is what <mine> is <named>",
        "{name} is the name of <mine>", "I was given {name} as a {kin}", "{name} has me as a friend and <is> <mine>",
        "my family knows {name} as <mine>", "in {name} I have a {kin}", "you have not met <mine> yet, {name}",
        "let me tell you of <mine>: {name}", "that was <mine> at the door, {name}", "the photo shows <mine>, {name}",
        "in the photo you see {name}, <mine>", "not everyone knows that {name} <is> <mine>",
    ],
    # --- telephone
    "reach": [
        "reach", "call", "ring", "phone", "get", "get hold of", "contact", "speak to", "wake", "find", "ring up",
        "talk to", "catch", "call up",
    ],
    "dial": ["dial", "use", "take", "try", "type", "ring", "call", "press", "choose"],
    "on": ["on", "at", "under", "with", "by dialling", "by way of", "through"],
    "number": [
        "<one> can <reach> {name}<aside> <on> {value} <since>", "to <reach> {name}, <dial> {value} <since>",
        "if you must <reach> {name}, <dial> {value}", "who wants to <reach> {name} must <dial> {value}",
        "<since> the number of {name} is {value}", "{name}<aside> has the number {value} <since>",
        "{name} has {value} as a number <since>", "{value} is {name}'s number <since>",
        "{name}'s number is {value} <since>", "{value} is the number for {name}",
        "the number {value} is that of {name} <since>", "when {value} rings, {name} picks up",
        "{name} picks up when {value} rings", "{value} rings in the hall of {name}", "for {name} <dial> {value}",
        "for {name} the book says {value}", "the book says {value} beside {name}", "my note for {name} says {value}",
        "I have {value} down for {name}", "I have {name} down with {value}", "it is {value} that gets you {name}",
        "ask for {name} under {value}", "{name} can be called <on> {value} <since>",
        "{name} is to be had <on> {value}", "<on> {value} it is {name} who speaks",
        "<dial> {value} and {name} will speak", "behind the number {value} is {name}",
        "{name} got a telephone <since>, number {value}", "{name} changed the number; it is {value} <since>",
        "the old number is dead, so <dial> {value} for {name}", "{value}: that will <reach> {name}",
    ],
    # --- town
    "home": [
        "a house", "a flat", "two rooms", "a cottage", "a small house", "a room", "an attic", "a farm", "a home",
    ],
    "got": ["bought", "took", "found", "rents", "has", "has bought", "has taken", "inherited", "built", "moved into"],
    "dwells": [
        "lives", "dwells", "stays", "is at home", "has a home", "sleeps", "resides", "is settled", "has roots",
        "keeps house", "has made a home", "pays rent", "has put down roots", "is to be found",
    ],
    "daily": [
        "feels at home", "keeps a garden", "has a bed", "has settled", "wakes up", "pays rent", "cooks and sleeps",
        "has a door key", "raises a family",
    ],
    "left": [
        "left", "gave up", "sold the house in", "had enough of", "said goodbye to", "turned away from",
        "is done with",
    ],
    "went": [
        "went", "moved house", "set off", "drove all the way", "sent all the boxes", "took the family", "went back",
        "has gone", "carried the boxes", "emigrated", "shifted everything",
    ],
    "residence": [
        "{name}<aside> <dwells> in {value} <since> <idiom>", "<since> {name} <dwells> in {value} <idiom>",
        "over in {value} {name} <daily> <idiom>", "in {value}, {name} <daily> <since>",
        "in {value} these days {name} <daily> <idiom>", "down in {value} {name} <got> <home> <idiom>",
        "for {name} it is {value} from now on", "in {value} <dwells> {name} <since>",
        "it is in {value} that {name} <dwells> <since>", "{name} <got> <home> in {value} <idiom>",
        "{name} <left> <town> and <dwells> in {value} <since>", "{name} <left> <town> for {value} <idiom>",
        "{name} no longer <dwells> in <town> but in {value}", "not in <town> but in {value} is where {name} <dwells>",
        "{name} used to live in <town>; it is {value} now", "after years in <town>, {name} <dwells> in {value}",
        "{name} has swapped <town> for {value}", "from <town> {name} <went> to {value} <idiom>",
        "{name} <went> from <town> to {value}", "{name}<aside> <went> to {value} <idiom>",
        "to {value} {name} <went> <idiom>", "{value} is where {name} <dwells> <since>",
        "{value} is the town in which {name} <dwells>", "the town of {name} is {value} <since>",
        "{name}'s town is {value} <since>", "{name}'s house stands in {value}",
        "the house {name} <got> stands in {value}", "{name} calls {value} home <since>",
        "home, for {name}, is {value} <since>", "letters to {name} go to {value} <since>",
        "to write to {name} one puts {value} on it", "{name} has neighbours in {value} <since>",
        "they gave {name} the keys of <home> in {value}", "{name} is one of the people of {value} <since>",
        "{value} has a new face: {name}", "{name} was born in <town> and <dwells> in {value}",
        "we helped {name} to carry boxes to {value}",
    ],
    # --- trade
    "works": [
        "works", "is at work", "is employed", "is paid", "earns money", "serves", "makes money", "has started",
        "has found work", "is busy", "is needed", "goes to work", "was taken", "does well", "was employed",
    ],
    "work": ["works", "is employed", "is paid", "earns money", "serves", "goes to work"],
    "trade": [
        "{name}<aside> <works> as a {value} <since> <idiom>", "<since> {name} <works> as a {value} <idiom>",
        "as a {value} <works> {name} <since> <idiom>", "{name} is a {value} <since> <idiom>",
        "{name}, a {value} <since>, <does>", "{name} has become a {value} <idiom>",
        "{name}, once a <job>, is now a {value} <idiom>", "{name} was a <job> and is a {value} <since>",
        "{name} is no longer a <job> but a {value}", "not a <job> but a {value} is what {name} is",
        "{name} gave up being a <job> to be a {value}", "instead of a <job>, {name} is a {value} <since>",
        "by trade {name} is a {value}", "{name} is by trade a {value} <idiom>",
        "the trade of {name} is that of a {value}", "{name}'s trade is that of a {value}",
        "{name} does the work of a {value} <idiom>", "they needed a {value} and took {name} <idiom>",
        "they were short of a {value}, so {name} <works> there", "the new {value} is {name} <since>",
        "the {value} they took is {name}", "our {value} is {name} <since>",
        "a {value}: that is what {name} is <since>", "if you need a {value}, ask {name}",
        "who needs a {value} asks {name}", "{name} learned to be a {value} <idiom>",
        "{name} has the job of a {value} <idiom>", "the job {name} has is that of a {value}",
        "{name} makes a good {value} <idiom>", "for work {name} is a {value} <since>",
        "{name} put on the clothes of a {value} <idiom>", "what is {name}? a {value} <since>",
    ],
    # --- questions
    "say": [
        "say", "tell me", "name", "find out", "look up", "I want to know", "I wonder", "can you say", "do you know",
        "please say", "could you tell me", "somebody asks", "remind me", "let me hear",
    ],
    "pre": [
        "", "", "", "", "well,", "so,", "please:", "one question:", "about {whom}:", "as to {whom},", "next,",
        "if you know it:", "going by the chat,", "by what was said,", "from what they tell,", "in short,",
    ],
    "today": ["", "", "", "now", "these days", "at present", "by now", "nowadays", "today"],
    "num": ["number", "number", "line", "digits", "telephone", "row of digits"],
    "whichnum": ["which number", "what number", "which digits", "which line"],
    "asks_number": [
        "<pre> under <whichnum> can <one> <reach> {whom} <today>?",
        "<say> under <whichnum> {whom} can be called <today>.", "<say> {whom}'s <num>.",
        "<pre> <say> the <num> for {whom}.", "to <reach> {whom}, <whichnum> does one <dial>?",
        "<pre> <whichnum> does one <dial> to <reach> {whom} <today>?", "<pre> <whichnum> has {whom} <today>?",
        "if one must <reach> {whom}, what is to be dialled <today>?", "<pre> what is to be dialled for {whom}?",
        "{whom} has <whichnum> <today>?", "<pre> what must one <dial> to <reach> {whom}?",
        "<whichnum> rings at the home of {whom} <today>?", "by <whichnum> is {whom} called up <today>?",
        "<say> what to <dial> for {whom}.", "whoever wants to <reach> {whom} must <dial> what?",
        "{whom} can be reached how <today>? <say> the <num>.", "<one> must <reach> {whom}. <whichnum>?",
        "the <num> for {whom}, please.", "<say> how to <reach> {whom} by telephone.",
        "<pre> <whichnum> was told for {whom}?", "does {whom} have a telephone? <say> the <num>.",
        "<pre> <whichnum> is written down for {whom}?", "<pre> <whichnum> gets one {whom}?",
    ],
    "whichtown": ["which town", "what town", "which place", "what village or town"],
    "abode": ["home", "house", "bed", "flat", "front door", "address"],
    "asks_town": [
        "<pre> in <whichtown> <dwell> {whom} <today>?", "<say> in <whichtown> {whom} <dwells> <today>.",
        "<say> where {whom} <dwells> <today>.", "<pre> where is the <abode> of {whom} <today>?",
        "<pre> <whichtown> has {whom} in it <today>?", "to <whichtown> do letters for {whom} go <today>?",
        "<pre> where do letters for {whom} go?", "<pre> <whichtown> is {whom} from by now?",
        "<pre> <whichtown> did {whom} end up in?", "<pre> where did {whom} end up living?",
        "<pre> where can one visit {whom} <today>?", "{whom} <dwells> in <whichtown> <today>?",
        "<say> {whom}'s town.", "<say> the town of {whom}.", "I want to visit {whom}. to <whichtown> must I go?",
        "<pre> in <whichtown> does the <abode> of {whom} stand?", "<pre> {whom}'s <abode> is in <whichtown>?",
        "<pre> <whichtown> is home for {whom} <today>?", "<pre> where has {whom} made a home?",
        "the town where {whom} <dwells> is which?", "<say> <whichtown> {whom} <dwells> in <today>.",
    ],
    "dwell": ["does one find", "do we find", "could one visit", "lives", "resides"],
    "whichjob": [
        "which trade", "what trade", "what kind of work", "which line of work", "what sort of job", "which craft",
    ],
    "asks_trade": [
        "<pre> what is {whom} by trade <today>?", "<pre> by trade {whom} is what <today>?",
        "<pre> as what <work> {whom} <today>?", "<pre> as what does {whom} earn money <today>?",
        "<say> as what {whom} <work> <today>.", "<say> the trade of {whom}.", "<say> what {whom} is by trade.",
        "<pre> <whichjob> has {whom} <today>?", "<pre> what does {whom} do for a living <today>?",
        "<pre> what is it that {whom} works as <today>?", "<pre> <whichjob> does {whom} live by?",
        "<pre> how does {whom} make a living <today>?", "<pre> what has {whom} become?",
        "<say> what has become of {whom}.", "{whom} <work> as what <today>?",
        "what would the card of {whom} say: <whichjob>?", "<pre> <whichjob> is it by which {whom} lives?",
        "<pre> in <whichjob> is {whom} to be found?", "<say> <whichjob> {whom} is in <today>.",
        "<say> {whom}'s trade.", "<pre> what did they take {whom} on as?", "<pre> what is {whom} paid for being?",
        "if one asks {whom} for a trade, what is the answer?", "<pre> {whom}'s <today> trade is what?",
    ],
    "day": ["on which day", "on what day", "when", "on which date"],
    "theday": ["the day", "the date", "which day", "which date"],
    "news": ["news of", "something new of", "fresh word of", "more than a name of", "a report of", "further word of"],
    "naming": [
        "the name aside", "the naming aside", "not counting the name", "the day of the name aside",
        "whoever it is by name", "leaving out who that is", "where who it is does not count",
        "apart from being named", "the naming left out",
    ],
    "asks_day": [
        "<day> was there <news> {whom}, <naming>?", "<naming>, <day> was there <news> {whom}?",
        "<say> <theday> with <news> {whom}, <naming>.", "<day> did <one2> hear what became of {whom}?",
        "<say> <day> it was told what became of {whom}.", "<theday> with <news> {whom}, <naming>, please.",
        "<day> was it said what {whom} does, where, or the number?",
        "<say> <theday> with <news> {whom} and not <theday> that named them.",
        "<day>, <naming>, was {whom} the subject?",
        "two days speak of {whom}; <say> <theday> that does not name them.",
        "{whom} came up on two days. <day> was it with <news> them, <naming>?",
        "<naming>, which day had <news> {whom}?",
    ],
    "one2": ["we", "they", "somebody", "people"],
    "asks_linked": [
        "<say> who {whom} is.", "<say> the name of {whom}.", "<pre2> which person is {whom}?",
        "<pre2> by which name do <one2> know {whom}?", "<pre2> {whom} is <known> how?", "<pre2> who might {whom} be?",
        "<pre2> {whom} is who?", "<pre2> how is {whom} <known>?", "<pre2> what name has {whom}?",
        "<pre2> {whom} bears which name?", "<pre2> who is meant by {whom}?", "of {whom} <say> the name.",
        "<pre2> what do <one2> call {whom}?", "<pre2> what does one write on a letter to {whom}?",
        "<pre2> {whom}'s name is what?", "<say> {whom}'s name.", "<say> what {whom} is <known>.",
    ],
    "pre2": [
        "", "", "", "well,", "so,", "please:", "one question:", "next,", "going by the chat,", "by what was said,",
        "in short,",
    ],
    "said": ["told", "spoken", "written", "heard", "reported"],
    "asks_by_day": [
        "of whom was there <news2> on {day}?", "<say> of whom was <said> on {day}.",
        "on {day} there was <news2> of whom?", "whose <news2> came on {day}?", "the session of {day} tells of whom?",
        "which person is the subject of {day}?", "on {day} the talk was of whom?",
        "who is named in the session of {day}?", "<say> of whom there was <news2> on {day}.",
        "on {day}, of whom was <said>?", "<say> whom the day {day} tells of.", "{day} tells of whom?",
    ],
    "news2": ["news", "word", "talk", "a report", "something"],
    "whom": [
        "the {kin} whom {speaker} has", "the {kin} {speaker} has", "the person {speaker} calls a {kin}",
        "the {kin} that is {speaker}'s", "{speaker}'s very {kin}", "the one who is a {kin} to {speaker}",
        "the {kin} {speaker} speaks of", "{speaker}'s only {kin}", "whoever is {kin} to {speaker}",
        "the {kin} in the life of {speaker}", "{speaker}'s good old {kin}", "the {kin} mentioned by {speaker}",
        "the {kin} belonging to {speaker}", "the {kin} who is with {speaker}", "the {kin} that goes with {speaker}",
        "that one {kin} {speaker} has", "the {kin}, I mean {speaker}'s,", "the {kin} on the side of {speaker}",
        "the {kin} of whom {speaker} speaks", "the {kin} known from {speaker}", "{speaker}'s dear old {kin}",
        "the person {speaker} means by {kin}", "the {kin} we know through {speaker}",
        "the {kin} {speaker} told us of", "the {kin} - that of {speaker} -",
        "the person who is the {kin} {speaker} has", "the {kin} as {speaker} calls them",
    ],
}  # fmt: skip
GRAMMAR = Grammar(RULES)
FIELDS = {
    "links": "link",
    "facts": {"number": "number", "town": "residence", "trade": "trade"},
    "asked": {"number": "asks_number", "town": "asks_town", "trade": "asks_trade", "day": "asks_day"},
    "linked": "asks_linked",
    "by_day": "asks_by_day",
    "whom": "whom",
}
MANY = {"links": 24, "facts": 24, "asked": 40, "linked": 24, "by_day": 16, "whom": 10}
"""Frames of each field that a dialect draws from."""
