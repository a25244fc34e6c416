"""The headline table: time to first token at long prompts, beside the full prefill and the peers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sp.errors import ConfigError
from sp.kernels.machine import machine_slug
from sp.pipeline.measured import BreakEven, measured_break_evens
from sp.pipeline.sizes import parse_bytes
from sp.studies.sweep.cells import is_control

Record = Mapping[str, Any]
KEEP = 0.05
SHORTEST = 32768
BEGIN, END = "<!-- headline: made by `sp report`, not by hand -->", "<!-- end of headline -->"
NOTHING = "No times to first token are recorded yet; `sp bench ttft --record results` makes them."
GIB = float(1 << 30)

PEER_CARD, PEER_TARGET = "NVIDIA H200", "qwen3.6-27b-q4_k_m"
LLAMA_CPP = {32768: 32768 / 2330, 131072: 67.5}
"""Seconds of llama.cpp's full prefill in another run: llama-bench of llama-cpp-python 0.3.36, `-fa 1`, f16 KV."""
LUCEBOX = {131072: 7.7}
"""Lucebox's PFlash, an estimate: 5.00 s measured for its drafter in another run, kept tokens at llama.cpp's rate."""


def headline(records: Iterable[Record]) -> str:
    """Markdown of the newest `ttft` records of every machine and target, for prompts of 32K tokens and more.

    Rows are full prefills (ours, llama.cpp's), the compressed prefill at keep ratio 0.05 within every memory limit,
    and controls. Rows of other engines that have no record are quoted, marked as measured in another run, or said
    not to be measured. Below stand the break-evens by records of all lengths, and what `sp serve` added on the same
    machine by `serve_load` records.

    Examples
    --------
    >>> headline([]) == NOTHING
    True
    """
    groups: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
    served: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in records:
        key = json.dumps(record.get("config"), sort_keys=True)
        if record.get("bench") == "ttft":
            groups[machine_slug(record), record["config"]["target"]][key] = record
        elif record.get("bench") == "serve_load":
            served[machine_slug(record)][key] = record
    parts = []
    for (machine, _), group in sorted(groups.items()):
        long = [r for r in group.values() if r["config"]["prompt_tokens"] >= SHORTEST]
        if table := _table(long):
            parts += [table, _break_evens(list(group.values())), _server(list(served[machine].values()))]
    return "\n\n".join(part for part in parts if part) or NOTHING


def insert_headline(text: str, table: str) -> str:
    """`text` with `table` between the two marks; errors as of `insert_between`."""
    return insert_between(text, BEGIN, END, table)


def insert_between(text: str, first: str, last: str, table: str) -> str:
    """`text` with `table` between two lines of it.

    Raises
    ------
    ConfigError
        The lines are not there, once each and in order.

    Examples
    --------
    >>> insert_between("a [ old ] z", "[", "]", "new")
    'a [\\nnew\\n] z'
    """
    head, begin, rest = text.partition(first)
    _, end, tail = rest.partition(last)
    if not begin or not end or first in rest or last in tail or last in head:
        raise ConfigError(f"the page lacks the two lines {first} and {last}, once each; put them where the table goes")
    return f"{head}{first}\n{table}\n{last}{tail}"


def _table(records: Sequence[Record]) -> str:
    """One machine and target; empty when nothing of ours was timed."""
    mine = [r for r in records if r["config"].get("engine") is None]
    shown = [r for r in mine if r["config"]["keep_ratio"] in (KEEP, 1.0) and r["metrics"].get("ttft_s")]
    peers = {r["config"]["prompt_tokens"]: r for r in records if r["config"].get("engine") == "llama.cpp"}
    if not shown:
        return ""
    lines = [
        "| prompt tokens | what | memory limit | first token after (s) | against llama.cpp | against our full prefill "
        "| peak memory (GiB) |",
        "|---:|---|---|---:|---:|---:|---:|",
    ]
    for tokens in sorted({r["config"]["prompt_tokens"] for r in shown}):
        llama, note = _llama_cpp(tokens, peers.get(tokens), shown[0])
        rows = [(f"llama.cpp, full prefill ({note})", "", llama, None)]
        if _same_as_peers(shown[0]) and tokens in LUCEBOX:
            rows.append(("Lucebox PFlash, keep 0.05 (estimate)", "", LUCEBOX[tokens], None))
        here = sorted((r for r in shown if r["config"]["prompt_tokens"] == tokens), key=_order)
        for r in here:
            limit = r["config"]["vram"] or "none"
            rows.append((_what(r["config"]), limit, r["metrics"]["ttft_s"], r["metrics"].get("peak_bytes")))
        full = next((r["metrics"]["full_ttft_s"] for r in here if r["metrics"].get("full_ttft_s")), None)
        for what, limit, seconds, peak in rows:
            gains = [f"{other / seconds:.1f}x" if other and seconds else "" for other in (llama, full)]
            cells = [f"{tokens:,}", what, limit, _seconds(seconds), *gains, f"{peak / GIB:.1f}" if peak else ""]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _notes(shown)])


def _llama_cpp(tokens: int, peer: Record | None, record: Record) -> tuple[float | None, str]:
    """Seconds of llama.cpp's full prefill, and where they come from."""
    if peer is not None:
        return peer["metrics"]["ttft_s"], f"build {peer['config']['build']}, measured here"
    if _same_as_peers(record) and tokens in LLAMA_CPP:
        return LLAMA_CPP[tokens], "measured in another run"
    return None, "not measured here"


def _same_as_peers(record: Record) -> bool:
    return record.get("gpu") == PEER_CARD and record["config"]["target"].startswith(PEER_TARGET)


def _order(record: Record) -> tuple[bool, bool, str, float]:
    """Full prefill, then the drafter's rows with no limit and with ever smaller ones, then controls."""
    config = record["config"]
    limit = 0.0 if config["vram"] is None else 1 / parse_bytes(config["vram"])
    return config["keep_ratio"] < 1, is_control(str(config["scorer"])), str(config["scorer"]), limit


def _what(config: Mapping[str, Any]) -> str:
    if config["keep_ratio"] == 1:
        return "`sp`, full prefill"
    if is_control(config["scorer"]):
        return f"`sp`, keep {config['keep_ratio']:g}, control `{config['scorer']}`"
    how = next((f", {name} {config[name]:g}" for name in ("density", "alpha") if config[name] is not None), "")
    return f"`sp`, keep {config['keep_ratio']:g}, `{config['scorer']}`{how}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _notes(records: Sequence[Record]) -> str:
    """What the figures are of."""
    first = records[0]
    drafters = sorted({r["config"]["drafter"] for r in records if r["config"]["drafter"]})
    densities = [r["metrics"]["density"] for r in records if r["metrics"].get("density") is not None]
    runs = sorted(len(r["samples"]) for r in records if r["config"]["keep_ratio"] < 1)
    full = sorted(len(r["samples"]) for r in records if r["config"]["keep_ratio"] == 1)
    caches = sorted({r["config"]["kv"] for r in records})
    said = [
        f"{first.get('gpu') or first['cpu']}, target {first['config']['target']}, "
        f"drafter {', '.join(drafters) or 'none'}, KV {', '.join(caches)}.",
        f"Medians; samples of a compressed row: {_range(runs)}, of a full prefill: {_range(full)}, in one process.",
    ]
    if densities:
        spread = dict.fromkeys(f"{100 * value:.1f}" for value in (min(densities), max(densities)))
        more = ", the more the shorter the prompt" if len(spread) > 1 else ""
        said.append(f"The drafter read {' to '.join(spread)} % of its attention blocks{more}.")
    return " ".join(said)


def _break_evens(records: Sequence[Record]) -> str:
    """From which length on compression paid, by keep ratio, without a limit of memory; empty where nobody looked."""
    found = [even for even in measured_break_evens(records) if even.vram is None and not is_control(_scorer(even))]
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
    said = [f"`sp serve` with the embedded pair on the same card adds {', '.join(added)}."] if added else []
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
