"""RULER (arXiv 2404.06654): needles, variable tracking, counting, and questions in place of SQuAD and HotpotQA.

Templates are those of github.com/NVIDIA/RULER (Apache-2.0); words and documents are our own. Later links of a variable
share no name with the question, so a scorer that only matches the question finds the first one. In the counting tasks
every part of the text has the same weight, so a uniform selection should beat attention there. Questions are worded
differently from the sentences that answer them; `qa_2-synth` needs two documents and names only the first.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from string import ascii_lowercase, ascii_uppercase
from typing import Any, ClassVar

from sp.config import check_fields
from sp.errors import ConfigError
from sp.evals.base import MARKUP, Count, Example, Task, answer_room, register_task
from sp.evals.tasks.needle import Needle, NeedleMultiquery, NeedleMultivalue
from sp.evals.text.filler import TOPICS, filler, haystack, largest_fit
from sp.evals.text.tables import ADJECTIVES, NAMES, NOUNS, SURNAMES, TOWNS, pseudo_word


@dataclass(frozen=True)
class Niah(Task):
    """A needle task of RULER.

    Parameters
    ----------
    depth : float, optional
        Position of the needle, 0 to 1; random by default. Of several needles, that of the first.
    """

    depth: float | None = None
    seed: int = 0

    kind: ClassVar[type[Needle]] = Needle
    recipe: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        self.needle()

    def needle(self) -> Needle:
        """Return the needle task with RULER's phrasing and the options of `recipe`."""
        return self.kind(
            depth=self.depth, seed=self.seed, phrasing="ruler", answer_prefix=True, near=False, **self.recipe
        )

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """Make an example; as in RULER, the answer has room for at least 128 tokens."""
        example = self.needle().example(index, tokens, count)
        return replace(
            example,
            id=self.example_id(index, tokens),
            task=self.name,
            max_new_tokens=answer_room(128, example.answers, count),
        )


@register_task("niah_single_1", suite="ruler")
@dataclass(frozen=True)
class NiahSingle1(Niah):
    """A number in the repeated line."""

    recipe: ClassVar[Mapping[str, Any]] = {"filler": "noise"}


@register_task("niah_single_2-synth", suite="ruler")
@dataclass(frozen=True)
class NiahSingle2(Niah):
    """A number in prose."""


@register_task("niah_single_3-synth", suite="ruler")
@dataclass(frozen=True)
class NiahSingle3(Niah):
    """A UUID in prose."""

    recipe: ClassVar[Mapping[str, Any]] = {"value": "uuid"}


@register_task("niah_multikey_1-synth", suite="ruler")
@dataclass(frozen=True)
class NiahMultikey1(Niah):
    """One of four numbers in prose."""

    recipe: ClassVar[Mapping[str, Any]] = {"distractors": 3}


@register_task("niah_multikey_2", suite="ruler")
@dataclass(frozen=True)
class NiahMultikey2(Niah):
    """One of many lines that are all needles."""

    recipe: ClassVar[Mapping[str, Any]] = {"filler": "needles"}


@register_task("niah_multikey_3", suite="ruler")
@dataclass(frozen=True)
class NiahMultikey3(Niah):
    """One of many lines of a UUID for a UUID."""

    recipe: ClassVar[Mapping[str, Any]] = {"filler": "needles", "key": "uuid", "value": "uuid"}


@register_task("niah_multivalue-synth", suite="ruler")
@dataclass(frozen=True)
class NiahMultivalue(Niah):
    """Four numbers of one key in prose."""

    kind: ClassVar[type[Needle]] = NeedleMultivalue


@register_task("niah_multiquery-synth", suite="ruler")
@dataclass(frozen=True)
class NiahMultiquery(Niah):
    """Numbers of four keys in prose."""

    kind: ClassVar[type[Needle]] = NeedleMultiquery


HEADER = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
QUESTION = "Question: Find all variables that are assigned the value {value} in the text above."
PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {amount} variables are assigned the "
    "value {value}, they are:"
)
SHOT_LINES = 10  # lines of noise in the worked example


@register_task("vt", suite="ruler")
@dataclass(frozen=True)
class VariableTracking(Task):
    """A chain of `hops` + 1 variables.

    Parameters
    ----------
    hops : int
        Assignments from one variable to the next.
    shots : int
        Worked examples before the text, 0 or 1; RULER has one.
    """

    hops: int = 4
    shots: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        if self.hops < 1 or self.shots not in (0, 1):
            raise ConfigError(f"hops must be at least 1 and shots 0 or 1, not {self.hops} and {self.shots}")

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """Make an example; as in RULER, the answer has room for at least 30 tokens."""
        rng = self.rng(index, tokens)
        names, value, statements = chain(self.hops, 5, rng)
        question = QUESTION.format(value=value)
        prefix = PREFIX.format(amount=len(names), value=value)
        header = "".join(shot(self.hops, rng) for _ in range(self.shots)) + HEADER
        room = tokens - MARKUP - count(question) - count(prefix)
        depths = sorted(rng.random() for _ in statements)
        document = haystack(filler("noise", rng), statements, depths, room, count, rng, header=header)
        facts, room = {"depth": document.depths[0], "depths": document.depths}, answer_room(30, names, count)
        texts, needles = (document.text, question, prefix), tuple(statements)
        return self._made(index, tokens, texts, names, needles=needles, facts=facts, max_new_tokens=room)


def chain(hops: int, letters: int, rng: random.Random) -> tuple[list[str], str, list[str]]:
    """Draw names and a value; return the names, the value, and the statements in order."""
    names: dict[str, None] = {}
    while len(names) <= hops:
        names.setdefault("".join(rng.choices(ascii_uppercase, k=letters)))
    value = str(rng.randrange(10_000, 100_000))
    order = list(names)
    return order, value, [f"VAR {order[0]} = {value}", *(f"VAR {b} = VAR {a}" for a, b in pairwise(order))]


def shot(hops: int, rng: random.Random) -> str:
    """Make a worked example of a few lines, with names of three letters."""
    names, value, statements = chain(hops, 3, rng)
    lines = [sentence.text for sentence in islice(filler("noise", rng), SHOT_LINES)]
    for line, statement in zip(
        sorted(rng.sample(range(SHOT_LINES), hops + 1), reverse=True), statements[::-1], strict=True
    ):
        lines.insert(line, statement)
    answer = PREFIX.format(amount=len(names), value=value) + " " + " ".join(names)
    return HEADER + "\n".join(lines) + "\n" + QUESTION.format(value=value) + answer + "\n\n"


CWE_HEADER = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n"
)
CWE_QUESTION = "Question: What are the 10 most common words in the above list?"
CWE_PREFIX = " Answer: The top 10 words that appear most often in the list are:"
COMMON = 10

FWE_HEADER = (
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. "
)
FWE_QUESTION = (
    "Question: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?"
)
FWE_PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"


@register_task("cwe", suite="ruler")
@dataclass(frozen=True)
class CommonWords(Task):
    """The ten common words among many rare ones: 30 against 3 times, below 4096 tokens 6 against 1.

    Parameters
    ----------
    shots : int
        Worked examples before the list, 0 or 1; RULER has one.
    """

    shots: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        if self.shots not in (0, 1):
            raise ConfigError(f"shots must be 0 or 1, not {self.shots}")

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """Make an example; as in RULER, the answer has room for at least 120 tokens."""
        rng = self.rng(index, tokens)
        often, seldom = (30, 3) if tokens >= 4096 else (6, 1)
        room = tokens - MARKUP - count(CWE_QUESTION) - count(CWE_PREFIX)
        words = list(distinct_words(room // 3 + 6 * COMMON, rng))
        shot = ""
        if self.shots:
            shot_words, words = words[: 4 * COMMON], words[4 * COMMON :]
            shot_list = numbered_list(shot_words[:COMMON], shot_words[COMMON:], 10, 3, 0)
            shot = f"{CWE_HEADER}{shot_list}\n{CWE_QUESTION}{CWE_PREFIX} {numbered(shot_words[:COMMON])}\n\n"
        common, rare, order = words[:COMMON], words[COMMON:], rng.getrandbits(64)

        def build(size: int) -> str:
            return shot + CWE_HEADER + numbered_list(common, rare[:size], often, seldom, order)

        document = largest_fit(build, room, count, room // (8 * seldom))
        texts, most = (document, CWE_QUESTION, CWE_PREFIX), answer_room(120, common, count)
        return self._made(index, tokens, texts, common, max_new_tokens=most)


@register_task("fwe", suite="ruler")
@dataclass(frozen=True)
class FrequentWords(Task):
    """Coded words whose frequency is proportional to their rank to the power of `-alpha`; the first is shown as dots.

    Parameters
    ----------
    alpha : float
        Exponent, above 1; larger is easier.
    """

    alpha: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        if not 1 < self.alpha <= 8:
            raise ConfigError(f"alpha must be above 1 and at most 8, not {self.alpha:g}")

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """Make an example; as in RULER, the answer has room for at least 50 tokens."""
        rng = self.rng(index, tokens)
        coded: dict[str, None] = {}
        while len(coded) < max(tokens // 50, 8):
            coded.setdefault("".join(rng.choices(ascii_lowercase, k=6)))
        words = ["...", *coded]  # the dots have rank 1, as in RULER
        weights = [rank**-self.alpha for rank in range(1, len(words) + 1)]
        zeta = sum(rank**-self.alpha for rank in range(1, 10_000))  # normalises the weights
        room = tokens - MARKUP - count(FWE_QUESTION) - count(FWE_PREFIX)
        order = rng.getrandbits(64)

        def build(size: int) -> str:
            drawn = [word for word, w in zip(words, weights, strict=True) for _ in range(int(size * w / zeta))]
            random.Random(order).shuffle(drawn)
            return FWE_HEADER + " ".join(drawn)

        document = largest_fit(build, room, count, room // 3, least=64)
        texts, answers = (document, FWE_QUESTION, FWE_PREFIX), words[1:4]
        return self._made(index, tokens, texts, answers, max_new_tokens=answer_room(50, answers, count))


def distinct_words(amount: int, rng: random.Random) -> dict[str, None]:
    """Draw different words, those of the lists first."""
    words = dict.fromkeys(rng.sample([*ADJECTIVES, *NOUNS], min(amount, len(ADJECTIVES) + len(NOUNS))))
    while len(words) < amount:
        words.setdefault(pseudo_word(rng))
    return words


def numbered_list(common: list[str], rare: list[str], often: int, seldom: int, order: int) -> str:
    """Return common words `often` times and rare ones `seldom` times, shuffled and numbered."""
    words = common * often + rare * seldom
    random.Random(order).shuffle(words)
    return numbered(words)


def numbered(words: list[str]) -> str:
    """Return words with their numbers."""
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))


INSTRUCTION = (
    "Answer the question based on the given documents. "
    "Only give me the answer and do not output any other words."
)  # fmt: skip
QA_HEADER = f"{INSTRUCTION}\n\nThe following are given documents.\n\n"
QA_PREFIX = " Answer:"


@dataclass(frozen=True)
class Paragraph:
    """Sentences about one subject; `facts` has, by question, the answer and the sentences with it."""

    subject: str
    sentences: tuple[str, ...]
    facts: dict[str, tuple[str, str]]

    @property
    def text(self) -> str:
        """Text of the paragraph."""
        return " ".join(self.sentences)


@dataclass(frozen=True)
class Questions(Task):
    """A question about documents, one or two of which have the answer."""

    seed: int = 0

    hops: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """Make an example; as in RULER, the answer has room for at least 32 tokens."""
        rng = self.rng(index, tokens)
        stream = paragraphs(rng)
        gold, question_text, answer, needles = (one_hop if self.hops == 1 else two_hops)(stream, rng)
        question = f"{INSTRUCTION}\n\nQuestion: {question_text}"
        room = tokens - MARKUP - sum(map(count, (question, QA_PREFIX, QA_HEADER)))
        remaining = room - sum(count(f"Document 1000:\n{paragraph.text}\n\n") for paragraph in gold)
        if remaining < 0:
            raise ConfigError(f"the documents with the answer need more than {room} tokens; use longer prompts")
        documents = list(gold)
        while (remaining := remaining - count(f"Document 1000:\n{(other := next(stream)).text}\n\n")) >= 0:
            documents.append(other)
        rng.shuffle(documents)
        text = "\n\n".join(f"Document {number}:\n{paragraph.text}" for number, paragraph in enumerate(documents, 1))
        place = [documents.index(paragraph) / len(documents) for paragraph in gold]
        facts = {"depth": round(place[0], 4), "depths": [round(paragraph, 4) for paragraph in place]}
        texts, most = (QA_HEADER + text, question, QA_PREFIX), answer_room(32, [answer], count)
        more = {"needles": needles, "match": "any", "facts": facts, "max_new_tokens": most}
        return self._made(index, tokens, texts, [answer], **more)


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
    """Yield people and workshops in turn, without end; every workshop's founder is the person before it."""
    while True:
        person = f"{rng.choice(NAMES)} {pseudo_word(rng).capitalize()}"
        yield about_person(person, rng)
        yield about_workshop(pseudo_word(rng, 2).capitalize(), person, rng)


def about_person(name: str, rng: random.Random) -> Paragraph:
    """Write a paragraph about a person's life."""
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
    """Write a paragraph about a workshop."""
    subject, year, town, thing = f"{name} Works", str(rng.randrange(1700, 1990)), rng.choice(TOWNS), rng.choice(NOUNS)
    founding = f"{subject} was set up by {founder}."
    stands = f"{subject} lies on the road to {town} and opened its gates in {year}."
    makes = f"{subject} is known for a {rng.choice(ADJECTIVES)} {thing}."
    staff = f"At its height {rng.randrange(12, 900)} people were employed there."
    facts = {
        "Who founded {}?": (founder, founding),
        "Since which year has {} been open?": (year, stands),
        "What product made {} famous?": (thing, makes),
    }
    return Paragraph(subject, (founding, stands, makes, staff), facts)


def one_hop(stream: Iterator[Paragraph], rng: random.Random) -> tuple[list[Paragraph], str, str, tuple[str, ...]]:
    """Draw a paragraph; return it, a question, the answer, and the text with it."""
    person, workshop = next(stream), next(stream)
    chosen = rng.choice((person, workshop))
    question = rng.choice(list(chosen.facts))
    answer, evidence = chosen.facts[question]
    return [chosen], question.format(chosen.subject), answer, (evidence,)


def two_hops(stream: Iterator[Paragraph], rng: random.Random) -> tuple[list[Paragraph], str, str, tuple[str, ...]]:
    """Draw a workshop and its founder; return both, a question about the founder, the answer, and its evidence."""
    person, workshop = next(stream), next(stream)
    question = rng.choice(list(person.facts))
    answer, evidence = person.facts[question]
    [founded] = [sentence for _, (who, sentence) in workshop.facts.items() if who == person.subject]
    question_text = question.format(f"the founder of {workshop.subject}")
    return [workshop, person], question_text, answer, (founded, evidence)
