"""A larger model that computes what a smaller one does: ``python grow.py SMALL.gguf OUT.safetensors``.

The target starts as the drafter, twice as wide (hidden values, feed-forward units and query heads doubled, what reads
them halved; after Net2Net, arXiv 1511.05641) and with further layers that add nothing yet. A little noise tells the
doubles apart. Before anything is written, the same growth without noise must give the drafter's logits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from fit import save
from layers import GGUFModule
from shapes import DRAFTER, TARGET, build
from torch import Tensor
from weights import load_quantised

SOURCE = (0, None, 1, None, 2, None, 3, None, 4, None)
"""Layer of the drafter that each layer of the target starts as; None adds nothing at first."""
NOISE = 0.02
"""Of a matrix's own spread."""
SAME = 1e-4
"""Most that logits may change where only the shape does, relative to their norm; f32 leaves about 1e-6."""


def doubled(name: str, w: Tensor) -> Tensor:
    """A weight of the drafter in the target's shape."""
    kind = name.split(".")[-2] if "blk" in name else name
    if w.ndim == 1:
        return w if kind in ("attn_q_norm", "attn_k_norm") else w.repeat(2)
    if kind == "token_embd.weight":
        return w.repeat(1, 2)
    if kind == "attn_output":  # its input: heads, each standing twice side by side
        heads = w.unflatten(1, (DRAFTER.heads, DRAFTER.head_dim))
        return heads.repeat_interleave(2, 1).flatten(1).repeat(2, 1) / 2
    if kind == "ffn_down":
        return w.repeat(2, 2) / 2
    wide = w.repeat(1, 2) / 2
    if kind == "attn_q":
        return wide.unflatten(0, (DRAFTER.heads, DRAFTER.head_dim)).repeat_interleave(2, 0).flatten(0, 1)
    return wide.repeat(2, 1) if kind in ("ffn_gate", "ffn_up") else wide


@torch.no_grad()
def grow(small: GGUFModule, noise: float = NOISE) -> GGUFModule:
    """The target."""
    large = build("target", torch.float32)
    given = small.named()
    for name, p in large.named().items():
        old = name
        if name.startswith("blk."):
            number = SOURCE[int(name.split(".")[1])]
            if number is None:
                if name.endswith(("attn_output.weight", "ffn_down.weight")):
                    p.zero_()
                continue
            old = ".".join(["blk", str(number), *name.split(".")[2:]])
        value = doubled(name, given[old])
        if name == "output_norm.weight":  # the tied head reads every hidden value twice
            value = value / 2
        p.copy_(value + torch.randn_like(value) * value.std() * noise if value.ndim == 2 else value)
    return large


@torch.no_grad()
def change(small: GGUFModule, length: int = 96) -> float:
    """Relative change of the logits of random tokens by growth alone."""
    ids, positions = torch.randint(DRAFTER.vocab, (1, length)), torch.arange(length)[None]
    want, got = (one(ids, positions, positions) for one in (small, grow(small, noise=0.0)))
    return float((got - want).norm() / want.norm())


def main(source: Path, out: Path) -> None:
    """Read, grow, write."""
    torch.manual_seed(0)
    small = load_quantised(build("drafter", torch.float32), source)
    if (changed := change(small)) > SAME:
        raise SystemExit(f"{source}: growth changes the logits by {changed:.1e}; see SOURCE and `doubled`")
    save(grow(small), out)
    print(out, TARGET, f"growth alone changes the logits by {changed:.1e}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
