"""The embedded sample: a document, a question about it, and the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

from sp.config import from_mapping


@dataclass(frozen=True)
class SampleQuestion:
    """A question about the sample document, the values of a correct answer, and the sentence that has them."""

    question: str
    answers: tuple[str, ...]
    needle: str


def sample() -> tuple[str, SampleQuestion]:
    """Return the embedded document and its question."""
    assets = files("sp") / "assets"
    question = from_mapping(SampleQuestion, json.loads((assets / "sample.json").read_text("utf-8")), "sample.json")
    return (assets / "sample.txt").read_text("utf-8"), question
