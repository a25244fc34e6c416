"""Generated tables of docs/files-and-gpus.md, from shapes, plans and records; run it to update the page."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from models_page import table, write

from sp.bench.record import newest
from sp.models.config import ModelConfig
from sp.models.synthetic.shapes import find_shape, list_shapes
from sp.planning.gpus import (
    GPUS,
    KEEP,
    LARGEST_DRAFTER,
    REPORTED_LENGTHS,
    Drafter,
    drafters_for,
    longest,
    room,
    weights_bytes,
)
from sp.planning.memory import Stacks, stack_bytes
from sp.planning.plan import format_tokens
from sp.session.measured import PLAIN_PRECISIONS, precisions_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "files-and-gpus.md"
RECORDS = ROOT / "results" / "nvidia-h200" / "ttft.jsonl"
TYPES = ("q4_k_m", "ud-q4_k_xl", "q8_0")
"""File types on the page; models that are published in another one have only that."""


def files() -> Iterator[tuple[str, str, ModelConfig, int, int, Stacks, Drafter]]:
    """Every file of the page.

    Shape, file type, configuration, bytes of the file, on the device and of its experts there, drafter.
    """
    for name in list_shapes():
        shape = find_shape(name)
        size = sum(tensor.size for tensor in shape.tensors())
        if size <= LARGEST_DRAFTER or name.startswith("tiny-"):
            continue
        for file_type in TYPES if shape.usual_type in TYPES else (shape.usual_type,):
            plan = shape.plan(file_type)
            formats = {tensor: fmt for tensor, _, fmt in plan}
            device_bytes = weights_bytes(shape.config, formats), stack_bytes(shape.config, formats)
            nbytes = sum(fmt.nbytes(dims) for _, dims, fmt in plan)
            yield (
                name,
                file_type,
                shape.config,
                nbytes,
                *device_bytes,
                proposed(f"{name}-{file_type}", shape.config, size),
            )


def proposed(target: str, config: ModelConfig, parameters: int) -> Drafter:
    """Return the first drafter that was measured with a target, else the first of all."""
    drafters = drafters_for(config, parameters)
    tried = {r["config"]["drafter"] for r in measured() if r["config"]["target"] == f"{target}.synthetic"}
    return next((drafter for drafter in drafters if f"{drafter.name}-bf16.synthetic" in tried), drafters[0])


@cache
def measured() -> list[dict[str, Any]]:
    """The newest records of compressed requests that some GPU has room for."""
    records = []
    for record in newest(RECORDS):
        config, peak = record["config"], record["metrics"].get("peak_bytes")
        pair = config["drafter"] and config["keep_ratio"] >= KEEP and config["scorer"] == "tail"
        if (
            pair
            and precisions_of(config) == PLAIN_PRECISIONS
            and config["path"] == "sm_90a"
            and peak
            and peak <= room(GPUS[-1])
        ):
            records.append(record)
    return records


def proof(name: str, file_type: str, drafter: str, tokens: int, gpu: int) -> dict[str, Any] | None:
    """Return the record with the fewest options of a request of this length that fits a GPU; None without one."""
    fitting = [
        record
        for record in measured()
        if record["config"]["target"] == f"{name}-{file_type}.synthetic"
        and record["config"]["drafter"] == f"{drafter}-bf16.synthetic"
        and record["config"]["prompt_tokens"] >= tokens
        and record["metrics"]["peak_bytes"] <= room(gpu)
    ]
    return min(
        fitting, key=lambda record: (record["config"]["vram"] is not None, record["config"]["keep_ratio"]), default=None
    )


@cache
def cells() -> list[str]:
    """Longest prompt by file and GPU, with its options, predicted or measured."""
    rows = []
    for name, file_type, config, nbytes, weights, stacks, drafter in files():
        row = [f"{name} {file_type.upper()}", f"{nbytes / 1e9:.1f}", drafter.name]
        for gpu in GPUS:
            fit = longest(config, weights, drafter, gpu, stacks=stacks)
            if fit is None:
                row.append("no, *predicted*")
                continue
            tokens, mode = fit
            options = "".join(f" `{option}`" for option in mode.options(gpu))
            seen = proof(name, file_type, drafter.name, tokens, gpu)
            kv = "" if seen is None else seen["config"]["kv"].split()[0]
            evidence = "*predicted*" if seen is None else "measured" if kv == mode.kv else f"*predicted*, {kv} measured"
            row.append(f"{format_tokens(tokens)}{options}, {evidence}")
        rows.append(row)
    return table(["file", "GB", "drafter (BF16)", *(f"{gpu} GB" for gpu in GPUS)], rows)


def records() -> list[str]:
    """Records behind the cells that are called measured."""
    rows = {}
    for record in sorted(measured(), key=lambda record: record["metrics"]["peak_bytes"]):  # of two alike the larger
        config, peak = record["config"], record["metrics"]["peak_bytes"]
        if config["prompt_tokens"] in REPORTED_LENGTHS and config["keep_ratio"] == KEEP:
            gpus = ", ".join(str(gpu) for gpu in GPUS if peak <= room(gpu))
            budget = f"`--vram {config['vram']}`" if config["vram"] else "none"
            sizes = [format_tokens(config["prompt_tokens"]), config["kv"], budget, f"{peak / 2**30:.1f}", gpus]
            names = [config["target"].removesuffix(".synthetic"), config["drafter"].removesuffix(".synthetic")]
            size_key = config["prompt_tokens"], config["vram"] or ""
            rows[*names, *size_key] = [*names, *sizes, f"{record['date'][:10]}, {record['commit']}"]
    ordered = [rows[key] for key in sorted(rows)]
    return table(["target", "drafter", "prompt", "KV", "budget", "peak GiB", "fits GPUs of", "record of"], ordered)


def tables() -> dict[str, list[str]]:
    """Generated tables of the page, by name."""
    return {"cells": cells(), "records": records()}


if __name__ == "__main__":
    write(PAGE, "files_page.py", tables())
