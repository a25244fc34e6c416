"""The headline table: time to first token of long prompts, next to the full prefill and llama.cpp."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sp.bench.llama_cpp import best_peer
from sp.kernels.machine import machine_slug
from sp.scoring.base import attending
from sp.session.device_memory import parse_bytes
from sp.session.measured import (
    PLAIN_PRECISIONS,
    BreakEven,
    gpus_of,
    measured_break_evens,
    precisions_of,
    precisions_text,
    target_alone,
)
from sp.studies.sweep.cells import is_control
from sp.studies.tables.lookup import GIB, Record, age, markdown

KEEP = 0.05
SHORTEST = 32768
NOTHING = "No times to first token are recorded yet; `sp bench ttft --record results` makes them."


def headline(records: Iterable[Record]) -> str:
    """Return Markdown tables of the newest `ttft` records on one GPU, by machine, target and drafter.

    They have prompts of 32K tokens and more: full prefills, ours and llama.cpp's best, compressed ones at keep ratio
    0.05 by density and memory limit, and controls. Below them are break-evens of all lengths, and the time that
    `sp serve` adds, from `serve_load` records.
    """
    groups: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
    served: dict[str, dict[str, Record]] = defaultdict(dict)
    peers: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        # A later record of a configuration replaces earlier ones.
        key = json.dumps(record.get("config"), sort_keys=True)
        if record.get("bench") == "ttft" and max(gpus_of(record["config"])) == 1:
            groups[machine_slug(record), record["config"]["target"]][key] = record
        elif record.get("bench") == "serve_load":
            served[machine_slug(record)][key] = record
        elif record.get("bench") == "prefill":
            peers[machine_slug(record)][key] = record
    parts = []
    for machine in sorted({machine for machine, _ in groups}):
        by_target = {target: group for (where, target), group in groups.items() if where == machine}
        tables = []
        for target, group in sorted(by_target.items(), key=lambda item: (-len(item[1]), item[0])):
            target_peers = [r for r in peers[machine].values() if _has_target(r, target)]
            for of_drafter in by_drafter(list(group.values())):
                if table := _table([r for r in of_drafter if r["config"]["prompt_tokens"] >= SHORTEST], target_peers):
                    tables += [table, _break_evens(of_drafter)]
        parts += [*tables, _server(list(served[machine].values()))] if tables else []
    return "\n\n".join(part for part in parts if part) or NOTHING


def by_drafter(records: Sequence[Record]) -> list[list[Record]]:
    """Group the records of a target by drafter, the drafter with the most records first.

    The first list also has all records without a drafter. The others have the full prefills of the same process (None
    if it is not recorded) and length.

    >>> records = [{"config": {"drafter": one, "prompt_tokens": 9, "keep_ratio": 1 if one is None else 0.1},
    ...             "metrics": {}} for one in (None, "a", "b", "b")]
    >>> [[r["config"]["drafter"] for r in some] for some in by_drafter(records)]
    [[None, 'b', 'b'], [None, 'a']]
    """
    by_name: dict[str, list[Record]] = defaultdict(list)
    without_drafter = [r for r in records if not r["config"]["drafter"]]
    for record in records:
        if record["config"]["drafter"]:
            by_name[record["config"]["drafter"]].append(record)

    def run_of(record: Record) -> tuple[Any, int]:
        return record["metrics"].get("process"), _tokens(record)

    ordered = sorted(by_name.items(), key=lambda item: (-len(item[1]), item[0]))
    tables = [[*without_drafter, *own] for _, own in ordered[:1]] or [without_drafter]
    for _, own in ordered[1:]:
        runs = set(map(run_of, own))
        tables.append([*(r for r in without_drafter if r["config"]["keep_ratio"] == 1 and run_of(r) in runs), *own])
    return tables


def _has_target(record: Record, target: str) -> bool:
    """Return True if a `prefill` record is of a target: of its file, or of random weights of its shape and type."""
    config = record["config"]
    return target in (config["model"], f"{config['shape']}-{config['type']}.synthetic")


def _table(records: Sequence[Record], peers: Sequence[Record]) -> str:
    """Return the table of one machine and target; empty if none of our requests was timed."""
    timed = [r for r in records if r["config"]["keep_ratio"] in (KEEP, 1.0) and r["metrics"].get("ttft_s")]
    if not timed:
        return ""
    heads = ["prompt tokens", "system", "memory limit", "first token after (s)", "first request (s)"]
    heads += ["against llama.cpp", "against our full prefill", "peak memory (GiB)"]
    lines = []
    for tokens in sorted({r["config"]["prompt_tokens"] for r in timed}):
        peer, here = best_peer(peers, tokens), sorted((r for r in timed if _tokens(r) == tokens), key=row_order)
        full = full_by_precision(here)
        llama = tokens / peer["metrics"]["tok_s"] if peer else None  # seconds; its record has a rate
        rows = [] if peer is None else [(_setting(peer["config"]), "", full.get("bf16"), llama, None, None, "")]
        for r in here:
            limit, metrics = r["config"]["vram"] or "none", r["metrics"]
            first, peak = metrics.get("first_ttft_s"), metrics.get("peak_bytes")
            own_full = metrics.get("full_ttft_s")  # of the same run, as rates of separate runs differ
            rows.append((describe(r["config"]), limit, own_full, metrics["ttft_s"], first, peak, age(r)))
        for text, limit, own_full, seconds, first, peak, mark in rows:
            gains = [f"{other / seconds:.1f}x" if other and seconds else "" for other in (llama, own_full)]
            cells = [f"{tokens:,}", text, limit, f"{show_seconds(seconds)}{mark}", show_seconds(first), *gains]
            lines.append([*cells, f"{peak / GIB:.1f}" if peak else ""])
    table = markdown(heads, lines, 3).replace("|---|", "|---:|", 1)  # the first column, the length, is a number
    return f"{table}\n\n{_notes(timed)}"


def _tokens(record: Record) -> int:
    return int(record["config"]["prompt_tokens"])


def _setting(config: Mapping[str, Any]) -> str:
    """Return the name of llama.cpp's row, with its build and the batch sizes at which it was fastest."""
    batches = "" if config["batch"] is None else f", `-b {config['batch']} -ub {config['ubatch']}`"
    return f"llama.cpp, full prefill (build {config['build']}{batches})"


def full_by_precision(records: Sequence[Record]) -> dict[str, float]:
    """Return the seconds of the full prefill of records of one length, by the target's precision."""
    seconds_by_precision: dict[str, float] = {}
    for record in records:
        if seconds := record["metrics"].get("full_ttft_s"):
            seconds_by_precision.setdefault(precisions_of(record["config"])[0], seconds)
    return seconds_by_precision


def row_order(record: Record) -> tuple[bool, bool, str, float, tuple[str, str], float]:
    """Return a sort key: full prefill, then rows of scorers by density and decreasing memory limit, then controls."""
    config = record["config"]
    limit = 0.0 if config["vram"] is None else 1 / parse_bytes(config["vram"])  # no limit first, then large to small
    scorer, density = str(config["scorer"]), float(config["density"] or 0)
    return config["keep_ratio"] < 1, is_control(scorer), scorer, density, precisions_of(config), limit


def _drafter_of(records: Sequence[Record]) -> str:
    """Return the drafter of records that all have the same one or none; empty if none has one."""
    return next((str(r["config"]["drafter"]) for r in records if r["config"]["drafter"]), "")


def describe(config: Mapping[str, Any]) -> str:
    """Return the name of a row: full prefill, a control, or a scorer with its sparse attention."""
    if config["keep_ratio"] == 1:
        return f"`sp`, full prefill{_precision_text(config)}"
    if is_control(config["scorer"]):
        return f"`sp`, keep {config['keep_ratio']:g}, control `{config['scorer']}`{_precision_text(config)}"
    return f"`sp`, keep {config['keep_ratio']:g}, `{config['scorer']}`{_sparse_text(config)}{_precision_text(config)}"


def _precision_text(config: Mapping[str, Any]) -> str:
    """Return the precisions after a comma; empty for BF16."""
    full = config["keep_ratio"] == 1
    text = precisions_text(target_alone(config) if full else config)
    return text and f", {text}"


def _sparse_text(config: Mapping[str, Any]) -> str:
    """Return the rule of the drafter's sparse attention after a comma; empty for dense attention."""
    rule = attending(config)
    return rule and f", {rule}"


def show_seconds(value: float | None) -> str:
    """Format seconds with two decimals below ten, else with one; empty for None."""
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _notes(records: Sequence[Record]) -> str:
    first = records[0]
    drafters = sorted({r["config"]["drafter"] for r in records if r["config"]["drafter"]})
    runs = sorted(len(r["samples"]) for r in records if r["config"]["keep_ratio"] < 1)
    full = sorted(len(r["samples"]) for r in records if r["config"]["keep_ratio"] == 1)
    caches = sorted({r["config"]["kv"] for r in records})
    counted = f"samples of a compressed row: {_range(runs)}, of a full prefill: {_range(full)}"
    sentences = [
        f"{first.get('gpu') or first['cpu']}, target {first['config']['target']}, "
        f"drafter {', '.join(drafters) or 'none'}, KV {', '.join(caches)}.",
        f"Medians; {counted}{_processes(records)}.",
        "The first request of a row is excluded: it may compile kernels and, with a memory limit, offload weights.",
    ]
    for metrics in (r["metrics"] for r in records if r["metrics"].get("cold_ttft_s")):
        compiled = metrics["cold_compiled"]
        kernels = f"with {compiled} kernels to compile" if compiled else "with no kernel to compile"
        sentences.append(f"The first request of a process, {kernels}, took {metrics['cold_ttft_s']:.2f} s.")
    return " ".join([*sentences, *_densities(records)])


def _densities(records: Sequence[Record]) -> list[str]:
    """Return a sentence on the share of attention blocks that the drafter read, by its sparse rule."""
    by_rule: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record["metrics"].get("density") is not None:
            by_rule[_sparse_text(record["config"])].append(record["metrics"]["density"])
    parts: list[str] = []
    for rule, densities in sorted(by_rule.items()):
        bounds = dict.fromkeys(f"{100 * value:.1f}" for value in (min(densities), max(densities)))
        trend = ", more for shorter prompts" if len(bounds) > 1 else ""
        what = "" if parts else " of its attention blocks"  # once is enough
        parts.append(f"{' to '.join(bounds)} %{what}{rule and ' at' + rule[1:]}{trend}")
    return [f"The drafter read {'; '.join(parts)}."] if parts else []


def _processes(records: Sequence[Record]) -> str:
    """Return the number of processes of the records after a comma; empty if some do not record it."""
    processes = {r["metrics"].get("process") for r in records}
    if None in processes:
        return ""
    return ", in one process" if len(processes) == 1 else f", in {len(processes)} processes"


def _break_evens(records: Sequence[Record]) -> str:
    """Return a sentence on the lengths from which compression is faster, by keep ratio; empty without measurements.

    It is about BF16 without a memory limit. Of several settings of a scorer the one with the widest range of lengths
    counts.
    """
    widest: dict[tuple[float, str], BreakEven] = {}
    for even in measured_break_evens(records):
        if even.vram is None and even.precisions == PLAIN_PRECISIONS and not is_control(_scorer(even)):
            key = even.keep_ratio, _scorer(even)
            widest[key] = max(widest.get(key, even), even, key=lambda candidate: candidate.longest / candidate.shortest)
    parts = [f"keep {even.keep_ratio:g} ({_scorer(even)}) {even.describe()}" for even in widest.values()]
    return f"Compression: {'; '.join(parts)}." if parts else ""


def _scorer(even: BreakEven) -> str:
    return str(even.drafting["scorer"])


def _server(records: Sequence[Record]) -> str:
    """Return sentences on the time that the server adds to a first token, and on answers under load."""
    alone = sorted((r["metrics"] for r in records if r["config"]["clients"] == 1), key=lambda m: m["prompt_tokens"])
    under_load = [r for r in records if r["config"]["clients"] > 1]
    added = [
        f"{m['added_ms_median']:.1f} ms at {m['prompt_tokens']:,} tokens (p95 {m['added_ms_p95']:.1f})" for m in alone
    ]
    sentences = [f"`sp serve` with a small pair on the same GPU adds {', '.join(added)}."] if added else []
    for loaded in under_load:
        config, metrics = loaded["config"], loaded["metrics"]
        agreement = (
            "all alike" if metrics["different_answers"] == 1 else f"{metrics['different_answers']} of them different"
        )
        sentences.append(
            f"With {config['clients']} clients at once {metrics['answered']} of {config['requests']} requests were "
            f"answered, {agreement}."
        )
    return " ".join(sentences)


def _range(counts: Sequence[int]) -> str:
    return "no" if not counts else str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def first_result(records: Iterable[Record]) -> str:
    """Return a short Markdown table of the newest `ttft` records on one GPU, of the longest prompt.

    It has the full prefill of llama.cpp if it was measured on the same machine, ours, and every compressed prefill. Of
    several machines and targets it shows the one with the most records, with a drafter of real weights if there is one.
    """
    groups: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
    peers = []
    for record in records:
        if record.get("bench") == "prefill":
            peers.append(record)
        on_one_gpu = record.get("bench") == "ttft" and max(gpus_of(record["config"])) == 1
        if on_one_gpu and record["metrics"].get("ttft_s"):
            key = json.dumps(record["config"], sort_keys=True)
            groups[machine_slug(record), record["config"]["target"]][key] = record
    if not groups:
        return NOTHING
    (machine, target), group = max(groups.items(), key=lambda item: (len(item[1]), item[0]))
    of_drafter = min(by_drafter(list(group.values())), key=lambda own: _drafter_of(own).endswith(".synthetic"))
    plain = [r for r in of_drafter if r["config"]["vram"] is None and r["config"]["keep_ratio"] in (KEEP, 1.0)]
    plain = [r for r in plain if r["config"]["keep_ratio"] == 1 or not is_control(str(r["config"]["scorer"]))]
    if not plain:
        return NOTHING
    longest = max(r["config"]["prompt_tokens"] for r in plain)
    of_length = sorted((r for r in plain if r["config"]["prompt_tokens"] == longest), key=row_order)
    heads = [f"{longest:,} tokens", "first token after (s)", "against our full prefill", "peak memory (GiB)"]
    cells = []
    peer = best_peer((r for r in peers if machine_slug(r) == machine and _has_target(r, target)), longest)
    if peer is not None:
        seconds, full = longest / peer["metrics"]["tok_s"], full_by_precision(of_length).get("bf16")
        gain = f"{full / seconds:.1f}x" if full else ""
        cells.append([_setting(peer["config"]), show_seconds(seconds), gain, ""])
    for r in of_length:
        seconds, peak = r["metrics"]["ttft_s"], r["metrics"].get("peak_bytes")
        full = r["metrics"].get("full_ttft_s")
        gain = f"{full / seconds:.1f}x" if full else ""
        cells.append(
            [describe(r["config"]), f"{show_seconds(seconds)}{age(r)}", gain, f"{peak / GIB:.1f}" if peak else ""]
        )
    drafters = sorted({r["config"]["drafter"] for r in of_length if r["config"]["drafter"]})
    where, runs = of_length[0].get("gpu") or of_length[0]["cpu"], _range(sorted(len(r["samples"]) for r in of_length))
    note = f"{where}, target {target}, drafter {', '.join(drafters) or 'none'}; medians of {runs} runs."
    return f"{markdown(heads, cells)}\n\n{' '.join([note, *_densities(of_length)])}"
