"""Folders hold what the last run wrote; of what lies there besides, only what we wrote is removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sp.studies.staging import LIST, staged


def write(folder: Path, **texts: str) -> None:
    with staged(folder) as stage:
        for name, text in texts.items():
            (stage / name).write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != LIST)


def test_an_earlier_run_leaves_nothing_but_what_is_not_its_own(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    write(out, page="1", picture="1", changed="1")
    (out / "notes").write_text("mine")
    (out / "changed").write_text("by me")
    (out / "folder").mkdir()
    write(out, page="2")
    assert names(out) == ["changed", "folder", "notes", "page"]
    assert (out / "page").read_text() == "2"
    assert (out / "changed").read_text() == "by me"


def test_what_fails_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with pytest.raises(TypeError):
        write(out, half="x", number=1)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
    write(out, page="1")
    with pytest.raises(TypeError):
        write(out, half="x", number=1)  # type: ignore[arg-type]
    assert names(out) == ["page"]


@pytest.mark.parametrize(
    "found",
    ["{", "[]", '{"a": 1}', json.dumps({"../outside": "x", "/etc/hosts": "x", "..": "x", ".": "x", "": "x"}), "\xff"],
)
def test_a_list_that_is_not_ours_removes_nothing(tmp_path: Path, found: str) -> None:
    out = tmp_path / "out"
    write(out, page="1")
    (tmp_path / "outside").write_text("x")
    (out / LIST).write_bytes(found.encode("latin-1"))
    write(out, other="2")
    assert names(out) == ["other", "page"]
    assert (tmp_path / "outside").read_text() == "x"


def test_names_outside_the_folder_are_not_followed_even_with_the_right_digest(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, page="1")
    (tmp_path / "outside").write_text("1")
    listed = json.loads((out / LIST).read_text())
    (out / "link").symlink_to(tmp_path / "outside")
    (out / LIST).write_text(json.dumps({"../outside": listed["page"], "link": listed["page"]}))
    write(out, other="2")
    assert (tmp_path / "outside").exists()
    assert (out / "link").is_symlink()
