"""Questions about real documents: the shipped file is whole, own files checked, verdicts say why evidence is lost."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sp.errors import ConfigError, FetchError
from sp.evals.matches import MATCHES
from sp.evals.natural import questions as documents
from sp.evals.natural.questions import (
    HARD,
    QUESTIONS,
    Archive,
    NaturalDocument,
    fetch,
    fetch_members,
    known_documents,
    known_questions,
    missing_documents,
    overlap,
    own_questions,
    read_document,
)
from sp.evals.natural.rows import BUDGET, CUT, PLACE, RANK, judge
from sp.hub import fetch as download
from sp.selection import Selection

SHIPPED = [json.loads(line) for line in QUESTIONS.read_text().splitlines()]


def test_the_questions_that_ship_are_many_and_mixed() -> None:
    kinds = {one.kind for one in known_documents().values()}
    assert len(SHIPPED) >= 150
    assert len({one["document"] for one in SHIPPED}) == len(known_documents()) >= 25
    assert kinds == {"manual", "specification", "legal", "narrative", "code", "changelog", "table"}
    assert len({one["id"] for one in SHIPPED}) == len({one["question"] for one in SHIPPED}) == len(SHIPPED)
    assert sum(one["overlap"] <= HARD for one in SHIPPED) >= len(SHIPPED) / 2
    assert sum(one["overlap"] > HARD for one in SHIPPED) >= 50
    assert sum(len(one["evidence"]) > 1 for one in SHIPPED) >= 15
    thirds = [round(3 * one["evidence"][0][0] / known_documents()[one["document"]].size - 0.5) for one in SHIPPED]
    assert all(thirds.count(third) >= len(SHIPPED) / 6 for third in range(3))


def test_the_page_has_their_numbers() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "evaluation.md").read_text().split())
    hard = sum(one["overlap"] <= HARD for one in SHIPPED)
    two = sum(len(one["evidence"]) > 1 for one in SHIPPED)
    assert f"asks {len(SHIPPED)} questions, written by hand, about {len(known_documents())} real documents" in page
    assert f"{hard} are **hard**" in page
    assert f"{len(SHIPPED) - hard} **easy**; {two} need two places" in page


@pytest.mark.parametrize("one", SHIPPED, ids=lambda one: one["id"])
def test_a_question_that_ships_is_whole(one: dict[str, Any]) -> None:
    size = known_documents()[one["document"]].size
    assert [len(quote.encode()) for quote in one["quotes"]] == [end - start for start, end in one["evidence"]]
    assert one["evidence"] == sorted(one["evidence"])
    for places in (one["evidence"], *one["alternatives"]):
        assert all(0 <= start < end <= size and end - start <= 400 for start, end in places)
    assert one["match"] in MATCHES
    assert all(answer.strip() == answer != "" for answer in one["answers"])
    assert one["overlap"] >= round(overlap(one["question"], " ".join(one["quotes"])), 4) - 1e-9


def test_the_questions_that_ship_fit_their_documents() -> None:
    if missing := missing_documents(known_documents()):
        pytest.skip(f"{len(missing)} documents are not in the cache; run sp eval natural --fetch to get them")
    assert [round(one.overlap, 4) for one in known_questions()] == [one["overlap"] for one in SHIPPED]


TEXT = "Café au lait costs 3 euros.\nTea costs 2 euros.\nTea is hot.\n"


def own(tmp_path: Path, *records: object) -> Path:
    (tmp_path / "menu.txt").write_text(TEXT)
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    return path


RECORD: dict[str, Any] = {
    "document": "menu.txt",
    "question": "What is the price of coffee?",
    "answers": "3",
    "evidence": ["costs 3 euros"],
}


def test_own_questions(tmp_path: Path) -> None:
    start = TEXT.encode().index(b"Tea costs")
    two = RECORD | {"id": "tea", "evidence": [[0, 5], [start, start + 3]], "quotes": ["Café", "Tea"], "answers": ["a"]}
    alike = RECORD | {"id": "or", "alternatives": [["Tea is hot."]], "question": "Is tea hot?"}
    first, second, third = own_questions(own(tmp_path, RECORD, two, alike))
    assert (first.id, first.hard, first.quotes(first.evidence[0])) == ("0", True, ["costs 3 euros"])
    assert (second.depth, second.text_kind, second.example().places) == (0, "txt", (0, start - 1))
    assert (third.overlap, len(third.evidence)) == (1.0, 2)
    assert len({first.digest, second.digest, third.digest}) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"document": "none.txt"}, "line 1: cannot read document none.txt: No such file"),
        ({"evidence": []}, "line 1: evidence must be a list of 1 to 32 places"),
        ({"evidence": ["Tea"]}, "evidence[0] must occur in the document exactly once"),
        ({"evidence": ["coffee"]}, "evidence[0] must occur in the document exactly once"),
        ({"evidence": [[0, 4]]}, "evidence[0] begins or ends inside a character"),
        ({"evidence": [[3, 900]]}, "evidence[0] must be a text, or a pair [start, end] of bytes from 0 to 60"),
        ({"evidence": [[1, True]]}, "evidence[0] must be a text, or a pair"),
        ({"alternatives": [[[4, 4]]]}, "alternatives[0][0] must be a text, or a pair"),
        ({"alternatives": "x"}, "alternatives must be a list"),
        ({"quotes": ["costs 2 euros"]}, "quotes differ from the texts at the places"),
        ({"match": "most"}, "unknown match (", ),
        ({"answers": []}, "answers must be a text or a list of 1 to 32"),
        ({"question": " "}, "question must be a text that is not empty"),
    ],
)  # fmt: skip
def test_own_questions_that_are_damaged(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        own_questions(own(tmp_path, RECORD | changes))
    assert message in str(caught.value)


def test_two_own_questions_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 2: two questions have the id 'same'"):
        own_questions(own(tmp_path, RECORD | {"id": "same"}, RECORD | {"id": "same"}))


def selection(kept: str, scores: list[float], forced: str | None = None) -> Selection:
    """Chunks of two tokens; `x` marks a token."""
    marks = np.array([mark == "x" for mark in kept])
    held = np.array([mark == "x" for mark in forced or "." * len(kept)])
    return Selection(marks, held, np.array(scores, np.float32), np.arange(0, len(kept) + 1, 2))


def tokens(*places: str) -> list[np.ndarray]:
    return [np.array([mark == "x" for mark in place]) for place in places]


def test_why_evidence_is_lost() -> None:
    scores = [4.0, 3.0, 2.0, 1.0]
    whole = judge(selection("xx......", scores), [tokens("xx......")], 2)
    assert (whole.whole, whole.reason, whole.recall, whole.rank) == (True, None, 1.0, 1.0)
    rank = judge(selection("xx......", scores), [tokens("....xx..")], 2)
    assert (rank.whole, rank.reason, rank.rank, rank.scored_chunks) == (False, RANK, 3.0, 4)
    cut = judge(selection("xx......", scores), [tokens(".xx.....")], 2)
    assert (cut.reason, cut.recall, cut.places[0].chunks, cut.places[0].lowest_rank) == (CUT, 0.5, 2, 2.0)
    budget = judge(selection("xx....xx", scores), [tokens("..xx....")], 4)  # its neighbour took its place
    assert budget.reason == BUDGET
    assert judge(selection("xx....xx", scores, "......xx"), [tokens("..xx....")], 4).reason == RANK
    place = judge(selection("xx......", scores), [tokens("xx......", "......xx")], 2)
    assert (place.reason, place.recall, place.rank) == (PLACE, 0.5, 4.0)
    assert [one.reason for one in place.places] == [None, RANK]


def test_one_of_the_alternatives_is_enough() -> None:
    chosen = selection("xx......", [4.0, 3.0, 2.0, 1.0])
    assert judge(chosen, [tokens("......xx"), tokens("xx......")], 2).whole
    assert judge(chosen, [tokens("......xx"), tokens(".xx.....")], 2).reason == CUT


def test_equal_scores_share_a_rank() -> None:
    lost = judge(selection("xx......", [1.0, 0.0, 0.0, 0.0]), [tokens("..xx....")], 4)
    assert (lost.rank, lost.reason) == (3.0, RANK)


BODY = b"one\r\ntwo\r\nthree\r\n"


def packed(folder: Path, name: str) -> Path:
    path = folder / name
    if path.suffix == ".whl":
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr("pack/text.txt", BODY)
    else:
        with tarfile.open(path, "w:gz") as source:
            entry = tarfile.TarInfo("pack-1.0/pack/text.txt")
            entry.size = len(BODY)
            source.addfile(entry, io.BytesIO(BODY))
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the index, from which a stand-in of pip copies what is asked for."""
    folder, script = tmp_path / "index", tmp_path / "pip.py"
    folder.mkdir()
    script.write_text(PIP.format(folder=folder))
    monkeypatch.setattr(download, "pip_command", lambda: [sys.executable, str(script)])
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))
    return folder


PIP = """
import shutil, sys
from pathlib import Path
assert {{"download", "--no-deps", "--require-hashes"}} <= {{*sys.argv}}
wanted = Path(sys.argv[sys.argv.index("--requirement") + 1]).read_text()
found = [*Path({str(folder)!r}).iterdir()]
if not found:
    sys.exit("WARNING: slow\\nERROR: Could not find a version\\nERROR: No matching distribution found for pack==1.0")
assert wanted.startswith("pack==1.0 --hash=sha256:"), wanted
assert ("--no-binary=pack" in sys.argv) == (found[0].suffix != ".whl")
place = Path(sys.argv[sys.argv.index("--dest") + 1])
place.mkdir()
shutil.copy(found[0], place)
""".replace("{str(folder)!r}", "'{folder}'")


def pinned(path: Path, digest: str = "") -> Archive:
    raw = path.read_bytes() if path.exists() else b""
    return Archive(path.name, "pack==1.0", digest or hashlib.sha256(raw).hexdigest(), len(raw))


@pytest.mark.parametrize("name", ["pack-1.0-py3-none-any.whl", "pack-1.0.tar.gz"])
def test_documents_are_built_from_archives(index: Path, name: str) -> None:
    archive = pinned(packed(index, name))
    text = b"one\ntwo\n"
    document = NaturalDocument(
        "short", "manual", archive, "pack/text.txt", hashlib.sha256(text).hexdigest(), len(text), 9
    )
    done: list[int] = []
    fetch([document], done.append)
    assert (read_document(document), sum(done)) == ("one\ntwo\n", archive.size)
    assert [path.name for path in documents.documents_folder().iterdir()] == ["short.txt"]
    document.path.write_text("one\n")
    with pytest.raises(ConfigError, match=r"short\.txt was changed; delete it and add --fetch"):
        read_document(document)
    document.path.unlink()
    with pytest.raises(ConfigError, match=r"document short is not in .*; add --fetch"):
        read_document(document)
    other = NaturalDocument("short", "manual", archive, "pack/text.txt", "0" * 64, len(text))
    with pytest.raises(ConfigError, match=r"document short of .* does not have the pinned SHA-256"):
        fetch([other])
    assert not document.path.exists()
    with pytest.raises(FetchError, match="does not contain pack/none"):
        fetch_members(archive, ["pack/none"], done.append)


def test_archives_that_cannot_be_had(index: Path) -> None:
    path, done = index / "pack-1.0.tar.gz", list[int]()
    with pytest.raises(FetchError, match=r"cannot download pack==1\.0: pip says: No matching distribution found"):
        fetch_members(pinned(path), ["text"], done.append)
    path.write_bytes(b"no archive")
    with pytest.raises(FetchError, match=r"pack-1.0.tar.gz is damaged .*; it was discarded"):
        fetch_members(pinned(path), ["text"], done.append)
