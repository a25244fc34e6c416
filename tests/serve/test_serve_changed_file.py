"""A model file that is written to while it is in use: no answer of other weights, and no bus error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import serving as tool
import web

from sp.errors import ChangedError
from sp.serve.text import CompletionStream
from sp.session import Pipeline, embedded, load


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copy(embedded("drafter"), tmp_path / "m.gguf"))


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(100))


def shortened(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


@pytest.mark.parametrize("change", [overwritten, shortened])
def test_a_file_that_is_written_to_is_noticed(copy: Path, change: Callable[[Path], None]) -> None:
    pair = Pipeline(load(copy, device="cpu"))
    pair.check_files()
    change(copy)
    with pytest.raises(ChangedError, match=r"^m\.gguf was changed while in use; restore"):
        pair.check_files()


def test_a_file_that_is_replaced_or_removed_goes_on(copy: Path, tmp_path: Path) -> None:
    """As downloads and editors do it: what is mapped stays."""
    pair = Pipeline(load(copy, device="cpu"))
    other = Path(shutil.copy(embedded("target"), tmp_path / "other.gguf"))
    other.replace(copy)
    pair.check_files()
    copy.unlink()
    pair.check_files()


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_server_gives_no_answer_of_other_weights(copy: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    hear = CompletionStream.push

    def changes(self: CompletionStream, token: int) -> bool:
        os.utime(copy, (0, 0))
        return hear(self, token)

    pair = Pipeline(load(copy, device="cpu"))
    with tool.serving(pair) as server:
        if when == "before":
            overwritten(copy)
        else:
            monkeypatch.setattr(CompletionStream, "push", changes)
        body = {"prompt": "It rained.", "max_tokens": 2, "sp": {"compress": "off"}}
        reply = web.post(f"{server.url}/v1/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_changed")
    assert reply.json()["error"]["message"].startswith("m.gguf was changed")


PAGES = """
import mmap, os, sys
from sp.commands.shell.lost_pages import exit_on_lost_pages
with open(sys.argv[1], "r+b") as file, exit_on_lost_pages():
    view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    os.truncate(sys.argv[1], 0)
    print(view[100])
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGBUS")
def test_a_page_that_is_gone_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(1 << 16))
    found = subprocess.run([sys.executable, "-c", PAGES, path], capture_output=True, text=True)
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.startswith("sp: error: a model file was truncated while in use")
    assert found.stderr.count("\n") == 1
