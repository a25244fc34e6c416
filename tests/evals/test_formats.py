"""Files in every format, written by hand: what is asked of them, what counts as evidence, what is refused."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sp.chat import Turn
from sp.errors import ConfigError, PromptError
from sp.evals import TASKS
from sp.evals.formats.own import METRICS
from sp.evals.formats.records import FORMATS, FileTask, Records, RecordTask, recognise
from sp.gguf import ChatTemplate


def count(text: str) -> int:
    return len(text.split())


def put(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records), encoding="utf-8")
    return path


def opened(path: Path, **options: object) -> FileTask:
    """The task that `sp eval file` would build."""
    return FORMATS.build(recognise(path), {"path": str(path), **options})


CONTEXT = "Çay is hot. Ice is cold.\nSteel is hard, and ice is cold."
OWN = {"context": CONTEXT, "question": "How is ice?", "answers": ["cold", "frosty"]}
CHOICES = {
    "_id": "66f1", "domain": "Tales", "sub_domain": "Sea", "difficulty": "easy", "length": "short",
    "question": "Who steers? ", "choice_A": "Ada", "choice_B": " Bo", "choice_C": "Cy", "choice_D": "Di",
    "answer": "C", "context": "\nCy steers the boat.\n",
}  # fmt: skip
POEMS = ["Owls hunt, \"late\".", "Rain, on slate.", "Owls ask: who?"]  # fmt: skip
SAID = [
    {"role": "user", "content": "write a poem about owls"},
    {"role": "assistant", "content": POEMS[0]},
    {"role": "user", "content": "write a poem about rain"},
    {"role": "assistant", "content": POEMS[1]},
    {"role": "user", "content": "write a poem about owls"},
    {"role": "assistant", "content": POEMS[2]},
    {"role": "user", "content": "Prepend q7W to the 2nd poem about owls, and say nothing else."},
]
MRCR = {
    "prompt": json.dumps(SAID), "answer": f"q7W{POEMS[2]}", "random_string_to_prepend": "q7W", "n_needles": 2,
    "desired_msg_index": 4, "total_messages": 7, "n_chars": 200,
}  # fmt: skip
NEEDLES = [
    {
        "id": "0701", "reasoning_type": "places", "system_prompt": "Answer in a word.",
        "task_template": "Read this.\n{haystack}\nAnd now: {question} Only the name.",
        "needle": "They say that {CHAR} sleeps beside the {1}.",
        "questions": {"direct": "Who sleeps beside the {1}?", "onehop": "Who has been to {2}?"},
        "character_set": ["Ivo", "Uma"],
        "tests": {"T1": {"input_args": ["Tower {2}", "Lisbon"]}, "T2": {"input_args": ["Old Mill", "Ghent"]}},
    },
    {
        "id": "0702", "system_prompt": "", "task_template": "{haystack}\n\n{question}",
        "needle": "The {1} was sold.", "distractors": {"onehop": "No {1} was bought."},
        "questions": {"onehop": "What was sold?"}, "tests": {"T1": {"input_args": ["boat"], "gold_answers": ["boat"]}},
    },
]  # fmt: skip


def test_own_files(tmp_path: Path) -> None:
    twice = CONTEXT.rindex("ice is cold")
    path = put(
        tmp_path / "mine.jsonl",
        OWN,
        OWN | {"evidence": ["Ice is cold.", [twice - 1, len(CONTEXT)]], "id": "b-7", "source": "any other field"},
        OWN | {"answers": "cold", "evidence": "Ice is cold.", "metric": "f1"},
    )
    task = opened(path)
    assert (task.name, len(task), task.title) == ("own_file", 3, "mine")
    plain, spans, single = (task.example(index, 0, count) for index in range(3))
    assert (plain.document, plain.question) == (CONTEXT, "How is ice?")
    assert (plain.answers, plain.match, plain.needles) == (("cold", "frosty"), "any", ())
    assert spans.needles == ("Ice is cold.", "ice is cold.")
    assert spans.places == (12, twice)
    assert spans.facts["depth"] == round(12 / len(CONTEXT), 4)
    assert spans.facts["id"] == "b-7"
    marked = [one for one in spans.prompt(None).spans if one.kind == "needle"]
    assert [one.start for one in marked] == [len(CONTEXT[:at].encode()) for at in (12, twice)]
    assert (single.match, single.answers) == ("squad_f1", ("cold",))
    assert len({plain.id, spans.id, single.id}) == 3
    assert opened(path, metric="exact").example(0, 0, count).match == "squad_exact"
    assert opened(path, max_new_tokens=5).example(0, 0, count).max_new_tokens == 5
    long = put(tmp_path / "long.jsonl", OWN | {"answers": ["x", "w " * 90]})
    assert opened(long).example(0, 0, count).max_new_tokens >= 90
    with pytest.raises(PromptError, match=r"mine.jsonl, line 1: the prompt has about \d+ tokens, more than the re"):
        task.example(0, 20, count)
    with pytest.raises(ConfigError, match="unknown metric 'F1'; did you mean 'f1'"):
        opened(path, metric="F1")


def test_longbench_v2_is_asked_as_its_script_asks(tmp_path: Path) -> None:
    asked = (
        "Please read the following text and answer the question below.\n\n<text>\nCy steers the boat.\n</text>\n\n"
        "What is the correct answer to this question: Who steers?\nChoices:\n(A) Ada\n(B) Bo\n(C) Cy\n(D) Di\n\n"
        'Format your response as follows: "The correct answer is (insert answer here)".'
    )
    (tmp_path / "lb").mkdir()
    listed = tmp_path / "lb" / "data.json"
    listed.write_text(json.dumps([CHOICES, CHOICES | {"answer": "E"}], indent=1))
    for path in (put(tmp_path / "lines.jsonl", CHOICES), listed):
        made = opened(path).example(0, 0, count)
        assert made.prompt(None).text == f"{asked}\n"
        assert (made.answers, made.match, made.max_new_tokens) == (("C",), "choice", 128)
        assert made.facts == {key: CHOICES[key] for key in ("_id", "domain", "sub_domain", "difficulty", "length")}
    assert opened(listed).title == "lb"
    with pytest.raises(ConfigError, match=r"data\.json, record 2: answer must be one of A, B, C, D"):
        opened(listed).check(2)


TEMPLATE = ChatTemplate("{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}")


def test_mrcr_is_a_conversation(tmp_path: Path) -> None:
    path = put(tmp_path / "mrcr.jsonl", MRCR, MRCR | {"prompt": SAID}, MRCR | {"answer": "q7WOwls fly."})
    task = opened(path)
    made = task.example(0, 0, count)
    assert made.turns == tuple(Turn(one["role"], one["content"]) for one in SAID)
    assert made.turns == task.example(1, 0, count).turns
    assert (made.answers, made.match) == (("q7W", POEMS[2]), "mrcr")
    assert made.facts == {"n_needles": 2, "total_messages": 7, "n_chars": 200}
    prompt = made.prompt(TEMPLATE)
    raw = prompt.text.encode()
    assert [raw[one.start : one.end].decode() for one in prompt.spans if one.kind == "needle"] == [POEMS[2]]
    assert [raw[one.start : one.end].decode() for one in prompt.spans if one.kind == "question"] == [
        SAID[-1]["content"]
    ]
    kept = sum(one.end - one.start for one in prompt.spans if one.kind == "protected")
    assert kept == len(raw) - sum(len(one["content"]) for one in SAID[:-1])
    assert task.example(2, 0, count).needles == ()
    with pytest.raises(PromptError, match="mrcr-0 is a conversation, and this model has no chat template"):
        made.prompt(None)


def test_mrcr_v2_is_one_text(tmp_path: Path) -> None:
    said = "\n\n".join(f"{'User' if one['role'] == 'user' else 'Assistant'}: {one['content']}" for one in SAID)
    answer = f"0123456789ab{POEMS[2]}"
    table = tmp_path / "v2.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["index", "queries", "answer"], [0, said, answer], [1, said, answer]])
    for path in (table, put(tmp_path / "v2b.jsonl", {"queries": said, "answer": answer})):
        made = opened(path).example(len(opened(path)) - 1, 0, count)
        assert made.prompt(None).text == f"{said}\n"
        assert made.question == f"User: {SAID[-1]['content']}"
        assert (made.answers, made.match) == (("0123456789ab", POEMS[2]), "mrcr_v2")
        assert made.needles == (POEMS[2],)


def test_nolima_fills_books(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("\n".join(f"On day {n} it rained. Nobody came on day {n}." for n in range(400)))
    path = tmp_path / "needle_set.json"
    path.write_text(json.dumps(NEEDLES))
    task = opened(path, haystack=str(book), depth=0.5)
    assert len(task) == 2 * 2 + 1
    made = [task.example(index, 600, count) for index in range(5)]
    assert [one.facts["kind"] for one in made] == ["direct", "direct", "onehop", "onehop", "onehop"]
    for one in made:
        used = count(one.document) + count(one.question)
        assert 540 <= used <= 600
        assert one.document.count(one.needles[0]) == 1
        assert abs(one.facts["depth"] - 0.5) < 0.1
        assert one.match == "any"
    assert made[0].needles[0] == f"They say that {made[0].answers[0]} sleeps beside the Tower {{2}}."  # filled in once
    assert made[0].document.startswith("Answer in a word.\n\nRead this.\nOn day 0 it rained. Nobody")
    assert made[3].question == "And now: Who has been to Ghent? Only the name."
    assert made[0].answers[0] in ("Ivo", "Uma")
    assert (made[4].answers, made[4].needles) == (("boat",), ("The boat was sold.",))
    assert "No boat was bought." in made[4].document
    assert made[0] == task.example(0, 600, count)
    assert len(opened(path, haystack=str(book), questions="direct")) == 2
    for options, message in (
        ({}, "pass one with --set haystack=book.txt"),
        ({"haystack": "/nowhere"}, "cannot read /nowhere"),
        ({"haystack": str(book), "depth": 2.0}, "depth must be from 0 to 1"),
        ({"haystack": str(book), "questions": "threehop"}, "no entry has questions of the kind 'threehop'"),
    ):
        with pytest.raises(ConfigError, match=message):
            opened(path, **options).check(9)
    with pytest.raises(ConfigError, match="pass it with --lengths"):
        task.example(0, 0, count)


def test_every_format_is_known_by_its_fields_and_is_a_task(tmp_path: Path) -> None:
    files = {
        "own": OWN, "longbench_v2": CHOICES, "mrcr": MRCR, "mrcr_v2": {"queries": "x", "answer": "y"},
        "ruler": {"input": "a\nb", "outputs": ["b"]}, "nolima": NEEDLES[0],
    }  # fmt: skip
    assert set(files) == set(FORMATS)
    for name, record in files.items():
        assert recognise(put(tmp_path / f"{name}.jsonl", record)) == name
        known = TASKS.class_of(f"{name}_file")
        assert issubclass(known, FileTask)
        assert hasattr(known, "parse") == issubclass(known, RecordTask) == (name != "nolima")
    with pytest.raises(
        ConfigError,
        match=r"\(.*own, ruler\); the nearest is own, .* lacks context, question, answers",
    ):
        recognise(put(tmp_path / "other.jsonl", {"a": 1}))


def test_the_page_names_every_format_and_metric() -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text()
    others = page.partition("## Other benchmarks")[2].partition("\n- ")[0]
    assert set(re.findall(r"^\| `(\w+)` \| ", others, re.M)) == set(FORMATS) - {"own"}
    metrics = page.partition("--metric` |")[2].partition("##")[0]
    assert re.findall(r"^\| `(\w+)` \| ", metrics, re.M) == list(METRICS)


def test_lines_may_be_blank_and_end_as_on_windows(tmp_path: Path) -> None:
    path = tmp_path / "crlf.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(OWN).encode() + b"\r\n\r\n  \n" + json.dumps(OWN).encode())
    records = Records(path)
    assert records.known(10) == 2
    assert records[1].where.endswith("line 4")
    assert records[0].fields == OWN


def test_the_format_of_the_page_on_own_data(tmp_path: Path) -> None:
    """In a process of its own, as registering a format holds for the whole process."""
    page = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    (line,) = re.findall(r"```json\n(.*?)```", page, re.S)
    (tmp_path / "own.jsonl").write_text(line)
    put(tmp_path / "deck.jsonl", {"deck": "ant: insect. oak: tree.", "front": "oak", "back": "tree", "subject": "life"})
    (tmp_path / "run.py").write_text(
        f"{code}\nfrom pathlib import Path\nimport sp.evals\n"
        "from sp.evals.formats.records import FORMATS, recognise\n"
        "for name in ('own', 'deck'):\n"
        "    path = Path(name + '.jsonl')\n"
        "    made = FORMATS.build(recognise(path), {'path': str(path)}).example(0, 0, len)\n"
        "    print(made.question, made.answers, made.match, made.needles, dict(made.facts).get('subject'))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "run.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "How is tea? ('hot', 'very hot') any ('Tea is hot.',) None",
        "What is on the back of 'oak'? ('tree',) squad_exact () life",
    ], done.stderr
