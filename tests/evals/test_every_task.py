"""Requirements that every registered task meets with its default options, those that open a file aside."""

from __future__ import annotations

import pytest
from story_cases import count
from strategies import names_under_test

from sp.errors import ConfigError
from sp.evals import TASKS, Task

TOKENS = 4096
WHOLE_DOCUMENTS = ("natural",)  # tasks about documents as they were published, of any length


def is_drawn(name: str) -> bool:
    """Return True if a task draws its examples, without a file, at any length."""
    if name in WHOLE_DOCUMENTS:
        return False
    try:
        TASKS.build(name)
    except ConfigError:  # a task of a file, which has no default
        return False
    return True


@pytest.fixture(scope="module", params=[name for name in names_under_test(TASKS) if is_drawn(name)])
def task(request: pytest.FixtureRequest) -> Task:
    return TASKS.build(request.param)


def test_an_example_is_the_same_again_and_others_differ(task: Task) -> None:
    first, again, other = (task.example(index, TOKENS, count) for index in (0, 0, 1))
    assert first == again
    assert first.id != other.id
    assert (first.document, first.turns) != (other.document, other.turns)
    assert (first.task, first.tokens) == (task.name, TOKENS)


def test_a_prompt_has_the_length_and_the_evidence_that_it_promises(task: Task) -> None:
    example = task.example(0, TOKENS, count)
    texts = [example.document, example.question, example.answer_prefix, *(turn.content for turn in example.turns)]
    assert 0.8 * TOKENS <= sum(map(count, texts)) <= TOKENS
    text = "\n".join(texts)
    assert all(needle in text for needle in example.needles), "needles are sentences of the document, verbatim"
    assert all(example.answers)
    assert example.max_new_tokens > 0
