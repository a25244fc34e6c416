"""What a sweep file comes to: cells, tasks and runs, each with everything that decides what it finds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sp.chat import Thinking
from sp.evals import Task
from sp.evals.base import WITHOUT
from sp.session import RunOptions
from sp.studies.sweep.keys import Device
from sp.studies.sweep.pairs import Pair


@dataclass(frozen=True)
class Cell:
    """One way to read a prompt.

    `config`: every option in force, plain, as it enters the hash of a run.
    """

    options: RunOptions
    config: Mapping[str, Any]


@dataclass(frozen=True)
class TaskSpec:
    """A task with options, by name.

    `name`: name and the options that differ from its defaults, e.g. ``"needle depth=0.5"``. `config`: registered name
    and options, plain. `thinking`: what the target is asked of it; part of name and options where it is not off.
    """

    task: Task
    name: str
    config: Mapping[str, Any]
    thinking: Thinking = WITHOUT


@dataclass(frozen=True)
class Run:
    """Examples ``first`` to ``first + count - 1`` of one task and length, in every cell.

    `part` names the part of the file it belongs to; it decides nothing.
    """

    pair: Pair
    spec: TaskSpec
    tokens: int
    first: int
    count: int
    cells: tuple[Cell, ...]
    full: bool
    part: str = ""

    @property
    def label(self) -> str:
        """What `--only` matches: ``task/tokens/first``, after the target's name if it is not the embedded one."""
        pair = f"{self.pair.target.stem}/" if self.pair.target else ""
        return f"{pair}{self.spec.name}/{self.tokens}/{self.first}"

    def config(self, models: Mapping[str, Any], files: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Everything that decides what this run finds, the models by content.

        `models`: role to the SHA-256 of its file; `files`: SHA-256 of the files that scorers name.
        """
        return {
            "models": dict(models),
            "task": self.spec.config,
            "tokens": self.tokens,
            "first": self.first,
            "count": self.count,
            "full": self.full,
            "cells": [cell.config for cell in self.cells],
            **({"files": dict(files)} if files else {}),
        }


@dataclass(frozen=True)
class Sweep:
    """A checked sweep: its runs in the order written, where rows go, and whether a report follows."""

    name: str
    runs: tuple[Run, ...]
    out: Path
    device: Device
    report: bool


def config_hash(config: Mapping[str, Any]) -> str:
    """First 16 hex digits of the SHA-256 of canonical JSON.

    Examples
    --------
    >>> config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(config, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]
