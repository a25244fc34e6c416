"""Frames that nobody wrote with a model, or with what it was trained on, in view.

They were written from the one-line descriptions of the tasks in `docs/evaluation.md` alone, by someone who had read
neither the training grammar nor the phrases of the tasks (`SESSION_*` and what `NOLIMA_*` say of tools, dishes and
firms: who had read the held-out frames, and not the grammar). Slots were fitted to the tasks; no word was changed after
a model had read one. Frames that the training phrases turned out to have as well were dropped, by a test and not by
sight. Words, names and layouts of documents are those of the held-out set, in `json` of the fresh one.
"""

NOLIMA_FACTS = {
    "landmark": (
        "{who} once spent a whole afternoon in front of {thing}",
        "on the desk of {who} stands a photograph of {who} leaning against {thing}",
        "it rained the day {who} finally reached {thing}",
        "{who} still talks about the morning when the bus stopped right beside {thing}",
        "years ago {who} proposed marriage on a bench opposite {thing}",
        "when the guide lost the group, {who} waited for an hour under {thing}",
        "{who} keeps a ticket stub from {thing} in an old wallet",
        "a street artist drew a portrait of {who} just outside {thing}",
        "for a whole summer {who} sold lemonade to tourists at {thing}",
        "{who} broke an ankle on the steps of {thing}",
        "the first thing {who} did after landing was to walk to {thing}",
        "of all the sights of that trip, {thing} was the one {who} liked best",
    ),
    "tool": (
        "{who} spent last month's wages on {thing}",
        "nobody may borrow {thing} from {who}",
        "{who} had {thing} repaired in spring",
        "there is a drawer in which {who} locks up {thing}",
        "{who} swears by {thing}",
        "{who} bought {thing} second-hand",
    ),
    "dish": (
        "{who} asked for a second helping of {thing}",
        "for a birthday {who} always wants {thing}",
        "{who} could eat {thing} every day of the week",
        "a note on the fridge of {who} says to buy what goes into {thing}",
        "{who} burned a finger while tasting {thing}",
        "the grandmother of {who} taught the whole family to cook {thing}",
    ),
    "firm": (
        "{who} started at {thing} last winter",
        "every morning {who} takes the tram to {thing}",
        "{who} has an office on the third floor of {thing}",
        "{thing} sent {who} to a trade fair",
        "{who} complains about the canteen of {thing}",
        "the pension of {who} will come from {thing}",
    ),
}
NOLIMA_QUESTIONS = {
    "landmark": (
        "Which person has set foot in {kind}?",
        "Who among these people has travelled to {kind}?",
        "Name the one who must have been in {kind} at some time.",
        "Somebody here knows {kind} at first hand. Who is it?",
        "Who could tell us about a stay in {kind}?",
        "Which of the people mentioned has seen {kind}?",
        "Who has already paid a visit to {kind}?",
        "Tell me the name of whoever has been in {kind}.",
        "Of everyone in the text, who has gone to {kind}?",
        "Whose travels have included {kind}?",
        "Who would recognise the streets of {kind}?",
        "Has anyone been to {kind}, and if so, who?",
    ),
    "tool": (
        "Of everyone in the text, who is equipped for {kind}?",
        "Who would be the one to call if {kind} were needed?",
        "Somebody here can manage {kind}. Who is it?",
        "Which of the people mentioned has what {kind} takes?",
    ),
    "dish": (
        "Of everyone in the text, who has a taste for the cooking of {kind}?",
        "Who would be happy in a restaurant that serves what they eat in {kind}?",
        "Somebody here enjoys the cuisine of {kind}. Who is it?",
        "Which of the people mentioned eats as they do in {kind}?",
    ),
    "firm": (
        "Of everyone in the text, who works in the {kind} business?",
        "Whose employer deals in {kind}?",
        "Somebody here is employed in the trade with {kind}. Who is it?",
        "Which of the people mentioned has a job that depends on {kind}?",
    ),
}

UPDATES_STATED = (
    "somebody has since moved {thing} over to {value}",
    "after a complaint {thing} went to {value}",
    "that no longer holds: {thing} is at {value} these days",
    "{thing} has been switched again, and {value} is what it has at present",
    "a new sticker on {thing} reads {value}",
    "forget the earlier note; {value} is right for {thing}",
    "following the repair, {thing} was put to {value}",
    "the caretaker crossed out the old entry for {thing} and wrote {value}",
    "from this week on, {value} applies to {thing}",
    "{thing} had to be altered once more and ended up at {value}",
    "by the latest message, {thing} has become {value}",
    "in the end they settled on {value} for {thing}",
)
UPDATES_QUESTIONS = (
    "What does {what} have today?",
    "Which value holds at present for {what}?",
    "What is the latest setting of {what}?",
    "After all the changes, what applies to {what}?",
    "What is the most recent entry for {what}?",
    "Where does {what} stand by now?",
    "Give the final value of {what}.",
    "What is the newest value of {what}?",
    "What was last written down for {what}?",
    "Say what is currently right for {what}.",
    "Ignoring everything outdated, what goes with {what}?",
    "What did {what} end up with?",
)

CODE_CONSTANTS = (
    "{name} = int({value})",
    "{name} = ({value})",
    "{name} = {value}  # agreed in the last review",
    "{name}: Final = {value}",
    "{name} = 0 + {value}",
    "{name} = {value}  # do not touch",
    "{name} = max(0, {value})",
    '{name} = int("{value}")',
    "{name} = {value} or None",
)
CODE_QUESTIONS = (
    "If I print {name}, what comes out?",
    "Give the number behind {name}.",
    "Evaluate {name}.",
    "What would a debugger display for {name}?",
    "assert {name} == ? Fill in the number.",
    "What does {name} come to?",
    "Which literal reaches {name}?",
    "Find out the number that {name} stands for.",
)

SESSION_LINKS = (
    "you know {name}, don't you? My {kin}",
    "my {kin} {name} sends regards",
    "the woman at the counter mistook {name} for a stranger, and yet that is my {kin}",
    "I owe a letter to my {kin}, {name}",
    "a visit from {name}, who is my {kin}, tired me out",
    "of course I trust {name}; what else is a {kin} of mine for",
)
SESSION_FACTS = {
    "number": (
        "please write down {value} for {name}",
        "{name} can be rung up at {value}",
        "the new telephone of {name} has {value}",
        "{value} got me straight through to {name}",
        "there was {value} on the card of {name}",
        "in the directory {name} has {value}",
    ),
    "town": (
        "the postcard shows {value}, where {name} lives now",
        "since spring {name} has been living in {value}",
        "I helped {name} carry the furniture into a flat in {value}",
        "{value} is where {name} gets the post these days",
    ),
    "trade": (
        "{name} is working as a {value} now",
        "after long training {name} is a {value}",
        "the sign over the door of {name} says {value}",
        "{name} took a position as a {value}",
        "people in our street call on {name} when they need a {value}",
        "{name} makes a fair {value}",
    ),
}
SESSION_QUESTIONS = {
    "number": (
        "Under which number would I reach {whom}?",
        "I must call {whom}. What do I dial?",
        "Look through the chats: what is the telephone number of {whom}?",
        "Tell me the number at which {whom} answers.",
    ),
    "town": (
        "To which town would I send a parcel for {whom}?",
        "I want to visit {whom}. Where do I go?",
        "Look through the chats: which town does {whom} live in?",
        "Tell me the town in which {whom} lives.",
    ),
    "trade": (
        "What does {whom} do for a living?",
        "How does {whom} earn money?",
        "Look through the chats: which trade does {whom} follow?",
    ),
    "day": (
        "On which day was there news of {whom}, apart from who that is?",
        "Find the date on which something new was reported about {whom}; an introduction does not count.",
        "Look through the chats: when did they hear what had become of {whom}?",
        "Tell me the date of the news of {whom}, not of the introduction.",
    ),
}

JSON_QUESTIONS = (
    "What is stored under {key} in {group} of the entry called {name}?",
    "Open the record of {name}, go to {group}, and read out {key}.",
    "For {name}, which value does {group} give to {key}?",
    "Look up {name} -> {group} -> {key}.",
    "Give me {key}, as found in {group} of {name}.",
    "In the data about {name}, what does the field {key} within {group} say?",
    "{name}: {group}: {key}: ?",
    "I need the {key} that belongs to the {group} of {name}.",
    "What would {name}['{group}']['{key}'] return?",
    "Among all entries, take the one named {name}; how is {key} filled in below {group}?",
    "Read the {key} out of the {group} block that {name} has.",
    "Which {key} is nested in the {group} part for {name}?",
)
