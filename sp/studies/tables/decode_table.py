"""Tables of `decode` and `verify` records: acceptance and speed by budget, acceptance by task, parts of a round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sp.bench.decode import REAL
from sp.bench.simulate import SIMULATED
from sp.kernels.machine import machine_slug
from sp.studies.tables.lookup import Record, age, markdown

TableParts = tuple[str, list[str], list[list[str]], int]  # title, heads, cells, number of text columns

NOTHING = "No decoding with a draft is recorded yet; `sp bench decode --record results` makes such records."
SETTING = ("context", "kv", "path")
"""Keys of a configuration on which acceptance and speed depend: records that differ in one are not comparable."""
SHOWN = (4, 8, 15, 22, 63)  # budgets on a page; pictures have all


def row_of(record: Record) -> dict[str, Any]:
    """Return a flat row of a record: configuration, metrics, and acceptance by task."""
    metrics = record["metrics"]
    flat = {name: value for name, value in metrics.items() if name != "by_task"}
    by_task = metrics.get("by_task", {})
    return {**record["config"], **flat, **{f"acceptance: {t}": m["acceptance_length"] for t, m in by_task.items()}}


def of_decoding(records: Sequence[Record]) -> list[Record]:
    """Return the `decode` records of speculative runs, which have a `mode`; others only time greedy decoding."""
    return [r for r in records if r.get("bench") == "decode" and "mode" in r["config"]]


def decode_tables(records: Sequence[Record], budgets: Sequence[int] | None = None) -> Iterator[TableParts]:
    """Return the tables of `decode` and `verify` records by pair; other records are ignored.

    Real and simulated acceptance have tables of their own. `budgets` are the rows to include, by default all.
    """
    groups: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in [*of_decoding(records), *(r for r in records if r.get("bench") == "verify")]:
        config = record["config"]
        if budgets is None or config.get("budget", 0) in (0, *budgets):
            groups[machine_slug(record), *(config[name] for name in ("model", "draft", *SETTING))].append(record)
    for group in groups.values():
        modes = defaultdict(list)
        for record in group:
            modes[record["config"].get("mode", "round")].append(record)
        if REAL in modes:
            yield _speeds([*modes["greedy"], *modes[REAL]], "Real acceptance.")
            yield _by_task(modes[REAL])
        if SIMULATED in modes:
            introduction = f"Speed with {SIMULATED}: draft and target passes were run."
            yield _speeds([*modes["greedy"], *modes[SIMULATED]], introduction)
        if "round" in modes:
            yield _rounds(modes["round"])


def decoding(records: Sequence[Record]) -> str:
    """Return the tables as Markdown, with the budgets in `SHOWN`."""
    parts = []
    for title, heads, cells, text_columns in decode_tables(records, SHOWN):
        parts.append(f"{title}\n\n{markdown(heads, cells, text_columns)}")
    return "\n\n".join(parts) or NOTHING


def _pair(record: Record) -> str:
    config = record["config"]
    where = record.get("gpu") or record["cpu"]
    return (
        f"{config['model']} with {config['draft']}; {config['context']:,} tokens of context, KV {config['kv']}, "
        f"path {config['path']}, {where}."
    )


def _speeds(records: Sequence[Record], introduction: str) -> TableParts:
    simulated = records[-1]["config"]["mode"] == SIMULATED
    heads = ["method", "draft tokens", *([SIMULATED] if simulated else [])]
    text_columns = len(heads)
    heads += ["tokens per pass", "passes", "tok/s", "against greedy", "ms per pass"]
    heads += [] if simulated else ["answers equal to greedy"]
    title = f"{introduction} {_pair(records[-1])} In parentheses 95 % bootstrap intervals."
    return title, heads, [_speed(r, simulated) for r in sorted(records, key=_place)], text_columns


def _place(record: Record) -> tuple[bool, str, int, str]:
    """Return a sort key: greedy decoding first, then methods by increasing budget."""
    config = record["config"]
    method: str = config["method"]
    return method != "greedy", method, config.get("budget", 0), config.get("acceptance", "")


def _speed(record: Record, simulated: bool) -> list[str]:
    config, m = record["config"], record["metrics"]
    greedy = config["method"] == "greedy"
    cells = [config["method"], "" if greedy else str(config["budget"])]
    cells += [config.get("acceptance", "")] if simulated else []
    length = "1" if greedy else with_interval(m, "acceptance_length", "acceptance_low", "acceptance_high", ".2f")
    rate = f"{with_interval(m, 'tok_s', 'tok_s_low', 'tok_s_high', '.1f')}{age(record)}"
    cells += [length, f"{m['passes']:,}", rate]
    cells += [f"{m['speedup']:.2f}x", f"{m['pass_ms']:.2f}"]
    return cells if simulated else [*cells, f"{m['equal']} of {m['answers']}"]


def _by_task(records: Sequence[Record]) -> TableParts:
    tasks = {task: m["answers"] for r in records for task, m in r["metrics"]["by_task"].items()}
    cells = []
    for record in records:
        by_task = record["metrics"]["by_task"]
        names = "acceptance_length", "acceptance_low", "acceptance_high"
        lengths = [with_interval(by_task[task], *names, ".2f") if task in by_task else "" for task in tasks]
        cells.append([record["config"]["method"], str(record["config"]["budget"]), *lengths])
    heads = ["method", "draft tokens", *(f"{task} (n = {n})" for task, n in tasks.items())]
    return "Tokens per pass by task, real acceptance; n answers.", heads, cells, 2


def _rounds(records: Sequence[Record]) -> TableParts:
    heads = ["pass", "nodes", "pass (ms)", "in greedy steps", "greedy step (ms)", "draft step (ms)", "keep (ms)"]
    heads += ["tree on the host (ms)", "samples"]
    cells = []
    for record in sorted(records, key=lambda r: int(r["config"]["nodes"])):
        m, config = record["metrics"], record["config"]
        times = [f"{m[name]:.3f}" for name in ("decode_ms", "draft_ms", "keep_ms", "propose_ms")]
        line = [
            config["pass"],
            str(config["nodes"]),
            f"{m['ms']:.3f}{age(record)}",
            f"{m['ratio_to_decode']:.2f}x",
            *times,
        ]
        cells.append([*line, str(len(record["samples"]))])
    return f"Parts of a round, medians. {_pair(records[0])}", heads, cells, 1


def with_interval(metrics: Mapping[str, Any], name: str, low: str, high: str, form: str) -> str:
    """Format a metric with its interval."""
    return f"{metrics[name]:{form}} ({metrics[low]:{form}} to {metrics[high]:{form}})"
