"""`turn` records as rows of a table: seconds to the first token of a turn, what they are spent on, what is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sp.session.measured import maths_told
from sp.studies.tables.lookup import GIB, Record, grouped, number

TURN_STAGES = {
    "tokenise": ("render", "tokenise", "tokenise for drafter"),
    "draft": ("draft",),
    "score": ("score",),
    "select": ("select", "compress"),
    "recall": ("recall",),
    "onload": ("onload target",),
    "prefill": ("target prefill",),
}
"""Columns of the table and the stages they add up; a stage not named here counts as `other`."""
USAGE = "cached", "kept", "recalled", "read", "drafted"


def row_of(record: Record) -> dict[str, Any]:
    """One flat row: configuration, percentiles, medians of tokens, and milliseconds of every stage."""
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
    """Heads, cells and the number of text columns of a table for people; a failed cell says why."""
    heads = ["policy", "recall", "within", "transcript", "new", "p50 (s)", "p95 (s)", "first (s)"]
    heads += [f"{name} (ms)" for name in (*TURN_STAGES, "other")]
    heads += [*USAGE, "peak (GiB)", "host (GiB)", "turns"]
    return heads, [_cells(row) for row in rows], 3


def title_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """What all rows have in common: models, kernels, share kept, caches."""
    first = next((row for row in rows if row["drafter"]), rows[0])
    pair = " with ".join(dict.fromkeys(each for each in (first["target"], first["drafter"]) if each))
    names = ("keep_ratio", "scorer", "path", "kv", "keys", "asked_density", "alpha", "blocks")
    facts = [(name, next((row[name] for row in rows if row.get(name) is not None), None)) for name in names]
    facts.append(("math", maths_told(first) or None))
    told = (f"{name.replace('asked_', '').replace('_', ' ')} {value}" for name, value in facts if value is not None)
    return "; ".join([pair, *dict.fromkeys(told)])


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
