"""Ctrl-C at any moment ends a run with one line, status 130, and no half-written result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from sp.gguf import GGUFFile
from sp.trace import write_atomic

RUN = (sys.executable, "-m", "sp.cli", "run", "--device", "cpu", "--no-full", "--max-new-tokens", "4")


def start(out: Path) -> subprocess.Popen[str]:
    text = out.parent / "text.txt"
    text.write_text("The grass is green. " * 400)
    command = (*RUN, "--prompt-file", str(text), "--question", "Why?", "--out", str(out))
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ})


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to another process")
@pytest.mark.parametrize("when", ["models are read", "files are written"])
def test_a_signal_leaves_whole_files_or_none(tmp_path: Path, when: str) -> None:
    out = tmp_path / "run"
    process = start(out)
    end = time.monotonic() + (0.7 if when == "models are read" else 60)
    while time.monotonic() < end and process.poll() is None and not (out.exists() and list(out.iterdir())):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, 130, -signal.SIGINT), errors  # it may just have ended, or just have begun
    if process.returncode == 130:
        assert errors.strip().splitlines()[-1] == "sp: interrupted"
    left = list(out.glob("*")) + list(out.glob(".*")) if out.exists() else []
    assert not [path for path in left if "partial" in path.name]
    for path in left:
        if path.name == "trace.json":
            assert json.loads(path.read_text())["stages"]
        assert path.stat().st_size > 0


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to another process")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_the_way_to_stop_a_server_and_no_failure(sent: signal.Signals) -> None:
    """As llama-server does, and as the page says; every other command that is interrupted ends with 130."""
    command = (sys.executable, "-m", "sp.cli", "serve", "--device", "cpu", "--port", "0", "--sessions", "0")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        url = next(line.rpartition(" at ")[2].strip() for line in lines if " at http://" in line)
        with urlopen(f"{url}/models", timeout=60) as answer:  # from then on it is the server that handles signals
            assert answer.status == 200
        process.send_signal(sent)
        process.communicate(timeout=60)
    assert process.returncode == 0
    page = (Path(__file__).parents[1] / "docs/troubleshooting.md").read_text()
    assert "`sp serve` and `sp front` end with status 0, as llama-server does" in " ".join(page.split())


def test_an_interrupted_write_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_atomic(tmp_path / "trace.json", b"before")

    def half(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"after, and much longer")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_model_file_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sp.models.synthetic.synthetic import write_synthetic

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_synthetic(tmp_path / "m.gguf", "tiny-qwen3", "q8_0", progress=stop)
    assert list(tmp_path.iterdir()) == []
    write_synthetic(tmp_path / "m.gguf", "tiny-qwen3", "q8_0")
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        assert file.architecture == "qwen3"
