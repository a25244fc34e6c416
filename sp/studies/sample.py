"""The embedded example: a document, a question about it, and the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

from sp.config import from_mapping


@dataclass(frozen=True)
class Example:
    """Question about the sample document, the values a right answer holds, and the sentence that says so."""

    question: str
    answers: tuple[str, ...]
    needle: str


def sample() -> tuple[str, Example]:
    """The embedded document and its example."""
    assets = files("sp") / "assets"
    example = from_mapping(Example, json.loads((assets / "sample.json").read_text("utf-8")), "sample.json")
    return (assets / "sample.txt").read_text("utf-8"), example
