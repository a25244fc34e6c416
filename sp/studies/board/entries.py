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

KINDS: tuple[Kind, ...] = ("full", "scorer", "oracle", "control")  # in the order of the leaderboard

WEIGHTS = re.compile(r"\bweights=(?P<file>\S+)")
LEFT_OUT = re.compile(r"-without-(?P<task>[^/]+)\.safetensors$")
"""End of the name of weights that were trained without a task: ``probe-without-needle.safetensors``."""


def task_name(row: Row) -> str:
    """Return the registered name of a row's task, without options."""
    return str(row["task"]).partition(" ")[0]


def task_label(row: Row) -> str:
    """Return a row's task with its options and thinking mode, as far as they differ from the defaults.

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
    """Return the row's scorer; the name of weights trained without the row's task has ``{task}`` in place of it."""
    scorer = str(row["scorer"])
    if _left_out(row) != task_name(row):
        return scorer
    slot = f"-without-{TASK_SLOT}.safetensors"
    return WEIGHTS.sub(lambda match: LEFT_OUT.sub(slot, match[0]), scorer)


def trained_of(row: Row) -> str:
    """Return the tasks that a scorer's weights were trained without, from their file's name; empty without weights.

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
    untrained, name = _left_out(row), task_name(row)
    if untrained is None:
        return "on tasks unknown"
    is_this_task = untrained == name or (
        untrained.startswith(f"{name}-") and "=" in untrained
    )  # a task with options, in the name of a file
    return f"{'this task' if is_this_task else f'only {untrained}'} left out"


def weights_of(row: Row, files: Mapping[str, str]) -> str:
    """Return the first digits of the SHA-256 of a scorer's weights; empty without weights, or if it is not recorded.

    `files`: SHA-256 by path of the files in the options of the run's scorers.
    """
    match = WEIGHTS.search(str(row["scorer"]))
    if match is None:
        return files.get(EMBEDDED_WEIGHTS, "")[:8] if trained_of(row) else ""
    return files.get(match["file"], "")[:8]


def _left_out(row: Row) -> str | None:
    """Return the task that a row's weights were trained without, from their file's name; None if it names none."""
    weights = WEIGHTS.search(str(row["scorer"]))
    ending = LEFT_OUT.search(weights["file"]) if weights else None
    return ending["task"] if ending else None


def _kind_of(row: Row) -> Kind:
    return "full" if row["cell"] < 0 else kind_of(str(row["scorer"]))


WITH_OPTION = ("positions", "kv", "seed", "thinking", "reasoning_effort")  # columns with an option of `sp eval tasks`
WITHOUT_OPTION = ("mapping", "mark_omitted", "state_gaps", "target_sparse")  # columns that it has no option for
THINKING = re.compile(r" (thinking|reasoning_effort)=\S+")  # in a task's name in a sweep; the columns have it, too
DEFAULTS = {field.name: field.default for field in fields(RunOptions)} | {"thinking": None, "reasoning_effort": None}
ROTATED = {True: "--rotate", False: "--no-rotate"}


def bracketed(label: str) -> str | None:
    """Return a name with options as the command line takes it; None if a value cannot be written there.

    >>> bracketed("tail queries=24 pool=5"), bracketed("oracle"), bracketed("needle depth=None")
    ('tail[queries=24 pool=5]', 'oracle', 'needle[depth=null]')
    >>> bracketed("layer_subset layers=(1, 2)") is None
    True
    """
    name, *options = re.split(r" (?=\w+=)", label)
    texts = [re.sub(r"=None$", "=null", option) for option in options]
    if any(re.search(r"[\s\]\[]", option) for option in texts):
        return None
    return f"{name}[{' '.join(texts)}]" if texts else name


def command_of(row: Row, tasks: Sequence[str], n: int, models: Mapping[str, Mapping[str, Any]], sweep: str = "") -> str:
    """Return a shell command that repeats rows of one length: `sp eval tasks`, with the options of `row`.

    `tasks` have `n` examples each, and `models` are by role. If `sp eval tasks` has no option for a setting of the
    row, the command is `sp sweep` with the file of the `sweep`; it is empty if there is none, or a name has control
    characters.
    """
    full = row["cell"] < 0  # every evaluation includes the full prefill; the random scorer costs least
    scorer, selector = ("random", "top_chunks") if full else (bracketed(row["scorer"]), bracketed(row["selector"]))
    names = [bracketed(THINKING.sub("", task)) for task in tasks]
    has_no_option = not full and (
        any(row.get(name, DEFAULTS[name]) != DEFAULTS[name] for name in WITHOUT_OPTION)
        or row.get("decode", "greedy") != "greedy"
    )
    if has_no_option or "asked_depth" in row or scorer is None or selector is None or None in names:
        only = f"{tasks[0]}/{row['tokens_asked']}/*" if len(tasks) == 1 else f"*/{row['tokens_asked']}/*"
        return one_line(["sp", "sweep", f"{sweep}.yaml", "--only", only]) if sweep else ""
    words = ["sp", "eval", "tasks", "-t", ",".join(map(str, names)), "-p", str(row["tokens_asked"]), "-n", str(n)]
    words += ["--scorer", scorer]
    words += [] if selector == "top_chunks" else ["--selector", selector]
    words += ["--keep-ratio", "0.05" if full else f"{row['keep_ratio']:g}", "--no-controls"]
    roles = [role for role in ("target", "drafter") if role in models]
    own = {role for role in roles if models[role]["sha256"] != files_sha256([embedded(role)])}
    # The embedded target has no windows, so its positions are original by default; those of others are not known here.
    defaults = DEFAULTS if "target" in own else DEFAULTS | {"positions": "original"}
    for name in () if full else WITH_OPTION:
        if row.get(name, defaults[name]) != defaults[name]:
            words += [f"--{name.replace('_', '-')}", str(row[name])]
    rotated = None if full else row.get("rotate")
    if rotated is not None and rotated != rotates(row.get("kv", DEFAULTS["kv"]), None):
        words.append(ROTATED[rotated])
    for role in roles:
        if role in own:
            words += [f"--{role}", models[role]["file"]]
        if "rope" in models[role]:
            words += [f"--{role}-rope", models[role]["rope"]]
    return one_line(words)


def one_line(words: Sequence[str]) -> str:
    """Return words quoted for the shell; empty if one has a control character, which could end the line."""
    return "" if any(not word.isprintable() for word in words) else shlex.join(words)


UNKNOWN = "models unknown"
Interval = tuple[float, float, float]  # mean difference of paired examples, and its 95 % interval by bootstrap


@dataclass(frozen=True)
class BoardEntry:
    """A line of the leaderboard.

    `accuracy`, `low`, `high` are the share of correct answers with Wilson's 95 % interval, None if no example was
    read; `against_...` is the accuracy minus that of others on the same examples.
    """

    pair: str  # names and SHA-256 of the models; entries compare only within a pair
    task: str  # task and scorer have the options that differ from the defaults
    tokens: int  # nominal length of the prompts
    keep: float | None  # keep ratio; None for the full prefill
    scorer: str
    kind: Kind
    trained: str  # tasks that the scorer's weights were trained without; empty without weights
    weights: str  # first digits of the SHA-256 of these weights, if they came from a file
    n: int  # examples that were read
    not_run: int  # examples that could not be read
    accuracy: float | None
    low: float | None
    high: float | None
    against_full: Interval | None
    against_oracle: Interval | None
    oracle: str  # name of the best oracle
    evidence: float | None  # share of examples in which every token of the answers was selected
    command: str  # shell command that repeats the entry; empty if there is none
    row: Row = field(repr=False)  # one of its rows


@dataclass(frozen=True)
class Board:
    """All entries of the leaderboard, in its order.

    Attributes
    ----------
    entries : tuple of BoardEntry
    pairs : mapping
        Note on the training of the drafter by pair; may be empty.
    facts : mapping
        Machines, commits and dates of the records.
    models : mapping
        Facts of the models by pair and role.
    sweeps : mapping
        Name of a sweep that has rows of a pair, by pair.
    """

    entries: tuple[BoardEntry, ...]
    pairs: Mapping[str, str]
    facts: Mapping[str, str]
    models: Mapping[str, Mapping[str, Mapping[str, Any]]]
    sweeps: Mapping[str, str]

    def of(self, pair: str) -> list[BoardEntry]:
        """Return the entries of a pair."""
        return [entry for entry in self.entries if entry.pair == pair]


@dataclass(frozen=True)
class BoardRow:
    """A row with its source.

    `models` are by role; `files` has the SHA-256 by path of files in the options of its run's scorers; `origin` is the
    file of the row, which distinguishes pairs whose models are unknown.
    """

    row: Row
    models: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, str] = field(default_factory=dict)
    sweep: str = ""
    origin: str = ""


@dataclass
class _Group:
    """Rows of one entry by example, so that an example that was measured twice counts once."""

    last: BoardRow
    rows: dict[str, Row] = field(default_factory=dict)

    def right(self) -> dict[str, float]:
        """Return 1.0 or 0.0 by example, for a correct or wrong answer; examples that were not read are omitted."""
        return {name: float(row["correct"]) for name, row in self.rows.items() if row["status"] == "ok"}


def read_board(paths: Sequence[Path]) -> Board:
    """Read the records of `sp sweep`, `sp eval discriminates` and `sp eval --out` below paths into a leaderboard.

    Raises ConfigError if a path is missing or has other files, or there is no row.
    """
    sources = find_sources(paths)
    results = read_results(sources.results).checked()
    board_rows = []
    for run, closing in results.runs.items():
        config, sweep = closing["config"], str(results.sessions[closing["session"]]["sweep"])
        board_rows += [BoardRow(row, closing["models"], config.get("files", {}), sweep) for row in results.rows[run]]
    for path in sources.evals:
        board_rows += [BoardRow(row, row.get("models") or {}, origin=str(path)) for row in read_rows(path)]
    if not board_rows:
        raise ConfigError(f"{', '.join(map(str, paths))}: there is no finished run; run sp sweep or sp eval first")
    used = {closing["session"] for closing in results.runs.values()}
    facts = session_facts([line for name, line in results.sessions.items() if name in used])
    facts.pop("driver", None)
    return make_board(board_rows, facts)


def pair_name(models: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the models by name and SHA-256, as different files may share a name; empty if none is known.

    >>> pair_name({role: {"file": f"{role}.gguf", "sha256": "01" * 32} for role in ("drafter", "target")})
    'target.gguf (010101010101) with drafter.gguf (010101010101)'
    """
    roles = [role for role in ("target", "drafter", "draft") if role in models]
    names = [
        " ".join([models[role]["file"], f"({models[role]['sha256'][:12]})", *filter(None, [models[role].get("rope")])])
        for role in roles
    ]
    return " with ".join(names)


def make_board(board_rows: Iterable[BoardRow], facts: Mapping[str, str]) -> Board:
    """Group rows and summarise the groups; of two rows of an example in a cell the later one counts."""
    all_rows = list(board_rows)
    # A selector that all rows share is a fact of the board, and no part of the strategies' names.
    selectors = sorted({str(source.row["selector"]) for source in all_rows if source.row["cell"] >= 0})
    several = len(selectors) > 1
    groups: dict[tuple[Any, ...], _Group] = {}
    models: dict[str, Mapping[str, Mapping[str, Any]]] = {}
    sweeps: dict[str, str] = {}
    for source in all_rows:
        row, pair = source.row, pair_name(source.models) or f"{UNKNOWN} ({source.origin})"
        models[pair] = source.models
        sweeps[pair] = source.sweep
        keep = None if row["cell"] < 0 else row["keep_ratio"]
        weights = weights_of(row, source.files)
        # The pair is part of the key already, and scorers whose weights left out their own task share a line.
        name = strategy_name({**row, "scorer": slotted(row), "pair": None}, several)
        key = pair, task_label(row), row["tokens_asked"], keep, name, weights
        group = groups.setdefault(key, _Group(source))
        group.rows[row["example"]] = row
    # Only entries of the same pair, task and length, the first three of a key, are compared.
    places: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for key in groups:
        places[key[:3]].append(key)
    entries = [entry for keys in places.values() for entry in _entries(keys, groups)]
    order = sorted(entries, key=_order)
    board_facts = {**facts, **({} if several or not selectors else {"selector": selectors[0]})}
    drafters = {pair: [roles["drafter"]] if "drafter" in roles else [] for pair, roles in models.items()}
    notes = {pair: note_of_records(drafters[pair]) for pair in sorted(models)}
    return Board(tuple(order), notes, board_facts, models, sweeps)


def _order(entry: BoardEntry) -> tuple[Any, ...]:
    keep = entry.keep if entry.keep is not None else 0.0
    kind = KINDS.index(entry.kind)
    return entry.pair, entry.tokens, keep, entry.task, kind, strategy_order(entry.scorer), entry.weights


def _entries(keys: Sequence[tuple[Any, ...]], groups: Mapping[tuple[Any, ...], _Group]) -> Iterable[BoardEntry]:
    """Return the entries of one pair, task and length, compared with the full prefill and the oracles."""
    right = {key: groups[key].right() for key in keys}
    full = next((right[key] for key in keys if key[3] is None), {})  # key[3] is the keep ratio
    for key in keys:
        group, own = groups[key], right[key]
        oracles = {
            other: right[other] for other in keys if other[3] == key[3] and _kind_of(groups[other].last.row) == "oracle"
        }
        best = best_oracle(own, oracles)
        low, high = wilson(int(sum(own.values())), len(own)) if own else (None, None)
        row, pair, keep = group.last.row, key[0], key[3]
        evidence = [bool(r["given_kept"]) for r in group.rows.values() if r.get("given_kept") is not None]
        yield BoardEntry(
            pair=pair,
            task=key[1],
            tokens=key[2],
            keep=keep,
            scorer=key[4],
            kind=_kind_of(row),
            trained=trained_of(row),
            weights=key[5],
            n=len(own),
            not_run=len(group.rows) - len(own),
            accuracy=sum(own.values()) / len(own) if own else None,
            low=low,
            high=high,
            against_full=None if keep is None else against(own, full),
            against_oracle=against(own, oracles[best]) if best is not None else None,
            oracle="" if best is None else best[4],
            evidence=sum(evidence) / len(evidence) if evidence and keep is not None else None,
            command=command_of(row, [key[1]], len(group.rows), group.last.models, group.last.sweep),
            row=row,
        )


def best_oracle(scores: Mapping[str, float], oracles: Mapping[Any, Mapping[str, float]]) -> Any:
    """Return the key of the most accurate oracle, preferably among those that read all examples; None without any.

    >>> best_oracle({"a": 0, "b": 1}, {"few": {"a": 1}, "all": {"a": 0, "b": 1}, "none": {}})
    'all'
    """
    ran = {key: answers for key, answers in oracles.items() if answers}
    wide = {key: answers for key, answers in ran.items() if scores.keys() <= answers.keys()} or ran
    return max(wide, key=lambda key: (sum(wide[key].values()) / len(wide[key]), len(wide[key])), default=None)


def against(scores: Mapping[str, float], others: Mapping[str, float]) -> Interval | None:
    """Return the mean difference on the examples that both read, with its interval; None if there are none."""
    shared = sorted(scores.keys() & others.keys())
    if not shared:
        return None
    return paired_difference([scores[example] for example in shared], [others[example] for example in shared])
