"""What tests of stories share: tasks and training phrases, frames as patterns, and what reads no model keeps."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from sp.evals import TASKS, Example
from sp.evals.run import counter
from sp.evals.story import StoryTask
from sp.gguf import GGUFFile, Tokenizer
from sp.prompt import TokenisedPrompt
from sp.scoring import SCORERS, ScoreRequest
from sp.selection import SELECTORS, SelectionRequest
from sp.session import embedded

HERE = Path(__file__).resolve().parents[2] / "experiments" / "instrument"


def train(name: str) -> Any:
    """Training phrases of a task."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    return import_module(f"phrases.{name}").TRAIN


def strings(phrases: Any) -> Iterator[str]:
    """Every string in a set of phrases, names of fields and keys aside."""
    if isinstance(phrases, str):
        yield phrases
    elif is_dataclass(phrases):
        for field in fields(phrases):
            yield from strings(getattr(phrases, field.name))
    elif isinstance(phrases, Mapping):
        for one in phrases.values():
            yield from strings(one)
    elif isinstance(phrases, tuple | list):
        for one in phrases:
            yield from strings(one)


def shared(name: str) -> set[str]:
    """Strings that examples and training have in common, letter case and white space aside; no string may be empty."""
    ours, theirs = ({one.strip().lower() for one in strings(of)} for of in (TASKS.class_of(name).held_out, train(name)))  # type: ignore[attr-defined]
    assert len(ours) > 50
    assert len(theirs) > 500
    return (ours & theirs) - {""}


@cache
def tokenizer() -> Tokenizer:
    """Of the embedded target."""
    with GGUFFile.open(embedded("target")) as file:
        return Tokenizer.from_gguf(file)


def count(text: str) -> int:
    """Tokens of a text for the embedded target."""
    return counter(tokenizer())(text)


def built(name: str, **options: object) -> StoryTask:
    """A task that tells a story."""
    task = TASKS.build(name, options)
    assert isinstance(task, StoryTask)
    return task


def example(name: str, index: int, tokens: int = 2048, **options: Any) -> Example:
    """An example in the embedded vocabulary."""
    return built(name, **options).example(index, tokens, count)


def check(one: Example, tokens: int) -> None:
    """Its length, its evidence, and that the question does not give the answer away."""
    assert 0.9 * tokens - 40 <= count(one.document) + count(one.question) <= tokens - 16
    assert one.needles
    assert all(one.document.count(text) == 1 for text in one.needles)
    assert not any(answer in one.question for answer in one.answers)


def pattern(frame: str, **slots: str) -> str:
    """A frame as a regular expression with a group for each slot, the first letter large or small."""
    parts = re.split(r"\{(\w+)\}", frame)
    found = [re.escape(parts[0])]
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        found += [f"(?P<{name}>{slots[name]})", re.escape(text)]
    return "".join(found)


def read(frames: Sequence[str], text: str, **slots: str) -> dict[str, str] | None:
    """Slots of the one frame that a whole text was made with; None if it is none of them."""
    found = [match.groupdict() for one in frames if (match := re.fullmatch(pattern(one, **slots), text))]
    assert len(found) <= 1, (text, found)
    return found[0] if found else None


def shares(task: str, scorers: tuple[str, ...], tokens: int, n: int, keep: float = 0.05, **options: Any) -> list[float]:
    """Of n examples, the share in which a scorer keeps some place where the answer stands, by scorer.

    Lenient: the answer's tokens in the evidence that holds it, without the rest of the evidence.
    """
    hits, asked = np.zeros(len(scorers)), 0
    for index in range(n):
        made = TASKS.build(task, options).example(index, tokens, count)
        if made.needles and any(one in text for one in made.answers for text in made.needles):
            prompt = made.prompt(None).tokenise(tokenizer())
            asked += 1
            hits += [kept(made, prompt, scorer, keep, index) for scorer in scorers]
    return list(hits / asked)


def kept(example: Example, prompt: TokenisedPrompt, scorer: str, keep: float, seed: int) -> bool:
    """Whether every token of the answer in the evidence that holds it is kept."""
    n = len(prompt)
    request = ScoreRequest(
        model=None,  # type: ignore[arg-type]
        ids=prompt.ids,
        positions=np.arange(n),
        question=prompt.mask("question"),
        needle=prompt.mask("needle"),
        seed=seed,
    )
    scores = SCORERS.build(scorer).score(request).scores
    selection = SELECTORS.build("top_chunks").select(
        SelectionRequest(scores, prompt.mask("protected"), keep, prompt.prompt.text.encode(), prompt.bytes)
    )
    raw, starts, ends = prompt.prompt.text.encode(), prompt.bytes[:, 0], prompt.bytes[:, 1]
    for answer in example.answers:
        for needle in example.needles:
            if answer in needle:
                at = raw.index(needle.encode()) + needle.encode().rfind(answer.encode())
                if selection.selected[(starts < at + len(answer.encode())) & (ends > at)].all():
                    return True
    return False
