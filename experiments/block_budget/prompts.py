"""Prompts, each with the tokens that its question asks for; those of needles share all but the question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sp.evals import TASKS
from sp.evals.metrics import Evidence
from sp.evals.run import counter
from sp.evals.tasks.needle import Needle
from sp.prompt import Prompt
from sp.session.load import Loaded

KEY, VALUE, VOCAB = 4, 5, 320
"""Tokens of a retriever's needle, and the tokens there are."""


@dataclass(frozen=True)
class Asked:
    """A prompt as a scorer gets it: what asks, what is kept anyway, and what should be: the needle's value."""

    ids: np.ndarray
    question: np.ndarray
    protected: np.ndarray
    value: np.ndarray
    asked: int


def random_tokens(tokens: int, needles: int, seed: int) -> list[Asked]:
    """Random tokens with keys of 4 and values of 5 in the first nine tenths; each prompt ends with one of the keys."""
    rng = np.random.default_rng([seed, tokens])
    body = rng.integers(0, VOCAB, tokens - KEY)
    size = KEY + VALUE
    places = 32 + size * rng.choice((int(0.9 * tokens) - 32) // size, needles, replace=False)
    found = []
    for at in places:
        ids = np.concatenate([body, body[at : at + KEY]])
        value, last = np.zeros(tokens, bool), np.zeros(tokens, bool)
        value[at + KEY : at + size], last[-8:] = True, True
        found.append(Asked(ids, last, last, value, tokens))
    return found


def documents(drafter: Loaded, tokens: int, needles: int, seed: int) -> list[Asked]:
    """The text of task `needle` with many needles of one phrasing; to each question the others are distractors."""

    class Many(Needle):
        asked_keys = needles
        plural = False  # one is asked for at a time

    made = Many(seed=seed).example(0, tokens, counter(drafter.tokenizer))
    question, found = made.facts["question_template"], []
    for key, value, needle in zip(made.facts["keys"], made.answers, made.needles, strict=True):
        words = question.format(key=key, kind=made.facts["value"])
        prompt = Prompt.from_document(made.document, words, drafter.template, needle=needle)
        tokenised = prompt.tokenise(drafter.tokenizer)
        start = tokenised.prompt.text.encode().index(needle.encode()) + needle.index(value)
        inside = (tokenised.bytes[:, 1] > start) & (tokenised.bytes[:, 0] < start + len(value))
        masks = tokenised.mask("question"), tokenised.mask("protected"), inside
        found.append(Asked(tokenised.ids, *masks, tokenised.asked))
    return found


def examples(drafter: Loaded, task: str, tokens: int, count: int) -> list[Asked]:
    """Prompts of a task of `sp eval`, each of its own text."""
    found = []
    for index in range(count):
        made = TASKS.build(task).example(index, tokens, counter(drafter.tokenizer))
        prompt = made.prompt(drafter.template).tokenise(drafter.tokenizer)
        values = Evidence.of(prompt, made.answers).values
        found.append(Asked(prompt.ids, prompt.mask("question"), prompt.mask("protected"), values, prompt.asked))
    return found


def shared(prompts: Sequence[Asked]) -> int:
    """Tokens that all prompts begin with."""
    n = min(len(prompt.ids) for prompt in prompts)
    same = np.all([prompt.ids[:n] == prompts[0].ids[:n] for prompt in prompts], axis=0)
    return int(n if same.all() else same.argmin())
