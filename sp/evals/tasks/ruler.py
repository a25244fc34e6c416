"""RULER (Hsieh et al. 2024, arXiv 2404.06654): its eight needle tasks, and what all its tasks have in common.

Prompt templates are the benchmark's own (github.com/NVIDIA/RULER, Apache-2.0), for its scores compare only so. Where it
needs outside text, our generators stand in and the task is called `...-synth`: such scores compare with each other, not
with published ones. One difference holds for all: a blank line parts text and question, where RULER has a line feed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sp.config import check_fields
from sp.evals.base import Count, Example, Task, answer_room, register_task
from sp.evals.tasks.needle import Needle, NeedleMultiquery, NeedleMultivalue


@dataclass(frozen=True)
class Niah(Task):
    """A needle task of RULER.

    Parameters
    ----------
    depth : float, optional
        Where the needle that is asked for stands, 0 to 1; anywhere if left out. Of several, the first one.
    """

    depth: float | None = None
    seed: int = 0

    kind: ClassVar[type[Needle]] = Needle
    recipe: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        check_fields(self, f"task {self.name}")
        self.needle()

    def needle(self) -> Needle:
        """The needle task that this is."""
        return self.kind(
            depth=self.depth, seed=self.seed, phrasing="ruler", answer_prefix=True, near=False, **self.recipe
        )

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`; RULER generates 128 tokens, this at least so many."""
        made = self.needle().example(index, tokens, count)
        return replace(
            made,
            id=self.example_id(index, tokens),
            task=self.name,
            max_new_tokens=answer_room(128, made.answers, count),
        )


@register_task("niah_single_1", suite="ruler")
@dataclass(frozen=True)
class NiahSingle1(Niah):
    """A number in the repeated line."""

    recipe: ClassVar[Mapping[str, Any]] = {"filler": "noise"}


@register_task("niah_single_2-synth", suite="ruler")
@dataclass(frozen=True)
class NiahSingle2(Niah):
    """A number in prose."""


@register_task("niah_single_3-synth", suite="ruler")
@dataclass(frozen=True)
class NiahSingle3(Niah):
    """A UUID in prose."""

    recipe: ClassVar[Mapping[str, Any]] = {"value": "uuid"}


@register_task("niah_multikey_1-synth", suite="ruler")
@dataclass(frozen=True)
class NiahMultikey1(Niah):
    """One of four numbers in prose."""

    recipe: ClassVar[Mapping[str, Any]] = {"distractors": 3}


@register_task("niah_multikey_2", suite="ruler")
@dataclass(frozen=True)
class NiahMultikey2(Niah):
    """One of many lines that are all needles."""

    recipe: ClassVar[Mapping[str, Any]] = {"filler": "needles"}


@register_task("niah_multikey_3", suite="ruler")
@dataclass(frozen=True)
class NiahMultikey3(Niah):
    """One of many lines of a UUID for a UUID."""

    recipe: ClassVar[Mapping[str, Any]] = {"filler": "needles", "key": "uuid", "value": "uuid"}


@register_task("niah_multivalue-synth", suite="ruler")
@dataclass(frozen=True)
class NiahMultivalue(Niah):
    """Four numbers of one key in prose."""

    kind: ClassVar[type[Needle]] = NeedleMultivalue


@register_task("niah_multiquery-synth", suite="ruler")
@dataclass(frozen=True)
class NiahMultiquery(Niah):
    """Numbers of four keys in prose."""

    kind: ClassVar[type[Needle]] = NeedleMultiquery
