"""Training of scorers: what a data file asks for, the prompts it names, the fit, and what it is worth elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
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
from sp.studies.sweep.located import ConfigValue, build_located, check_located, read_yaml
from sp.studies.sweep.sweep import located_model, make_strategy

EVIDENCE = "evidence"
TOP = 0.02  # share of a document's chunks that count as evidence where an oracle says which
LIMITS = {"n": (1, 100_000), "held_out": (0, 100_000), "seed": (0, (1 << 31) - 1)}
LONGEST = 1 << 21


@dataclass(frozen=True)
class Labels:
    """Where the truth comes from. `scorer`: an oracle, whose best chunks count as evidence; None takes the evidence
    that examples name; `top`: share of the document's chunks that count."""

    scorer: Scorer | None = None
    top: float = TOP

    def __str__(self) -> str:
        return EVIDENCE if self.scorer is None else f"{label(SCORERS, self.scorer)}, top {self.top:g}"


@dataclass(frozen=True)
class TrainPlan:
    """A checked data file. `drafter`, `target`: as in a sweep's pairs. Of the target only tokens and chat template
    matter, unless the labels read it."""

    kind: str  # registered name of the scorer to train
    options: Any  # its options of learning
    tasks: Mapping[str, Task]  # by name with the options that were set; those left out among them
    leave_out: tuple[str, ...]  # tasks that are judged by and not learnt from
    lengths: tuple[int, ...]
    n: int  # n, held_out: examples of each task and length to learn from, and further ones to judge by
    held_out: int
    seed: int  # of tasks that name none, and of the fit
    labels: Labels
    drafter: Path | None
    target: Path | None

    @property
    def scorer(self) -> TrainedScorer:
        """A scorer of the kind, which reads as `sp run` lets it."""
        return build_trained(self.kind)

    @property
    def learnt(self) -> tuple[str, ...]:
        """Tasks that are learnt from."""
        return tuple(name for name in self.tasks if name not in self.leave_out)


DEFAULTS: dict[str, Any] = {"n": 20, "held_out": 5, "seed": 1, "lengths": [1024, 2048, 4096], "leave_out": []}
KEYS = ("kind", "tasks", "options", "labels", "drafter", "target", *DEFAULTS)


def trained_kinds() -> tuple[str, ...]:
    """Registered scorers that are trained."""
    return tuple(name for name in SCORERS if issubclass(SCORERS.class_of(name), TrainedScorer))


def build_trained(kind: str, weights: str = "") -> TrainedScorer:
    """A trained scorer by name, its attention left to device and length; ConfigError if it is none."""
    if kind not in trained_kinds():
        raise unknown_name("kind of trained scorer", kind, trained_kinds())
    found = SCORERS.build(kind, {"weights": weights, "sparse": "auto"})
    assert isinstance(found, TrainedScorer)
    return found


def load_plan(path: Path) -> TrainPlan:
    """Read a data file; ConfigError, with the line, for whatever is wrong."""
    root = read_yaml(path)
    given = root.mapping()
    for key, value in given.items():
        if key not in KEYS:
            raise value.error(unknown_name("key of a training", key, KEYS))
    for key in ("kind", "tasks"):
        if key not in given:
            raise ConfigError(f"{path.name}: {key} is missing; see sp train scorer --help")
    kind = check_located(given["kind"], str, "kind")
    scorer = build_located(lambda values: build_trained(values["kind"]), {"kind": given["kind"]}, given["kind"])
    numbers = {name: _number(given, name, low, high) for name, (low, high) in LIMITS.items()}
    tasks = _tasks(given["tasks"], numbers["seed"])
    own = given["options"].mapping() if "options" in given else {}
    return TrainPlan(
        kind=kind,
        options=build_located(lambda values: scorer.options(values, str(kind)), own, root),
        tasks=tasks,
        leave_out=_left_out(given, tasks),
        lengths=_lengths(given),
        **numbers,
        labels=_labels(given["labels"]) if "labels" in given else Labels(),
        drafter=located_model(given["drafter"], "drafter") if "drafter" in given else None,
        target=located_model(given["target"], "target") if "target" in given else None,
    )


def without(plan: TrainPlan, name: str) -> TrainPlan:
    """The same plan with only this task left out; ConfigError if nothing is left to learn from."""
    if set(plan.tasks) <= {name}:
        raise ConfigError(f"tasks: {name} is the only one, so none can be left out; name two or more")
    return dataclasses.replace(plan, leave_out=(name,))


def _number(given: Mapping[str, ConfigValue], name: str, low: int, high: int) -> int:
    if name not in given:
        return int(DEFAULTS[name])
    value = int(check_located(given[name], int, name))
    if not low <= value <= high:
        raise given[name].error(f"{name} must be from {low} to {high}, not {value}")
    return value


def _lengths(given: Mapping[str, ConfigValue]) -> tuple[int, ...]:
    if "lengths" not in given:
        return tuple(DEFAULTS["lengths"])
    found = []
    for item in given["lengths"].items():
        value = check_located(item, Tokens, "length")
        if not 1 <= value <= LONGEST:
            raise item.error(f"a length must be from 1 to {LONGEST:,} tokens, not {value}")
        found.append(value)
    return tuple(dict.fromkeys(found))


def _tasks(section: ConfigValue, seed: int) -> dict[str, Task]:
    """Tasks by label, each with the file's seed unless it names one: never the seed 0 that evaluations begin with."""
    found: dict[str, Task] = {}
    for item in [each for written in section.items() for each in _suite(written)]:
        task, _ = make_strategy({"task": item}, "task", TASKS, "")
        name = label(TASKS, task)
        fields = {field.name for field in dataclasses.fields(task)}
        if "seed" in fields and not (isinstance(item.value, dict) and "seed" in item.value):
            task = dataclasses.replace(task, seed=seed)
        if name in found:
            raise item.error(f"task {name} stands here a second time")
        found[name] = task
    return found


def _suite(item: ConfigValue) -> list[ConfigValue]:
    """All tasks of a suite for ``{suite: NAME}``; the item itself where it names a task."""
    if not (isinstance(item.value, dict) and set(item.value) == {"suite"}):
        return [item]
    wanted = check_located(item.value["suite"], str, "suite")
    suites = {name: TASKS.class_of(name).suite for name in TASKS}
    if wanted not in suites.values() or not wanted:
        raise item.error(unknown_name("suite", wanted, {suite for suite in suites.values() if suite}))
    return [ConfigValue(name, item.where) for name, suite in suites.items() if suite == wanted]


def _left_out(given: Mapping[str, ConfigValue], tasks: Mapping[str, Task]) -> tuple[str, ...]:
    if "leave_out" not in given:
        return ()
    section = given["leave_out"]
    items = section.items() if isinstance(section.value, list) and section.value else [section]
    names = []
    for item in items if section.value != [] else []:
        name = check_located(item, str, "leave_out")
        if name not in tasks:
            raise item.error(unknown_name("task to leave out", name, tasks))
        names.append(name)
    if set(names) == set(tasks):
        raise section.error("every task is left out, so there is nothing to learn from")
    return tuple(names)


def _labels(section: ConfigValue) -> Labels:
    if section.value == EVIDENCE:
        return Labels()
    if not isinstance(section.value, dict):
        raise section.error(
            f"labels are {EVIDENCE}, or {{scorer: NAME, top: SHARE}}, not {short(repr(section.plain()))}"
        )
    for key, value in section.value.items():
        if key != "top" and key.partition(".")[0] != "scorer":
            raise value.error(unknown_name("key of labels", key, ["scorer", "scorer.OPTION", "top"]))
    if "scorer" not in section.value:
        raise section.error("labels need the scorer that is their oracle: {scorer: NAME}")
    top = float(check_located(section.value["top"], float, "top")) if "top" in section.value else TOP
    if not 0 < top < 1:
        raise section.value["top"].error(f"top must be above 0 and below 1, not {top:g}")
    given = {key: value for key, value in section.value.items() if key != "top"}
    return Labels(make_strategy(given, "scorer", SCORERS, "")[0], top)


@dataclass(frozen=True)
class Readers:
    """Who reads. `tokenizer`, `template`: of the target, by which prompts are measured and rendered; `target`: the
    target itself, where labels come from it."""

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
    """One example in the drafter's vocabulary. `task`: its name in the plan; `tokens`: length that was asked for."""

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
    ConfigError for a task that names no evidence, where that is what is learnt or judged by."""
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


def auc(scores: Floats, labels: Bools) -> float:
    """Chance that a labelled token scores above another one, ties counting half; NaN without one of either. The
    statistic of Mann and Whitney over the product of both numbers."""
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
BESIDE = ("tail", {"queries": 24})  # the scorer every trained one has to beat
SELECTOR = ("sentence", {"neighbours": 0, "sink": 4, "tail": 0})
"""By which evidence is kept in the table of what was learnt: the one of the study."""

Row = dict[str, Any]
Progress = Callable[[int], None]


@dataclass
class Trainer:
    """Prompts read once, for one fit or for one a task that is left out. `progress`: called with the steps done since
    the last call, of `steps` in all; `samples`: by task, what its prompts teach; read when they are first asked for."""

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
        """Weights from the tasks that a plan learns from. ConfigError if no prompt of them has a labelled token."""
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
        """What a trained scorer and `BESIDE` find in the held-out examples, by task and length: ``n``, ``left_out``,
        and means of ``auc`` and ``recall``, the share of evidence kept at `KEEP`, of both; None where the protected
        text alone is more."""
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
                known = [[value for value in column if np.isfinite(value)] for column in zip(*found, strict=True)]
                means = [float(np.mean(column)) if column else None for column in known]
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
        kept = SELECTORS.build(*SELECTOR).select(asked).selected
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
    """Name of the file whose weights never saw a task."""
    return f"{kind}-without-{task.replace(' ', '-').replace('/', '-')}.safetensors"


def beside_name() -> str:
    """How the scorer beside the trained one is called in tables."""
    return label(SCORERS, SCORERS.build(*BESIDE))
