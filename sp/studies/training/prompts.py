"""Prompts to learn from and to judge by, as the drafter sees them, and which of their tokens matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.evals import Example
from sp.evals.run import counter
from sp.gguf import ChatTemplate, GGUFFile, Tokenizer, chat_template
from sp.ops.attention.reduction import chunk_means
from sp.prompt import TokenisedPrompt, transfer_scores
from sp.scoring import ScoreRequest
from sp.scoring.attention.attention import without_markup
from sp.scoring.base import HEATMAP_CHUNK
from sp.session.loaded import Loaded, default_drafter, embedded, load
from sp.session.options import Where
from sp.session.request import score_request
from sp.studies.training.plan import Labels, TrainPlan


@dataclass(frozen=True)
class Readers:
    """Who reads.

    `tokenizer`, `template`: of the target, by which prompts are measured and rendered; `target`: the target itself,
    where labels come from it.
    """

    drafter: Loaded
    tokenizer: Tokenizer
    template: ChatTemplate | None
    target: Loaded | None = None

    @classmethod
    def open(cls, plan: TrainPlan, device: Where) -> Readers:
        """Load the drafter, and of the target as much as the labels need."""
        drafter = load(plan.drafter or default_drafter(plan.target), extrapolate=True, device=device)
        path = plan.target or embedded("target")
        if plan.labels.scorer is not None and plan.labels.scorer.reads_target:
            target = load(path, device=device)
            return cls(drafter, target.tokenizer, target.template, target)
        file = GGUFFile.open(path)
        tokenizer = Tokenizer.from_gguf(file)
        return cls(drafter, tokenizer, ChatTemplate.of_file(chat_template(file), tokenizer))


@dataclass(frozen=True)
class Lesson:
    """One example in the drafter's vocabulary.

    `task`: its name in the plan; `tokens`: length that was asked for.
    """

    task: str
    tokens: int
    drafted: TokenisedPrompt


def example_of(plan: TrainPlan, name: str, index: int, tokens: int, count: Callable[[str], int]) -> Example:
    """One example of the plan; a length that is too short is told with its task."""
    try:
        return plan.tasks[name].example(index, tokens, count)
    except ConfigError as error:
        raise ConfigError(f"{name} at {tokens:,} tokens: {error}") from None


def check_lengths(readers: Readers, plan: TrainPlan) -> None:
    """ConfigError for a length that a task cannot fill: before any prompt is read, not after those of other tasks."""
    count = counter(readers.tokenizer)
    for name in plan.tasks:
        for tokens in plan.lengths:
            example_of(plan, name, 0, tokens, count)


def lessons(readers: Readers, plan: TrainPlan, tasks: tuple[str, ...], *, held_out: bool) -> Iterator[Lesson]:
    """Examples of some of the plan's tasks: the first `n` of each length, or the `held_out` ones behind them.

    Raises
    ------
    ConfigError
        For a task that names no evidence, where that is what is learnt or judged by.
    """
    count = counter(readers.tokenizer)
    indices = range(plan.n, plan.n + plan.held_out) if held_out else range(plan.n)
    for name in tasks:
        for tokens in plan.lengths:
            for index in indices:
                example = example_of(plan, name, index, tokens, count)
                if not example.needles and (held_out or plan.labels.scorer is None):
                    raise ConfigError(f"task {name} names no evidence, so nothing can be learnt or judged by it")
                yield Lesson(name, tokens, example.prompt(readers.template).tokenise(readers.drafter.tokenizer))


def request_of(readers: Readers, lesson: Lesson, seed: int) -> ScoreRequest:
    """What the drafter is given of a lesson, without marks of thinking."""
    return without_markup(score_request(readers.drafter, lesson.drafted, seed))


def labels_of(readers: Readers, lesson: Lesson, labels: Labels, seed: int) -> Floats:
    """Importance (n,) of a lesson's tokens as it should be: 1 for evidence, 0 for the rest."""
    drafted = lesson.drafted
    if labels.scorer is None:
        return drafted.mask("needle").astype(np.float32)
    reader = readers.drafter
    read = drafted
    if labels.scorer.reads_target:
        assert readers.target is not None
        reader, read = readers.target, drafted.prompt.tokenise(readers.target.tokenizer)
    scores = labels.scorer.score(score_request(reader, read, seed)).scores
    return best_chunks(transfer_scores(scores, read.bytes, drafted.bytes), drafted, labels.top)


def best_chunks(scores: Floats, drafted: TokenisedPrompt, top: float) -> Floats:
    """1 for the tokens of the document's best chunks, a share `top` of them and at least one; 0 for others."""
    chunk: Ints = np.arange(len(scores)) // HEATMAP_CHUNK
    free = ~drafted.mask("protected")
    means = chunk_means(np.where(free, scores, 0).astype(np.float32), HEATMAP_CHUNK)
    chosen = np.argsort(-means, kind="stable")[: max(1, round(top * int(free.sum()) / HEATMAP_CHUNK))]
    return (np.isin(chunk, chosen) & free).astype(np.float32)
