"""Picture of a head's keys before and after they are turned for the cache: docs/pictures/kv-channels.png.

    python experiments/kv_channels.py --model smollm2-135m --text alice.txt --layer 12 --head 0 kv-channels.png

Left: keys as RoPE leaves them, tokens by channels. Right: the same rows as `5bit` packs them, those of six bits first.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from sp.models.run.hooks import Hooks
from sp.models.run.layer_major import stream_layer_major
from sp.session import load


def main() -> None:
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--layer", type=int, default=12)
    parser.add_argument("--head", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    loaded = load(args.model, device="cpu")
    model, seen = loaded.model, dict[int, Any]()
    ids = np.array(loaded.tokenizer.encode(args.text.read_text("utf-8"), framed=True).ids[: args.tokens])

    def look(layer: int, q: Any, cache: Any) -> None:
        if layer == args.layer:
            seen[layer] = cache.keys(layer).copy()

    stream_layer_major(
        model, ids, np.arange(len(ids)), model.new_cache(len(ids), "f32"), hooks=Hooks(on_attention=look)
    )
    keys = seen[args.layer]
    rows = model.bases_for("5bit")[args.layer].stored(keys)
    blocks = rows[:, args.head].reshape(len(rows), -1, 2, 32)
    placed = np.concatenate([blocks[:, :, 0].reshape(len(rows), -1), blocks[:, :, 1].reshape(len(rows), -1)], axis=1)
    figure, panels = plt.subplots(2, 2, figsize=(7, 4.2), layout="constrained", height_ratios=[3, 1], sharex="col")
    sides = (keys[:, args.head], "as RoPE leaves them"), (placed, "as they are packed")
    for column, (part, title) in enumerate(sides):
        top = np.quantile(np.abs(part), 0.995)
        shown = panels[0, column].imshow(part, aspect="auto", cmap="RdBu", vmin=-top, vmax=top, interpolation="nearest")
        panels[0, column].set(title=title, ylabel="token" if column == 0 else "")
        figure.colorbar(shown, ax=panels[0, column])
        panels[1, column].bar(np.arange(part.shape[1]), np.sqrt((part**2).mean(0)), width=1.0, color="#336699")
        panels[1, column].set(xlabel="channel" if column == 0 else "place: six bits, then four", ylabel="rms")
    panels[1, 1].axvline(placed.shape[1] / 2 - 0.5, color="black", lw=1)
    figure.savefig(args.out, dpi=110)


if __name__ == "__main__":
    main()
