"""Curves of the draft's training runs: ``python draft_curves.py OUT.png TRAIN.jsonl...``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main(out: Path, files: list[Path]) -> None:
    fig, axes = plt.subplots(2, len(files), figsize=(4.2 * len(files), 6), sharex="col", squeeze=False)
    for column, path in zip(axes.T, files, strict=True):
        points = [r for line in path.read_text().splitlines() if "accuracy" in (r := json.loads(line))]
        x = [r["step"] for r in points]
        for depth in ("1", "4", "8", "15"):
            column[0].plot(x, [r["accuracy"][depth] for r in points], label=f"depth {depth}", lw=1)
        column[1].plot(x, [r["accepted"] for r in points], label="guesses accepted a block")
        column[1].plot(x, [r["room"] for r in points], label="guesses up to the answer's end", color="0.6", lw=1)
        last = None
        for r in points:
            if r["stage"] != last:
                for ax in column:
                    ax.axvline(r["step"], color="0.8", lw=0.8, zorder=0)
                column[0].text(r["step"], 0.02, r["stage"], rotation=90, fontsize=7, color="0.4")
                last = r["stage"]
        column[0].set(title=path.stem, ylim=(0, 1.02), ylabel="right guesses")
        column[1].set(xlabel="steps", ylabel="tokens", ylim=(0, None))
        for ax in column:
            ax.legend(fontsize=7, frameon=False)
            ax.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    fig.savefig(out, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(p) for p in sys.argv[2:]])
