"""The tables of times in docs/files-and-gpus.md, made from GPUs, shapes and records; run it to print them anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from models_page import table, write

from sp.bench.record import newest
from sp.commands.plan import expected
from sp.errors import ConfigError
from sp.models.network.arithmetic import AUTO, AskedPrecision, attention_only_label, prequantized_label
from sp.planning.gpus import KNOWN, GPUSpec, find_gpu
from sp.planning.plan import make_plan
from sp.planning.roofline import EFFICIENCY, ERROR, Roofline, TimedModel, predicted_times
from sp.planning.subject import shape_subject
from sp.planning.tables import seconds_text
from sp.quant import Math
from sp.session.measured import gpus_of, precisions_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "files-and-gpus.md"
MACHINES = {"h200": ROOT / "results" / "nvidia-h200", "h100": ROOT / "results" / "nvidia-h100-80gb-hbm3"}
PAIR = ("qwen3.6-27b", "q4_k_m"), ("qwen3-0.6b", "bf16")
SHORT, LONG = 8192, 131072


def times(
    gpu: GPUSpec, precision: AskedPrecision = Math.BF16, drafter_precision: AskedPrecision = Math.BF16
) -> list[str]:
    """A GPU's cells: a full prefill of 8K tokens, the first token of 128K in full and at keep 0.05, decoding."""
    target, drafter = (shape_subject(*one) for one in PAIR)
    plan = make_plan(target, drafter, gpu.gib, LONG, lengths=(SHORT, LONG))
    short, long = predicted_times(plan, gpu, expected, precision, drafter_precision)
    return [seconds_text(one) for one in (short["full_s"], long["full_s"], long["ttft_s"], long["decode_tok_s"])]


def gpus() -> list[str]:
    """GPUs by times, all of them predicted."""
    heads = ["8K in full (s)", "128K in full (s)", "128K, keep 0.05 (s)", "the same in int8 (s)", "decode (tok/s)"]
    rows = []
    for gpu in KNOWN:
        *first, decoded = times(gpu)
        peaks = [f"{one / 1e12:g}" for one in (gpu.flops, gpu.int8)] + [f"{gpu.bandwidth / 1e9:g}", str(gpu.gib)]
        rows.append([gpu.name, *peaks, *first, times(gpu, Math.INT8, AUTO)[2], decoded])
    return table(["GPU", "TFLOP/s", "TOP/s, int8", "GB/s", "GiB", *(f"*predicted* {head}" for head in heads)], rows)


def efficiency() -> list[str]:
    """What the roofline takes of each limit."""
    return table(["kind of work", *EFFICIENCY], [["of its limit", *(f"{one:.0%}" for one in EFFICIENCY.values())]])


@dataclass(frozen=True)
class Row:
    """One record: what was measured and is predicted of it, in seconds, with what they are of and from when."""

    bench: str
    name: str
    gpu: str
    gpus: int
    measured: float
    predicted: float
    date: str

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1


@cache
def rows() -> tuple[Row, ...]:
    """The newest records, of prefills, decoded tokens, scorings and requests, of dense models in named shapes."""
    read = {"prefill": _prefill, "decode": _decode, "drafter": _scoring, "ttft": _request}
    found = []
    for gpu, folder in MACHINES.items():
        for bench, times_of in read.items():
            for record in newest(folder / f"{bench}.jsonl"):
                config = record["config"]
                for name, measured, predicted in times_of({"card": gpu, **config}, record["metrics"]):
                    name += f", {config['path']}, {precisions_of(config)[0]}"
                    found.append(Row(bench, name, gpu, max(gpus_of(config)), measured, predicted, record["date"]))
    return tuple(found)


Found = Iterator[tuple[str, float, float]]


def _prefill(c: Mapping[str, Any], m: Mapping[str, Any]) -> Found:
    model = weights(c["shape"], c["type"])
    if model and c["engine"] == "sp" and c.get("asked_density") is None:
        count, tokens = gpus_of(c)[0], c["prompt_tokens"]
        if model := _made_in(model.shared_by(count), precisions_of(c)[0], c, "asked_math"):
            seconds = _roofline(c, target_gpus=count).prefill_s(model, tokens)
            yield f"{c['shape']} {c['type']}, {tokens:,} tokens", tokens / m["tok_s"], seconds


def _decode(c: Mapping[str, Any], m: Mapping[str, Any]) -> Found:
    model = weights(c["shape"], c["type"])
    if model and c["engine"] == "sp" and c["method"] == "greedy":
        count, context = gpus_of(c)[0], c["context"]
        kv = c["kv"].partition(" ")[0]
        seconds = _roofline(c, target_gpus=count).step_s(model.shared_by(count), context, kv)
        yield f"{c['shape']} {c['type']}, after {context:,} tokens", 1 / m["tok_s"], seconds


def _scoring(c: Mapping[str, Any], m: Mapping[str, Any]) -> Found:
    shape, _, rest = c["model"].partition(" ")
    model = weights(shape, rest.partition(" ")[0])
    if model and (model := _made_in(model, precisions_of(c)[0], c, "asked_math")):
        tokens, density = c["prompt_tokens"], m["density"] if c["attention"] == "flashprefill" else None
        seconds = _roofline(c, gpus=gpus_of(c)[0]).score_s(model, tokens, density)
        yield f"{shape}, {tokens:,} tokens at density {m['density']:.2f}", m["score_s"], seconds


def _request(c: Mapping[str, Any], m: Mapping[str, Any]) -> Found:
    model, (reading, sharing), (precision, small) = weights(*_named(c["target"])), gpus_of(c), precisions_of(c)
    if not model or m["ttft_s"] is None or c["scorer"] not in (None, "tail"):
        return
    target = _made_in(model.shared_by(sharing), precision, c, "asked_math")
    tokens, roofline = m["prompt_tokens"], _roofline(c, gpus=reading, target_gpus=sharing)
    name = f"{c['target'].removesuffix('.synthetic')}, {tokens:,} tokens"
    if target and c["drafter"] is None:
        yield f"{name} in full", m["ttft_s"], roofline.full_s(target, tokens)
        return
    drafter = weights(*_named(c["drafter"]))
    drafter = drafter and _made_in(drafter, small, c, "drafter_asked_math")
    if target and drafter:
        density, within = m["density"], f", --vram {c['vram']}" if c["vram"] else ""
        seconds = roofline.compressed(target, drafter, tokens, m["kept_tokens"] / tokens, density).ttft_s
        yield f"{name}, keep {c['keep_ratio']:g}, density {density:.2f}{within}", m["ttft_s"], seconds


@cache
def weights(shape: str | None, file_type: str) -> TimedModel | None:
    """Of a named shape; None of other models and of mixtures."""
    if shape is None:
        return None
    try:
        model = TimedModel.of_shape(shape, file_type)
    except ConfigError:
        return None
    return None if model.config.experts else model


def _named(file: str) -> tuple[str, str]:
    """Shape and file type of ``qwen3.6-27b-q4_k_m.synthetic``."""
    shape, _, file_type = file.removesuffix(".synthetic").rpartition("-")
    return shape, file_type


def _made_in(model: TimedModel, precision: str, c: Mapping[str, Any], asked: str) -> TimedModel | None:
    """A model in the arithmetic of its record; None of others than BF16 and int8."""
    made = model.multiplied_in(AUTO if c.get(asked) == AUTO else Math.INT8, find_gpu(c["card"]), c["path"])
    known = {
        str(Math.BF16): model, str(Math.INT8): made, prequantized_label(Math.INT8): made,
        attention_only_label(Math.INT8): replace(model, int8_attention=made.int8_attention),
    }  # fmt: skip
    return known.get(precision)


def _roofline(c: Mapping[str, Any], gpus: int = 1, target_gpus: int = 1) -> Roofline:
    return Roofline(find_gpu(c["card"]), gpus, target_gpus, c["path"])


def errors() -> list[str]:
    """How far off predictions are, by kind of record, and by GPU and number of GPUs."""
    groups: dict[str, list[float]] = {}
    for row in rows():
        for name in (row.bench, f"{row.gpu}, {row.gpus} GPU{'s' * (row.gpus > 1)}", "all"):
            groups.setdefault(name, []).append(row.error)
    order = sorted(groups, key=lambda name: (name == "all", name[-1] in "ds", name))
    lines = []
    for name in order:
        sizes = [abs(one) for one in groups[name]]
        within = [sum(one <= most for one in sizes) for most in (0.1, 0.2, ERROR)]
        extremes = [f"{most(groups[name]):+.0%}" for most in (min, max)]
        lines.append([name, str(len(sizes)), f"{median(sizes):.0%}", *map(str, within), *extremes])
    heads = [
        "records",
        "count",
        "median error",
        *(f"within {one:.0%}" for one in (0.1, 0.2, ERROR)),
        "lowest",
        "highest",
    ]
    return table(heads, lines)


def outside() -> list[str]:
    """Every record that is further off than stated."""
    far = sorted((row for row in rows() if abs(row.error) > ERROR), key=lambda row: row.error)
    lines = [
        [row.bench, row.name, f"{row.gpus} x {row.gpu}", row.date[:10],
         *(f"{1e3 * one:,.1f}" for one in (row.measured, row.predicted)), f"{row.error:+.0%}"]
        for row in far
    ]  # fmt: skip
    return table(["record", "of", "GPUs", "date", "measured (ms)", "*predicted* (ms)", "error"], lines)


def tables() -> dict[str, list[str]]:
    """Every table of the section by its name there."""
    return {"gpus": gpus(), "efficiency": efficiency(), "errors": errors(), "outside": outside()}


if __name__ == "__main__":
    write(PAGE, "times_page.py", tables())
