"""Questions over generated documents, in place of RULER's SQuAD (`qa_1`) and HotpotQA (`qa_2`).

Templates as in github.com/NVIDIA/RULER (Apache-2.0), documents from a small grammar of people and workshops. Questions
are worded unlike the sentences that answer them; `qa_2-synth` needs two documents and names the first alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from sp.config import check_fields
from sp.errors import ConfigError
from sp.evals.base import MARKUP, Count, Example, Task, answer_room, register_task
from sp.evals.text.filler import TOPICS
from sp.evals.text.words import ADJECTIVES, NAMES, NOUNS, SURNAMES, TOWNS, pseudo_word

INSTRUCTION = (
    "Answer the question based on the given documents. "
    "Only give me the answer and do not output any other words."
)  # fmt: skip
HEADER = f"{INSTRUCTION}\n\nThe following are given documents.\n\n"
PREFIX = " Answer:"


@dataclass(frozen=True)
class Paragraph:
    """Sentences about one subject and, by attribute, which of them says what."""

    subject: str
    sentences: tuple[str, ...]
    facts: dict[str, tuple[str, str]]

    @property
    def text(self) -> str:
        """The paragraph."""
        return " ".join(self.sentences)


@dataclass(frozen=True)
class Questions(Task):
    """A question over documents of which one or two hold the answer."""

    seed: int = 0

    hops: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`; RULER generates 32 tokens, this at least so many."""
        rng = self.rng(index, tokens)
        stream = paragraphs(rng)
        gold, asked, answer, needles = (one_hop if self.hops == 1 else two_hops)(stream, rng)
        question = f"{INSTRUCTION}\n\nQuestion: {asked}"
        room = tokens - MARKUP - sum(map(count, (question, PREFIX, HEADER)))
        left = room - sum(count(f"Document 1000:\n{one.text}\n\n") for one in gold)
        if left < 0:
            raise ConfigError(f"the documents with the answer take more than the {room} tokens there are; ask for more")
        listed = list(gold)
        while (left := left - count(f"Document 1000:\n{(other := next(stream)).text}\n\n")) >= 0:
            listed.append(other)
        rng.shuffle(listed)
        text = "\n\n".join(f"Document {number}:\n{one.text}" for number, one in enumerate(listed, 1))
        place = [listed.index(one) / len(listed) for one in gold]
        return Example(
            id=self.example_id(index, tokens),
            task=self.name,
            document=HEADER + text,
            question=question,
            answer_prefix=PREFIX,
            answers=(answer,),
            needles=needles,
            match="any",
            facts={"depth": round(place[0], 4), "depths": [round(one, 4) for one in place]},
            tokens=tokens,
            max_new_tokens=answer_room(32, [answer], count),
        )


@register_task("qa_1-synth", suite="ruler")
@dataclass(frozen=True)
class OneHop(Questions):
    """An attribute of a person or workshop that the question names."""


@register_task("qa_2-synth", suite="ruler")
@dataclass(frozen=True)
class TwoHops(Questions):
    """An attribute of the founder of a workshop; only the workshop is named."""

    hops: ClassVar[int] = 2


def paragraphs(rng: random.Random) -> Iterator[Paragraph]:
    """People and workshops in turn, without end; every workshop's founder is the person before it."""
    while True:
        person = f"{rng.choice(NAMES)} {pseudo_word(rng).capitalize()}"
        yield about_person(person, rng)
        yield about_workshop(pseudo_word(rng, 2).capitalize(), person, rng)


def about_person(name: str, rng: random.Random) -> Paragraph:
    """A life in five sentences."""
    first, town, craft = name.split()[0], rng.choice(TOWNS), rng.choice(TOPICS)
    year, animal = str(rng.randrange(1700, 1990)), rng.choice(NOUNS)
    born = f"{name} came into the world in {town}."
    learned = f"The trade {first} lived by was {craft}."
    moved = f"In {year} {first} married {rng.choice(NAMES)} {rng.choice(SURNAMES)}."
    liked = f"Friends remember a {rng.choice(ADJECTIVES)} character and a love of every {animal}."
    facts = {
        "In which town was {} born?": (town, born),
        "Which craft did {} practise?": (craft, f"{born} {learned}"),
        "When was the wedding of {}?": (year, f"{born} {learned} {moved}"),
    }
    return Paragraph(name, (born, learned, moved, liked), facts)


def about_workshop(name: str, founder: str, rng: random.Random) -> Paragraph:
    """A workshop in four sentences."""
    subject, year, town, thing = f"{name} Works", str(rng.randrange(1700, 1990)), rng.choice(TOWNS), rng.choice(NOUNS)
    begun = f"{subject} was set up by {founder}."
    stands = f"{subject} lies on the road to {town} and opened its gates in {year}."
    makes = f"{subject} is known for a {rng.choice(ADJECTIVES)} {thing}."
    staff = f"At its height {rng.randrange(12, 900)} people were employed there."
    facts = {
        "Who founded {}?": (founder, begun),
        "Since which year has {} been open?": (year, stands),
        "What product made {} famous?": (thing, makes),
    }
    return Paragraph(subject, (begun, stands, makes, staff), facts)


def one_hop(stream: Iterator[Paragraph], rng: random.Random) -> tuple[list[Paragraph], str, str, tuple[str, ...]]:
    """The paragraph, the question, the answer, and the text that gives it."""
    person, workshop = next(stream), next(stream)
    chosen = rng.choice((person, workshop))
    question = rng.choice(list(chosen.facts))
    answer, evidence = chosen.facts[question]
    return [chosen], question.format(chosen.subject), answer, (evidence,)


def two_hops(stream: Iterator[Paragraph], rng: random.Random) -> tuple[list[Paragraph], str, str, tuple[str, ...]]:
    """The same for a question about the founder of a workshop."""
    person, workshop = next(stream), next(stream)
    question = rng.choice(list(person.facts))
    answer, evidence = person.facts[question]
    [founded] = [said for _, (who, said) in workshop.facts.items() if who == person.subject]
    asked = question.format(f"the founder of {workshop.subject}")
    return [workshop, person], asked, answer, (founded, evidence)
