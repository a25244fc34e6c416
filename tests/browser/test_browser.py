"""Pages in headless Chromium: nothing in the console, nothing over the edge of a phone, dark when asked, no fault that
axe-core finds, and what they promise happens when it is pressed."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leaderboard_table import RECORDS
from markup_read import HOSTILE
from study_rows import rows

import sp
from sp.page.heat import HeatMap, overview
from sp.page.markup import asset, page, tag
from sp.prompt import Prompt, Span, TokenisedPrompt
from sp.studies import figures
from sp.studies.board.entries import KINDS, Board, read_board
from sp.studies.board.html import as_html
from sp.studies.pages import run_report
from sp.studies.pages.report import write_report
from sp.studies.pages.study_page import Section, study_page

HERE = Path(__file__).parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NODE = shutil.which("node")
SERVER = ["starlette", "uvicorn", "prometheus_client"]
SOME = ["phone dark", "desk light"]
LOOKS = {"desk light", "desk dark", "phone light", "phone dark"}

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.skipif(NODE is None, reason="no node on this machine"),
    pytest.mark.skipif(not (HERE / "node_modules").is_dir(), reason="run `npm ci` in tests/browser first"),
]


def step(do: str, at: str, **more: Any) -> dict[str, Any]:
    return {"do": do, "at": at, **more}


def run_report_page(folder: Path) -> Path:
    """Of a run over a hostile document, its needle far down."""
    pair, draw = sp.load(device="cpu"), random.Random(0)
    lines = [f"Line {n}: {' '.join(draw.choices(('sky', 'grass', 'sea', 'stone', HOSTILE), k=8))}." for n in range(60)]
    needle = f"The green lantern {HOSTILE} has the number 4711."
    lines.insert(45, needle)
    asked = f"Which number has the green lantern? {HOSTILE}"
    prompt = sp.Prompt.from_document("\n".join(lines), asked, pair.target.template, needle=needle)
    options = sp.RunOptions(keep_ratio=0.2, scorer="lexical", compress="always", max_new_tokens=2)  # type: ignore[arg-type]
    result = pair.run(prompt, options, full=False)
    result = replace(result, answer=replace(result.answer, text=HOSTILE, reasoning=HOSTILE))
    facts = {"sp": "0", "question": asked}
    return run_report.write_files(result, pair, options, folder, facts)["report"]


def long_page(path: Path) -> Path:
    """All heat of 128K tokens, every fifth of them kept, scores without order: more runs than any real prompt has."""
    text, draw = "a line of seven small words, here\n" * 16_384, np.random.default_rng(0)
    starts = np.arange(0, len(text), 4)
    spans = np.stack([starts, np.minimum(starts + 4, len(text))], axis=1)
    prompt = TokenisedPrompt(Prompt(text, (Span("needle", 400_000, 400_032),)), np.arange(len(spans)), spans)
    heated = HeatMap.of(prompt, np.arange(len(spans)) // 2 % 5 == 0, draw.random(len(spans)))
    body = tag("main", tag("h1", "Long"), tag("a", "needle", href="#needle-1"), overview(heated), heated.markup())
    path.write_text(page("Long", body, styles=(asset("heat.css"),), scripts=(asset("heat.js"),)))
    return path


def some_of_the_leaderboard() -> Board:
    """Entries of every kind at one length: all would be the same rows many times, of which axe-core asks each."""
    found = read_board([RECORDS[0] / "leaderboard_more.jsonl.gz", RECORDS[1]])
    few = (one for one in found.entries if one.tokens == 32768 and one.keep in (None, 0.05))
    kept = replace(found, entries=tuple(few))
    assert {one.kind for one in kept.entries} == {one.kind for one in found.entries} == set(KINDS)
    return kept


Looks = dict[str, list[dict[str, Any]]]


def shortened_chat() -> str:
    """The page of a front that shortened a document, and brought some of it back for the next question."""
    import serving

    from sp.front.history import History
    from sp.front.page import changes_page
    from sp.front.rules import Rules
    from sp.front.shorten import Compressor

    history, first, second = History(Compressor.open(scorer="bm25")), serving.TASKS[0], serving.TASKS[1]
    text = "".join(serving.document(*task, 12) for task in (first, second)) + HOSTILE
    messages = [{"role": "user", "content": f"{text}\n\n{serving.question(first[0])}"}]
    outcomes = [history.shorten("chat", {"messages": messages}, Rules(0.1, 0))]
    messages = [*messages, {"role": "assistant", "content": str(first[1])}]
    messages = [*messages, {"role": "user", "content": serving.question(second[0])}]
    outcomes.insert(0, history.shorten("chat", {"messages": messages}, Rules(0.1, 0)))
    assert outcomes[0].recalled
    return changes_page("http://127.0.0.1:8080", outcomes, True)


def look(folder: Path) -> Looks:
    """What `look.mjs` saw of every page."""
    for name in SERVER:
        pytest.importorskip(name)
    import serving

    long_name = "a_task_with_a_name_that_no_column_is_wide_enough_for_" + "x" * 60
    both = [*rows(), *({**row, "task": long_name, "tokens_asked": 512} for row in rows()[:1])]
    (folder / "eval.html").write_text(study_page("sp eval", [Section(HOSTILE, both, HOSTILE)], [(HOSTILE, HOSTILE)]))
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in both))
    sweep = write_report([folder / "rows.jsonl"], folder / "sweep").with_name("report.html")
    key, value = serving.TASKS[0]
    ask = [
        step("fill", "#document", text=serving.document(key, value, 4) + HOSTILE),
        step("fill", "#keep", text="60"),
        step("fill", "#question", text=serving.question(key)),
        step("click", "#ask"),
        step("wait", ".times"),
        step("tell", ".assistant > p", told="answer"),
        step("tell", ".times", told="times"),
        step("tell", ".tokens .dropped", told="dropped"),
        step("fill", "#question", text="And what is its number?"),
        step("click", "#ask"),
        step("wait", ".turn:nth-child(4) .times"),
        step("tell", ".turn small.times", told="both"),
    ]
    sort = [
        step("tell", ".sorts tbody td:first-child", told="before"),
        step("click", ".sorts th:nth-child(6) button"),
        step("tell", ".sorts tbody td:nth-child(6)", told="down"),
        step("click", ".sorts th:nth-child(6) button"),
        step("tell", ".sorts tbody td:nth-child(6)", told="up"),
    ]
    jump = [step("click", "a[href='#needle-1']"), step("seen", "#needle-1", told="needle")]
    tools = [step("click", "[data-step='1']"), step("click", "#only"), step("click", "#only"), *jump]
    run, long = run_report_page(folder / "run"), long_page(folder / "long.html")
    board = folder / "board.html"
    board.write_text(as_html(some_of_the_leaderboard()))
    front = folder / "front.html"
    front.write_text(shortened_chat())
    with serving.serving(serving.load()) as server:
        pages = [
            {"name": "run", "url": run.as_uri(), "steps": tools},
            {"name": "eval", "url": (folder / "eval.html").as_uri(), "steps": sort, "looks": SOME},
            {"name": "sweep", "url": sweep.as_uri(), "looks": SOME},
            {"name": "serve", "url": f"{server.url}/", "steps": ask, "looks": SOME},
            {"name": "front", "url": front.as_uri(), "looks": SOME},
            {"name": "board", "url": board.as_uri(), "looks": SOME},
            {"name": "long", "url": long.as_uri(), "steps": jump, "looks": SOME[:1], "rules": False},
        ]
        (folder / "asked.json").write_text(json.dumps({"chromium": CHROMIUM, "pages": pages}))
        done = subprocess.run(
            [str(NODE), str(HERE / "look.mjs"), str(folder / "asked.json")],
            capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(done.stdout):
        found.setdefault(one["name"], []).append(one)
    return found


def every_page_is_sound_in_every_look(looks: Looks) -> None:
    assert {one["look"] for one in looks["run"]} == LOOKS
    assert all(
        {one["look"] for one in looks[name]} == set(SOME) for name in ("eval", "sweep", "serve", "front", "board")
    )
    for one in (one for each in looks.values() for one in each):
        where = f"{one['name']} {one['look']}"
        assert one["messages"] == [], where
        assert one["violations"] == [], where
        assert one["over"] <= 0, where
        light = sum(map(int, one["paper"].strip("rgb()").split(","))) > 3 * 128
        assert light == one["look"].endswith("light"), where


def nothing_is_fetched_but_from_the_server_itself(looks: Looks) -> None:
    for name in ("run", "eval", "sweep", "front", "board", "long"):
        assert all(len(one["requests"]) == 1 for one in looks[name])
    for one in looks["serve"]:
        assert {request.split("/", 3)[3] for request in one["requests"]} == {"", "v1/models", "v1/chat/completions"}


def heads_sort(looks: Looks) -> None:
    for one in looks["eval"]:
        down, up = ([float(cell) for cell in one["told"][name]] for name in ("down", "up"))
        assert down == sorted(down, reverse=True)
        assert up == sorted(down)
        assert len(set(down)) > 3
        assert len(one["told"]["before"]) == len(down)


def a_needle_is_jumped_to(looks: Looks) -> None:
    for name in ("run", "long"):
        assert all(one["told"]["needle"] == [True] for one in looks[name])


def tokens_of_128k_are_shown_soon(looks: Looks) -> None:
    [one] = looks["long"]
    assert one["nodes"] > 20_000
    assert one["seconds"] < 10


def the_server_page_answers_and_shows_what_was_kept(looks: Looks) -> None:
    answers = [one["told"]["answer"] for one in looks["serve"]]
    assert answers.count(answers[0]) == len(answers)
    assert answers[0][0].strip()
    for one in looks["serve"]:
        assert "first token after" in one["told"]["times"][0]
        assert len(one["told"]["both"]) == 2
        assert one["told"]["dropped"]


@pytest.mark.slow
def test_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "SHARPNESS", 1.0)  # as wide as they are when anybody opens them
    looks = look(tmp_path)  # one browser for all: starting it anew for each test takes longer than all of them
    every_page_is_sound_in_every_look(looks)
    nothing_is_fetched_but_from_the_server_itself(looks)
    heads_sort(looks)
    a_needle_is_jumped_to(looks)
    tokens_of_128k_are_shown_soon(looks)
    the_server_page_answers_and_shows_what_was_kept(looks)
