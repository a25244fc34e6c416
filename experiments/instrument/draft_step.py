"""One training step of the draft: features and choices of the frozen target, random blocks in its answers, the loss.

A block may start at any token of an answer. What it should guess is the target's own choice after every reference
token, as long as the reference before it is what the target chose too. Features of a batch are read once and used for
several steps with other blocks, as reading them costs more than a step of the draft.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from draft import Draft
from feed import Stage
from shapes import Reader
from torch import Tensor
from torch.nn.functional import embedding

DEPTHS = (1, 2, 3, 4, 6, 8, 10, 12, 15)  # whose accuracy is told


@dataclass
class DraftStage(Stage):
    """A stage of the draft's recipe; ``rows`` are the answer tokens that blocks may use. The rate falls linearly."""

    lm_rows: int = 0
    final_lr: float = 1.0  # share of the rate that the stage ends with
    blocks: int = 24  # a sequence and step
    first: float = 0.3  # share of blocks that start at the first token of an answer
    reuse: int = 2  # steps for each batch that the target reads
    slots: int = 6  # batches to choose among
    decay: float = 0.93  # of the loss from depth to depth


@torch.no_grad()
def read(
    target: Reader, layers: tuple[int, ...], ids: Tensor, positions: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Features (B, L, layers * hidden) and the target's choices (B, K) after the tokens at ``rows``."""
    x = embedding(ids, target.w("token_embd.weight")).float()
    found: dict[int, Tensor] = {}
    for i in range(target.config.layers):
        x = target.block(i, x, positions, rows)
        if i in layers:
            found[i] = x.to(target.compute)
    logits = target.linear(target.norm(x, "output_norm.weight"), target.head)
    return torch.cat([found[i] for i in layers], -1), logits.float().argmax(-1)


@dataclass
class Blocks:
    """Blocks that start at rows ``k`` (B, N): known tokens and indices; for the guesses (B, N, block - 1) the rest."""

    tokens: Tensor
    starts: Tensor
    labels: Tensor
    weight: Tensor


def blocks_at(k: Tensor, size: int, ids: Tensor, rows: Tensor, used: Tensor, best: Tensor) -> Blocks:
    """See `Blocks`; row r of ``rows`` (B, K) predicts token r + 1, ``best`` is the target's choice there."""
    n = k.shape[1]
    starts = rows.gather(1, k) + 1
    step = torch.arange(1, size, device=k.device)
    index = k[..., None] + step
    inside = index < rows.shape[1]
    flat = index.clamp(max=rows.shape[1] - 1).flatten(1)

    def at(x: Tensor) -> Tensor:
        return x.gather(1, flat).unflatten(1, (n, size - 1))

    valid = inside & at(used) & (at(rows) == starts[..., None] + step - 1)
    stands = at(best == ids.gather(1, (rows + 1).clamp(max=ids.shape[1] - 1))) & valid
    before = torch.cat([torch.ones_like(stands[..., :1]), stands[..., :-1]], -1).cumprod(-1) > 0
    weight = (valid & before).float()
    return Blocks(ids.gather(1, starts.clamp(max=ids.shape[1] - 1)), starts, at(best), weight)


def choose(rows: np.ndarray, used: np.ndarray, count: int, first: float, rng: np.random.Generator) -> np.ndarray:
    """Indices (B, count) into ``rows`` of the rows that predict the known token of a block."""
    out = np.zeros((len(rows), count), np.int64)
    for j, (r, u) in enumerate(zip(rows, used, strict=True)):
        n = int(u.sum())
        goes_on = np.flatnonzero(np.diff(r[:n]) == 1)
        begins = np.flatnonzero(np.diff(r[:n], prepend=-9) != 1)
        begins = np.intersect1d(begins, goes_on)
        if len(goes_on):
            out[j] = rng.choice(goes_on, count)
            out[j] = np.where(rng.random(count) < first, rng.choice(begins, count), out[j])
    return out


class Features:
    """What the target makes of the last few batches, on the device."""

    def __init__(self, target: Reader, layers: tuple[int, ...], most: int, device: str) -> None:
        self.target, self.layers, self.most, self.device = target, layers, most, device
        self.slots: list[dict[str, Tensor]] = []
        self.hosts: list[tuple[np.ndarray, np.ndarray]] = []  # rows and which of them are used

    def take(self, batch: dict[str, np.ndarray]) -> None:
        """Read a batch of a feed; the oldest goes."""
        now = {k: torch.from_numpy(batch[k]).to(self.device).long() for k in ("ids", "positions", "rows")}
        features, best = read(self.target, self.layers, now["ids"], now["positions"], now["rows"])
        used = batch["weight"] > 0
        self.slots.append(now | {"used": torch.from_numpy(used).to(self.device), "features": features, "best": best})
        self.hosts.append((batch["rows"], used))
        del self.slots[: -self.most], self.hosts[: -self.most]


class DraftStepper:
    """Forward, backward, clip and AdamW."""

    def __init__(self, draft: Draft, target: Reader, optimiser: torch.optim.Optimizer, stage: DraftStage) -> None:
        self.draft, self.optimiser = draft, optimiser
        self.embed, self.head = target.w("token_embd.weight"), target.w(target.head)
        depth = draft.config.block - 1
        self.decay = stage.decay ** torch.arange(depth, device=self.head.device)
        self.out = torch.zeros(2 * depth + 6, device=self.head.device)

    def __call__(self, slot: dict[str, Tensor], k: np.ndarray) -> None:
        at = torch.from_numpy(k).to(self.head.device)
        size = self.draft.config.block
        b = blocks_at(at, size, *(slot[name] for name in ("ids", "rows", "used", "best")))
        logits = self.draft(self.embed, self.head, slot["features"], slot["positions"], b.tokens, b.starts)
        weight = b.weight * self.decay
        nll = -logits.log_softmax(-1).gather(-1, b.labels[..., None]).squeeze(-1)
        loss = (nll * weight).sum() / weight.sum().clamp(min=1e-6)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.draft.parameters(), 1.0, foreach=True)
        self.optimiser.step()
        self.optimiser.zero_grad()
        with torch.no_grad():
            right = (logits.argmax(-1) == b.labels).float() * b.weight
            some = (b.weight[..., 0] > 0).float()
            values = [loss, norm, right.cumprod(-1).sum(), b.weight.sum(), some.sum(), torch.ones_like(loss)]
            self.out += torch.cat([right.sum((0, 1)), b.weight.sum((0, 1)), torch.stack(values)])

    def report(self) -> dict[str, object]:
        """Means since the last report; ``accepted`` of at most ``room`` guesses a block."""
        o = self.out.tolist()
        self.out.zero_()
        depth = self.draft.config.block - 1
        right, seen, (loss, norm, accepted, room, blocks, steps) = (
            o[:depth],
            o[depth : 2 * depth],
            o[2 * depth :],
        )
        steps, blocks = max(steps, 1), max(blocks, 1)
        by_depth = {str(d): round(right[d - 1] / max(seen[d - 1], 1), 4) for d in DEPTHS if d <= depth}
        return {
            "loss": round(loss / steps, 4), "grad": round(norm / steps, 3),
            "accepted": round(accepted / blocks, 3), "room": round(room / blocks, 3), "accuracy": by_depth,
        }  # fmt: skip
