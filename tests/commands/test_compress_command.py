"""`sp compress` keeps the bytes of a file, whatever its line ends, and its ranges refer to them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from command_line import invoke

from sp.errors import ConfigError
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
    assert kept == short["text"].encode()
    assert "1887" in short["text"]
    assert len(short["text"]) < len(raw) / 2


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_of_the_file_are_those_of_the_output(end: str, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(end.join(LINES).encode())
    done = invoke("compress", path, *OPTIONS, "--no-mark")
    assert done.exit_code == 0, done
    assert f"{LINES[60]}{end}" in done.stdout
    assert "\n" not in done.stdout.replace(end, "").removesuffix("\n")


def test_a_carriage_return_inside_of_a_line_stays(tmp_path: Path) -> None:
    """As programs write them that show their progress; each part counts as a line."""
    path = tmp_path / "log.txt"
    path.write_bytes("\n".join(f"{number}0 %\r{line}\r\n" for number, line in enumerate(LINES)).encode())
    done = invoke("compress", path, *OPTIONS, "--no-mark", "--json")
    assert done.exit_code == 0, done
    short = json.loads(done.stdout)
    assert f"\r{LINES[60]}\r\n" in f"\r{short['text']}"
    assert b"".join(path.read_bytes()[low:high] for low, high in short["kept"]) == short["text"].encode()


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("mark", ["--mark", "--no-mark"])
@pytest.mark.parametrize("selector", ["segments", "json", "lines"])
def test_a_json_string_stays_one(ascii_only: bool, mark: str, selector: str, tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    lines = [f'{line}, said "é\t{number}"' for number, line in enumerate(LINES)]
    path.write_text(f" {json.dumps(chr(10).join(lines), ensure_ascii=ascii_only)}\n")
    done = invoke("compress", path, *OPTIONS, mark, "--selector", selector)
    assert done.exit_code == 0, done
    text = json.loads(done.stdout)
    assert lines[60] in text
    assert set(text.splitlines()) <= set(lines)
    assert len(text.splitlines()) < 40


@pytest.mark.parametrize("text", ["7" * 5000, f"-1.{'5' * 5000}e7\n", f'"{"half a pair " * 500}\\ud800"'])
def test_a_json_value_without_parts_is_not_shortened(text: str, tmp_path: Path) -> None:
    path = tmp_path / "number.json"
    path.write_text(text)
    done = invoke("compress", path, *OPTIONS)
    assert done.exit_code == 0, done
    assert done.stdout.strip() == text.strip()
    assert "not shortened" in done.stderr
    told = json.loads(invoke("compress", path, *OPTIONS, "--json").stdout)
    assert (told["text"], told["kept"], told["kept_tokens"]) == (text, [[0, len(text)]], told["tokens"])
    assert "not shortened" in told["reason"]


def test_a_text_that_only_looks_like_a_json_string_is_text(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text('"' + "\n".join(LINES) + '"')
    done = invoke("compress", path, *OPTIONS)
    assert done.exit_code == 0, done
    assert "[... " in done.stdout


def test_a_keep_ratio_out_of_range_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("\n".join(LINES))
    for command in (["compress", path], ["front", "--upstream", "http://127.0.0.1:1"]):
        for ratio, bound in (("-1.0", "least 1e-06"), ("0.0", "least 1e-06"), ("2.0", "most 1")):
            done = invoke(*command, "--scorer", "bm25", "--keep-ratio", ratio)
            assert isinstance(done.exception, ConfigError)
            assert str(done.exception) == f"--keep-ratio must be at {bound}, not {ratio}"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_last_paragraph_begins_after_a_blank_line(end: str) -> None:
    for blank in (2 * end, 3 * end):
        text = TranscriptText("user", f"A first one.{blank}Where is{end}the lamp?{end}", open=True)
        assert last_paragraph([text]) == f"Where is{end}the lamp?"
