"""Each RULER task is solved from its text alone, by counting or searching, and the solution is its answer."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from sp.errors import ConfigError, PromptError
from sp.evals import TASKS, Example
from sp.evals.formats.ruler import RulerFile

THIRTEEN = {
    "niah_single_1", "niah_single_2-synth", "niah_single_3-synth", "niah_multikey_1-synth", "niah_multikey_2",
    "niah_multikey_3", "niah_multivalue-synth", "niah_multiquery-synth", "vt", "cwe", "fwe", "qa_1-synth", "qa_2-synth",
}  # fmt: skip
WORDS = re.compile(r"\w+|[^\w\s]")
TOKENS = 2600


def count(text: str) -> int:
    return len(WORDS.findall(text))


def make(name: str, index: int = 0, tokens: int = TOKENS, **options: object) -> Example:
    return TASKS.build(name, options).example(index, tokens, count)


def test_there_are_thirteen() -> None:
    assert {name for name in TASKS if TASKS.class_of(name).suite == "ruler"} == THIRTEEN


@pytest.mark.parametrize("name", sorted(THIRTEEN))
def test_length_evidence_and_repeatability(name: str) -> None:
    example = make(name)
    used = count(example.document) + count(example.question) + count(example.answer_prefix)
    assert 0.9 * TOKENS <= used <= TOKENS - 16
    assert example == make(name)
    assert example.document != make(name, 1).document
    assert example.prompt(None).text.endswith(f"\n\n{example.question}\n{example.answer_prefix}")
    assert all(needle in example.document for needle in example.needles)
    evidence = " ".join(example.needles) or example.document
    assert all(answer in evidence for answer in example.answers)
    assert not any(f" {answer}" in example.question for answer in example.answers)


@pytest.mark.parametrize("name", sorted(name for name in THIRTEEN if name.startswith("niah")))
def test_needles(name: str) -> None:
    example = make(name, 2)
    keys = example.facts["keys"]
    found = [v for key in keys for v in re.findall(rf"for {re.escape(key)} is: (\S+)\.", example.document)]
    assert sorted(found) == sorted(example.answers)
    assert len(found) == (4 if "multiv" in name or "multiq" in name else 1)
    needles = len(re.findall("One of the special magic", example.document))
    if name in ("niah_multikey_2", "niah_multikey_3"):
        assert needles == len(example.document.split("\n")) - 1
    else:
        assert needles == (4 if "multi" in name else 1)
    kind = "uuid" if name in ("niah_single_3-synth", "niah_multikey_3") else "number"
    wanted = {
        1: (f"What is the special magic {kind} for ", f" The special magic {kind} for "),
        4: (f"What are all the special magic {kind}s for ", f" The special magic {kind}s for "),
    }[len(found)]
    assert example.question.startswith(wanted[0])
    assert example.answer_prefix.startswith(wanted[1])


@pytest.mark.parametrize("shots", [0, 1])
def test_variable_tracking(shots: int) -> None:
    example = make("vt", 1, shots=shots)
    asked = re.search(r"assigned the value (\d+) in the text above", example.question)
    assert asked
    holds = {asked[1]}
    for name, value in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", example.document):  # in the order of the text
        if value in holds:
            holds.add(name)
    assert holds - {asked[1]} == set(example.answers)
    assert len(example.answers) == 5
    assert example.document.count("Memorize and track") == 1 + shots


@pytest.mark.parametrize(("tokens", "often", "seldom"), [(2600, 6, 1), (4096, 30, 3)])
def test_common_words(tokens: int, often: int, seldom: int) -> None:
    example = make("cwe", tokens=tokens, shots=0)
    listed = re.findall(r"(\d+)\. (\w+)", example.document)
    assert [int(number) for number, _ in listed] == list(range(1, len(listed) + 1))
    ranked = Counter(word for _, word in listed).most_common()
    assert {word for word, _ in ranked[:10]} == set(example.answers)
    assert {times for _, times in ranked[:10]} == {often}
    assert {times for _, times in ranked[10:]} == {seldom}
    assert make("cwe", tokens=tokens, shots=1).document.count("Below is a numbered list") == 2


def test_frequent_words() -> None:
    example = make("fwe")
    coded = example.document.partition("coded words. ")[2].split()
    ranked = Counter(coded).most_common(5)
    assert ranked[0][0] == "..."
    assert tuple(word for word, _ in ranked[1:4]) == example.answers
    assert ranked[3][1] > ranked[4][1]
    assert ranked[0][1] / ranked[1][1] == pytest.approx(4, rel=0.05)  # rank^-2


def test_questions_over_documents() -> None:
    for index in range(6):
        one, two = make("qa_1-synth", index), make("qa_2-synth", index)
        assert one.match == "any"
        parts = two.document.split("\n\nDocument ")
        holding = [sum(needle in part for part in parts) for needle in two.needles]
        assert holding == [1, 1]
        assert not any(all(needle in part for needle in two.needles) for part in parts)
        subject = re.search(r"founder of (\w+ Works)", two.question)
        assert subject
        founder = re.search(rf"{subject[1]} was set up by (\w+ \w+)\.", two.document)
        assert founder
        assert founder[1] in two.needles[1]
        assert founder[1] not in two.question
        assert two.answers[0] in two.needles[1]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """What RULER's scripts write for two tasks."""
    for name, task in (("niah_single_1", "niah_single_1"), ("qa_1", "qa_1-synth")):
        folder = tmp_path / name
        folder.mkdir()
        lines = []
        for index in range(2):
            made = make(task, index, 400)
            text = f"{made.document}\n{made.question}"
            line = {"index": index, "input": text, "outputs": list(made.answers), "length": 400}
            lines.append(json.dumps(line | {"answer_prefix": made.answer_prefix}))
        (folder / "validation.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_files_of_ruler(written: Path) -> None:
    task = RulerFile(str(written / "niah_single_1" / "validation.jsonl"))
    assert len(task) == 2
    made, read = make("niah_single_1", 1, 400), task.example(1, 0, count)
    assert (read.document, read.question, read.answer_prefix) == (made.document, made.question, made.answer_prefix)
    assert (read.answers, read.task, read.match) == (made.answers, "niah_single_1", "all")
    assert read.needles == made.needles
    assert RulerFile(str(written / "qa_1" / "validation.jsonl")).example(0, 0, count).match == "any"
    with pytest.raises(ConfigError, match="2 examples"):
        task.example(2, 0, count)
    with pytest.raises(PromptError, match="more than the requested 100"):
        task.example(0, 100, count)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"input": "one line", "outputs": ["x"]}', "line 1: the input is one line"),
        ('{"input": "a\\nb"}', "line 1: needs `input`"),
        ("{", "line 1: not a JSON object"),
    ],
)
def test_damaged_files(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    with pytest.raises((ConfigError, PromptError), match=message):
        RulerFile(str(path)).example(0, 0, count)
