"""Training of scorers: the data file, its prompts, the fit, and measures on held-out examples and tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.config import Tokens
from sp.errors import ConfigError, short, unknown_name
from sp.evals import TASKS, Example, Task
from sp.evals.run import counter, label
from sp.gguf import ChatTemplate, GGUFFile, Tokenizer, chat_template
from sp.ops.attention.importance import chunk_means
from sp.prompt import TokenisedPrompt, transfer_scores
from sp.scoring import SCORERS, Scorer, ScoreRequest
from sp.scoring.attention.attention import without_markup
from sp.scoring.attention.heads import model_key
from sp.scoring.base import HEATMAP_CHUNK
from sp.scoring.trained.base import ScorerFile, TrainedScorer
from sp.selection import SELECTORS, SelectionRequest
from sp.session.device_memory import Where
from sp.session.loaded import Loaded, default_drafter, embedded, load
from sp.session.request import score_request
from sp.studies.sweep.config_values import ConfigValue, build_located, check_located, read_yaml
from sp.studies.sweep.sweep import located_model, make_strategy

EVIDENCE = "evidence"
TOP = 0.02  # share of a document's chunks that count as evidence if an oracle scores them
LIMITS = {"n": (1, 100_000), "held_out": (0, 100_000), "seed": (0, (1 << 31) - 1)}
LONGEST = 1 << 21


@dataclass(frozen=True)
class Labels:
    """Source of the labels: the evidence of the examples, or the share `top` of chunks that an oracle scores best."""

    scorer: Scorer | None = None
    top: float = TOP

    def __str__(self) -> str:
        return EVIDENCE if self.scorer is None else f"{label(SCORERS, self.scorer)}, top {self.top:g}"


@dataclass(frozen=True)
class TrainPlan:
    """A checked data file.

    `drafter` and `target` are as in the pairs of a sweep. Only the vocabulary and chat template of the target matter,
    unless the labels are from a scorer that runs on it.
    """

    kind: str  # registered name of the scorer to train
    options: Any  # options of the fit
    tasks: Mapping[str, Task]  # by name with options, including those in `leave_out`
    leave_out: tuple[str, ...]  # tasks for evaluation only, not for training
    lengths: tuple[int, ...]  # in tokens
    n: int  # training examples of each task and length
    held_out: int  # further examples of each task and length, for evaluation
    seed: int  # seed of the fit, and of tasks without one of their own
    labels: Labels
    drafter: Path | None
    target: Path | None

    @property
    def scorer(self) -> TrainedScorer:
        """A scorer of the kind without weights, with the default attention of `sp run`."""
        return build_trained(self.kind)

    @property
    def training_tasks(self) -> tuple[str, ...]:
        """Tasks of the training examples."""
        return tuple(name for name in self.tasks if name not in self.leave_out)


DEFAULTS: dict[str, Any] = {"n": 20, "held_out": 5, "seed": 1, "lengths": [1024, 2048, 4096], "leave_out": []}
KEYS = ("kind", "tasks", "options", "labels", "drafter", "target", *DEFAULTS)


def trained_kinds() -> tuple[str, ...]:
    """Return the names of the registered scorers that can be trained."""
    return tuple(name for name in SCORERS if issubclass(SCORERS.class_of(name), TrainedScorer))


def build_trained(kind: str, weights: str = "") -> TrainedScorer:
    """Build a trained scorer by name, with sparse attention `auto`; ConfigError if it cannot be trained."""
    if kind not in trained_kinds():
        raise unknown_name("kind of trained scorer", kind, trained_kinds())
    scorer = SCORERS.build(kind, {"weights": weights, "sparse": "auto"})
    assert isinstance(scorer, TrainedScorer)
    return scorer


def load_plan(path: Path) -> TrainPlan:
    """Read a data file; ConfigError, with the line, for anything that is wrong."""
    root = read_yaml(path)
    entries = root.mapping()
    for key, value in entries.items():
        if key not in KEYS:
            raise value.error(unknown_name("key of a training", key, KEYS))
    for key in ("kind", "tasks"):
        if key not in entries:
            raise ConfigError(f"{path.name}: {key} is missing; see sp train scorer --help")
    kind = check_located(entries["kind"], str, "kind")
    scorer = build_located(lambda values: build_trained(values["kind"]), {"kind": entries["kind"]}, entries["kind"])
    numbers = {name: _number(entries, name, low, high) for name, (low, high) in LIMITS.items()}
    tasks = _tasks(entries["tasks"], numbers["seed"])
    options = entries["options"].mapping() if "options" in entries else {}
    return TrainPlan(
        kind=kind,
        options=build_located(lambda values: scorer.options(values, str(kind)), options, root),
        tasks=tasks,
        leave_out=_left_out(entries, tasks),
        lengths=_lengths(entries),
        **numbers,
        labels=_labels(entries["labels"]) if "labels" in entries else Labels(),
        drafter=located_model(entries["drafter"], "drafter") if "drafter" in entries else None,
        target=located_model(entries["target"], "target") if "target" in entries else None,
    )


def without(plan: TrainPlan, name: str) -> TrainPlan:
    """Return the plan with only this task left out; ConfigError if it is the only task."""
    if set(plan.tasks) <= {name}:
        raise ConfigError(f"tasks: {name} is the only task, so it cannot be left out; name two or more")
    return dataclasses.replace(plan, leave_out=(name,))


def _number(entries: Mapping[str, ConfigValue], name: str, low: int, high: int) -> int:
    if name not in entries:
        return int(DEFAULTS[name])
    value = int(check_located(entries[name], int, name))
    if not low <= value <= high:
        raise entries[name].error(f"{name} must be from {low} to {high}, not {value}")
    return value


def _lengths(entries: Mapping[str, ConfigValue]) -> tuple[int, ...]:
    if "lengths" not in entries:
        return tuple(DEFAULTS["lengths"])
    lengths = []
    for item in entries["lengths"].items():
        value = check_located(item, Tokens, "length")
        if not 1 <= value <= LONGEST:
            raise item.error(f"a length must be from 1 to {LONGEST:,} tokens, not {value}")
        lengths.append(value)
    return tuple(dict.fromkeys(lengths))


def _tasks(section: ConfigValue, seed: int) -> dict[str, Task]:
    """Return the tasks by label, with the seed of the file unless they have their own: by default not that of evals."""
    by_label: dict[str, Task] = {}
    for item in chain.from_iterable(map(_suite, section.items())):
        task, _ = make_strategy({"task": item}, "task", TASKS, "")
        name = label(TASKS, task)
        fields = {field.name for field in dataclasses.fields(task)}
        if "seed" in fields and not (isinstance(item.value, dict) and "seed" in item.value):
            task = dataclasses.replace(task, seed=seed)
        if name in by_label:
            raise item.error(f"task {name} is here a second time; remove one")
        by_label[name] = task
    return by_label


def _suite(item: ConfigValue) -> list[ConfigValue]:
    """Return all tasks of a suite for ``{suite: NAME}``, else the item itself."""
    if not (isinstance(item.value, dict) and set(item.value) == {"suite"}):
        return [item]
    suite = check_located(item.value["suite"], str, "suite")
    suites = {name: TASKS.class_of(name).suite for name in TASKS}
    if suite not in suites.values() or not suite:
        raise item.error(unknown_name("suite", suite, {known for known in suites.values() if known}))
    return [ConfigValue(name, item.where) for name, of_task in suites.items() if of_task == suite]


def _left_out(entries: Mapping[str, ConfigValue], tasks: Mapping[str, Task]) -> tuple[str, ...]:
    if "leave_out" not in entries:
        return ()
    section = entries["leave_out"]
    items = section.items() if isinstance(section.value, list) and section.value else [section]
    names = []
    for item in items if section.value != [] else []:
        name = check_located(item, str, "leave_out")
        if name not in tasks:
            raise item.error(unknown_name("task to leave out", name, tasks))
        names.append(name)
    if set(names) == set(tasks):
        raise section.error("every task is left out, so there are no training examples; leave out fewer")
    return tuple(names)


def _labels(section: ConfigValue) -> Labels:
    if section.value == EVIDENCE:
        return Labels()
    if not isinstance(section.value, dict):
        raise section.error(
            f"labels must be {EVIDENCE}, or {{scorer: NAME, top: SHARE}}, not {short(repr(section.plain()))}"
        )
    for key, value in section.value.items():
        if key != "top" and key.partition(".")[0] != "scorer":
            raise value.error(unknown_name("key of labels", key, ["scorer", "scorer.OPTION", "top"]))
    if "scorer" not in section.value:
        raise section.error("labels need the name of a scorer, their oracle: {scorer: NAME}")
    top = float(check_located(section.value["top"], float, "top")) if "top" in section.value else TOP
    if not 0 < top < 1:
        raise section.value["top"].error(f"top must be above 0 and below 1, not {top:g}")
    scorer_keys = {key: value for key, value in section.value.items() if key != "top"}
    return Labels(make_strategy(scorer_keys, "scorer", SCORERS, "")[0], top)


@dataclass(frozen=True)
class TrainingModels:
    """Models of a training. Prompts are measured and rendered by `tokenizer` and `template`, which are the target's;
    `target` is loaded only if labels are from a scorer that runs on it."""

    drafter: Loaded
    tokenizer: Tokenizer
    template: ChatTemplate | None
    target: Loaded | None = None

    @classmethod
    def open(cls, plan: TrainPlan, device: Where) -> TrainingModels:
        """Load the drafter, and as much of the target as the labels need."""
        drafter = load(plan.drafter or default_drafter(plan.target), extrapolate=True, device=device)
        path = plan.target or embedded("target")
        if plan.labels.scorer is not None and plan.labels.scorer.reads_target:
            target = load(path, device=device)
            return cls(drafter, target.tokenizer, target.template, target)
        file = GGUFFile.open(path)
        tokenizer = Tokenizer.from_gguf(file)
        return cls(drafter, tokenizer, ChatTemplate.of_file(chat_template(file), tokenizer))


@dataclass(frozen=True)
class TrainingPrompt:
    """An example in the drafter's vocabulary. `task`: its name in the plan; `tokens`: its nominal length."""

    task: str
    tokens: int
    drafted: TokenisedPrompt


def example_of(plan: TrainPlan, name: str, index: int, tokens: int, count: Callable[[str], int]) -> Example:
    """Make an example of the plan; the error of a length that is too short names its task."""
    try:
        return plan.tasks[name].example(index, tokens, count)
    except ConfigError as error:
        raise ConfigError(f"{name} at {tokens:,} tokens: {error}") from None


def check_lengths(models: TrainingModels, plan: TrainPlan) -> None:
    """Raise ConfigError for a length that is too short for a task, before any prompt is read."""
    count = counter(models.tokenizer)
    for name in plan.tasks:
        for tokens in plan.lengths:
            example_of(plan, name, 0, tokens, count)


def training_prompts(
    models: TrainingModels, plan: TrainPlan, tasks: tuple[str, ...], *, held_out: bool
) -> Iterator[TrainingPrompt]:
    """Iterate over examples of tasks of the plan: the first `n` of each length, or the `held_out` ones after them.

    ConfigError for a task without evidence, if evidence is the label or the measure.
    """
    count = counter(models.tokenizer)
    indices = range(plan.n, plan.n + plan.held_out) if held_out else range(plan.n)
    for name in tasks:
        for tokens in plan.lengths:
            for index in indices:
                example = example_of(plan, name, index, tokens, count)
                if not example.needles and (held_out or plan.labels.scorer is None):
                    raise ConfigError(f"task {name} names no evidence to train or evaluate with; remove it from tasks")
                yield TrainingPrompt(name, tokens, example.prompt(models.template).tokenise(models.drafter.tokenizer))


def request_of(models: TrainingModels, prompt: TrainingPrompt, seed: int) -> ScoreRequest:
    """Return the score request of a prompt, without the tokens after its question."""
    return without_markup(score_request(models.drafter, prompt.drafted, seed))


def labels_of(models: TrainingModels, prompt: TrainingPrompt, labels: Labels, seed: int) -> Floats:
    """Return the labels (n,) of a prompt's tokens: 1 for evidence, 0 for the rest."""
    drafted = prompt.drafted
    if labels.scorer is None:
        return drafted.mask("needle").astype(np.float32)
    model = models.drafter
    tokenised = drafted
    if labels.scorer.reads_target:
        assert models.target is not None
        model, tokenised = models.target, drafted.prompt.tokenise(models.target.tokenizer)
    scores = labels.scorer.score(score_request(model, tokenised, seed)).scores
    return best_chunks(transfer_scores(scores, tokenised.bytes, drafted.bytes), drafted, labels.top)


def best_chunks(scores: Floats, drafted: TokenisedPrompt, top: float) -> Floats:
    """Return 1 for the tokens of the document's best chunks, a share `top` of them and at least one; else 0."""
    chunk: Ints = np.arange(len(scores)) // HEATMAP_CHUNK  # index of each token's chunk
    free = ~drafted.mask("protected")  # protected text is kept in any case, so it is no evidence to learn
    means = chunk_means(np.where(free, scores, 0).astype(np.float32), HEATMAP_CHUNK)
    chosen = np.argsort(-means, kind="stable")[: max(1, round(top * int(free.sum()) / HEATMAP_CHUNK))]
    return (np.isin(chunk, chosen) & free).astype(np.float32)


def auc(scores: Floats, labels: Bools) -> float:
    """Return the probability that a labelled token scores above another token, where a tie counts as half.

    It is the Mann-Whitney U statistic over the product of both numbers of tokens; NaN if one of them is zero.
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    ranks = below + (counts + 1) / 2  # mean rank of equal scores, from 1
    positive = int(labels.sum())
    negative = len(labels) - positive
    if not (positive and negative):  # a probability over no pairs
        return float("nan")
    total = float(ranks[place][labels].sum())
    return (total - positive * (positive + 1) / 2) / (positive * negative)


KEEP = 0.05
BASELINE = ("tail", {"queries": 24})  # the baseline that a trained scorer has to beat
SELECTOR = ("sentence", {"neighbours": 0, "sink": 4, "tail": 0})
"""Selector of the recall measure, as in docs/results/study.md."""

Row = dict[str, Any]
Progress = Callable[[int], None]


@dataclass
class Trainer:
    """Training samples that are read once, for one fit or for a fit per task that is left out.

    `progress` is called with the number of steps since the last call, of `steps` in all. `samples` are the training
    samples by task, which are read when a fit first needs them.
    """

    models: TrainingModels
    plan: TrainPlan
    progress: Progress = lambda done: None
    samples: dict[str, list[Any]] = field(default_factory=dict)

    def gather(self, tasks: Sequence[str]) -> None:
        """Read the prompts of those tasks that have no samples yet."""
        plan, scorer = self.plan, self.plan.scorer
        for name in tasks:
            if name in self.samples:
                continue
            samples = []
            for number, prompt in enumerate(training_prompts(self.models, plan, (name,), held_out=False)):
                request = request_of(self.models, prompt, plan.seed + number)
                labels = labels_of(self.models, prompt, plan.labels, plan.seed + number)[: len(request.ids)]
                sample = scorer.sample(request, labels, plan.options)
                samples += [] if sample is None else [sample]  # None: no labelled token in its document
                self.progress(1)
            self.samples[name] = samples

    def fit(self, plan: TrainPlan) -> ScorerFile:
        """Fit weights to the training tasks of a plan. ConfigError if none of their prompts has a labelled token."""
        self.gather(plan.training_tasks)
        samples = [sample for name in plan.training_tasks for sample in self.samples[name]]
        if not samples:
            raise ConfigError("no prompt has a labelled token in its document; use other labels or tasks")
        arrays = plan.scorer.fit(samples, plan.options, plan.seed, self.progress)
        facts = {
            "tasks": list(plan.training_tasks),
            "left_out": list(plan.leave_out),
            "labels": str(plan.labels),
            "lengths": list(plan.lengths),
            "prompts": len(samples),
            "seed": plan.seed,
            "drafter": self.models.drafter.path.name,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        }
        return ScorerFile(
            plan.kind, model_key(self.models.drafter.model), arrays, dataclasses.asdict(plan.options), facts
        )

    def judge(self, file: ScorerFile, tasks: tuple[str, ...]) -> list[Row]:
        """Measure a trained scorer and the `BASELINE` on the held-out examples, by task and length.

        A row has ``n``, ``left_out``, and for both scorers the means of ``auc`` and of ``recall``, the share of
        evidence that is kept at `KEEP`; None if no example has a finite value.
        """
        baseline = SCORERS.build(*BASELINE)
        rows = []
        with TemporaryDirectory() as folder:
            path = Path(folder) / "scorer.safetensors"
            file.save(path)
            trained = build_trained(file.kind, str(path))
            held_out = training_prompts(self.models, self.plan, tasks, held_out=True)
            for (name, tokens), group in groupby(held_out, lambda prompt: (prompt.task, prompt.tokens)):
                measures = []
                for prompt in group:
                    measures.append((*self._measures(trained, prompt), *self._measures(baseline, prompt)))
                    self.progress(2)
                known = [[value for value in column if np.isfinite(value)] for column in zip(*measures, strict=True)]
                means = [float(np.mean(column)) if column else None for column in known]
                names = ("auc", "recall", "beside_auc", "beside_recall")
                head = {"task": name, "tokens": tokens, "n": len(measures), "left_out": name in file.made["left_out"]}
                rows.append(head | dict(zip(names, means, strict=True)))
        return rows

    def _measures(self, scorer: Scorer, prompt: TrainingPrompt) -> tuple[float, float]:
        request, drafted = request_of(self.models, prompt, self.plan.seed), prompt.drafted
        # The request ends after the question; the markup that follows it keeps the score 0.
        scores: Floats = np.zeros(len(drafted), np.float32)
        scores[: len(request.ids)] = scorer.score(request).scores
        protected, needle = drafted.mask("protected"), drafted.mask("needle")
        area = auc(scores[~protected], needle[~protected])
        selection_request = SelectionRequest(scores, protected, KEEP, drafted.prompt.text.encode(), drafted.bytes)
        selected = SELECTORS.build(*SELECTOR).select(selection_request).selected
        return area, float(selected[needle].mean())


def steps(plan: TrainPlan, leave_one_out: bool) -> int:
    """Return the total number of steps of a training, in units of `Trainer.progress`."""
    judged = len(plan.tasks) * len(plan.lengths) * plan.held_out * 2
    task_count = len(plan.tasks) if leave_one_out else len(plan.training_tasks)
    fits = 1 + (len(plan.tasks) if leave_one_out else 0)
    times = 2 if leave_one_out else 1
    return task_count * len(plan.lengths) * plan.n + fits * plan.scorer.rounds(plan.options) + times * judged


def leave_one_out(trainer: Trainer) -> list[tuple[str, ScorerFile, list[Row]]]:
    """Return for each task of the plan its name, weights that were trained without it, and their measures on it."""
    results = []
    for name in trainer.plan.tasks:
        file = trainer.fit(without(trainer.plan, name))
        results.append((name, file, trainer.judge(file, (name,)) if trainer.plan.held_out else []))
    return results


def file_name(kind: str, task: str) -> str:
    """Return the name of a file of weights that were trained without a task."""
    return f"{kind}-without-{task.replace(' ', '-').replace('/', '-')}.safetensors"


def baseline_name() -> str:
    """Return the name of the `BASELINE` in tables."""
    return label(SCORERS, SCORERS.build(*BASELINE))
