"""What tests may ask of the embedded pair, read from what lies beside it: another recipe may make the next one."""

from __future__ import annotations

from pathlib import Path

from sp.evals import TASKS, Task
from sp.gguf import GGUFFile
from sp.scoring.attention.heads import EMBEDDED_MAP, HeadMap
from sp.session import embedded

ROOT = Path(__file__).parents[1]


def recipe() -> str:
    """Name of the recipe that made the pair, as its folders and files are called: `needle_pair` or another."""
    with GGUFFile.open(embedded("drafter")) as file:
        return str(file.metadata["general.name"]).removesuffix("-drafter").replace("-", "_")


def known_task() -> Task:
    """A task with one answer in one sentence that the pair reads: the one its map of heads was measured on."""
    return TASKS.build(HeadMap.load(EMBEDDED_MAP).made["tasks"][0])
