"""`sp compress` keeps the bytes of a file, whatever its line ends, and its ranges refer to them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from command_line import invoke

from sp.front.shorten import TranscriptText, last_paragraph

LINES = [f"line {number}: the sky over harbour {number * 7919 % 1000} is grey" for number in range(120)]
LINES[60] = "line 60: the lighthouse lamp was lit in 1887, “at dusk”"
QUESTION = "When was the lighthouse lamp lit?"
OPTIONS = ["--question", QUESTION, "--scorer", "bm25", "--keep-ratio", 0.1, "--device", "cpu"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("piped", [False, True])
def test_ranges_index_the_bytes_of_the_file(
    end: str, piped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = end.join(LINES).encode()
    path = tmp_path / "log.txt"
    path.write_bytes(raw)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
    done = invoke("compress", "-" if piped else path, *OPTIONS, "--no-mark", "--json")
    assert done.exit_code == 0, done
    short = json.loads(done.stdout)
    kept = b"".join(raw[low:high] for low, high in short["kept"])
    assert (kept.replace(b"\r", b"\n") if end == "\r" else kept) == short["text"].encode()
    assert "1887" in short["text"]
    assert len(short["text"]) < len(raw) / 2


def test_line_ends_of_the_file_are_those_of_the_output(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes("\r\n".join(LINES).encode())
    done = invoke("compress", path, *OPTIONS, "--no-mark")
    assert done.exit_code == 0, done
    assert f"{LINES[60]}\r\n" in done.stdout
    assert "\n" not in done.stdout.replace("\r\n", "").removesuffix("\n")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_last_paragraph_begins_after_a_blank_line(end: str) -> None:
    for blank in (2 * end, 3 * end):
        text = TranscriptText("user", f"A first one.{blank}Where is{end}the lamp?{end}", open=True)
        assert last_paragraph([text]) == f"Where is{end}the lamp?"
