"""The table of turns: what one more message costs in a long chat, by what is remembered of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sp.kernels.machine import machine_slug
from sp.scoring.reading import attending
from sp.session.device_memory import parse_bytes
from sp.session.measured import maths_of, maths_told
from sp.studies.tables.lookup import GIB, Record, age, markdown
from sp.studies.tables.turn_table import TURN_STAGES

NOTHING = "No turns are recorded yet; `sp bench turn --record results` makes them."
HEADS = (
    "what is remembered", "memory limit", "p50 (s)", "p95 (s)", "host (ms)", "draft, score (ms)", "prefill (ms)",
    "tokens read", "recalled", "peak (GiB)",
)  # fmt: skip
HOST = (*TURN_STAGES["tokenise"], *TURN_STAGES["select"], *TURN_STAGES["recall"])
POLICIES = {"conversation": "conversation", "cold": "nothing, compressed anew", "prefix": "all, read in full"}


def turn_rows(records: Iterable[Record]) -> str:
    """Markdown of the newest `turn` records: a table for each machine, pair and length, and what it is of.

    Examples
    --------
    >>> turn_rows([]) == NOTHING
    True
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
    return "\n\n".join(_table(sorted(groups[key], key=_order)) for key in sorted(groups)) or NOTHING


def _order(record: Record) -> tuple[Any, ...]:
    config = record["config"]
    limit = 0.0 if config["vram"] is None else 1 / parse_bytes(config["vram"])
    return (
        list(POLICIES).index(config["policy"]),
        limit,
        config["recall"],
        float(config["density"] or 0),
        maths_of(config),
    )


def _table(records: Sequence[Record]) -> str:
    rows = [_row(record) for record in records]
    drafted = next((r for r in records if r["config"]["drafter"]), records[0])
    config, counts = drafted["config"], sorted({record["metrics"]["turns"] for record in records})
    commits = sorted({str(record.get("commit", "?"))[:7] for record in records})
    card, counted = drafted.get("gpu") or drafted.get("cpu"), " to ".join(map(str, counts))
    told = (
        f"{config['target']} with {config['drafter']}, {card}, path {config['path']}; {config['new_tokens']:,} new "
        f"tokens behind {config['prompt_tokens']:,}, {config['keep_ratio']:g} of them kept, by `{config['scorer']}`; "
        f"{counted} turns a row, commit {', '.join(commits)}. Keys: the drafter's, cache: the target's. "
        "Host: from messages to tokens, selection, recall. Times of stages are medians."
    )
    return f"{markdown(HEADS, rows)}\n\n{told}"


def _row(record: Record) -> list[str]:
    config, metrics = record["config"], record["metrics"]
    how = [POLICIES[config["policy"]]]
    if config["policy"] == "conversation":
        how += [f"recall {config['recall']}", f"keys {config['keys']}"]
    if config["policy"] != "prefix" and attending(config):
        how.append(attending(config))
    how += [f"cache {config['kv']}"]
    how += [told] if (told := maths_told(config)) else []
    limit = config["vram"] or "none"
    if metrics["error"]:
        return [", ".join(how), limit, "no room", *[""] * (len(HEADS) - 3)]
    stages, usage = metrics["stages"], metrics["usage"]
    host, drafter = (sum(stages.get(name, 0.0) for name in names) for names in (HOST, ("draft", "score")))
    return [
        ", ".join(how),
        limit,
        f"{metrics['ttft_p50_s']:.3f}{age(record)}",
        f"{metrics['ttft_p95_s']:.3f}",
        *(f"{1e3 * seconds:.0f}" if seconds else "" for seconds in (host, drafter, stages["target prefill"])),
        f"{usage['read']:,}",
        f"{usage['recalled']:,}",
        f"{metrics['peak_bytes'] / GIB:.1f}",
    ]
