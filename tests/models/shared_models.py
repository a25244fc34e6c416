"""Tiny models whose heads four GPUs can share, and what all of a model's passes come to."""

from __future__ import annotations

from functools import cache as once
from pathlib import Path

import numpy as np
from tiny_models import VOCAB, write_tiny

from sp.models import Hooks, Model, decode_step, prefill
from sp.models.run.tree import LayerFeatures, TreeReader
from sp.quant import BlockFormat

ATTENTION = {"attention__head_count": 8, "attention__head_count_kv": 4}
DELTA = {"ssm__group_count": 4, "ssm__time_step_rank": 12, "ssm__inner_size": 192}  # three rounds of value heads
N = 131  # behind the border of a page
IDS = np.random.default_rng(0).integers(0, VOCAB, N + 20)
WHERE = np.cumsum(1 + (np.arange(N + 20) % 17 == 0))  # with gaps, as kept tokens have
PARENTS = np.array([-1, 0, 0, 1, 1, 2])
DEPTHS = np.array([0, 1, 1, 2, 2, 2])


@once
def file_of(folder: Path, arch: str, fmt: BlockFormat | None = None) -> Path:
    """A tiny file; in a format of blocks with sizes that four GPUs cut at their borders."""
    sizes: dict[str, object] = ATTENTION | (DELTA if arch == "qwen35" else {})
    if fmt is None:
        return write_tiny(folder / f"{arch}.gguf", arch, **sizes)
    sizes |= {"embedding_length": 256, "feed_forward_length": 4 * fmt.block_size, "attention__head_count": 16}
    if arch == "qwen35":
        sizes |= {"ssm__state_size": fmt.block_size, "ssm__inner_size": 12 * fmt.block_size, "block_count": 3}
    return write_tiny(folder / f"{arch}-{fmt.name}.gguf", arch, fmt=fmt, **sizes)


def read_all(model: Model, kv: str = "f32", rotate: bool = False, n: int = N) -> list[np.ndarray]:
    """What a prompt in chunks, steps, a tree, a kept path of it and a step behind that come to."""
    cache, seen = model.new_cache(n + 20, kv, rotate=rotate), []
    found = [
        prefill(
            model,
            IDS[:n],
            WHERE[:n],
            cache,
            chunk=50,
            hooks=Hooks(after_layer=LayerFeatures((0, 2), seen.append)),
            rows=n,
        )
    ]
    found += [decode_step(model, int(IDS[n + i]), int(WHERE[n + i]), cache) for i in range(2)]
    reader = TreeReader(model, cache, (1, 2), most=8)
    tree = reader.read_tree(IDS[n + 2 : n + 8], PARENTS, WHERE[n + 2] + DEPTHS)
    assert (tree.choices == tree.logits.argmax(axis=1)).all()
    found += [*tree.logits, *seen, tree.features.copy()]
    reader.commit_path(np.array([0, 1, 4]))
    return [*found, decode_step(model, 7, int(WHERE[n + 2]) + 3, cache)]
