"""Generated tables of docs/many-gpus.md, from shapes and records; run it to update the page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cost_curves
from models_page import table, write

from sp.bench.record import newest
from sp.errors import ConfigError
from sp.models import ModelConfig
from sp.models.file.weights import TensorSpec
from sp.models.layer.shard_spec import ShardSpec
from sp.models.network.weights import model_tensors
from sp.models.synthetic.shapes import find_shape
from sp.planning.gpus import find_gpu
from sp.planning.roofline import Roofline, TimedModel
from sp.scoring.base import attending

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "many-gpus.md"
NEEDED = ROOT / "results" / "intel-r-xeon-r-processor-2core" / "needed_pages.jsonl"
MACHINES = {
    name: ROOT / "results" / folder for name, folder in (("h100", "nvidia-h100-80gb-hbm3"), ("h200", "nvidia-h200"))
}
"""Machines with measurements of several GPUs."""
READERS = (1, 2, 4)
TYPE, LONG = "q4_k_m", 131072
DRAFTER = "qwen3-0.6b"
MODELS, SIZES = ("qwen3.6-27b", "qwen3.6-35b-a3b", "llama-3.1-70b"), (1, 2, 4, 8)
TOGETHER = {"one token": 1, "a tree of 16": 16, "a chunk of 8K": 8192, "a prompt of 128K": LONG}


def tensor_bytes(name: str, size: int) -> Iterator[tuple[TensorSpec, int]]:
    """Tensors of a file, with the bytes of one GPU's shard."""
    shape = find_shape(name)
    formats = {tensor: fmt for tensor, _, fmt in shape.plan(TYPE)}
    share = ShardSpec(0, size)
    for tensor in model_tensors(share.config(shape.config), formats):
        rows = tensor.shape
        if tensor.name == "output.weight":
            part = share.vocabulary(rows[0])
            rows = part.stop - part.start, rows[1]
        yield tensor, formats[tensor.name].nbytes(rows)


def weights(name: str, size: int) -> int:
    """Bytes of a file's tensors on one of `size` GPUs."""
    return sum(nbytes for _, nbytes in tensor_bytes(name, size))


def keys_and_values(config: ModelConfig) -> int:
    """Bytes of a cache of 128K tokens in float16."""
    return len(config.attention_layers) * LONG * 2 * config.kv_heads * config.head_dim * 2


def gpu_memory() -> list[str]:
    """Bytes on one GPU, by model and number of GPUs."""
    rows = []
    for name in MODELS:
        for size in SIZES:
            try:
                config = ShardSpec(0, size).config(find_shape(name).config)
            except ConfigError:
                continue
            sizes = weights(name, size), keys_and_values(config)
            rows.append([name, str(size), *(f"{nbytes / 1e9:.2f}" for nbytes in sizes)])
    return table(["target", "GPUs", f"weights, {TYPE.upper()} (GB)", "keys and values of 128K (GB)"], rows)


def moved() -> list[str]:
    """Bytes that a GPU receives per pass of the first model: a ring sends it 2 (P - 1) / P of every all-reduce."""
    config = find_shape(MODELS[0]).config
    rows = []
    for label, tokens in TOGETHER.items():
        once = 4 * tokens * config.hidden
        received = [2 * config.layers * once * 2 * (size - 1) / size for size in (2, 4)]
        rows.append([label, *(f"{nbytes / 1e6:,.2f}" for nbytes in (once, *received))])
    return table(["tokens that go together", "one all-reduce (MB)", "received, of 2 (MB)", "of 4 (MB)"], rows)


def needed() -> list[str]:
    """Share of the gathered pages that a GPU's block lists name, by length, rule and number of GPUs."""
    rows = sorted(newest(NEEDED), key=lambda row: row["config"]["tokens"])
    heads = ["tokens", "rule", *(f"named, of {size} GPUs (%)" for size in (2, 4, 8))]
    lines = []
    for row in rows:
        shares = [row["metrics"]["needed"][str(size)]["pages"] for size in (2, 4, 8)]
        lines.append(
            [f"{row['config']['tokens']:,}", row["config"]["rule"], *(f"{100 * share:.0f}" for share in shares)]
        )
    return table(heads, lines)


def by_gpus(machine: Path, bench: str, **values: Any) -> dict[tuple[Any, ...], dict[int, dict[str, Any]]]:
    """Newest records of a benchmark with `values` in the configuration, by what is read and then by number of GPUs;
    only those with several GPUs."""
    records: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in newest(machine / f"{bench}.jsonl"):
        config = row["config"]
        if row["samples"] and all(config.get(name) == value for name, value in values.items()):
            blocks = attending(config) or ("dense" if config.get("keep_ratio", 0) < 1 else "everything")
            records[blocks, config.get("math"), config["prompt_tokens"]][config["cards"]] = row
    ordered = sorted(records.items(), key=lambda item: (*map(str, item[0][:2]), item[0][2]))
    return {key: rows for key, rows in ordered if max(rows) > 1}


def drafting() -> list[str]:
    """Seconds to score, by number of GPUs, measured and predicted; the exponent is of the fewest GPUs with both
    lengths."""
    reader = replace(TimedModel.of_shape("qwen3-0.6b", "bf16"), int8_attention=1.0)
    rows = []
    for gpu, machine in MACHINES.items():
        records = by_gpus(machine, "drafter", model="qwen3-0.6b bf16 (random)", path="sm_90a")
        for (blocks, made_in, tokens), gpus in records.items():
            seconds = {size: gpus[size]["metrics"]["score_s"] for size in READERS if size in gpus}
            most = max(seconds)
            ratio = f"{seconds[1] / seconds[most]:.2f}" if 1 in seconds else ""
            density = next(record["metrics"]["density"] for record in gpus.values())
            by_model = (Roofline(find_gpu(gpu), size) for size in (2, 4))
            predicted = [f"{roofline.score_s(reader, tokens, density):.3f}" for roofline in by_model]
            shorter = max((n for r, m, n in records if (r, m) == (blocks, made_in) and n < tokens), default=0)
            before, exponent = records.get((blocks, made_in, shorter), {}), ""
            if shorter and (size := next((s for s in READERS if s in gpus and s in before), 0)):
                grew = gpus[size]["metrics"]["score_s"] / before[size]["metrics"]["score_s"]
                exponent = f"{math.log(grew) / math.log(tokens / shorter):.2f}"
            memory = " / ".join(f"{gpus[size]['metrics']['peak_bytes'] / 1e9:.1f}" for size in seconds)
            times = [f"{seconds[size]:.3f}" if size in seconds else "" for size in READERS]
            rows.append([gpu, f"{tokens:,}", blocks, *times, ratio, *predicted, exponent, memory])
    heads = ["GPU", "tokens", "blocks read", *(f"{n} (s)" for n in READERS), "times as fast", "2, predicted"]
    return table([*heads, "4, predicted", "exponent", "GB a GPU"], rows)


def sharing() -> list[str]:
    """Tokens per second of prefill and decoding of the 27B shape, by number of GPUs that share it."""
    rows = []
    for gpu, machine in MACHINES.items():
        for bench, size_key in (("prefill", "prompt_tokens"), ("decode", "tokens")):
            for row in newest(machine / f"{bench}.jsonl"):
                config = row["config"]
                if config.get("shape") == MODELS[0] and config["path"] == "sm_90a" and config.get("cards", 1) > 1:
                    did = f"{'reads' if bench == 'prefill' else 'decodes'} {config[size_key]:,} tokens"
                    rate = f"{row['metrics']['tok_s']:,.0f}"
                    rows.append([did, config["math"], gpu, str(config["cards"]), rate, row["commit"][:7]])
    return table(["what", "precision", "GPU", "GPUs", "tokens a second", "at commit"], sorted(rows))


def first_tokens() -> list[str]:
    """Seconds to the first token of long prompts, by number of GPUs."""
    rows = []
    for gpu, machine in MACHINES.items():
        for row in newest(machine / "ttft.jsonl"):
            config, metrics = row["config"], row["metrics"]
            sizes = config["cards"], config.get("target_cards", 1)
            pair = config["target"].startswith(MODELS[0]) and config["prompt_tokens"] >= LONG and row["samples"]
            pair = pair and (config["drafter"] or DRAFTER).startswith(DRAFTER)
            if not pair or not config.get("kept_bytes") or (config["drafter"] and sizes[0] != sizes[1]):
                continue
            stages = [metrics["stages"].get(name) for name in ("score", "target prefill")]
            reading = "everything" if config["keep_ratio"] == 1 else f"keep {config['keep_ratio']}, {attending(config)}"
            times = [metrics["ttft_s"], metrics["first_ttft_s"], *stages]
            cells = ["" if seconds is None else f"{seconds:.3f}" for seconds in times]
            rows.append([f"{config['prompt_tokens']:,}", reading, gpu, str(max(sizes)), *cells, row["commit"][:7]])
    heads = ["tokens", "target reads", "GPU", "GPUs", "first token (s)", "of the first request", "scoring"]
    return table([*heads, "target's prefill", "at commit"], sorted(rows))


def tables() -> dict[str, list[str]]:
    """Generated tables of the page, by name."""
    return {
        "held": gpu_memory(),
        "moved": moved(),
        "needed": needed(),
        "drafting": drafting(),
        "sharing": sharing(),
        "first tokens": first_tokens(),
        "curves": cost_curves.curves(),
    }


if __name__ == "__main__":
    write(PAGE, "many_gpus_page.py", tables())
