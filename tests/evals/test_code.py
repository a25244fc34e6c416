"""What a function gives back: definitions are looked up in the text."""

from __future__ import annotations

import random
import re

from story_cases import built, count, read, train

from sp.evals.tasks.code import HELD_OUT

NAME = r"[A-Za-z_]+"
HEAD = "def|func|fn|fun|public static int|method|define"


def returned(text: str, name: str) -> str:
    """What stands behind the first `return` after the one place that defines a function."""
    [at] = [match.end() for match in re.finditer(rf"^(?:{HEAD}) {re.escape(name)}\b", text, re.MULTILINE)]
    found = re.compile(r"^ +return (.*?);?$", re.MULTILINE).search(text, at)
    assert found
    return found[1]


def value(text: str, name: str) -> str:
    """The number of a constant, or what a function gives back in the end."""
    if re.search(rf"^(?:{HEAD}) {re.escape(name)}\b", text, re.MULTILINE):
        said = returned(text, name)
        return said if said.isdigit() else value(text, re.sub(r"^self\.|\(0?\)$", "", said))
    lines = [line for line in text.split("\n") if re.search(rf"\b{name}\b", line) and not line.startswith(" ")]
    assert len(lines) == 1, lines
    [number] = re.findall(r"\b\d{4,6}\b", lines[0])
    return str(number)


def answer(text: str, question: str, kind: str) -> str:
    """What a reader of the whole text says."""
    if kind == "reference":
        for frames in (HELD_OUT.asks_uses, HELD_OUT.asks_calls):
            if asked := read(frames, question, name=NAME):
                said = returned(text, asked["name"])
                assert ("(" in said) == (frames is HELD_OUT.asks_calls)
                return re.sub(r"^self\.|\(0?\)$", "", said)
    asked = read(HELD_OUT.asks, question, name=NAME) or read(HELD_OUT.asks_constant, question, name=NAME)
    assert asked, question
    return value(text, asked["name"])


def test_a_second_reader_agrees() -> None:
    kinds = set()
    for index in range(12):
        example = built("code").example(index, 4096, count)
        kinds.add(example.facts["kind"])
        assert (answer(example.document, example.question, example.facts["kind"]),) == example.answers
        assert (answer("\n".join(example.needles), example.question, example.facts["kind"]),) == example.answers
    assert kinds == {"through a call", "through a constant"}


def test_further_questions_agree_too() -> None:
    seen = set()
    for seed in range(8):
        story = built("code").story(random.Random(seed), HELD_OUT, 24)
        for one in story.questions:
            assert (answer("\n".join(story.passages), one.text, one.kind),) == one.answers
            assert (answer("\n".join(one.evidence), one.text, one.kind),) == one.answers
            seen.add(one.kind)
    assert seen == {"through a call", "through a constant", "reference", "value"}


def test_filler_defines_nothing_of_a_story() -> None:
    for phrases in (HELD_OUT, train("code")):
        assert not set(phrases.others) & {*phrases.objects, *phrases.things}
        assert not set(phrases.objects) & set(phrases.things)
    rng = random.Random(0)
    stream = built("code").filler(rng, HELD_OUT)
    around = "\n".join(next(stream).text for _ in range(2000))
    story = built("code").story(rng, HELD_OUT, 200)
    names = {answer for one in story.questions if one.kind == "reference" for answer in one.answers}
    assert names
    assert not any(re.search(rf"\b{name}\b", around) for name in names)
    assert sum(around.count(f"\n{word} ") for word in ("def", "func", "const", "val")) > 400
