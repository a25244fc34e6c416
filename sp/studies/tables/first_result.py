"""The first result: the longest prompt of the most measured target, in full and compressed, with no limit of memory."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

from sp.kernels.machine import machine_slug
from sp.session.measured import cards_of, maths_of
from sp.studies.sweep.cells import is_control
from sp.studies.tables.headline import KEEP, NOTHING, describe, full_by_math, row_order, show_seconds
from sp.studies.tables.lookup import GIB, Record, age, markdown


def first_result(records: Iterable[Record]) -> str:
    """Markdown of a few of the newest `ttft` records on one card: rows for the full prefill and each way to draft.

    Of several machines and targets those with the most records, and of these the longest prompt.

    Examples
    --------
    >>> first_result([]) == NOTHING
    True
    """
    groups: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
    for record in records:
        alone = record.get("bench") == "ttft" and max(cards_of(record["config"])) == 1
        if alone and record["metrics"].get("ttft_s"):
            key = json.dumps(record["config"], sort_keys=True)
            groups[machine_slug(record), record["config"]["target"]][key] = record
    if not groups:
        return NOTHING
    (_, target), group = max(groups.items(), key=lambda one: (len(one[1]), one[0]))
    plain = [r for r in group.values() if r["config"]["vram"] is None and r["config"]["keep_ratio"] in (KEEP, 1.0)]
    plain = [r for r in plain if r["config"]["keep_ratio"] == 1 or not is_control(str(r["config"]["scorer"]))]
    if not plain:
        return NOTHING
    longest = max(r["config"]["prompt_tokens"] for r in plain)
    shown = sorted((r for r in plain if r["config"]["prompt_tokens"] == longest), key=row_order)
    fulls = full_by_math(shown)
    heads = [f"{longest:,} tokens", "first token after (s)", "against our full prefill", "peak memory (GiB)"]
    cells = []
    for r in shown:
        seconds, peak = r["metrics"]["ttft_s"], r["metrics"].get("peak_bytes")
        full = fulls.get(maths_of(r["config"])[0])
        gain = f"{full / seconds:.1f}x" if full else ""
        cells.append(
            [describe(r["config"]), f"{show_seconds(seconds)}{age(r)}", gain, f"{peak / GIB:.1f}" if peak else ""]
        )
    drafters = sorted({r["config"]["drafter"] for r in shown if r["config"]["drafter"]})
    where = shown[0].get("gpu") or shown[0]["cpu"]
    note = f"{where}, target {target}, drafter {', '.join(drafters) or 'none'}; medians of {_samples(shown)} runs."
    return f"{markdown(heads, cells)}\n\n{note}"


def _samples(records: list[Record]) -> str:
    counts = sorted({len(r["samples"]) for r in records})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
