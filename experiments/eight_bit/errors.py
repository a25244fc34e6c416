"""What rounding to eight bits costs a matrix product, against float64, for the shapes of the 27B model.

    python experiments/eight_bit/errors.py --out results        # on the CPU, a quarter of a minute

Weights are normal values encoded in a format; of the outputs of a shape ROWS are computed, for TOKENS tokens. Inputs
are normal; with outliers of 100 or 1,000, 4 channels, the same in all tokens, are so many times as large as the others.
Errors are relative, root mean square over root mean square:

`whole`   of all of the product; with outliers it is nearly all theirs
`quiet`   of what the other channels give: half the difference of two products, of the inputs and of the inputs with the
          other channels negated, in which scales are the same and what the outliers lose cancels

A row of ``eight_bit_errors.jsonl`` is one format, shape and kind of inputs, with the errors of all ways to round. The
table is printed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from roundings import Way, exact, ways

from sp.bench.record import append, make_record
from sp.quant import Q4_K, Q6_K, Q8_0, Weight

ROWS, TOKENS, CHANNELS, SEED = 64, 64, 4, 1
SHAPES = ((17408, 5120), (5120, 6144), (5120, 17408))
"""Outputs and inputs: gate and up, the output of attention, down."""
OUTLIERS = (0, 100, 1000)
FORMATS = (Q4_K, Q6_K, Q8_0)


def inputs(width: int, outliers: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs float32 (TOKENS, width), and the same with all but the loud channels negated."""
    rng = np.random.default_rng([SEED, width, outliers])
    x = rng.standard_normal((TOKENS, width)).astype(np.float32)
    loud = rng.permutation(width)[:CHANNELS]
    if outliers:
        x[:, loud] *= outliers
    other = -x
    other[:, loud] = x[:, loud]
    return x, other


def relative(error: np.ndarray, size: np.ndarray) -> float:
    return float(np.sqrt((error**2).sum() / (size**2).sum()))


def measured(way: Way, w: Weight, both: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    """Errors of one way."""
    weight, dense = way.weight(w), exact(w)
    got = [way.product(x, w, weight) for x in both]
    want = [x.astype(np.float64) @ dense.T for x in both]
    quiet = relative(got[0] - got[1] - (want[0] - want[1]), want[0] - want[1])
    return {"whole": relative(got[0] - want[0], want[0]), "quiet": quiet}


def study(out: Path | None) -> dict[tuple[str, str], dict[tuple[int, int], dict[str, float]]]:
    """All rows, by format and way, then by width and outliers."""
    found: dict[tuple[str, str], dict[tuple[int, int], dict[str, float]]] = {}
    for fmt in FORMATS:
        for rows, width in SHAPES:
            values = np.random.default_rng([SEED, rows, width]).standard_normal((ROWS, width)).astype(np.float32)
            w = Weight.from_floats("w", 0.02 * values, fmt)
            for outliers in OUTLIERS:
                both = inputs(width, outliers)
                metrics = {name: measured(way, w, both) for name, way in ways(fmt).items()}
                for name, errors in metrics.items():
                    found.setdefault((fmt.name, name), {})[width, outliers] = errors
                if out is not None:
                    config = {"type": fmt.name, "n": rows, "k": width, "outliers": outliers}
                    config |= {"rows": ROWS, "tokens": TOKENS, "channels": CHANNELS, "seed": SEED}
                    append(make_record("eight_bit_errors", config, metrics, [], [], device="cpu"), out)
    return found


def table(found: dict[tuple[str, str], dict[tuple[int, int], dict[str, float]]]) -> str:
    """Markdown, in percent: the mean square over the shapes."""
    columns = [(outliers, part) for outliers in OUTLIERS for part in ("whole", "quiet")]
    columns.remove((0, "quiet"))
    titles = ["normal" if not outliers else f"{outliers}, {part}" for outliers, part in columns]
    lines = [f"| format | way | {' | '.join(titles)} |", "|---|---|" + "---:|" * len(titles)]
    for (fmt, name), rows in found.items():
        cells = []
        for outliers, part in columns:
            of_shapes = [errors[part] for (_, planted), errors in rows.items() if planted == outliers]
            cells.append(f"{100 * np.sqrt(np.mean(np.square(of_shapes))):.3g}")
        lines.append(f"| {fmt} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="append the rows below this folder")
    began = time.perf_counter()
    print(table(study(parser.parse_args().out)))
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
