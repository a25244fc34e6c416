"""Curves of the training runs, with stage borders: ``python curves.py OUT.png TRAIN.jsonl...``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main(out: Path, files: list[Path]) -> None:
    fig, axes = plt.subplots(2, len(files), figsize=(5 * len(files), 6), sharex="col", squeeze=False)
    for column, path in zip(axes.T, files, strict=True):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        points = [r for r in rows if "first_acc" in r]
        x = [r["tokens"] / 1e6 for r in points]
        column[0].plot(x, [r["first_acc"] for r in points], label="first turn: first value token")
        column[0].plot(x, [r["answer_acc"] for r in points], label="all answer tokens", alpha=0.6)
        column[1].semilogy(x, [r["loss"] for r in points], label="answer loss")
        column[1].semilogy(x, [max(r["pointer"], 1e-3) for r in points], label="pointer loss", alpha=0.6)
        last = None
        for r in points:
            if r["stage"] != last:
                for ax in column:
                    ax.axvline(r["tokens"] / 1e6, color="0.8", lw=0.8, zorder=0)
                column[0].text(r["tokens"] / 1e6, 0.02, r["stage"], rotation=90, fontsize=7, color="0.4")
                last = r["stage"]
        column[0].set(title=path.stem, ylim=(0, 1.02), ylabel="accuracy")
        column[1].set(xlabel="tokens (millions)", ylabel="loss")
        for ax in column:
            ax.legend(fontsize=7, frameon=False)
            ax.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    fig.savefig(out, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(p) for p in sys.argv[2:]])
