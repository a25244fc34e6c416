"""What the look-alike pieces of `mrcr` are made of: kinds, first and closing lines, prose, and questions."""

from __future__ import annotations

from dataclasses import dataclass

from sp.evals.text.words import NAMES, SURNAMES, SYLLABLES


@dataclass(frozen=True)
class MrcrPhrases:
    """Words and frames of pieces.

    Parameters
    ----------
    kinds, topics, people, times : tuple of str
        Kinds begin with a consonant.
    headers : tuple of str
        Frames with {kind} and {topic}, and {who} and {when} if they like.
    closings : tuple of str
        Frames with {code}.
    asks, asks_only, asks_final : tuple of str
        Frames with {nth}, {kind} and {topic}; with {kind} and {topic}; and without any, for the last piece of all.
    prose : tuple of tuples of str
        Beginnings, middles and ends of the sentences of a body.
    syllables : tuple of str
        What codes are made of, where they are no numbers.
    """

    kinds: tuple[str, ...]
    topics: tuple[str, ...]
    people: tuple[str, ...]
    times: tuple[str, ...]
    headers: tuple[str, ...]
    closings: tuple[str, ...]
    asks: tuple[str, ...]
    asks_only: tuple[str, ...]
    asks_final: tuple[str, ...]
    prose: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    syllables: tuple[str, ...]


HELD_OUT = MrcrPhrases(
    kinds=(
        "ballad", "memo", "riddle", "fable", "sermon", "postcard", "limerick", "proverb", "toast", "lullaby",
        "pamphlet", "monologue", "verdict", "chant",
    ),
    topics=(
        "canals", "mosaics", "squirrels", "telescopes", "beehives", "umbrellas", "chariots", "puppets", "pancakes",
        "gondolas", "windmills", "scarecrows", "penguins", "turnips", "sundials", "kayaks", "hammocks", "oysters",
        "tugboats", "thistles", "banjos", "trapdoors", "vineyards", "whistles", "beetles", "melons", "marmots",
    ),
    people=tuple(NAMES),
    times=(
        "on a foggy Monday", "long after supper", "before the ferry left", "in the coldest week", "while it rained",
        "between two concerts", "on the eve of the fair", "late in April", "during the strike", "soon after dawn",
        "with a broken pen", "after some delay", "in spite of the noise", "with three helpers",
        "under a lamp", "on a borrowed desk", "without any notes", "to general surprise", "in green ink",
        "by candlelight",
    ),
    headers=(
        "{when}, {who} put down a {kind} about {topic}.",
        "Next comes a {kind} on {topic}, which {who} wrote {when}.",
        "{who} read us a {kind} concerning {topic} {when}.",
        "Here {who} begins a {kind} about {topic}, written {when}.",
        "What follows is a {kind} on {topic}; {who} made it {when}.",
        "It was {when} that {who} composed a {kind} concerning {topic}.",
        "A {kind} about {topic}, by {who}, {when}:",
        "{who} copied out, {when}, a {kind} on {topic}.",
    ),
    closings=(
        "Below it stands the seal {code}.",
        "Signature, as far as one can read it: {code}.",
        "The stamp underneath says {code}.",
        "With kind regards, {code}.",
        "At the bottom somebody pencilled {code}.",
        "The mark beneath it is {code}.",
        "Filed as {code}.",
    ),
    asks=(
        "What comes at the very end of the {nth} {kind} about {topic}?",
        "How does the {nth} {kind} on {topic} end?",
        "Take the {nth} {kind} concerning {topic}. Which word or number ends it?",
        "Give the ending of the {nth} {kind} about {topic}.",
        "There are several of them, but how does the {nth} {kind} on {topic} finish?",
    ),
    asks_only=(
        "How does the only {kind} about {topic} end?",
        "What comes at the very end of the one {kind} on {topic}?",
        "Give the ending of the {kind} concerning {topic}.",
        "Which word or number ends the {kind} about {topic}?",
    ),
    asks_final=(
        "How does the last piece of all end?",
        "What comes at the end of the very last piece?",
        "Give the ending of the piece that is last of all.",
        "Which word or number ends the last of all the pieces?",
    ),
    prose=(
        (
            "The morning was grey and", "Nobody in the valley expected that", "Some said, not without reason, that",
            "Along the old road", "In those days", "For a long while", "As the neighbours tell it,", "Further down,",
            "To the south of the hill", "Between the houses", "More than once", "Year after year", "Even so,",
            "Under the wide roof", "Whoever passed by saw that", "From the tower one noticed how", "All through summer",
            "Quite slowly", "Where the lane turns", "When the fair was over,", "Not far from the river", "Once again",
        ),
        (
            "the gate stayed open", "a cart rolled past", "two dogs slept in the shade", "the bread went stale",
            "the millers argued about flour", "children chased a paper kite", "the well ran almost dry",
            "a stranger asked for shelter", "the carpenter mended chairs", "thin smoke rose from the ovens",
            "the choir practised old tunes", "three geese wandered about", "the baker whistled softly",
            "a letter lay unopened", "the clock had stopped", "snow covered the benches", "the soup was cooling",
            "an old map hung crooked", "the lamps burned low", "a boat drifted by", "the harvest came in",
        ),
        (
            "and nobody minded at all.", "until the rain came.", "as if nothing had happened.", "without a sound.",
            "while the others went home.", "and that was that.", "which pleased the whole street.", "in the usual way.",
            "so the talk went on.", "although few remembered why.", "until the bells fell silent.", "just like before.",
            "and the wind dropped.", "because there was time enough.", "but it hardly mattered.", "with some patience.",
            "as the elders had foretold.", "and then it grew dark.", "to everybody's relief.", "before long.",
        ),
    ),
    syllables=tuple(SYLLABLES),
)  # fmt: skip

FRESH = MrcrPhrases(
    kinds=(
        "petition", "bulletin", "parable", "manifesto", "dirge", "jingle", "homily", "satire",
        "tirade", "libretto", "communique", "vignette",
    ),
    topics=(
        "glaciers", "cobwebs", "chimneys", "quarries", "herons", "pulleys", "corsets", "drawbridges", "toboggans",
        "leeks", "sundaes", "moats", "ferrets", "parasols", "bagels", "turnstiles", "gargoyles", "zeppelins",
    ),
    people=tuple(SURNAMES),
    times=(
        "at the height of the flood", "one idle afternoon", "when the circus was in town", "after the third bell",
        "on a moving train", "for a small fee", "in a rented attic", "halfway through a meal", "with one eye shut",
        "the week the mill burned", "for want of company", "to settle an old quarrel", "at somebody's wedding",
        "with the shutters closed", "over a cold pot of tea", "just ahead of the frost",
    ),
    headers=(
        "{when}, a {kind} in praise of {topic} was begun by {who}.",
        "Now for a {kind} that {who} devoted to {topic} {when}.",
        "The subject is {topic}, the form is a {kind}, and {who} found the words {when}.",
        "{who} owed us a {kind} dealing with {topic} and delivered it {when}.",
        "From the hand of {who}, {when}: a {kind} dealing with {topic}.",
        "Since {topic} were on everyone's mind, {who} produced a {kind} {when}.",
    ),
    closings=(
        "Whoever kept the sheet wrote in the margin: {code}.",
        "There it stops, and the last line is {code}.",
        "The paper bears the imprint {code}.",
        "Underneath one can make out {code}.",
        "So much for that; its shelf mark is {code}.",
        "The wax at the foot reads {code}.",
    ),
    asks=(
        "Turn to the {nth} {kind} that deals with {topic}: with which word or number does it close?",
        "Which word or number do we meet right at the close of the {nth} {kind} on the subject of {topic}?",
        "Someone cites the close of the {nth} {kind} dealing with {topic}. Which word or number do they cite?",
        "I have lost the tail of the {nth} {kind} dealing with {topic}; supply the word or number in it.",
        "With what does the {nth} {kind} devoted to {topic} come to a stop?",
    ),
    asks_only=(
        "Turn to the sole {kind} that deals with {topic}: with which word or number does it close?",
        "Someone cites the close of the {kind} dealing with {topic}. Which word or number do they cite?",
        "I have lost the tail of the {kind} dealing with {topic}; supply the word or number in it.",
        "With what does the {kind} devoted to {topic} come to a stop?",
    ),
    asks_final=(
        "Turn to the piece that no other follows: with which word or number does it close?",
        "Someone cites the close of the bottommost piece. Which word or number do they cite?",
        "I have lost the tail of the piece that comes after all others; supply the word or number in it.",
        "With what does the hindmost piece come to a stop?",
    ),
    prose=(
        (
            "Behind the customs house", "As a matter of habit", "Against the advice of the doctor", "Near the ford",
            "Throughout that windy season", "Had anyone asked,", "At the corner shop", "Once the toll was paid",
            "In the shade of two poplars", "With every passing hour", "Upstairs, meanwhile,", "By the third week",
        ),
        (
            "the plumber hunted for a leak", "nine swans crossed the pond", "the postmaster counted stamps",
            "somebody's uncle tuned a piano", "the varnish refused to dry", "a ladder leaned on the wall",
            "the apprentices played at dice", "goats got into the cabbages", "the kettle began to sing",
            "an umbrella turned inside out", "the ferryman dozed", "the tailor lost his chalk",
        ),
        (
            "for reasons of its own.", "much as it had the year before.", "and the matter was dropped.",
            "which nobody had foreseen.", "till the watchman coughed.", "in full view of the square.",
            "while a fiddle played.", "and somebody laughed.", "though it was only noon.", "with no harm done.",
        ),
    ),
    syllables=tuple(SYLLABLES),
)  # fmt: skip
"""A second set, written later and without sight of what was trained: no part up to 15 can have been trained towards it.
Who wrote the later parts had seen it; a filter keeps its frames out of them."""
