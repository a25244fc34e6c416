"""Files that nobody should have written: one line that names file and line, and no more work than their size."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_formats import CHOICES, MRCR, NEEDLES, OWN, SAID, count, opened, put

from sp.errors import SpError
from sp.evals.formats import records
from sp.evals.formats.records import FORMATS, recognise
from sp.evals.matches import Evidence
from sp.prompt import Prompt, TokenisedPrompt

ENTRY = NEEDLES[0]
MANY = {"role": "user", "content": "x"}
BROKEN: list[tuple[dict[str, Any], str]] = [
    (OWN | {"context": " "}, "line 1: context must be a text that is not empty, not an empty one"),
    (OWN | {"question": 7}, "line 1: question must be a text that is not empty, not a number"),
    (OWN | {"answers": []}, "line 1: answers must be a text or a list of 1 to 32"),
    (OWN | {"answers": ["x"] * 33}, "line 1: answers must be a text or a list of 1 to 32"),
    (OWN | {"answers": ["x", ""]}, r"line 1: answers\[1\] must be a text"),
    (OWN | {"answers": [None]}, r"line 1: answers\[0\] must be a text that is not empty, not missing"),
    (OWN | {"answers": "the ...", "metric": "f1"}, r"line 1: answers\[0\] is only articles and punctuation"),
    (OWN | {"answers": "(", "metric": "regex"}, r"line 1: answers\[0\] is no regular expression \(missing \)"),
    (OWN | {"answers": "(" * 900 + ")" * 900, "metric": "regex"}, r"line 1: answers\[0\] has 1800 characters"),
    (
        OWN | {"answers": "a{9999999999}", "metric": "regex"},
        r"line 1: answers\[0\] is no regular expression \(too large",
    ),
    (OWN | {"metric": "rouge"}, "line 1: metric must be one of contains, exact, f1, regex"),
    (OWN | {"metric": []}, "line 1: metric must be one of"),
    (OWN | {"evidance": "x"}, "line 1: unknown field; did you mean 'evidence'"),
    (OWN | {"evidence": "Ice is warm."}, r"line 1: evidence\[0\] does not occur verbatim in the context"),
    (OWN | {"evidence": [[3, 3]]}, r"line 1: evidence\[0\] must be a pair \[start, end\] of characters from 0 to \d+"),
    (OWN | {"evidence": [[0, 10**6]]}, r"line 1: evidence\[0\] must be a pair"),
    (OWN | {"evidence": [[True, 2]]}, r"line 1: evidence\[0\] must be a pair"),
    (OWN | {"evidence": [[11, 12]]}, r"line 1: evidence\[0\] does not occur verbatim in the context"),
    (OWN | {"evidence": [3]}, r"line 1: evidence\[0\] must be a text"),
    (OWN | {"evidence": ["Ice"] * 33}, "line 1: evidence must be a text or a list of up to 32"),
    (OWN | {"context": "\ud800 and"}, "line 1: context has half a surrogate pair at character 0"),
    (CHOICES | {"choice_B": None}, "line 1: choice_B must be a text"),
    (CHOICES | {"answer": ["A"]}, "line 1: answer must be one of A, B, C, D"),
    (MRCR | {"prompt": "[{"}, "line 1: prompt: not a JSON object"),
    (MRCR | {"prompt": "[" * 10**5}, "line 1: prompt: nested too deeply"),
    (MRCR | {"prompt": []}, "line 1: prompt must be a list of 1 to 16384 messages"),
    (MRCR | {"prompt": [MANY] * 16385}, "line 1: prompt must be a list of 1 to 16384 messages"),
    (MRCR | {"prompt": ["hi"]}, r"line 1: prompt\[0\] must be an object of role and content"),
    (MRCR | {"prompt": [{"role": "bot", "content": "x"}]}, r"line 1: prompt\[0\]: role must be one of system"),
    (MRCR | {"prompt": [{"role": [], "content": "x"}]}, r"line 1: prompt\[0\]: role must be one of system"),
    (MRCR | {"prompt": [{"role": "user", "content": [1]}]}, r"line 1: prompt\[0\]: content must be a text"),
    (MRCR | {"prompt": SAID[:-1]}, "line 1: prompt ends with a message of the assistant"),
    (MRCR | {"answer": "Owls ask: who?"}, "line 1: answer must be its random string followed by a reply"),
    (MRCR | {"answer": "q7W"}, "line 1: answer must be its random string followed by a reply"),
    (MRCR | {"answer": "q7W" + "x" * 40000}, "line 1: answer has 40003 characters"),
    ({"queries": "What?", "answer": "0123456789abx"}, "line 1: queries must end with a turn"),
    ({"queries": "User: a\n\nUser: b", "answer": "short"}, "line 1: answer must be a random string of 12"),
    ({"input": "a\nb", "outputs": [[]]}, r"line 1: outputs\[0\] must be a text"),
    ({"input": "a\nb", "outputs": ["x"] * 65}, "line 1: outputs must be a text or a list of 1 to 64"),
    ({"input": "a\nb", "outputs": ["x"], "answer_prefix": 3}, "line 1: answer_prefix must be a text"),
    (ENTRY | {"tests": []}, "line 1: tests must be an object that is not empty, not a list"),
    (ENTRY | {"tests": {"T": {}}}, r"line 1: tests\['T'\]: input_args must be a list of up to 16 texts"),
    (
        ENTRY | {"tests": {"T": {"input_args": ["x" * 600]}}},
        r"line 1: tests\['T'\]: input_args\[0\] has 600 characters",
    ),
    (
        ENTRY | {"tests": {"T": {"input_args": ["x"]}}},
        r"line 1: questions\['onehop'\]: \{2\} has no value in this test",
    ),
    (ENTRY | {"needle": "{CHAR} {1}" * 500}, "line 1: needle has 5000 characters"),
    (ENTRY | {"needle": "No slot."}, r"line 1: tests\['T1'\]: gold_answers must be a text"),
    (ENTRY | {"task_template": "{question} {haystack}"}, "line 1: task_template must have {haystack} and after it"),
    (ENTRY | {"task_template": "{haystack.__class__} {question}"}, "line 1: task_template must have {haystack}"),
    (ENTRY | {"questions": dict.fromkeys(map(str, range(65)), "x")}, "line 1: questions has 65 kinds"),
]


@pytest.mark.parametrize(("record", "message"), BROKEN)
def test_a_bad_record_is_named_by_file_and_line(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    book = tmp_path / "book.txt"
    book.write_text("It rained. Nobody came.")
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(record) + "\n")  # as ASCII: some have what UTF-8 cannot write
    name = recognise(path)
    options = {"haystack": str(book)} if name == "nolima" else {}
    with pytest.raises(SpError, match=rf"bad\.jsonl, {message}") as told:
        FORMATS.build(name, {"path": str(path), **options}).check(9)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 400


LINE = json.dumps(OWN).encode()


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.jsonl", LINE + b"\n{", "a.jsonl, line 2: not a JSON object"),
        ("a.jsonl", LINE + b"\n\n[1]\n", "a.jsonl, line 3: not a JSON object"),
        ("a.jsonl", LINE + b'\n{"context": "\xff"}', "a.jsonl, line 2: not UTF-8 text"),
        ("a.jsonl", LINE + b"\n" + b'{"a":' * 10**5, "a.jsonl, line 2: nested too deeply"),
        ("a.jsonl", LINE + b'\n{"a": ' + b"9" * 5000 + b"}", "a.jsonl, line 2: not a readable JSON object"),
        ("a.jsonl", b"", "a.jsonl has no examples"),
        ("a.jsonl", b"\n \n", "a.jsonl has no examples"),
        ("a.json", b"[" + LINE + b", 3]", "a.json, record 2: not a JSON object"),
        ("a.json", b"[" + LINE, "a.json: not a JSON object"),
        ("a.csv", b'queries,answer\n"User: a', "a.csv, line 2: a quote is never closed"),
        ("a.csv", b'queries,answer\n"x"y,z', "a.csv, line 2: text after a closing quote"),
        ("a.csv", b"queries,answer\nx", "a.csv, line 2: 1 cells under 2 headings"),
        ("a.csv", b"", "a.csv has no examples"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, raw: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(SpError, match=message):
        opened(path).check(9)


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path, "not a file"),
        (Path("/dev/zero"), "not a file"),
        (tmp_path / "x", "No such file"),
    ):
        with pytest.raises(SpError, match=message):
            recognise(path)


def test_a_line_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LONGEST_LINE", 1000)
    for name, raw in (("a.jsonl", b'{"context": "' + b"x" * 2000), ("a.csv", b'queries,answer\n"' + b"x\n" * 2000)):
        path = tmp_path / name
        path.write_bytes(raw)
        with pytest.raises(SpError, match=r"line \d: longer than"):
            records.Records(path).known(9)


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", OWN, OWN)
    with path.open("ab") as file:
        file.write(b"\xff{" * 100)
    task = opened(path)
    task.check(2)
    assert task.example(1, 0, count).answers == ("cold", "frosty")
    with pytest.raises(SpError, match="line 3"):
        task.check(3)


def test_work_is_no_more_than_the_size(tmp_path: Path) -> None:
    """Evidence and answers that repeat make naive searches take the product of the sizes: here hours."""
    n = 400_000
    mine = OWN | {"context": "a" * n + "b", "answers": ["a" + "b" + "a" * (n // 4)] * 8, "evidence": ["a" * n] * 8}
    path = put(tmp_path / "a.jsonl", mine)
    start = time.perf_counter()
    made = opened(path).example(0, 0, len)
    prompt = made.prompt(None)
    size = len(prompt.text.encode())
    edges = np.append(np.arange(0, size, 4), size)
    tokens = TokenisedPrompt(Prompt(prompt.text, prompt.spans), edges[:-1], np.stack([edges[:-1], edges[1:]], axis=1))
    assert Evidence.of(tokens, made.answers).values.any()
    assert time.perf_counter() - start < 20


def test_a_quote_that_is_never_closed_costs_one_pass(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'queries,answer\n"' + b"x\n" * 500_000)
    start = time.perf_counter()
    with pytest.raises(SpError, match=r"a\.csv, line 2: a quote is never closed"):
        opened(path)
    assert time.perf_counter() - start < 5


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([OWN, CHOICES, MRCR, ENTRY, {"input": "a\nb", "outputs": ["b"]}]), st.data())
def test_any_value_in_any_field_is_read_or_refused(tmp_path: Path, record: dict[str, Any], data: st.DataObject) -> None:
    changed = record | data.draw(st.dictionaries(st.sampled_from(sorted(record)), VALUES, min_size=1, max_size=2))
    path = tmp_path / "fuzz.jsonl"
    path.write_text(json.dumps(changed))
    book = tmp_path / "book.txt"
    book.write_text("It rained. Nobody came. " * 40)
    with suppress(SpError):
        name = recognise(path)
        options = {"haystack": str(book)} if name == "nolima" else {}
        task = FORMATS.build(name, {"path": str(path), **options})
        for index in range(task.known(3)):
            json.dumps(task.example(index, 200 if options else 0, count).facts)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["jsonl", "json", "csv"]), st.binary(max_size=120) | st.text('",\n[{}]:a\\ ', max_size=60))
def test_any_bytes_are_read_or_refused(tmp_path: Path, ending: str, raw: bytes | str) -> None:
    path = tmp_path / f"fuzz.{ending}"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    with suppress(SpError):
        found = records.Records(path)
        for index in range(found.known(50)):
            assert isinstance(found[index].fields, dict)
