"""What real weights lose where attention leaves out key tiles of little weight, emulated in NumPy.

    python experiments/real/skipped_tiles.py smollm2-135m alice.txt --tokens 6144 --shares 0.01 --budgets 0.05 0.1
    python experiments/real/skipped_tiles.py smollm2-135m alice.txt --tokens 6144 --budgets 0.02 0.05 --of-one 1

A tile of keys is left out for 64 rows of queries, by one of two rules: if all its scores lie below `share` of the
largest weight that each row has seen (BLASST's), or if no row loses more than a budget of all weight so far, and a part
of it by this tile (`sp.ops.skip_softmax`). Tiles come as a kernel reads them: first the one with the sink, then from
the diagonal down. Printed are the share of tiles that is read, the weight that rows lose, and KL, best tokens and loss
beside whole attention.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kv_quality import judged, stream

from sp.models.cache.kv_type import known_kv
from sp.ops.attention import attention as module
from sp.ops.attention.score_rule import PLAIN, ScoreRule
from sp.ops.skip_softmax import OF_ONE, left_out
from sp.session import load

ROWS = 64  # queries of a tile, as one warpgroup has them
whole_attention = module.attention


@dataclass
class Skipping:
    """Attention that leaves tiles out, and what it left out."""

    share: float
    budget: float = 0.0
    of_one: float = OF_ONE  # largest part of the budget for one tile
    tiles: int = 0
    read: int = 0
    rows: int = 0
    lost: float = 0.0

    def __call__(self, q: Any, k: Any, v: Any, rule: ScoreRule = PLAIN) -> Any:
        """As `sp.ops.attention.attention.attention`; layers with windows are left as they are."""
        if rule.window is not None:
            return whole_attention(q, k, v, rule)
        out, group, scale = np.empty_like(q), q.shape[1] // k.shape[1], np.float32(rule.scale or q.shape[2] ** -0.5)
        for head in range(q.shape[1]):
            for first in range(0, len(q), ROWS):
                rows = slice(first, min(first + ROWS, len(q)))
                seen = len(k) - len(q) + rows.stop
                scores = q[rows, head] * scale @ k[:seen, head // group].T
                position = len(k) - len(q) + np.arange(first, rows.stop)
                scores[np.arange(seen) > position[:, None]] = -np.inf
                weights = self._left(scores, 64 if q.shape[2] == 256 else 128)
                out[rows, head] = weights @ v[:seen, head // group]
        return out

    def _left(self, scores: Any, keys: int) -> Any:
        """Weights (rows, keys) without those of tiles that are left out, summing to one again."""
        tiles = -(-scores.shape[1] // keys)
        padded = np.pad(scores, ((0, 0), (0, tiles * keys - scores.shape[1])), constant_values=-np.inf)
        by_tile = padded.reshape(len(scores), tiles, keys)
        order = np.array([0, *range(tiles - 1, 0, -1)])
        best = by_tile.max(axis=2)[:, order]
        weights = np.exp(by_tile - padded.max(axis=1)[:, None, None])
        total = weights.sum(axis=(1, 2))
        if self.budget:
            out = np.array(left_out(weights.sum(axis=2), tiles, self.budget, self.of_one), int)
        else:
            out = order[(best < np.maximum.accumulate(best, axis=1) + np.log(self.share)).all(axis=0)]
        self.tiles, self.read, self.rows = self.tiles + tiles, self.read + tiles - len(out), self.rows + len(scores)
        self.lost += float((weights[:, out].sum(axis=(1, 2)) / total).sum())
        weights[:, out] = 0
        flat = weights.reshape(len(scores), -1)[:, : scores.shape[1]]
        return flat / flat.sum(axis=1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a known name, or a file")
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=6144)
    parser.add_argument("--every", type=int, default=8, help="which tokens' logits are scored")
    parser.add_argument("--shares", type=float, nargs="+", default=[])
    parser.add_argument("--budgets", type=float, nargs="+", default=[])
    parser.add_argument("--of-one", type=float, default=OF_ONE, help="largest part of a budget for one tile")
    given = parser.parse_args()
    loaded = load(given.model, device="cpu")
    ids = np.array(loaded.tokenizer.encode(given.text.read_text("utf-8"), framed=True).ids, np.int64)[
        : given.tokens + 1
    ]
    wanted = ids[given.every :: given.every]
    exact = stream(loaded.model, ids[:-1], given.every, known_kv("f16"), None, 1)
    rules = [("share", share, Skipping(share)) for share in given.shares]
    for name, value, skipping in [
        *rules,
        *(("budget", each, Skipping(0, each, given.of_one)) for each in given.budgets),
    ]:
        start = time.perf_counter()
        module.attention = skipping  # type: ignore[assignment]
        try:
            near = stream(loaded.model, ids[:-1], given.every, known_kv("f16"), None, 1)
        finally:
            module.attention = whole_attention
        told = judged(loaded.model, exact, near, wanted)
        read, lost = skipping.read / max(skipping.tiles, 1), skipping.lost / max(skipping.rows, 1)
        shown = f"read {read:.3f} lost {lost:.2e} kl {told['kl']:.2e} top1 {told['top1']:.4f}"
        print(f"{name} {value:g} {shown} nll {told['nll']:.4f} {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
