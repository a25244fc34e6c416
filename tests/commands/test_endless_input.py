"""What has no end, or no beginning, is told in a line and at once: devices, pipes without a writer, huge texts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke

from sp.commands.shell import terminal
from sp.commands.shell.terminal import read_text
from sp.errors import ConfigError, PromptError
from sp.evals.formats.nolima import NolimaFile
from sp.studies.sweep.config_values import read_yaml


@pytest.mark.parametrize("command", ["run --question x --prompt-file", "chat --load"])
def test_a_device_has_no_end(command: str) -> None:
    found = str(invoke([*command.split(), "/dev/zero"]).exception)
    assert found.startswith("/dev/zero is a device, and reading it may never end; give --")


def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    assert str(invoke(["sweep", pipe]).exception) == f"cannot read {pipe}: not a file; name a YAML file"
    for path in (pipe, "/dev/zero"):
        with pytest.raises(ConfigError, match="not a file"):
            read_yaml(Path(path))


def test_a_text_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "MOST_BYTES", 1 << 20)
    path = tmp_path / "long.txt"
    path.write_bytes(b"a" * (1 << 20))
    assert len(read_text(path, "--load")) == 1 << 20
    path.write_bytes(b"a" * ((1 << 20) + 1))
    with pytest.raises(PromptError, match="has more than 1 MiB; give --load a shorter text"):
        read_text(path, "--load")


def test_what_a_shell_pipes_in_as_a_file_is_read() -> None:
    """As in --prompt-file <(zcat book.gz)."""
    end, into = os.pipe()
    os.write(into, "é\r\n".encode())
    os.close(into)
    assert read_text(Path(f"/dev/fd/{end}"), "--load") == "é\n"
    os.close(end)


def test_a_haystack_is_a_file() -> None:
    made: Any = NolimaFile(path="x.json", haystack="/dev/zero")
    with pytest.raises(ConfigError, match="cannot read /dev/zero: not a file"):
        _ = made.book
