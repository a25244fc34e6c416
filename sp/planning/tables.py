"""Render results of `inspect_file`, a plan and its predicted times as tables, 80 columns wide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sp import values
from sp.columns import ColumnTable
from sp.models.network.arithmetic import AskedPrecision
from sp.planning.gpus import LARGEST_DRAFTER, SYSTEM, GPUSpec
from sp.planning.plan import format_tokens
from sp.planning.roofline import ERROR
from sp.quant import Math, Repacked

if TYPE_CHECKING:
    from rich.console import RenderableType

STYLES = {"yes": "bold green", "with": "bold green", "no": "bold red"}


def render(info: dict[str, Any]) -> RenderableType:
    """Render the description of `inspect_file` as tables for a `rich` console."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in _facts(info):
        facts.add_row(name, Text(value))
    parts: list[RenderableType] = [
        Text(f"runs: {info['verdict']['line']}", style=STYLES[info["verdict"]["runs"]]),
        facts,
    ]
    if info["tensors_by_type"]:
        parts += ["", _types(info), *(Text(str(Repacked(**item))) for item in info["repacked"])]
    if info["device"] is not None:
        parts += ["", _kv(info["device"])]
    if info["cards"] is not None:
        parts += ["", *_gpus(info["cards"])]
    if info["verdict"]["instead"]:
        parts += ["", Text(f"take instead: {info['verdict']['instead']}", style="bold")]
    if info["warnings"]:
        parts += ["", *(Text(f"warning: {warning}", style="yellow") for warning in info["warnings"])]
    return Group(*parts)


def _facts(info: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "file", info["path"] + (f" and {info['shards'] - 1} more shards" if info["shards"] > 1 else "")
    yield "size", f"{size_of(info['bytes'])} ({info['bytes']:,} bytes), GGUF v{info['version']}"
    for digest in info["sha256"] or ():
        yield "sha256", digest
    yield "model", " · ".join(filter(None, (info["architecture"], info["name"], info["file_type"]))) or "unknown"
    yield "parameters", f"{_thousands(info['parameters'])} in {info['tensors']} tensors"
    labels = ("layers", "hidden", "heads", "kv_heads", "head_dim", "context")
    # Lists by layer are described with the family below.
    known = [f"{name} {info[name]}" for name in labels if info[name] is not None and values.as_list(info[name]) is None]
    if known:
        yield "shape", " · ".join(known)
    if info["family"] is not None:
        yield from _family(info["family"])
        if info["parameters"] <= LARGEST_DRAFTER:
            yield "as a drafter", info["family"]["as_drafter"]
    tokenizer = info["tokenizer"]
    if tokenizer is not None:
        facts = [f"{name} {value}" for name, value in tokenizer.items() if value is not None and name != "sha256"]
        yield "tokenizer", " · ".join(facts)
    template = info["chat_template"]
    if template["present"]:
        yield "template", f"{template['chars']} characters, sha256 {template['sha256'][:12]}: {template['first_line']}"


def _family(family: dict[str, Any]) -> Iterator[tuple[str, str]]:
    mixers = f"{family['attention_layers']} layers of attention"
    if family["delta_layers"]:
        mixers += f", {family['delta_layers']} of Gated DeltaNet"
    yield "family", f"{family['architecture']}, {family['kind']}: {mixers}"
    if experts := family["experts"]:
        shared = f" and a shared one of {experts['shared']}" if experts["shared"] else ""
        yield (
            "experts",
            (
                f"{experts['used']} of {experts['count']} for a token, {experts['width']} wide{shared}; "
                f"{experts['active_parameters'] / 1e6:,.1f} M parameters of the layers are read for one"
            ),
        )
    eight = family["eight_bits"]
    yield (
        "int8 or fp8",
        f"{eight['weights']} of {eight['matrices']} matrices of layers can be multiplied so (--precision int8)",
    )
    rope = family["rope"]
    if rope["dim"]:
        width = (family["global_heads"] or family)["head_dim"]
        yield "rope", f"base {rope['base']:g}, {rope['dim']} of {width} values, {rope['pairing']}"
        yield "rope scaling", _scaling(rope)
    else:
        yield "rope", f"none in layers that see everything; elsewhere {rope['pairing']}"
    if (window := family["windows"]) is not None:
        layers = f"{window['layers']} of {family['attention_layers']} layers"
        yield "windows", f"{layers} see {window['tokens']:,} tokens back; rope base {window['rope_base']:g} there"
        yield "", "as a target: selected tokens get contiguous positions (--positions original for their own)"
    if (others := family["global_heads"]) is not None:
        sizes = f"{family['kv_heads']} kv heads of {family['head_dim']} values where layers have a window"
        yield "heads", f"{sizes}, {others['kv_heads']} of {others['head_dim']} elsewhere"


def _scaling(rope: dict[str, Any]) -> str:
    """Describe the scaling of frequencies and the attention factor."""
    kind = str({None: "none", "tensor": "by a tensor of the file"}.get(rope["scaling"], rope["scaling"]))
    kind += f" {rope['factor']:g}" if "factor" in rope else ""
    kind += f" of {rope['original_context']} positions" if "original_context" in rope else ""
    return kind + (f", attention factor {rope['magnitude']:.4f}" if rope["magnitude"] != 1 else "")


def _table(*left_aligned: str, right: Iterable[str] = ()) -> ColumnTable:
    """Return an empty table with text columns, followed by number columns."""
    return ColumnTable([*left_aligned, *right], [], len(left_aligned), head_style="bold")


def _types(info: dict[str, Any]) -> ColumnTable:
    formats = {row["source"]: row for row in info["device"]["formats"]} if info["device"] else {}
    types = _table("type", right=("tensors", "size", "share", "CPU", "GPU", "on the GPU"))
    total = sum(row["bytes"] for row in info["tensors_by_type"])
    for row in info["tensors_by_type"]:
        on = formats.get(row["type"])
        device = (on["kernels"], size_of(on["nbytes"])) if on else ("", "")
        decoded = "yes" if row["supported"] else "NO"
        types.add_row(
            row["type"], str(row["count"]), size_of(row["bytes"]), f"{row['bytes'] / total:.1%}", decoded, *device
        )
    if formats:
        types.add_row("all", str(info["tensors"]), size_of(total), "", "", "", size_of(info["device"]["bytes"]))
    return types


def _kv(device: dict[str, Any]) -> ColumnTable:
    """Tabulate the bytes of keys and values by type and length; recurrent states are additional."""
    lengths = list(next(iter(device["kv_bytes"].values())))
    table = _table("KV cache", right=(_tokens(int(length)) for length in lengths))
    for kv, sizes in device["kv_bytes"].items():
        table.add_row(kv, *(size_of(sizes[length]) for length in lengths))
    if device["state_bytes"]:
        table.add_row("states", *[size_of(device["state_bytes"])] * len(lengths))
    return table


def _gpus(gpus: dict[str, Any]) -> Iterator[RenderableType]:
    from rich.text import Text

    names = list(gpus["rows"][0]["drafters"])
    table = _table("longest prompt", "KV", right=("in full", *(f"with {name}" for name in names)))
    for row in sorted(gpus["rows"], key=lambda row: row["card"]):
        pairs = [_pair(row["drafters"][name]) for name in names]
        whole = _pair({"together": row["full"], "by_turns": row["full_by_turns"]})
        table.add_row(f"{row['card']} GB GPU", row["kv"], whole, *pairs)
    yield table
    if names:
        yield Text(
            f"with a drafter {gpus['keep_ratio']:.0%} is kept; by turns: idle weights wait in host memory", style="dim"
        )


def _pair(lengths: dict[str, int | None]) -> str:
    if lengths["together"] == lengths["by_turns"]:
        return _tokens(lengths["together"])
    turns = f"{_tokens(lengths['by_turns'])} by turns"
    return turns if lengths["together"] is None else f"{_tokens(lengths['together'])}, {turns}"


def _tokens(count: int | None) -> str:
    return "no" if count is None else format_tokens(count)


def size_of(count: int) -> str:
    """Format bytes in binary units."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.2f} {unit}"
    return f"{size / 1024:.2f} TiB"


def _thousands(count: int) -> str:
    if count >= 10**9:
        return f"{count / 10**9:.2f} B"
    return f"{count / 10**6:.1f} M" if count >= 10**6 else f"{count:,}"


WORDS = {
    "full": "in full",
    "full_cold": "in full, experts on the host",
    "together": "with the drafter",
    "by_turns": "by turns",
    "cold": "by turns, experts on the host",
}
CROSSED = {
    "same": "same vocabulary",
    "as large": "vocabulary as large",
    "other": "other vocabulary, matched by bytes",
}

SHORT = 256  # tokens; the time of shorter prompts does not matter


def render_plan(plan: dict[str, Any]) -> RenderableType:
    """Render the dictionary of `ModelPlan.as_dict` as tables for a `rich` console."""
    from rich.console import Group
    from rich.text import Text

    verdict = plan["verdict"]
    parts: list[RenderableType] = [Text(f"runs: {verdict['line']}", style=STYLES[verdict["runs"]])]
    if verdict["instead"]:
        parts.append(Text(f"take instead: {verdict['instead']}", style="bold"))
    parts += [Text(f"note: {note}", style="yellow") for note in plan["notes"]]
    parts += [Text(f"{name:<9}{value}") for name, value in _models(plan)]
    if plan["memory"]:
        parts += ["", _memory(plan["memory"], _where(plan))]
    if plan["cards"]:
        chosen_rows = [row for row in plan["cards"] if row["card"] == verdict["card"]]
        parts += ["", _modes(plan), *(Text(line, style="dim") for line in _legend(plan, chosen_rows))]
    return Group(*parts)


def _models(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if plan["weights_bytes"] is None:
        return
    yield "file", plan["path"]
    yield "weights", f"{size_of(plan['weights_bytes'])} on {_where(plan)}; a window of {plan['window']:,} tokens"
    if experts := plan["experts"]:
        yield "experts", experts["line"]
        cold_share, over = experts["tokens_a_turn"], experts["host_bytes"] / 1e9
        yield "", f"each {cold_share:,} tokens the target reads bring {over:.1f} GB over the bus"
    if plan["as_drafter"]:
        yield "drafter", plan["as_drafter"]
    drafter = plan["drafter"]
    if drafter is None:
        return
    named = drafter["name"] if drafter["file"] else f"e.g. {drafter['name']} in BF16"
    crossed = CROSSED.get(drafter["vocabulary"], "no vocabulary")
    layers_read, of = drafter["layers_read"], drafter["layers"]
    loaded = size_of(drafter["bytes"]) + (f", {layers_read} of {of} layers" if layers_read < of else "")
    yield "drafter", f"{named}, {loaded}; {crossed}"
    yield "", drafter["window"]
    if "pays_from_tokens" in drafter:
        begins = drafter["pays_from_tokens"]
        pays = "at no length" if begins is None else f"from {begins:,} tokens on" if begins > SHORT else "at any length"
        yield "pays", f"{pays}, with {plan['keep_ratio']:.0%} kept (predicted)"


def _where(plan: dict[str, Any]) -> str:
    return "the GPU" if plan["shared_by"] == 1 else f"each of {plan['shared_by']} GPUs"


def _memory(rows: list[dict[str, Any]], where: str) -> ColumnTable:
    lengths = sorted({row["tokens"] for row in rows})
    table = _table(f"GiB on {where}", "KV", right=map(format_tokens, lengths))
    nbytes_by_cell = {(row["kv"], name, row["tokens"]): row.get(name) for row in rows for name in (*WORDS, "scoring")}
    for kv in dict.fromkeys(row["kv"] for row in rows):
        for name, words in {**WORDS, "scoring": "as a drafter"}.items():
            cells = [nbytes_by_cell[kv, name, length] for length in lengths]
            if any(cell is not None for cell in cells):
                texts = ["-" if cell is None else f"{cell / 2**30:.1f}" for cell in cells]
                table.add_row(words, kv or "", *texts)
    return table


def _modes(plan: dict[str, Any]) -> ColumnTable:
    table = _table("GPU", format_tokens(plan["tokens"]), "longest")
    for row in plan["cards"]:
        most = row["longest"]
        longest = "no" if most is None else f"{format_tokens(most['tokens'])} {_options_text(most, '')}".rstrip()
        table.add_row(f"{row['card']} GB", "no" if row["way"] is None else _options_text(row["way"], "yes"), longest)
    return table


def _options_text(mode: dict[str, Any], usual: str) -> str:
    return " ".join(mode["options"]) or usual


def _legend(plan: dict[str, Any], chosen_rows: list[dict[str, Any]]) -> Iterator[str]:
    reading = f"{plan['keep_ratio']:.0%} of the prompt is kept" if plan["drafter"] else "read in full"
    yield f"lengths are with an answer of {plan['answer_tokens']} tokens; {reading};"
    yield f"{SYSTEM >> 30} GiB of {_where(plan)} is left to its driver"
    if chosen_rows and any("--vram" in option for option in (chosen_rows[0]["way"] or {"options": ()})["options"]):
        yield "--vram: idle weights wait in host memory"


COLUMNS = {
    "score_s": "score (s)",
    "prefill_s": "kept (s)",
    "ttft_s": "first token (s)",
    "full_s": "in full (s)",
    "decode_tok_s": "decode (tok/s)",
}


def render_times(rows: list[dict[str, Any]], gpu: GPUSpec) -> ColumnTable:
    """Render the rows of `predicted_times` for a `rich` console; every column says that it is predicted."""
    names = {name: title for name, title in COLUMNS.items() if any(name in row for row in rows)}
    table = _table(gpu.name, right=(f"predicted\n{title}" for title in names.values()))
    for row in rows:
        table.add_row(format_tokens(row["tokens"]), *(seconds_text(row[name]) for name in names))
    return table


def seconds_text(value: float | None) -> str:
    """Format seconds with three digits; a dash for None, where the GPU has no room."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.{2 if value >= 1 else 3}f}"


def times_legend(
    keep: float,
    precision: AskedPrecision = Math.BF16,
    drafter_precision: AskedPrecision = Math.BF16,
    gpus: int = 1,
    target_gpus: int = 1,
) -> tuple[str, ...]:
    """Return the lines that state the basis of the times.

    >>> times_legend(0.05, Math.INT8)[-1]
    'predicted with --precision int8 and --drafter-precision bf16'
    """
    basis = f"predicted for a drafter read by {gpus} and a target shared by {target_gpus} of these GPUs"
    plain = precision == drafter_precision == Math.BF16
    return (
        f"predicted to within about {ERROR:.0%}, from peaks and bandwidths of its data sheet;",
        f"kept: the target reads {keep:.0%} of the prompt; in full: first token without a drafter",
        *(() if plain else (f"predicted with --precision {precision} and --drafter-precision {drafter_precision}",)),
        *((basis,) if max(gpus, target_gpus) > 1 else ()),
    )
