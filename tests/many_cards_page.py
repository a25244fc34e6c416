"""The tables of docs/many-cards.md that are made, from shapes and a record; run it to write them anew."""

from __future__ import annotations

from pathlib import Path

from models_page import table, write

from sp.bench.record import newest
from sp.errors import ConfigError
from sp.models import ModelConfig
from sp.models.layers.share import Share
from sp.models.synthetic.shapes import find_shape
from sp.models.trunk import trunk_tensors

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "many-cards.md"
NEEDED = ROOT / "results" / "intel-r-xeon-r-processor-2core" / "needed_pages.jsonl"
TYPE, LONG = "q4_k_m", 131072
MODELS, SIZES = ("qwen3.6-27b", "qwen3.6-35b-a3b", "llama-3.1-70b"), (1, 2, 4, 8)
TOGETHER = {"one token": 1, "a tree of 16": 16, "a chunk of 8K": 8192, "a prompt of 128K": LONG}


def weights(name: str, size: int) -> int:
    """Bytes of a file's tensors that one card holds of it."""
    shape = find_shape(name)
    formats = {tensor: fmt for tensor, _, fmt in shape.plan(TYPE)}
    share, total = Share(0, size), 0
    for tensor in trunk_tensors(share.config(shape.config), formats):
        rows = tensor.shape
        if tensor.name == "output.weight":
            mine = share.vocabulary(rows[0])
            rows = mine.stop - mine.start, rows[1]
        total += formats[tensor.name].nbytes(rows)
    return total


def keys_and_values(config: ModelConfig) -> int:
    """Bytes of a cache of 128K tokens in float16."""
    return len(config.attention_layers) * LONG * 2 * config.kv_heads * config.head_dim * 2


def held() -> list[str]:
    """What a card holds, by model and cards."""
    found = []
    for name in MODELS:
        for size in SIZES:
            try:
                config = Share(0, size).config(find_shape(name).config)
            except ConfigError:
                continue
            sizes = weights(name, size), keys_and_values(config)
            found.append([name, str(size), *(f"{one / 1e9:.2f}" for one in sizes)])
    return table(["target", "cards", f"weights, {TYPE.upper()} (GB)", "keys and values of 128K (GB)"], found)


def moved() -> list[str]:
    """What a card receives while tokens pass the first model: a ring gives it 2 (P - 1) / P of every all-reduce."""
    config = find_shape(MODELS[0]).config
    found = []
    for what, tokens in TOGETHER.items():
        once = 4 * tokens * config.hidden
        received = [2 * config.layers * once * 2 * (size - 1) / size for size in (2, 4)]
        found.append([what, *(f"{one / 1e6:,.2f}" for one in (once, *received))])
    return table(["tokens that go together", "one all-reduce (MB)", "received, of 2 (MB)", "of 4 (MB)"], found)


def needed() -> list[str]:
    """Of what is gathered, the pages that a card's lists name, by length, rule and cards."""
    rows = sorted(newest(NEEDED), key=lambda row: row["config"]["tokens"])
    heads = ["tokens", "rule", *(f"named, of {size} cards (%)" for size in (2, 4, 8))]
    found = []
    for row in rows:
        shares = [row["metrics"]["needed"][str(size)]["pages"] for size in (2, 4, 8)]
        found.append([f"{row['config']['tokens']:,}", row["config"]["rule"], *(f"{100 * one:.0f}" for one in shares)])
    return table(heads, found)


def tables() -> dict[str, list[str]]:
    """Every table of the page that is made, by its name there."""
    return {"held": held(), "moved": moved(), "needed": needed()}


if __name__ == "__main__":
    write(PAGE, "many_cards_page.py", tables())
