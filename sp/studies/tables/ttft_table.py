"""The table of `ttft` records: seconds to the first token, their stages, and the full prefill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sp.scoring.base import attending
from sp.session.measured import gpus_of, precisions_text
from sp.studies.tables.lookup import GIB, Record, grouped, number

GROUPS = {
    "tokenise": ("tokenise", "tokenise for drafter"),
    "score": ("score",),
    "select": ("select", "compress"),
    "onload": ("onload target",),
    "prefill": ("target prefill",),
}  # columns of the table and the stages that they sum; other stages count as `other`


def row_of(record: Record) -> dict[str, Any]:
    """Return a flat row of a record: configuration, medians, and milliseconds of every stage."""
    config, metrics = record["config"], record["metrics"]
    ttft, full = metrics["ttft_s"], metrics.get("full_ttft_s")
    plain = {name: value for name, value in metrics.items() if name not in ("stages", "prompt_tokens")}
    return {
        **config,
        "asked_density": config.get("density"),
        "density": None,
        **plain,
        "runs": len(record["samples"]),
        "speedup": full / ttft if full and ttft else None,
        **{f"{name} (ms)": 1e3 * seconds for name, seconds in metrics["stages"].items() if name != "decode"},
    }


def cells_of(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]], int]:
    """Return heads, cells and the number of text columns of a table; a failed row has its error instead of a time."""
    heads = ["target reads", "scorer", "within", "tokens", "kept", "density", "first token (s)", "against full"]
    heads += [f"{name} (ms)" for name in (*GROUPS, "other")] + ["cold (s)", "peak (GiB)", "decode (tok/s)", "runs"]
    return heads, [_cells(row) for row in rows], 3


def title_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the facts that all rows share: models, kernels, precision, GPUs, cache."""
    drafters = dict.fromkeys(row["drafter"] for row in rows if row["drafter"])
    pair = " with ".join([rows[0]["target"], *drafters])
    first = next((row for row in rows if row["drafter"]), rows[0])
    facts = (
        ("path", rows[0].get("path")),
        ("precision", precisions_text(first) or None),
        ("GPUs", _gpus_text(first)),
        ("kv", rows[0].get("kv")),
        ("tokens decoded", rows[0].get("new_tokens")),
    )
    return "; ".join([pair, *(f"{name} {value}" for name, value in facts if value is not None)])


def _gpus_text(config: Mapping[str, Any]) -> str | None:
    """Return the numbers of GPUs of the drafter and of the target as text; None if both are one."""
    drafting, sharing = gpus_of(config)
    if max(drafting, sharing) == 1:
        return None
    return str(drafting) if drafting == sharing else f"{drafting}, of the target {sharing}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    full = row["keep_ratio"] == 1
    sparse = attending({**row, "density": row["asked_density"]})
    engine = f"{row['engine']}: " if row.get("engine") else ""
    return [
        f"{engine}everything" if full else f"keep {row['keep_ratio']:g}",
        "" if full else f"{row['scorer']} {sparse}".rstrip(),
        row.get("vram") or "",
        f"{row['prompt_tokens']:,}",
        number(row.get("kept_tokens"), ",d"),
        number(row.get("density"), ".1%"),
        row.get("error") or number(row["ttft_s"], ".3f"),
        number(row["speedup"], ".2f", "x") if not full else "",
        *grouped(row, GROUPS),
        number(row.get("cold_ttft_s"), ".2f"),
        number((row.get("peak_bytes") or 0) / GIB, ".2f"),
        number(row.get("decode_tok_s"), ".1f"),
        str(row["runs"]),
    ]
