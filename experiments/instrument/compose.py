"""Stories as training samples: one to three in a document, filler between their passages, many questions, as tokens.

The stories are those of the tasks of `sp.evals`, drawn from phrases that no example has (`phrases/`); filler is the
bank and, where a task has text of its own kind, that. Nothing says which token an answer copies.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np
from bank import Bank, Ints
from filler import Filler, Told
from phrases.language import lines
from teller import FURTHER, NAMES, Teller
from tokenizer import PRETOKEN, Encoder

from sp.evals.story import Story, StoryQuestion

Span = tuple[int, int]

LABELS = (*NAMES, "quote", *FURTHER)
"""What accuracy is told of: the stories, sentences to be quoted, and scenes."""
QUOTES = ("Quote the part with: {}", "Which passage says {}?", "Repeat what has the words {}", "{} ... say all of it.")
"""Asks for a passage by two neighbouring words of it: dense practice in finding and copying."""
ROLES = ("user", "tool", "tool", "assistant")
"""Who says the further messages of a document, by their shares."""
BREAKS = 16
"""Most further messages of a document."""


@dataclass(frozen=True)
class Mix:
    """What a stage draws.

    Parameters
    ----------
    tasks : dict
        Weight of names in `NAMES` and `FURTHER`.
    stories, turns, facts : (low, high)
        Stories in a document, questions asked of it, and passages of a story; the room may allow fewer.
    hard : float
        Share of samples that begin with the question an example would ask.
    share : (low, high)
        Part of the document that stories take, at most.
    quote : float
        Share of turns that ask for a whole passage.
    chat : float
        Share of documents that lie in several messages.
    grammar, letters : float
        Shares of stories told in their task's grammar, and with names spelt from tokens, where the task has either.
    lines : float
        Share of samples that are plain lines of scenes, their questions and answers, and nothing else.
    """

    tasks: dict[str, float] = field(default_factory=lambda: dict.fromkeys(NAMES, 1.0))
    stories: Span = (1, 3)
    turns: Span = (4, 12)
    facts: Span = (6, 40)
    hard: float = 0.5
    share: tuple[float, float] = (0.2, 0.9)
    quote: float = 0.05
    chat: float = 0.0
    grammar: float = 0.0
    letters: float = 0.0
    lines: float = 0.0


@dataclass
class Sample:
    """Tokens and what is predicted: row r predicts token r + 1.

    Attributes
    ----------
    ids : ints (n,)
    rows, first, kind : lists
        Rows of answers; 1 or 2 where a first or later answer begins, else 0; twice the task's number, plus 1 for a
        question as examples ask it.
    document : (start, end)
    passages, evidence, markup : lists of (start, end)
        Tokens of all passages, of what the asked questions rest on, and of what stands between messages.
    """

    ids: Ints
    rows: list[int]
    first: list[int]
    kind: list[int]
    document: Span
    passages: list[Span]
    evidence: list[Span]
    markup: list[Span] = field(default_factory=list)


def answer_text(question: StoryQuestion) -> str:
    """What the model is to say: the answers and a full stop, or the passage as it is."""
    return question.answers[0] if question.kind == "quote" else ", ".join(question.answers) + "."


def quoted(passage: str, rng: random.Random) -> StoryQuestion:
    """A question for a whole passage."""
    words = passage.split()
    at = rng.randrange(max(1, len(words) - 1))
    return StoryQuestion(rng.choice(QUOTES).format(" ".join(words[at : at + 2])), (passage,), (passage,), kind="quote")


class Composer:
    """Makes samples of about a length."""

    def __init__(self, encoder: Encoder, bank: Bank, seed: int) -> None:
        self.encoder, self.rng = encoder, random.Random(seed)
        self.tellers = {name: Teller(name, self.rng) for name in (*NAMES, *FURTHER)}
        self.cost = dict.fromkeys(self.tellers, 30.0)  # tokens a passage, as seen so far
        self.filler = Filler(encoder, bank, self.rng)

    def sample(self, length: int, mix: Mix) -> Sample | None:
        """A sample of at most `length` tokens; None if what was drawn has no room."""
        rng = self.rng
        names = rng.choices(list(mix.tasks), list(mix.tasks.values()), k=rng.randint(*mix.stories))
        names = list(dict.fromkeys(names))
        room = (length - 120) * rng.uniform(*mix.share) / len(names)
        told = [self.tellers[name].told(mix.grammar, mix.letters) for name in names]
        stories = []
        for name, one in zip(names, told, strict=True):
            facts = min(rng.randint(*mix.facts), max(3, int(room / self.cost[name])))
            stories.append((name, one.story(rng, facts)))
        turns = self._turns(stories, mix)
        asked = [self.encoder(q.text) for _, q, _ in turns]
        said = [self.encoder(answer_text(q)) for _, q, _ in turns]
        tail = sum(len(one) + 12 for one in (*asked, *said))
        ids: list[int] = [self.encoder.start, *self.encoder("user\n")]
        begin = len(ids)
        closing = self.filler.closing(told, length)
        asked[0] = self.encoder(f"{closing}\n\n{turns[0][1].text}")  # a full stop and what follows are one token
        breaks = rng.randint(1, BREAKS) if rng.random() < mix.chat else 0
        if breaks and rng.random() < 0.7:  # the question is a message of its own
            asked[0] = [*self.encoder(closing), *self._next("user"), *self.encoder(turns[0][1].text)]
        room = length - tail - len(asked[0]) - 16
        sample = Sample(np.zeros(0, np.int64), [], [], [], (begin, begin), [], [])
        self._document(ids, sample, told, stories, [q for _, q, _ in turns], room, breaks)
        sample.document = begin, len(ids)
        self._ask(ids, sample, turns, asked, said)
        if len(ids) > length:
            return None
        sample.ids = np.array(ids)
        return sample

    def lines(self, length: int) -> Sample:
        """Plain text of at most `length` tokens: scenes one after another, with what follows from each."""
        ids: list[int] = [self.encoder.start, *self.encoder("user\n")]
        sample = Sample(np.zeros(0, np.int64), [], [], [], (len(ids), len(ids)), [], [])
        kind = 2 * LABELS.index("language")
        while True:
            pieces = [(self.encoder(text), known) for text, known in lines(self.rng) if text]
            if len(ids) + sum(len(piece) for piece, _ in pieces) > length:
                break
            for piece, known in pieces:
                if known:
                    at = len(ids) - 1
                    sample.rows += range(at, at + len(piece) + 1)  # and the mark behind it
                    sample.first += [2, *([0] * len(piece))]
                    sample.kind += [kind] * (len(piece) + 1)
                ids += piece
        sample.ids = np.array(ids)
        sample.document = sample.document[0], len(ids)
        return sample

    def _turns(self, stories: list[tuple[str, Story]], mix: Mix) -> list[tuple[str, StoryQuestion, bool]]:
        rng = self.rng
        pool = [(name, q, i == 0) for name, story in stories for i, q in enumerate(story.questions)]
        rng.shuffle(pool)
        if rng.random() < mix.hard:
            pool.sort(key=lambda one: not one[2])
        short = [text for _, story in stories for text in story.passages if len(text) < 160]
        turns = pool[: rng.randint(*mix.turns)]
        return [
            ("quote", quoted(rng.choice(short), rng), False) if short and rng.random() < mix.quote else one
            for one in turns
        ]

    def _ask(
        self,
        ids: list[int],
        s: Sample,
        turns: list[tuple[str, StoryQuestion, bool]],
        asked: list[list[int]],
        said: list[list[int]],
    ) -> None:
        e, newline = self.encoder, self.encoder("\n")
        for number, ((name, _, hard), text, saying) in enumerate(zip(turns, asked, said, strict=True)):
            if number:
                ids += [*newline, e.start, *e("user\n")]
            ids += [*text, e.end, *newline, e.start, *e("assistant\n")]
            answer = [*saying, e.end]
            at = len(ids) - 1
            s.rows += range(at, at + len(answer))
            s.first += [1 if number == 0 else 2, *([0] * (len(answer) - 1))]
            s.kind += [2 * LABELS.index(name) + hard] * len(answer)
            ids += answer

    def _next(self, role: str) -> list[int]:
        """The end of a message and the beginning of another."""
        e = self.encoder
        return [e.end, *e("\n"), e.start, *e(f"{role}\n")]

    def _document(
        self,
        ids: list[int],
        s: Sample,
        told: list[Told],
        stories: list[tuple[str, Story]],
        asked: list[StoryQuestion],
        room: int,
        breaks: int,
    ) -> None:
        """Append passages and filler, in so many more messages; where passages, evidence and markup lie."""
        rng = self.rng
        order = [i for i, (_, story) in enumerate(stories) for _ in story.passages]
        rng.shuffle(order)
        streams = [iter(story.passages) for _, story in stories]
        wanted = {text for q in asked for text in q.evidence}
        parts = [(stories[i][0], next(streams[i])) for i in order]
        plain = all("\n" not in text for _, text in parts)  # passages of several lines stand between lines
        between = [self._next(rng.choice(ROLES)) for _ in range(min(breaks, len(parts)))]
        used = sum(len(self.encoder(text)) + 1 for _, text in parts) + sum(map(len, between))
        broken = set(rng.sample(range(len(parts)), len(between)))
        gaps = [
            self.filler.run(told, size, plain) if size > 12 else None
            for size in self._gaps(len(parts) + 1, room - used)
        ]
        inline = plain and rng.random() < 0.3
        for number, (name, text) in enumerate(parts):
            gap, after = gaps[number], gaps[number + 1]
            if gap:
                ids += gap[0]
                inline = gap[1]
            if number in broken:
                at, inline = len(ids), False
                ids += between.pop()
                s.markup.append((at, len(ids)))
            ends_line = not after[1] if after else not inline
            written = f"{' ' if inline and len(ids) > 4 else ''}{text}{chr(10) if ends_line else ''}"
            piece, spans = self._encode(written, [one for one in wanted if one in text])
            self.cost[name] += 0.02 * (len(piece) - self.cost[name])
            at = len(ids)
            ids += piece
            s.passages.append((at, len(ids)))
            s.evidence += [(at + a, at + z) for a, z in spans]
            inline = not ends_line
        if gaps[-1]:
            ids += gaps[-1][0]

    def _encode(self, text: str, found: list[str]) -> tuple[list[int], list[Span]]:
        """Tokens of a text, and those that the given parts of it touch."""
        if not found:
            return self.encoder(text), []
        ids: list[int] = []
        starts, tokens, cache = [], [], self.encoder.cache
        for match in PRETOKEN.finditer(text):
            starts.append(match.start())
            tokens.append(len(ids))
            piece = match.group()
            ids += cache[piece] if piece in cache else self.encoder(piece)
        tokens.append(len(ids))
        spans = []
        for one in found:
            at = text.index(one)
            first, last = bisect_right(starts, at) - 1, bisect_right(starts, at + len(one) - 1)
            spans.append((tokens[first], tokens[last]))
        return ids, spans

    def _gaps(self, count: int, room: int) -> list[int]:
        """Tokens of filler before, between and behind passages; some gaps are empty."""
        if room <= 0:
            return [0] * count
        weights = np.array([self.rng.random() ** 2 for _ in range(count)])
        return [int(one) for one in weights / weights.sum() * room]
