"""The table of turns: time of one more message in a long chat, by the policy of caching."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sp.kernels.machine import machine_slug
from sp.scoring.base import attending
from sp.session.device_memory import parse_bytes
from sp.session.measured import precisions_of, precisions_text
from sp.studies.tables.lookup import GIB, Record, age, grouped, markdown, number

TURN_STAGES = {
    "tokenise": ("render", "tokenise", "tokenise for drafter"),
    "draft": ("draft",),
    "score": ("score",),
    "select": ("select", "compress"),
    "recall": ("recall",),
    "onload": ("onload target",),
    "prefill": ("target prefill",),
}  # columns of the table and the stages that they sum; other stages count as `other`
USAGE = "cached", "kept", "recalled", "read", "drafted"


def row_of(record: Record) -> dict[str, Any]:
    """Return a flat row of a record: configuration, percentiles, medians of tokens, milliseconds of every stage."""
    config, metrics = record["config"], record["metrics"]
    plain = {name: value for name, value in metrics.items() if name not in ("stages", "usage", "density")}
    usage = metrics.get("usage", {})
    return {
        **config,
        "asked_density": config.get("density"),
        "density": metrics.get("density"),
        **plain,
        **{f"{name}_tokens": usage.get(name) for name in USAGE},
        **{f"{name} (ms)": 1e3 * seconds for name, seconds in metrics["stages"].items()},
    }


def cells_of(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]], int]:
    """Return heads, cells and the number of text columns of a table; a failed row has its error instead of a time."""
    heads = ["policy", "recall", "within", "transcript", "new", "p50 (s)", "p95 (s)", "first (s)"]
    heads += [f"{name} (ms)" for name in (*TURN_STAGES, "other")]
    heads += [*USAGE, "peak (GiB)", "host (GiB)", "turns"]
    return heads, [_cells(row) for row in rows], 3


def title_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the facts that all rows share: models, keep ratio, scorer, kernels, caches, precision."""
    first = next((row for row in rows if row["drafter"]), rows[0])
    pair = " with ".join(dict.fromkeys(model for model in (first["target"], first["drafter"]) if model))
    names = ("keep_ratio", "scorer", "path", "kv", "keys", "asked_density", "alpha", "blocks")
    facts = [(name, next((row[name] for row in rows if row.get(name) is not None), None)) for name in names]
    facts.append(("precision", precisions_text(first) or None))
    texts = (f"{name.replace('asked_', '').replace('_', ' ')} {value}" for name, value in facts if value is not None)
    return "; ".join([pair, *dict.fromkeys(texts)])


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["policy"],
        row["recall"],
        row["vram"] or "",
        f"{row['prompt_tokens']:,}",
        f"{row['new_tokens']:,}",
        row["error"] or number(row["ttft_p50_s"], ".3f"),
        number(row["ttft_p95_s"], ".3f"),
        number(row.get("start_ttft_s"), ".2f"),
        *grouped(row, TURN_STAGES),
        *(number(row[f"{name}_tokens"], ",d") for name in USAGE),
        *(number(row[n] / GIB if row.get(n) is not None else None, ".2f") for n in ("peak_bytes", "host_bytes")),
        str(row["turns"]),
    ]


NOTHING = "No turns are recorded yet; `sp bench turn --record results` makes them."
HEADS = (
    "policy", "memory limit", "p50 (s)", "p95 (s)", "host (ms)", "draft, score (ms)", "prefill (ms)",
    "tokens read", "recalled", "peak (GiB)",
)  # fmt: skip
HOST = (*TURN_STAGES["tokenise"], *TURN_STAGES["select"], *TURN_STAGES["recall"])
POLICIES = {"conversation": "conversation", "cold": "nothing, compressed again", "prefix": "all, read in full"}


def turn_rows(records: Iterable[Record]) -> str:
    """Return Markdown of the newest `turn` records: a table for each machine, pair and length, with its settings.

    Records without a drafter are in the table of the drafter that has the most records.
    """
    newest: dict[str, Record] = {}
    for record in records:
        if record.get("bench") == "turn":
            newest[machine_slug(record) + json.dumps(record["config"], sort_keys=True)] = record
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in newest.values():
        config = record["config"]
        pair = config["target"], config["prompt_tokens"], config["new_tokens"]
        groups.setdefault((machine_slug(record), *pair), []).append(record)
    tables = [sorted(some, key=_order) for key in sorted(groups) for some in _by_drafter(groups[key])]
    return "\n\n".join(map(_table, tables)) or NOTHING


def _by_drafter(records: Sequence[Record]) -> list[list[Record]]:
    counts = Counter(r["config"]["drafter"] for r in records if r["config"]["drafter"])
    first, *others = sorted(counts, key=lambda name: (-counts[name], name)) or [None]
    alone = [r for r in records if r["config"]["drafter"] in (None, first)]
    return [alone, *([r for r in records if r["config"]["drafter"] == name] for name in others)]


def _order(record: Record) -> tuple[Any, ...]:
    config = record["config"]
    limit = 0.0 if config["vram"] is None else 1 / parse_bytes(config["vram"])  # no limit first, then large to small
    return (
        list(POLICIES).index(config["policy"]),
        limit,
        config["recall"],
        float(config["density"] or 0),
        precisions_of(config),
    )


def _table(records: Sequence[Record]) -> str:
    rows = [_row(record) for record in records]
    drafted = next((r for r in records if r["config"]["drafter"]), records[0])
    config, counts = drafted["config"], sorted({record["metrics"]["turns"] for record in records})
    commits = sorted({str(record.get("commit", "?"))[:7] for record in records})
    gpu, ends = drafted.get("gpu") or drafted.get("cpu"), dict.fromkeys((counts[0], counts[-1]))
    counted = " to ".join(map(str, ends))
    note = (
        f"{config['target']} with {config['drafter']}, {gpu}, path {config['path']}; {config['new_tokens']:,} new "
        f"tokens after {config['prompt_tokens']:,}, {config['keep_ratio']:g} of them kept, by `{config['scorer']}`; "
        f"{counted} turns per row, commit {', '.join(commits)}. Keys are those of the drafter, cache is that of the "
        "target. Host: rendering and tokenising, selection, recall. Times of stages are medians."
    )
    return f"{markdown(HEADS, rows)}\n\n{note}"


def _row(record: Record) -> list[str]:
    config, metrics = record["config"], record["metrics"]
    description = [POLICIES[config["policy"]]]
    if config["policy"] == "conversation":
        description += [f"recall {config['recall']}", f"keys {config['keys']}"]
    if config["policy"] != "prefix" and attending(config):
        description.append(attending(config))
    description += [f"cache {config['kv']}"]
    description += [precision] if (precision := precisions_text(config)) else []
    limit = config["vram"] or "none"
    if metrics["error"]:  # the turn did not fit the memory limit, so there are no times
        return [", ".join(description), limit, "no room", *[""] * (len(HEADS) - 3)]
    stages, usage = metrics["stages"], metrics["usage"]
    host, drafter = (sum(stages.get(name, 0.0) for name in names) for names in (HOST, ("draft", "score")))
    return [
        ", ".join(description),
        limit,
        f"{metrics['ttft_p50_s']:.3f}{age(record)}",
        f"{metrics['ttft_p95_s']:.3f}",
        *(f"{1e3 * seconds:.0f}" if seconds else "" for seconds in (host, drafter, stages["target prefill"])),
        f"{usage['read']:,}",
        f"{usage['recalled']:,}",
        f"{metrics['peak_bytes'] / GIB:.1f}",
    ]
