"""The leaderboard's pages: sound whatever is missing, and nothing in them that a record could have put there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from board_records import NEW, OLD, rows, write_sweep

from sp.studies.board.entries import Board, read_board
from sp.studies.board.html import HEADS, as_html, as_markdown, scripts

VOID = {"meta", "br", "input", "link", "wbr"}
HOSTILE = 'tail a="><script>alert(1)</script>|x\n\n# y'


class Reader(HTMLParser):
    """Checks that tags close in order, and keeps what stands in tables."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.classes: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"{tag} says an attribute twice"
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
            self.classes.append(dict(attrs).get("class") or "")
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data


def states(folder: Path) -> dict[str, Board]:
    """Boards in every state that records can be in."""
    full, tail = rows("full", "1110"), rows("tail queries=24", "1100")
    everything = [
        *full, *tail, *rows("oracle", "1110"), *rows("random", "0001"), *rows("tail queries=24", "10", keep=0.1),
        *rows("full", "11", tokens=32768), *rows("tail queries=24", "01", tokens=32768),
        *rows("oracle", "11", tokens=32768), *rows("full", "11", task="vt"), *rows("bm25", "00", task="vt"),
    ]  # fmt: skip
    found = {
        "everything": [write_sweep(folder / "everything.jsonl", [everything])],
        "no oracle": [write_sweep(folder / "no_oracle.jsonl", [[*full, *tail]])],
        "no full prefill": [write_sweep(folder / "no_full.jsonl", [tail])],
        "nothing could be run": [write_sweep(folder / "none.jsonl", [[*full, *rows("tail", "----")]])],
        "full prefill alone": [write_sweep(folder / "full.jsonl", [full])],
        "two pairs": [write_sweep(folder / "old.jsonl", [tail], OLD), write_sweep(folder / "new.jsonl", [tail], NEW)],
        "hostile": [write_sweep(folder / "hostile.jsonl", [[*full, *rows(HOSTILE, "1111")]])],
    }
    return {name: read_board(paths) for name, paths in found.items()}


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Board]:
    return states(tmp_path_factory.mktemp("records"))


STATES = [
    "everything", "no oracle", "no full prefill", "nothing could be run", "full prefill alone", "two pairs", "hostile",
]  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_html_is_sound_and_needs_nothing_else(boards: dict[str, Board], state: str) -> None:
    board = boards[state]
    page = as_html(board)
    read = Reader(page)
    assert read.open == []
    assert page.startswith("<!doctype html>")
    assert [tag for tag, _ in read.tags].count("script") == 1, "a record's text is no script"
    assert not any({"src", "href", "onclick"} & set(attrs) for _, attrs in read.tags)
    assert not re.search(r"https?://|@import|url\(", page), "nothing is fetched"
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in read.tags
    assert "prefers-color-scheme: dark" in page
    everything = read.tables[-1]
    assert everything[0] == list(HEADS)
    assert len(everything) == 1 + len(board.entries)
    assert all(len(line) == len(table[0]) for table in read.tables for line in table), "every row has all columns"
    assert all(attrs.get("scope") == "col" for tag, attrs in read.tags if tag == "th")
    headings = [tag for tag, _ in read.tags if tag == "h2"]
    assert len(headings) == len(board.pairs) + 1


@pytest.mark.parametrize("state", STATES)
def test_markdown_tables_are_whole(boards: dict[str, Board], state: str) -> None:
    page = as_markdown(boards[state])
    assert page.startswith("# Leaderboard\n")
    assert page.endswith("\n")
    outside = re.sub(r"^```sh\n.*?^```$", "", page, flags=re.M | re.S).replace("\\<", "")
    assert "<script" not in outside
    assert set(re.findall(r"^# .*", page, re.M)) == {"# Leaderboard"}
    columns = 0
    for line in page.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert cells in (columns, 0) or columns == 0, line
        columns = cells


def test_what_the_matrices_say(boards: dict[str, Board]) -> None:
    page = as_markdown(boards["everything"])
    sections = re.findall(r"^### (.*)$", page, re.M)
    assert sections == ["8,192 tokens, keep 0.05", "8,192 tokens, keep 0.1", "32,768 tokens, keep 0.05"]
    first = page.split("### ")[1]
    assert "| random *control* | 25 (5 to 70) |  |  | 4 |" in first
    assert "| bm25 *control* |  | 0 (0 to 66) |  | 2 |" in first
    assert "| full prefill | 75 (30 to 95) | 100 (34 to 100) | 87.5 | 2 to 4 |" in first
    assert "Distance to the best oracle (oracle):" in first
    assert re.search(r"\| tail queries=24 \| -25 \(-75 to \+0\) \|  \| 4 \|", first)
    assert "sp eval tasks -t needle -p 8192 -n 4 --scorer 'tail[queries=24]' --keep-ratio 0.05 --no-controls" in first
    assert "| tail queries=24 | 50 (15 to 85) |  |  | 4 |" in first, "no mean where a task is missing"
    assert "Distance" not in page.split("### ")[2], "no oracle was run at keep 0.1"


def test_all_are_held_against_a_reference(tmp_path: Path) -> None:
    listed = [
        *rows("tail queries=24", "1" * 10 + "0" * 10), *rows("snapkv", "1" * 20),
        *rows("lookahead", "1" * 12 + "0" * 8),
        *rows("random", "0" * 20), *rows("bm25", "11", task="vt"),
    ]  # fmt: skip
    board = read_board([write_sweep(tmp_path / "a.jsonl", [listed])])
    page = as_markdown(board, "tail queries=24")
    held = page.split("Against tail queries=24")[1].split("<details>")[0].splitlines()
    found = {line.split(" | ")[0][2:]: line.split(" | ")[1:3] for line in held[4:] if line}
    assert found == {
        "lookahead": ["+10", ""], "snapkv": ["**+50**", ""], "random *control*": ["**-50**", ""],
        "bm25 *control*": ["", "-"],
    }  # fmt: skip
    assert "Against tail" not in as_markdown(board, "mid_layer")


def test_html_marks_kinds_and_holds_values_to_sort_by(boards: dict[str, Board]) -> None:
    page = as_html(boards["everything"])
    read = Reader(page)
    assert {"full", "scorer", "oracle", "control"} <= set(read.classes)
    body = read.tables[-1][1:]
    tail = next(line for line in body if line[0] == "tail queries=24" and line[3] == "8,192" and line[4] == "0.05")
    assert tail[5:11] == ["4", "50.0", "15 to 85", "-25 (-75 to +0)", "-25 (-75 to +0)", "50 %"]
    assert tail[-1].startswith("sp eval tasks -t needle -p 8192 -n 4")
    assert 'data-value="-25.0000"' in page
    names = [attrs["name"] for tag, attrs in read.tags if tag == "select"]
    assert names == ["pair", "task", "tokens", "keep", "kind"]
    row = next(attrs for tag, attrs in reversed(read.tags) if tag == "tr" and attrs.get("data-task"))
    assert {f"data-{name}" for name in names} <= set(row)


DOCUMENT = """
const cell = text => ({ textContent: text, dataset: text.startsWith("=") ? { value: text.slice(1) } : {} });
const row = (...texts) => ({ cells: texts.map(cell), dataset: { task: texts[0] }, hidden: false });
const head = () => { const said = {}, button = { addEventListener: (_, act) => { button.click = act; } };
  return { button, querySelector: () => button, getAttribute: name => said[name] ?? null,
    setAttribute: (name, value) => { said[name] = value; }, removeAttribute: name => { delete said[name]; } }; };
const heads = [head(), head()];
const body = { rows: [row("b", "=9"), row("a", "="), row("c", "=10")], append(...rows) { this.rows = rows; } };
const select = { name: "task", value: "", addEventListener: (_, act) => { select.change = act; } };
const told = {};
const table = { tHead: { rows: [{ cells: heads }] }, tBodies: [body] };
const found = { "table.sorts": [table], select: [select], output: [told] };
globalThis.document = { querySelectorAll: what => what === "#all tbody tr" ? body.rows : found[what] };
"""
CLICKS = """
const order = () => body.rows.map(row => row.cells[0].textContent).join("");
const seen = [];
for (const column of [1, 1, 0, 0]) { heads[column].button.click(); seen.push(order()); }
select.value = "c"; select.change();
seen.push(body.rows.filter(row => !row.hidden).map(row => row.cells[0].textContent).join(""));
seen.push(heads.map(head => head.getAttribute("aria-sort") ?? "none").join(" "));
seen.push(told.textContent);
console.log(JSON.stringify(seen));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_script_sorts_and_filters(tmp_path: Path) -> None:
    path = tmp_path / "script.js"
    path.write_text(DOCUMENT + scripts() + CLICKS)
    done = subprocess.run(["node", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    by_number, back, by_name, forth, left, arrows, told = json.loads(done.stdout)
    assert (by_number, back) == ("cba", "bca"), "10 is above 9, and what has no value stands last both ways"
    assert (by_name, forth) == ("abc", "cba"), "words begin at A, figures at the highest"
    assert (left, arrows, told) == ("c", "descending none", "1 of 3 entries")


def test_long_names_break_at_their_joints_and_differences_before_their_interval(boards: dict[str, Board]) -> None:
    page = as_html(boards["everything"])
    assert "<small><span>to oracle -25</span> <span>(-75 to +0)</span></small>" in page
    assert "tail queries=<wbr>24</td>" in page
    assert 'data-value="tail queries=24"' in page, "sorted by the name itself"
