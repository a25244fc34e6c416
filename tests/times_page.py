"""Generated tables of times in docs/files-and-gpus.md, from GPUs, shapes and records; run it to update the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from models_page import table, write

from sp.bench.record import newest, reads_all
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
    target, drafter = (shape_subject(*model) for model in PAIR)
    plan = make_plan(target, drafter, gpu.gib, LONG, lengths=(SHORT, LONG))
    short, long = predicted_times(plan, gpu, expected, precision, drafter_precision)
    return [
        seconds_text(seconds) for seconds in (short["full_s"], long["full_s"], long["ttft_s"], long["decode_tok_s"])
    ]


def gpus() -> list[str]:
    """Predicted times by GPU."""
    heads = ["8K in full (s)", "128K in full (s)", "128K, keep 0.05 (s)", "the same in int8 (s)", "decode (tok/s)"]
    rows = []
    for gpu in KNOWN:
        *first, decoded = times(gpu)
        peaks = [f"{rate / 1e12:g}" for rate in (gpu.flops, gpu.int8)] + [f"{gpu.bandwidth / 1e9:g}", str(gpu.gib)]
        rows.append([gpu.name, *peaks, *first, times(gpu, Math.INT8, AUTO)[2], decoded])
    return table(["GPU", "TFLOP/s", "TOP/s, int8", "GB/s", "GiB", *(f"*predicted* {head}" for head in heads)], rows)


def efficiency() -> list[str]:
    """Share of each limit that the roofline assumes."""
    return table(["kind of work", *EFFICIENCY], [["of its limit", *(f"{share:.0%}" for share in EFFICIENCY.values())]])


@dataclass(frozen=True)
class Row:
    """Measured and predicted seconds of one record, with its model, machine and date."""

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
    readers = {"prefill": _prefill, "decode": _decode, "drafter": _scoring, "ttft": _request}
    records = []
    for gpu, folder in MACHINES.items():
        for bench, times_of in readers.items():
            for record in newest(folder / f"{bench}.jsonl"):
                config = record["config"]
                for name, measured, predicted in times_of({"card": gpu, **config}, record["metrics"]):
                    name += f", {config['path']}, {precisions_of(config)[0]}"
                    records.append(Row(bench, name, gpu, max(gpus_of(config)), measured, predicted, record["date"]))
    return tuple(records)


Timings = Iterator[tuple[str, float, float]]


def _prefill(c: Mapping[str, Any], m: Mapping[str, Any]) -> Timings:
    model = weights(c["shape"], c["type"])
    if model and c["engine"] == "sp" and reads_all(c):
        count, tokens = gpus_of(c)[0], c["prompt_tokens"]
        if model := _made_in(model.shared_by(count), precisions_of(c)[0], c, "asked_math", answers=True):
            seconds = _roofline(c, target_gpus=count).prefill_s(model, tokens)
            yield f"{c['shape']} {c['type']}, {tokens:,} tokens", tokens / m["tok_s"], seconds


def _decode(c: Mapping[str, Any], m: Mapping[str, Any]) -> Timings:
    model = weights(c["shape"], c["type"])
    if model and c["engine"] == "sp" and c["method"] == "greedy":
        count, context = gpus_of(c)[0], c["context"]
        kv = c["kv"].partition(" ")[0]
        seconds = _roofline(c, target_gpus=count).step_s(model.shared_by(count), context, kv)
        yield f"{c['shape']} {c['type']}, after {context:,} tokens", 1 / m["tok_s"], seconds


def _scoring(c: Mapping[str, Any], m: Mapping[str, Any]) -> Timings:
    shape, _, rest = c["model"].partition(" ")
    model = weights(shape, rest.partition(" ")[0])
    if model and (model := _made_in(model, precisions_of(c)[0], c, "asked_math")):
        tokens, density = c["prompt_tokens"], m["density"] if c["attention"] == "flashprefill" else None
        if c["attention"] == "skip_softmax":  # all scores, some values: not predicted
            return
        seconds = _roofline(c, gpus=gpus_of(c)[0]).score_s(model, tokens, density)
        yield f"{shape}, {tokens:,} tokens at density {m['density']:.2f}", m["score_s"], seconds


def _request(c: Mapping[str, Any], m: Mapping[str, Any]) -> Timings:
    model, (reading, sharing), (precision, small) = weights(*_named(c["target"])), gpus_of(c), precisions_of(c)
    if not model or m["ttft_s"] is None or c["scorer"] not in (None, "tail"):
        return
    target = _made_in(model.shared_by(sharing), precision, c, "asked_math", answers=True)
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
    """Return the model of a named shape; None for other models and for mixtures."""
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


def _made_in(
    model: TimedModel, precision: str, c: Mapping[str, Any], precision_key: str, *, answers: bool = False
) -> TimedModel | None:
    """Return a model with the precision of its record; None for others than BF16 and int8."""
    int8_model = model.multiplied_in(
        AUTO if c.get(precision_key) == AUTO else Math.INT8, find_gpu(c["card"]), c["path"], answers=answers
    )
    known = {
        str(Math.BF16): model, str(Math.INT8): int8_model, prequantized_label(Math.INT8): int8_model,
        attention_only_label(Math.INT8): replace(model, int8_attention=int8_model.int8_attention),
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
        sizes = [abs(size) for size in groups[name]]
        within = [sum(size <= most for size in sizes) for most in (0.1, 0.2, ERROR)]
        extremes = [f"{most(groups[name]):+.0%}" for most in (min, max)]
        lines.append([name, str(len(sizes)), f"{median(sizes):.0%}", *map(str, within), *extremes])
    heads = [
        "records",
        "count",
        "median error",
        *(f"within {size:.0%}" for size in (0.1, 0.2, ERROR)),
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
    """Generated tables of the section, by name."""
    return {"gpus": gpus(), "efficiency": efficiency(), "errors": errors(), "outside": outside()}


if __name__ == "__main__":
    write(PAGE, "times_page.py", tables())
