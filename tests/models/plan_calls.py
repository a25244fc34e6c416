"""How tests of plans and refusals call the program."""

from __future__ import annotations

import pytest

from sp import cli

PAIR = ["plan", "--synthetic-target", "qwen3.6-27b", "--synthetic-drafter", "qwen3-0.6b"]


def call(*words: object, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of the program with these arguments."""
    monkeypatch.setattr("sys.argv", ["sp", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)
