"""Entries of the leaderboard: one scorer on one task, length and keep ratio, read by one pair of models."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sp.errors import ConfigError
from sp.evals.base import TASK_SLOT
from sp.evals.run import scorer_class
from sp.evals.summary import paired_difference, wilson
from sp.evals.trained_for import note_of_records
from sp.models.cache.kv_type import rotates
from sp.page.forest import Kind
from sp.session import RunOptions, embedded
from sp.studies.pages.report import find_sources
from sp.studies.sweep.cells import kind_of, strategy_name, strategy_order
from sp.studies.sweep.provenance import EMBEDDED_WEIGHTS, files_sha256
from sp.studies.sweep.store import Row, read_results, read_rows, session_facts

KINDS: tuple[Kind, ...] = ("full", "scorer", "oracle", "control")  # in the order they are shown

WEIGHTS = re.compile(r"\bweights=(?P<file>\S+)")
LEFT_OUT = re.compile(r"-without-(?P<task>[^/]+)\.safetensors$")
"""How a file of weights says which task it never saw: ``probe-without-needle.safetensors``."""


def task_name(row: Row) -> str:
    """The registered name of a row's task, without options."""
    return str(row["task"]).partition(" ")[0]


def task_label(row: Row) -> str:
    """A row's task with every option that makes it another one, and with what was asked of thinking.

    >>> task_label({"task": "needle", "options": "filler=noise", "thinking": "on"})
    'needle filler=noise thinking=on'
    >>> task_label({"task": "vt shots=0 thinking=on", "thinking": "on"})
    'vt shots=0 thinking=on'
    """
    words = [str(row["task"]), *filter(None, [row.get("options")])]
    for name in ("thinking", "reasoning_effort"):
        if row.get(name) is not None and f" {name}=" not in f" {row['task']}":
            words.append(f"{name}={row[name]}")
    return " ".join(words)


def slotted(row: Row) -> str:
    """The row's scorer, with ``{task}`` in place of the task where its weights never saw that task."""
    scorer = str(row["scorer"])
    if _left_out(row) != task_name(row):
        return scorer
    slot = f"-without-{TASK_SLOT}.safetensors"
    return WEIGHTS.sub(lambda found: LEFT_OUT.sub(slot, found[0]), scorer)


def trained_of(row: Row) -> str:
    """What a scorer's weights were trained for as far as their name tells; nothing of scorers that have none.

    >>> row = {"task": "vt", "cell": 0, "scorer": "probe weights=probe-without-vt.safetensors"}
    >>> trained_of(row), trained_of({**row, "task": "cwe"}), trained_of({**row, "scorer": "tail"})
    ('this task left out', 'only vt left out', '')
    >>> trained_of({**row, "scorer": "probe weights=probe-without-vt-hops=2.safetensors"})
    'this task left out'
    """
    if row["cell"] < 0:
        return ""
    if not WEIGHTS.search(str(row["scorer"])):
        return (
            "embedded weights"
            if "weights" in getattr(scorer_class(str(row["scorer"])), "__dataclass_fields__", ())
            else ""
        )
    out, name = _left_out(row), task_name(row)
    if out is None:
        return "on tasks unknown"
    mine = out == name or (out.startswith(f"{name}-") and "=" in out)  # a task with options, in the name of a file
    return f"{'this task' if mine else f'only {out}'} left out"


def weights_of(row: Row, files: Mapping[str, str]) -> str:
    """First digits of the SHA-256 of a scorer's weights; empty where it has none, or its record does not say. `files`:
    SHA-256 by path of the files that scorers of the run name."""
    found = WEIGHTS.search(str(row["scorer"]))
    if found is None:
        return files.get(EMBEDDED_WEIGHTS, "")[:8] if trained_of(row) else ""
    return files.get(found["file"], "")[:8]


def _left_out(row: Row) -> str | None:
    """The task that a row's weights never saw, by the name of their file."""
    weights = WEIGHTS.search(str(row["scorer"]))
    found = LEFT_OUT.search(weights["file"]) if weights else None
    return found["task"] if found else None


def _kind_of(row: Row) -> Kind:
    return "full" if row["cell"] < 0 else kind_of(str(row["scorer"]))


TOLD = ("positions", "kv", "seed", "thinking", "reasoning_effort")  # columns that `sp eval tasks` has an option for
ASKED = re.compile(r" (thinking|reasoning_effort)=\S+")  # in a task's name in a sweep; it is told by their columns
SILENT = ("mapping", "mark_omitted", "state_gaps")  # columns that it has none for
DEFAULTS = {field.name: field.default for field in fields(RunOptions)} | {"thinking": None, "reasoning_effort": None}
ROTATED = {True: "--rotate", False: "--no-rotate"}


def bracketed(label: str) -> str | None:
    """A name with options as the command line takes it; None where a value cannot be said there.

    >>> bracketed("tail queries=24 pool=5"), bracketed("oracle"), bracketed("needle depth=None")
    ('tail[queries=24 pool=5]', 'oracle', 'needle[depth=null]')
    >>> bracketed("layer_subset layers=(1, 2)") is None
    True
    """
    name, *options = re.split(r" (?=\w+=)", label)
    said = [re.sub(r"=None$", "=null", option) for option in options]
    if any(re.search(r"[\s\]\[]", option) for option in said):
        return None
    return f"{name}[{' '.join(said)}]" if said else name


def command_of(row: Row, tasks: Sequence[str], n: int, models: Mapping[str, Mapping[str, Any]], sweep: str = "") -> str:
    """A line for the shell: `sp eval tasks` with what any row of a group names, for `tasks` of one length and `n`
    examples each, with the `models` by role; or the sweep where that has no words for it; empty where neither can say
    it, on one line."""
    full = row["cell"] < 0  # any strategy has the full prefill beside it; this one costs least
    scorer, selector = ("random", "top_chunks") if full else (bracketed(row["scorer"]), bracketed(row["selector"]))
    names = [bracketed(ASKED.sub("", task)) for task in tasks]
    unsaid = not full and (
        any(row.get(name, DEFAULTS[name]) != DEFAULTS[name] for name in SILENT)
        or row.get("decode", "greedy") != "greedy"
    )
    if unsaid or "asked_depth" in row or scorer is None or selector is None or None in names:
        only = f"{tasks[0]}/{row['tokens_asked']}/*" if len(tasks) == 1 else f"*/{row['tokens_asked']}/*"
        return one_line(["sp", "sweep", f"{sweep}.yaml", "--only", only]) if sweep else ""
    words = ["sp", "eval", "tasks", "-t", ",".join(map(str, names)), "-p", str(row["tokens_asked"]), "-n", str(n)]
    words += ["--scorer", scorer]
    words += [] if selector == "top_chunks" else ["--selector", selector]
    words += ["--keep-ratio", "0.05" if full else f"{row['keep_ratio']:g}", "--no-controls"]
    for name in () if full else TOLD:
        if row.get(name, DEFAULTS[name]) != DEFAULTS[name]:
            words += [f"--{name.replace('_', '-')}", str(row[name])]
    rotated = None if full else row.get("rotate")
    if rotated is not None and rotated != rotates(row.get("kv", DEFAULTS["kv"]), None):
        words.append(ROTATED[rotated])
    for role in ("target", "drafter"):
        if role in models and models[role]["sha256"] != files_sha256([embedded(role)]):
            words += [f"--{role}", models[role]["file"]]
        if role in models and "rope" in models[role]:
            words += [f"--{role}-rope", models[role]["rope"]]
    return one_line(words)


def one_line(words: Sequence[str]) -> str:
    """Words for the shell; empty if one of them holds a control character, which names of ours never do."""
    return "" if any(not word.isprintable() for word in words) else shlex.join(words)


UNKNOWN = "models unknown"
Interval = tuple[float, float, float]  # mean difference of paired examples, and its 95 % interval by bootstrap


@dataclass(frozen=True)
class Entry:
    """One line of the leaderboard. `accuracy`, `low`, `high`: share of right answers with Wilson's 95 % interval; None
    where no example was read; `against_...`: accuracy minus that of others on the same examples."""

    pair: str  # names and SHA-256 of the models, the key under which entries compare
    task: str  # task, scorer: with the options that are not their defaults
    tokens: int  # length asked for
    keep: float | None  # keep ratio; None for the full prefill
    scorer: str
    kind: Kind
    trained: str  # what the scorer's weights never saw; empty where it has none
    weights: str  # first digits of the SHA-256 of these weights, where they came from a file
    n: int  # n, not_run: examples that were read, and those that could not be
    not_run: int
    accuracy: float | None
    low: float | None
    high: float | None
    against_full: Interval | None
    against_oracle: Interval | None
    oracle: str  # that oracle
    evidence: float | None  # share of examples of which every token of the answers was kept
    command: str  # makes the entry anew; empty where there is no such line
    row: Row = field(repr=False)  # one of its rows


@dataclass(frozen=True)
class Board:
    """All entries, in the order they are shown. By pair: `pairs`, what is told of it besides its name, `models` by
    role, and `sweeps`, the name of one its rows are from; `facts`: machines, commits, dates of the records."""

    entries: tuple[Entry, ...]
    pairs: Mapping[str, str]
    facts: Mapping[str, str]
    models: Mapping[str, Mapping[str, Mapping[str, Any]]]
    sweeps: Mapping[str, str]

    def of(self, pair: str) -> list[Entry]:
        """Entries of a pair."""
        return [entry for entry in self.entries if entry.pair == pair]


@dataclass(frozen=True)
class Told:
    """A row with what its record knows besides: models by role, SHA-256 by path of the `files` that its run's scorers
    name, its sweep, and the file it is from, which tells pairs apart whose models are not known."""

    row: Row
    models: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, str] = field(default_factory=dict)
    sweep: str = ""
    origin: str = ""


@dataclass
class _Group:
    """Rows of one entry by example, so that one that was measured twice counts once."""

    last: Told
    rows: dict[str, Row] = field(default_factory=dict)

    def right(self) -> dict[str, float]:
        """Whether each example that was read was answered right."""
        return {name: float(row["correct"]) for name, row in self.rows.items() if row["status"] == "ok"}


def read_board(paths: Sequence[Path]) -> Board:
    """The leaderboard of the records of `sp sweep`, `sp eval discriminates` and `sp eval --out` below paths.
    ConfigError: a path is missing or holds something else, or there is no row."""
    sources = find_sources(paths)
    results = read_results(sources.results).checked()
    told = []
    for run, closing in results.runs.items():
        config, sweep = closing["config"], str(results.sessions[closing["session"]]["sweep"])
        told += [Told(row, closing["models"], config.get("files", {}), sweep) for row in results.rows[run]]
    for path in sources.evals:
        told += [Told(row, row.get("models") or {}, origin=str(path)) for row in read_rows(path)]
    if not told:
        raise ConfigError(f"{', '.join(map(str, paths))}: no finished run in it; run sp sweep or sp eval first")
    used = {closing["session"] for closing in results.runs.values()}
    facts = session_facts([line for name, line in results.sessions.items() if name in used])
    facts.pop("driver", None)
    return make_board(told, facts)


def pair_name(models: Mapping[str, Mapping[str, Any]]) -> str:
    """Both models by name and SHA-256, which tell pairs apart that share their names; empty where none is known.

    >>> pair_name({role: {"file": f"{role}.gguf", "sha256": "01" * 32} for role in ("drafter", "target")})
    'target.gguf (010101010101) with drafter.gguf (010101010101)'
    """
    roles = [role for role in ("target", "drafter", "draft") if role in models]
    shown = [
        " ".join([models[role]["file"], f"({models[role]['sha256'][:12]})", *filter(None, [models[role].get("rope")])])
        for role in roles
    ]
    return " with ".join(shown)


def make_board(told: Iterable[Told], facts: Mapping[str, str]) -> Board:
    """Group rows, the later of one example in one cell in place of the earlier, and summarise the groups."""
    listed = list(told)
    selectors = sorted({str(one.row["selector"]) for one in listed if one.row["cell"] >= 0})
    several = len(selectors) > 1
    groups: dict[tuple[Any, ...], _Group] = {}
    models: dict[str, Mapping[str, Mapping[str, Any]]] = {}
    sweeps: dict[str, str] = {}
    for one in listed:
        row, pair = one.row, pair_name(one.models) or f"{UNKNOWN} ({one.origin})"
        models[pair] = one.models
        sweeps[pair] = one.sweep
        keep = None if row["cell"] < 0 else row["keep_ratio"]
        weights = weights_of(row, one.files)
        name = strategy_name({**row, "scorer": slotted(row), "pair": None}, several)
        key = pair, task_label(row), row["tokens_asked"], keep, name, weights
        group = groups.setdefault(key, _Group(one))
        group.rows[row["example"]] = row
    places: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for key in groups:
        places[key[:3]].append(key)
    entries = [entry for keys in places.values() for entry in _entries(keys, groups)]
    order = sorted(entries, key=_order)
    told_facts = {**facts, **({} if several or not selectors else {"selector": selectors[0]})}
    drafters = {pair: [found["drafter"]] if "drafter" in found else [] for pair, found in models.items()}
    notes = {pair: note_of_records(drafters[pair]) for pair in sorted(models)}
    return Board(tuple(order), notes, told_facts, models, sweeps)


def _order(entry: Entry) -> tuple[Any, ...]:
    keep = entry.keep if entry.keep is not None else 0.0
    kind = KINDS.index(entry.kind)
    return entry.pair, entry.tokens, keep, entry.task, kind, strategy_order(entry.scorer), entry.weights


def _entries(keys: Sequence[tuple[Any, ...]], groups: Mapping[tuple[Any, ...], _Group]) -> Iterable[Entry]:
    """Entries of one pair, task and length, each beside the full prefill and the oracles of its keep ratio."""
    right = {key: groups[key].right() for key in keys}
    full = next((right[key] for key in keys if key[3] is None), {})
    for key in keys:
        group, mine = groups[key], right[key]
        oracles = {
            other: right[other] for other in keys if other[3] == key[3] and _kind_of(groups[other].last.row) == "oracle"
        }
        best = best_oracle(mine, oracles)
        low, high = wilson(int(sum(mine.values())), len(mine)) if mine else (None, None)
        row, pair, keep = group.last.row, key[0], key[3]
        evidence = [bool(each["given_kept"]) for each in group.rows.values() if each.get("given_kept") is not None]
        yield Entry(
            pair=pair,
            task=key[1],
            tokens=key[2],
            keep=keep,
            scorer=key[4],
            kind=_kind_of(row),
            trained=trained_of(row),
            weights=key[5],
            n=len(mine),
            not_run=len(group.rows) - len(mine),
            accuracy=sum(mine.values()) / len(mine) if mine else None,
            low=low,
            high=high,
            against_full=None if keep is None else against(mine, full),
            against_oracle=against(mine, oracles[best]) if best is not None else None,
            oracle="" if best is None else best[4],
            evidence=sum(evidence) / len(evidence) if evidence and keep is not None else None,
            command=command_of(row, [key[1]], len(group.rows), group.last.models, group.last.sweep),
            row=row,
        )


def best_oracle(mine: Mapping[str, float], oracles: Mapping[Any, Mapping[str, float]]) -> Any:
    """Key of the most accurate oracle: of those that read all of the examples, or else of all; None without any.

    >>> best_oracle({"a": 0, "b": 1}, {"few": {"a": 1}, "all": {"a": 0, "b": 1}, "none": {}})
    'all'
    """
    ran = {key: found for key, found in oracles.items() if found}
    wide = {key: found for key, found in ran.items() if mine.keys() <= found.keys()} or ran
    return max(wide, key=lambda key: (sum(wide[key].values()) / len(wide[key]), len(wide[key])), default=None)


def against(mine: Mapping[str, float], others: Mapping[str, float]) -> Interval | None:
    """Mean difference on the examples that both read; None where there is none."""
    shared = sorted(mine.keys() & others.keys())
    if not shared:
        return None
    return paired_difference([mine[one] for one in shared], [others[one] for one in shared])
