"""The headline table: time to first token at long prompts, beside the full prefill and the peers."""

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
    """Markdown of the newest `ttft` records on one GPU of every machine, target and drafter, for prompts of 32K and
    more: full prefills, ours and llama.cpp's best, the compressed ones at keep ratio 0.05 by density and memory limit,
    and controls. Below stand break-evens of all lengths, and what `sp serve` added by `serve_load` records."""
    groups: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
    served: dict[str, dict[str, Record]] = defaultdict(dict)
    peers: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        key = json.dumps(record.get("config"), sort_keys=True)
        if record.get("bench") == "ttft" and max(gpus_of(record["config"])) == 1:
            groups[machine_slug(record), record["config"]["target"]][key] = record
        elif record.get("bench") == "serve_load":
            served[machine_slug(record)][key] = record
        elif record.get("bench") == "prefill":
            peers[machine_slug(record)][key] = record
    parts = []
    for machine in sorted({machine for machine, _ in groups}):
        mine = {target: group for (where, target), group in groups.items() if where == machine}
        tables = []
        for target, group in sorted(mine.items(), key=lambda one: (-len(one[1]), one[0])):  # the most measured first
            theirs = [r for r in peers[machine].values() if _is_of(r, target)]
            for drafted in by_drafter(list(group.values())):
                if table := _table([r for r in drafted if r["config"]["prompt_tokens"] >= SHORTEST], theirs):
                    tables += [table, _break_evens(drafted)]
        parts += [*tables, _server(list(served[machine].values()))] if tables else []
    return "\n\n".join(part for part in parts if part) or NOTHING


def by_drafter(records: Sequence[Record]) -> list[list[Record]]:
    """Records of a target, a list for each drafter, that with the most first: it has all that nobody drafted for. The
    others have the full prefills of their processes, or where these are not told of their lengths.

    >>> records = [{"config": {"drafter": one, "prompt_tokens": 9, "keep_ratio": 1 if one is None else 0.1},
    ...             "metrics": {}} for one in (None, "a", "b", "b")]
    >>> [[r["config"]["drafter"] for r in some] for some in by_drafter(records)]
    [[None, 'b', 'b'], [None, 'a']]
    """
    found: dict[str, list[Record]] = defaultdict(list)
    nobody = [r for r in records if not r["config"]["drafter"]]
    for record in records:
        if record["config"]["drafter"]:
            found[record["config"]["drafter"]].append(record)

    def alike(record: Record) -> tuple[Any, int]:
        return record["metrics"].get("process"), _tokens(record)

    ordered = sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))
    tables = [[*nobody, *some] for _, some in ordered[:1]] or [nobody]
    for _, some in ordered[1:]:
        there = set(map(alike, some))
        tables.append([*(r for r in nobody if r["config"]["keep_ratio"] == 1 and alike(r) in there), *some])
    return tables


def _is_of(record: Record, target: str) -> bool:
    """Whether a `prefill` record is of a target: of its file, or of random weights in its shape and type."""
    config = record["config"]
    return target in (config["model"], f"{config['shape']}-{config['type']}.synthetic")


def _table(records: Sequence[Record], peers: Sequence[Record]) -> str:
    """One machine and target; empty when nothing of ours was timed."""
    shown = [r for r in records if r["config"]["keep_ratio"] in (KEEP, 1.0) and r["metrics"].get("ttft_s")]
    if not shown:
        return ""
    heads = ["prompt tokens", "what", "memory limit", "first token after (s)", "first request (s)"]
    heads += ["against llama.cpp", "against our full prefill", "peak memory (GiB)"]
    lines = []
    for tokens in sorted({r["config"]["prompt_tokens"] for r in shown}):
        peer, here = best_peer(peers, tokens), sorted((r for r in shown if _tokens(r) == tokens), key=row_order)
        full = full_by_precision(here)
        llama = tokens / peer["metrics"]["tok_s"] if peer else None
        rows = [] if peer is None else [(_setting(peer["config"]), "", full.get("bf16"), llama, None, None, "")]
        for r in here:
            limit, metrics = r["config"]["vram"] or "none", r["metrics"]
            first, peak = metrics.get("first_ttft_s"), metrics.get("peak_bytes")
            own = metrics.get("full_ttft_s")  # of its own run
            rows.append((describe(r["config"]), limit, own, metrics["ttft_s"], first, peak, age(r)))
        for what, limit, own, seconds, first, peak, when in rows:
            gains = [f"{other / seconds:.1f}x" if other and seconds else "" for other in (llama, own)]
            cells = [f"{tokens:,}", what, limit, f"{show_seconds(seconds)}{when}", show_seconds(first), *gains]
            lines.append([*cells, f"{peak / GIB:.1f}" if peak else ""])
    table = markdown(heads, lines, 3).replace("|---|", "|---:|", 1)  # the length, first, is a number
    return f"{table}\n\n{_notes(shown)}"


def _tokens(record: Record) -> int:
    return int(record["config"]["prompt_tokens"])


def _setting(config: Mapping[str, Any]) -> str:
    """llama.cpp's row, by the setting at which it was fastest."""
    batches = "" if config["batch"] is None else f", `-b {config['batch']} -ub {config['ubatch']}`"
    return f"llama.cpp, full prefill (build {config['build']}{batches})"


def full_by_precision(records: Sequence[Record]) -> dict[str, float]:
    """Seconds of the full prefill of records of one length, by what the target multiplied."""
    found: dict[str, float] = {}
    for record in records:
        if seconds := record["metrics"].get("full_ttft_s"):
            found.setdefault(precisions_of(record["config"])[0], seconds)
    return found


def row_order(record: Record) -> tuple[bool, bool, str, float, tuple[str, str], float]:
    """Full prefill, then the drafter's rows by density, with no limit and with ever smaller ones, then controls."""
    config = record["config"]
    limit = 0.0 if config["vram"] is None else 1 / parse_bytes(config["vram"])
    scorer, density = str(config["scorer"]), float(config["density"] or 0)
    return config["keep_ratio"] < 1, is_control(scorer), scorer, density, precisions_of(config), limit


def _name(records: Sequence[Record]) -> str:
    """The drafter of some records, of whom those that drafted had the same."""
    return next((str(r["config"]["drafter"]) for r in records if r["config"]["drafter"]), "")


def describe(config: Mapping[str, Any]) -> str:
    """What a row was: full prefill, a control, or a scorer and how sparsely it read."""
    if config["keep_ratio"] == 1:
        return f"`sp`, full prefill{_made_in(config)}"
    if is_control(config["scorer"]):
        return f"`sp`, keep {config['keep_ratio']:g}, control `{config['scorer']}`{_made_in(config)}"
    return f"`sp`, keep {config['keep_ratio']:g}, `{config['scorer']}`{_attending(config)}{_made_in(config)}"


def _made_in(config: Mapping[str, Any]) -> str:
    """What models multiplied, after a comma; nothing of BF16."""
    full = config["keep_ratio"] == 1
    told = precisions_text(target_alone(config) if full else config)
    return told and f", {told}"


def _attending(config: Mapping[str, Any]) -> str:
    """How sparsely the drafter was to read, after a comma."""
    how = attending(config)
    return how and f", {how}"


def show_seconds(value: float | None) -> str:
    """Three digits below ten seconds, one behind the point above; nothing for None."""
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _notes(records: Sequence[Record]) -> str:
    first = records[0]
    drafters = sorted({r["config"]["drafter"] for r in records if r["config"]["drafter"]})
    runs = sorted(len(r["samples"]) for r in records if r["config"]["keep_ratio"] < 1)
    full = sorted(len(r["samples"]) for r in records if r["config"]["keep_ratio"] == 1)
    caches = sorted({r["config"]["kv"] for r in records})
    counted = f"samples of a compressed row: {_range(runs)}, of a full prefill: {_range(full)}"
    said = [
        f"{first.get('gpu') or first['cpu']}, target {first['config']['target']}, "
        f"drafter {', '.join(drafters) or 'none'}, KV {', '.join(caches)}.",
        f"Medians; {counted}{_processes(records)}.",
        "The first request of a row is not among them: it may compile, and within a limit it makes room.",
    ]
    for metrics in (r["metrics"] for r in records if r["metrics"].get("cold_ttft_s")):
        compiled = metrics["cold_compiled"]
        kernels = f"with {compiled} kernels to compile" if compiled else "with no kernel to compile"
        said.append(f"The first of a process, {kernels}, took {metrics['cold_ttft_s']:.2f} s.")
    return " ".join([*said, *_densities(records)])


def _densities(records: Sequence[Record]) -> list[str]:
    """What the drafter read, by what it was asked to read."""
    found: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record["metrics"].get("density") is not None:
            found[_attending(record["config"])].append(record["metrics"]["density"])
    said = []
    for how, densities in sorted(found.items()):
        spread = dict.fromkeys(f"{100 * value:.1f}" for value in (min(densities), max(densities)))
        more = ", the more the shorter the prompt" if len(spread) > 1 else ""
        said.append(f"{' to '.join(spread)} % of its attention blocks{how and ' at' + how[1:]}{more}")
    return [f"The drafter read {'; '.join(said)}."] if said else []


def _processes(records: Sequence[Record]) -> str:
    """In how many processes they were measured; nothing where some do not tell."""
    found = {r["metrics"].get("process") for r in records}
    if None in found:
        return ""
    return ", in one process" if len(found) == 1 else f", in {len(found)} processes"


def _break_evens(records: Sequence[Record]) -> str:
    """From which length on compression paid, by keep ratio, without a limit of memory and in BF16; empty where nobody
    looked. Of several ways to draft, the one that most lengths were measured with."""
    widest: dict[tuple[float, str], BreakEven] = {}
    for even in measured_break_evens(records):
        if even.vram is None and even.precisions == PLAIN_PRECISIONS and not is_control(_scorer(even)):
            key = even.keep_ratio, _scorer(even)
            widest[key] = max(widest.get(key, even), even, key=lambda one: one.longest / one.shortest)
    found = list(widest.values())
    said = [f"keep {even.keep_ratio:g} ({_scorer(even)}) {even.describe()}" for even in found]
    return f"Compression: {'; '.join(said)}." if said else ""


def _scorer(even: BreakEven) -> str:
    return str(even.drafting["scorer"])


def _server(records: Sequence[Record]) -> str:
    """What the server added to the time to first token, and how it fared under load; empty without records."""
    alone = sorted((r["metrics"] for r in records if r["config"]["clients"] == 1), key=lambda m: m["prompt_tokens"])
    crowds = [r for r in records if r["config"]["clients"] > 1]
    added = [
        f"{m['added_ms_median']:.1f} ms at {m['prompt_tokens']:,} tokens (p95 {m['added_ms_p95']:.1f})" for m in alone
    ]
    said = [f"`sp serve` with a small pair on the same GPU adds {', '.join(added)}."] if added else []
    for crowd in crowds:
        config, metrics = crowd["config"], crowd["metrics"]
        alike = (
            "all alike" if metrics["different_answers"] == 1 else f"{metrics['different_answers']} of them different"
        )
        said.append(
            f"With {config['clients']} clients at once {metrics['answered']} of {config['requests']} requests were "
            f"answered, {alike}."
        )
    return " ".join(said)


def _range(counts: Sequence[int]) -> str:
    return "no" if not counts else str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def first_result(records: Iterable[Record]) -> str:
    """Return a short Markdown table of the newest `ttft` records on one GPU: the full prefill of llama.cpp where it was
    measured on the same machine, ours, and every compressed prefill. Of several machines and targets it shows those
    with the most records, of these a drafter with real weights if there is one, and the longest prompt."""
    groups: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
    peers = []
    for record in records:
        if record.get("bench") == "prefill":
            peers.append(record)
        alone = record.get("bench") == "ttft" and max(gpus_of(record["config"])) == 1
        if alone and record["metrics"].get("ttft_s"):
            key = json.dumps(record["config"], sort_keys=True)
            groups[machine_slug(record), record["config"]["target"]][key] = record
    if not groups:
        return NOTHING
    (machine, target), group = max(groups.items(), key=lambda one: (len(one[1]), one[0]))
    drafted = min(by_drafter(list(group.values())), key=lambda some: _name(some).endswith(".synthetic"))
    plain = [r for r in drafted if r["config"]["vram"] is None and r["config"]["keep_ratio"] in (KEEP, 1.0)]
    plain = [r for r in plain if r["config"]["keep_ratio"] == 1 or not is_control(str(r["config"]["scorer"]))]
    if not plain:
        return NOTHING
    longest = max(r["config"]["prompt_tokens"] for r in plain)
    shown = sorted((r for r in plain if r["config"]["prompt_tokens"] == longest), key=row_order)
    heads = [f"{longest:,} tokens", "first token after (s)", "against our full prefill", "peak memory (GiB)"]
    cells = []
    peer = best_peer((r for r in peers if machine_slug(r) == machine and _is_of(r, target)), longest)
    if peer is not None:
        seconds, full = longest / peer["metrics"]["tok_s"], full_by_precision(shown).get("bf16")
        gain = f"{full / seconds:.1f}x" if full else ""
        cells.append([_setting(peer["config"]), show_seconds(seconds), gain, ""])
    for r in shown:
        seconds, peak = r["metrics"]["ttft_s"], r["metrics"].get("peak_bytes")
        full = r["metrics"].get("full_ttft_s")
        gain = f"{full / seconds:.1f}x" if full else ""
        cells.append(
            [describe(r["config"]), f"{show_seconds(seconds)}{age(r)}", gain, f"{peak / GIB:.1f}" if peak else ""]
        )
    drafters = sorted({r["config"]["drafter"] for r in shown if r["config"]["drafter"]})
    where, runs = shown[0].get("gpu") or shown[0]["cpu"], _range(sorted(len(r["samples"]) for r in shown))
    note = f"{where}, target {target}, drafter {', '.join(drafters) or 'none'}; medians of {runs} runs."
    return f"{markdown(heads, cells)}\n\n{' '.join([note, *_densities(shown)])}"
