"""The tables of docs/many-gpus.md that are made, from shapes and a record; run it to write them anew."""

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
"""Those that several GPUs were measured on."""
READERS = (1, 2, 4)
TYPE, LONG = "q4_k_m", 131072
DRAFTER = "qwen3-0.6b"
MODELS, SIZES = ("qwen3.6-27b", "qwen3.6-35b-a3b", "llama-3.1-70b"), (1, 2, 4, 8)
TOGETHER = {"one token": 1, "a tree of 16": 16, "a chunk of 8K": 8192, "a prompt of 128K": LONG}


def tensor_bytes(name: str, size: int) -> Iterator[tuple[TensorSpec, int]]:
    """Tensors of a file, with what one GPU holds of them."""
    shape = find_shape(name)
    formats = {tensor: fmt for tensor, _, fmt in shape.plan(TYPE)}
    share = ShardSpec(0, size)
    for tensor in model_tensors(share.config(shape.config), formats):
        rows = tensor.shape
        if tensor.name == "output.weight":
            mine = share.vocabulary(rows[0])
            rows = mine.stop - mine.start, rows[1]
        yield tensor, formats[tensor.name].nbytes(rows)


def weights(name: str, size: int) -> int:
    """Bytes of a file's tensors that one GPU holds of it."""
    return sum(nbytes for _, nbytes in tensor_bytes(name, size))


def keys_and_values(config: ModelConfig) -> int:
    """Bytes of a cache of 128K tokens in float16."""
    return len(config.attention_layers) * LONG * 2 * config.kv_heads * config.head_dim * 2


def held() -> list[str]:
    """What a GPU holds, by model and GPUs."""
    found = []
    for name in MODELS:
        for size in SIZES:
            try:
                config = ShardSpec(0, size).config(find_shape(name).config)
            except ConfigError:
                continue
            sizes = weights(name, size), keys_and_values(config)
            found.append([name, str(size), *(f"{one / 1e9:.2f}" for one in sizes)])
    return table(["target", "GPUs", f"weights, {TYPE.upper()} (GB)", "keys and values of 128K (GB)"], found)


def moved() -> list[str]:
    """What a GPU receives while tokens pass the first model: a ring gives it 2 (P - 1) / P of every all-reduce."""
    config = find_shape(MODELS[0]).config
    found = []
    for what, tokens in TOGETHER.items():
        once = 4 * tokens * config.hidden
        received = [2 * config.layers * once * 2 * (size - 1) / size for size in (2, 4)]
        found.append([what, *(f"{one / 1e6:,.2f}" for one in (once, *received))])
    return table(["tokens that go together", "one all-reduce (MB)", "received, of 2 (MB)", "of 4 (MB)"], found)


def needed() -> list[str]:
    """Of what is gathered, the pages that a GPU's lists name, by length, rule and GPUs."""
    rows = sorted(newest(NEEDED), key=lambda row: row["config"]["tokens"])
    heads = ["tokens", "rule", *(f"named, of {size} GPUs (%)" for size in (2, 4, 8))]
    found = []
    for row in rows:
        shares = [row["metrics"]["needed"][str(size)]["pages"] for size in (2, 4, 8)]
        found.append([f"{row['config']['tokens']:,}", row["config"]["rule"], *(f"{100 * one:.0f}" for one in shares)])
    return table(heads, found)


def by_gpus(machine: Path, bench: str, **wanted: Any) -> dict[tuple[Any, ...], dict[int, dict[str, Any]]]:
    """Newest records of a benchmark that several GPUs have run as well as one, by what they read and then by GPUs."""
    found: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in newest(machine / f"{bench}.jsonl"):
        config = row["config"]
        if row["samples"] and all(config.get(name) == value for name, value in wanted.items()):
            read = attending(config) or ("dense" if config.get("keep_ratio", 0) < 1 else "everything")
            found[read, config.get("math"), config["prompt_tokens"]][config["cards"]] = row
    ordered = sorted(found.items(), key=lambda item: (*map(str, item[0][:2]), item[0][2]))
    return {key: rows for key, rows in ordered if max(rows) > 1}


def drafting() -> list[str]:
    """Seconds to score, by GPUs, and predicted; the exponent is of the fewest GPUs that read both lengths."""
    reader = replace(TimedModel.of_shape("qwen3-0.6b", "bf16"), int8_attention=True)
    rows = []
    for gpu, machine in MACHINES.items():
        found = by_gpus(machine, "drafter", model="qwen3-0.6b bf16 (random)", path="sm_90a")
        for (read, made_in, tokens), gpus in found.items():
            seconds = {size: gpus[size]["metrics"]["score_s"] for size in READERS if size in gpus}
            most = max(seconds)
            ratio = f"{seconds[1] / seconds[most]:.2f}" if 1 in seconds else ""
            density = next(each["metrics"]["density"] for each in gpus.values())
            by_model = (Roofline(find_gpu(gpu), size) for size in (2, 4))
            predicted = [f"{one.score_s(reader, tokens, density):.3f}" for one in by_model]
            shorter = max((n for r, m, n in found if (r, m) == (read, made_in) and n < tokens), default=0)
            before, exponent = found.get((read, made_in, shorter), {}), ""
            if shorter and (size := next((s for s in READERS if s in gpus and s in before), 0)):
                grew = gpus[size]["metrics"]["score_s"] / before[size]["metrics"]["score_s"]
                exponent = f"{math.log(grew) / math.log(tokens / shorter):.2f}"
            memory = " / ".join(f"{gpus[size]['metrics']['peak_bytes'] / 1e9:.1f}" for size in seconds)
            told = [f"{seconds[size]:.3f}" if size in seconds else "" for size in READERS]
            rows.append([gpu, f"{tokens:,}", read, *told, ratio, *predicted, exponent, memory])
    heads = ["GPU", "tokens", "blocks read", *(f"{n} (s)" for n in READERS), "times as fast", "2, predicted"]
    return table([*heads, "4, predicted", "exponent", "GB a GPU"], rows)


def sharing() -> list[str]:
    """Prompts read and tokens decoded a second by the 27B shape, by GPUs that share it."""
    rows = []
    for gpu, machine in MACHINES.items():
        for bench, what in (("prefill", "prompt_tokens"), ("decode", "tokens")):
            for row in newest(machine / f"{bench}.jsonl"):
                config = row["config"]
                if config.get("shape") == MODELS[0] and config["path"] == "sm_90a" and config.get("cards", 1) > 1:
                    did = f"{'reads' if bench == 'prefill' else 'decodes'} {config[what]:,} tokens"
                    rate = f"{row['metrics']['tok_s']:,.0f}"
                    rows.append([did, config["math"], gpu, str(config["cards"]), rate, row["commit"][:7]])
    return table(["what", "precision", "GPU", "GPUs", "tokens a second", "at commit"], sorted(rows))


def first_tokens() -> list[str]:
    """Seconds to the first token of long prompts, by GPUs that hold both models."""
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
            read = "everything" if config["keep_ratio"] == 1 else f"keep {config['keep_ratio']}, {attending(config)}"
            times = [metrics["ttft_s"], metrics["first_ttft_s"], *stages]
            cells = ["" if one is None else f"{one:.3f}" for one in times]
            rows.append([f"{config['prompt_tokens']:,}", read, gpu, str(max(sizes)), *cells, row["commit"][:7]])
    heads = ["tokens", "target reads", "GPU", "GPUs", "first token (s)", "of the first request", "scoring"]
    return table([*heads, "target's prefill", "at commit"], sorted(rows))


def tables() -> dict[str, list[str]]:
    """Every table of the page that is made, by its name there."""
    return {
        "held": held(),
        "moved": moved(),
        "needed": needed(),
        "drafting": drafting(),
        "sharing": sharing(),
        "first tokens": first_tokens(),
        "curves": cost_curves.curves(),
    }


if __name__ == "__main__":
    write(PAGE, "many_gpus_page.py", tables())
