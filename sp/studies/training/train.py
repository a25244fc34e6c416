"""Train a scorer by a plan, and judge it by examples it has not seen, beside plain attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sp.arrays import Bools, Floats
from sp.errors import ConfigError
from sp.evals.run import label
from sp.scoring import SCORERS, Scorer
from sp.scoring.attention.heads import model_key
from sp.scoring.trained.base import ScorerFile
from sp.selection import SELECTORS, SelectionRequest
from sp.studies.training.plan import TrainPlan, build_trained, without
from sp.studies.training.prompts import Lesson, Readers, labels_of, lessons, request_of


def auc(scores: Floats, labels: Bools) -> float:
    """Chance that a labelled token scores above another one, ties counting half; NaN without one of either.

    The statistic of Mann and Whitney over the product of both numbers.

    Examples
    --------
    >>> auc(np.array([0.1, 0.9, 0.5, 0.5]), np.array([False, True, True, False]))
    0.875
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    ranks = below + (counts + 1) / 2
    positive = int(labels.sum())
    negative = len(labels) - positive
    if not (positive and negative):
        return float("nan")
    total = float(ranks[place][labels].sum())
    return (total - positive * (positive + 1) / 2) / (positive * negative)


KEEP = 0.05
BESIDE = ("tail", {"queries": 24})
"""The scorer every trained one has to beat."""
SELECTOR = ("sentence", {"neighbours": 0, "sink": 4, "tail": 0})
"""By which evidence is kept in the table of what was learnt: the one of the study."""

Row = dict[str, Any]
Progress = Callable[[int], None]


@dataclass
class Trainer:
    """Prompts read once, for one fit or for one a task that is left out.

    `progress`: called with the steps done since the last call, of `steps` in all; `samples`: by task, what its prompts
    teach; read when they are first asked for.
    """

    readers: Readers
    plan: TrainPlan
    progress: Progress = lambda done: None
    samples: dict[str, list[Any]] = field(default_factory=dict)

    def gather(self, tasks: Sequence[str]) -> None:
        """Read the prompts of tasks that have not been read."""
        plan, scorer = self.plan, self.plan.scorer
        for name in tasks:
            if name in self.samples:
                continue
            found = []
            for number, lesson in enumerate(lessons(self.readers, plan, (name,), held_out=False)):
                request = request_of(self.readers, lesson, plan.seed + number)
                labels = labels_of(self.readers, lesson, plan.labels, plan.seed + number)[: len(request.ids)]
                sample = scorer.sample(request, labels, plan.options)
                found += [] if sample is None else [sample]
                self.progress(1)
            self.samples[name] = found

    def fit(self, plan: TrainPlan) -> ScorerFile:
        """Weights from the tasks that a plan learns from.

        Raises
        ------
        ConfigError
            If no prompt of them has a labelled token.
        """
        self.gather(plan.learnt)
        samples = [sample for name in plan.learnt for sample in self.samples[name]]
        if not samples:
            raise ConfigError("no prompt has a labelled token in its document, so there is nothing to learn")
        arrays = plan.scorer.fit(samples, plan.options, plan.seed, self.progress)
        made = {
            "tasks": list(plan.learnt),
            "left_out": list(plan.leave_out),
            "labels": str(plan.labels),
            "lengths": list(plan.lengths),
            "prompts": len(samples),
            "seed": plan.seed,
            "drafter": self.readers.drafter.path.name,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        }
        return ScorerFile(
            plan.kind, model_key(self.readers.drafter.model), arrays, dataclasses.asdict(plan.options), made
        )

    def judge(self, file: ScorerFile, tasks: tuple[str, ...]) -> list[Row]:
        """What a trained scorer and `BESIDE` find in the held-out examples of some tasks.

        Returns
        -------
        list of dict
            By task and length: ``task, tokens, n, left_out``; ``auc, recall`` and ``beside_auc, beside_recall``, means
            over examples. A recall is the share of evidence that is kept at `KEEP`; None where the protected text
            alone is more.
        """
        beside = SCORERS.build(*BESIDE)
        rows = []
        with TemporaryDirectory() as folder:
            path = Path(folder) / "scorer.safetensors"
            file.save(path)
            trained = build_trained(file.kind, str(path))
            drawn = lessons(self.readers, self.plan, tasks, held_out=True)
            for (name, tokens), group in groupby(drawn, lambda lesson: (lesson.task, lesson.tokens)):
                found = []
                for lesson in group:
                    found.append((*self._found(trained, lesson), *self._found(beside, lesson)))
                    self.progress(2)
                means = [_mean(column) for column in zip(*found, strict=True)]
                names = ("auc", "recall", "beside_auc", "beside_recall")
                head = {"task": name, "tokens": tokens, "n": len(found), "left_out": name in file.made["left_out"]}
                rows.append(head | dict(zip(names, means, strict=True)))
        return rows

    def _found(self, scorer: Scorer, lesson: Lesson) -> tuple[float, float]:
        request, drafted = request_of(self.readers, lesson, self.plan.seed), lesson.drafted
        scores: Floats = np.zeros(len(drafted), np.float32)
        scores[: len(request.ids)] = scorer.score(request).scores
        protected, needle = drafted.mask("protected"), drafted.mask("needle")
        area = auc(scores[~protected], needle[~protected])
        asked = SelectionRequest(scores, protected, KEEP, drafted.prompt.text.encode(), drafted.bytes)
        kept = SELECTORS.build(*SELECTOR).select(asked).kept
        return area, float(kept[needle].mean())


def steps(plan: TrainPlan, leave_one_out: bool) -> int:
    """Progress that training tells of in all."""
    judged = len(plan.tasks) * len(plan.lengths) * plan.held_out * 2
    learnt = len(plan.tasks) if leave_one_out else len(plan.learnt)
    fits = 1 + (len(plan.tasks) if leave_one_out else 0)
    times = 2 if leave_one_out else 1
    return learnt * len(plan.lengths) * plan.n + fits * plan.scorer.rounds(plan.options) + times * judged


def leave_one_out(trainer: Trainer) -> list[tuple[str, ScorerFile, list[Row]]]:
    """For each task of the plan: its name, weights that never saw it, and what those find in it."""
    found = []
    for name in trainer.plan.tasks:
        file = trainer.fit(without(trainer.plan, name))
        found.append((name, file, trainer.judge(file, (name,)) if trainer.plan.held_out else []))
    return found


def file_name(kind: str, task: str) -> str:
    """Name of the file whose weights never saw a task.

    Examples
    --------
    >>> file_name("probe", "vt hops=2")
    'probe-without-vt-hops=2.safetensors'
    """
    return f"{kind}-without-{task.replace(' ', '-').replace('/', '-')}.safetensors"


def beside_name() -> str:
    """How the scorer beside the trained one is called in tables.

    Examples
    --------
    >>> beside_name()
    'tail queries=24'
    """
    return label(SCORERS, SCORERS.build(*BESIDE))


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else None
