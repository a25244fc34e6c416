"""Train heads of low rank that find evidence in what the drafter's layers make of a prompt; see README.md.

    python train.py DRAFTER.gguf data.npz hand.npz -o OUT --seconds 300

The drafter stays as it is. It reads each window, and the window's questions behind it, each by itself; every head
learns from the same reading. Held back is every sixth document of the hand-written questions.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
import torch
from drafter_torch import Drafter
from torch import nn

CHUNK = 32
LONGEST = 56
"""Tokens of a question and the markup behind it."""
A_READING = 16
"""Questions asked of a window at once."""
BATCH = 4
"""Readings a step."""
STRETCH = (1, 1, 2, 4)
"""Factors by which the YaRN factor of a reading may be larger than its window needs: prompts come in all lengths."""


def names(letters: str, layers: tuple[int, ...]) -> tuple[str, ...]:
    """Features of layers, as `Drafter.read` names them."""
    return tuple(f"{letter}{layer}" for layer in layers for letter in letters)


VARIANTS = {
    "kv10to18": (names("q", (12, 14, 16, 18)), names("kv", (10, 12, 14, 16, 17, 18)), 96, 1e-3),
}
"""Features of the tokens that ask, and of the document's; rank and rate."""
TRIED = {
    "hidden": (names("h", (14, 16, 18)), names("h", (14, 16, 18)), 128, 1e-3),
    "k14_16_18": (names("q", (14, 16, 18)), names("k", (14, 16, 18)), 128, 1e-3),
    "kv14_16_18": (names("q", (14, 16, 18)), names("kv", (14, 16, 18)), 128, 1e-3),
    "k10to18": (names("q", (14, 16, 18)), names("k", tuple(range(10, 19))), 128, 1e-3),
    "kv8to16": (names("q", (12, 14, 16)), names("kv", (8, 10, 12, 14, 16)), 112, 1e-3),
}
"""What was tried beside it; README.md has the results."""


class Head(nn.Module):
    """Late interaction: a chunk is worth, by each asking token, what its most similar token is; gates weigh these.

    Parameters
    ----------
    scales : dict of str to tensor
        Root mean square of each channel of each feature; inputs are divided by it, and in the end the weights.
    asking, looked : tuple of str
        Features of the tokens that ask, and of the document's.
    rank : int
    rate : float
    """

    def __init__(self, scales: dict[str, torch.Tensor], asking, looked, rank: int, rate: float) -> None:
        super().__init__()
        self.asking, self.looked, self.rank, self.rate = asking, looked, rank, rate
        self.wide, self.deep = (torch.cat([scales[name] for name in part]) for part in (asking, looked))
        self.query = nn.Parameter(torch.randn(len(self.wide), rank) / len(self.wide) ** 0.5)
        self.key = nn.Parameter(torch.randn(len(self.deep), rank) / len(self.deep) ** 0.5)
        self.gate = nn.Parameter(torch.zeros(len(self.wide)))
        self.sharp = nn.Parameter(torch.tensor(2.7))

    def forward(self, document, asked, mask, shift: int, units: int, drop: float) -> torch.Tensor:
        """Log-share of each chunk (questions, units); the first has `shift` tokens fewer."""
        x = torch.cat([document[name] for name in self.looked], -1).float() / self.deep
        y = torch.cat([asked[name] for name in self.asking], -1).float() / self.wide
        if drop:
            x, y = nn.functional.dropout(x, drop), nn.functional.dropout(y, drop)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            k, q = nn.functional.normalize(x @ self.key, dim=-1), nn.functional.normalize(y @ self.query, dim=-1)
            gate = (y @ self.gate).float().masked_fill(~mask, -torch.inf).softmax(-1)
            likes = q @ k.T
        likes = nn.functional.pad(likes, (shift, units * CHUNK - shift - likes.shape[-1]), value=-2.0)
        best = likes.unflatten(-1, (units, CHUNK)).amax(-1).float()
        return (torch.einsum("bmu,bm->bu", best, gate) * self.sharp.exp()).log_softmax(-1)

    def weights(self) -> dict[str, np.ndarray]:
        """For inputs that are not scaled."""
        found = {
            "query": self.query / self.wide[:, None],
            "key": self.key / self.deep[:, None],
            "gate": self.gate / self.wide,
        }
        return {name: value.detach().float().cpu().numpy() for name, value in found.items()}


class Data:
    """Windows with questions, of a file that `corpus.py` or `hand.py` wrote."""

    def __init__(self, path: Path) -> None:
        z = np.load(path)
        self.z = {name: z[name] for name in z.files}
        self.count = len(self.z["factors"])
        self.questions: list[list[int]] = [[] for _ in range(self.count)]
        for number, of in enumerate(self.z["made_of"]):
            self.questions[self.z["evidence"][of][0]].append(number)

    def window(self, number: int, chosen: list[int], device: str):
        """Ids, questions (b, m) and which of their places are real, spans of evidence, and the YaRN factor."""
        z = self.z
        ids = torch.from_numpy(z["ids"][z["bounds"][number] : z["bounds"][number + 1]].astype(np.int64)).to(device)
        rows = [z["made_ids"][z["made_at"][q] : z["made_at"][q + 1]].astype(np.int64)[:LONGEST] for q in chosen]
        asked, mask = (np.zeros((len(rows), max(map(len, rows))), kind) for kind in (np.int64, bool))
        for i, row in enumerate(rows):
            asked[i, : len(row)], mask[i, : len(row)] = row, True
        spans = [tuple(map(int, z["evidence"][z["made_of"][q]][1:])) for q in chosen]
        places = (torch.from_numpy(array).to(device) for array in (asked, mask))
        return ids, *places, spans, int(z["factors"][number])


def shares(spans, n: int, shift: int, units: int, device: str) -> torch.Tensor:
    """Of the evidence in each chunk, (questions, units)."""
    out = np.zeros((len(spans), units), np.float32)
    for i, (start, end) in enumerate(spans):
        np.add.at(out[i], (np.arange(start, min(end, n)) + shift) // CHUNK, 1)
    return torch.from_numpy(out / np.maximum(out.sum(1, keepdims=True), 1)).to(device)


@torch.no_grad()
def ranks(drafter: Drafter, heads: dict[str, Head], data: Data, numbers: list[int], taken, device: str):
    """Share of chunks above that of the evidence which is lowest, by head."""
    found: dict[str, list[float]] = {name: [] for name in heads}
    for number in numbers:
        ids, asked, mask, spans, factor = data.window(number, data.questions[number], device)
        document, states = drafter.read(ids, asked, taken, factor)
        units = -(-len(ids) // CHUNK)
        for name, head in heads.items():
            scores = head(document, states, mask, 0, units, 0.0).cpu().numpy()
            for row, (start, end) in zip(scores, spans, strict=True):
                found[name].append(float((row > row[start // CHUNK : (end - 1) // CHUNK + 1].min()).mean()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drafter", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("hand", type=Path)
    parser.add_argument("-o", type=Path, default=Path("out"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--most", type=int, default=10**9)
    parser.add_argument("--tried", action="store_true", help="all that was tried, side by side")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    rng = random.Random(0)
    args.o.mkdir(parents=True, exist_ok=True)
    drafter, data, hand = Drafter(args.drafter, device), Data(args.data), Data(args.hand)
    held = [i for i in range(hand.count) if i % 6 == 0]
    mine = [(hand, i) for i in range(hand.count) if i not in held]
    work = [(data, i) for i in range(min(data.count, args.most))] + 2 * mine
    variants = VARIANTS | (TRIED if args.tried else {})
    taken = tuple(sorted({int(name[1:]) for how in variants.values() for part in how[:2] for name in part}))
    scales = feature_scales(drafter, [mine[i % len(mine)] for i in range(12)], taken, device)
    heads = {name: Head(scales, *how).to(device) for name, how in variants.items()}
    steps = {
        n: torch.optim.AdamW(h.parameters(), h.rate, betas=(0.9, 0.98), weight_decay=0.02) for n, h in heads.items()
    }
    start, done, total = time.time(), 0, args.epochs * len(work)
    lost = {name: torch.zeros((), device=device) for name in heads}
    order = [one for _ in range(args.epochs) for one in rng.sample(work, len(work))]
    for source, number in order:
        done += 1
        chosen = source.questions[number]
        if not chosen:
            continue
        ids, asked, mask, spans, factor = source.window(number, rng.sample(chosen, min(len(chosen), A_READING)), device)
        document, states = drafter.read(ids, asked, taken, factor * rng.choice(STRETCH))
        shift = rng.randrange(CHUNK)
        units = (len(ids) + shift - 1) // CHUNK + 1
        wanted = shares(spans, len(ids), shift, units, device)
        progress = max(done / total, (time.time() - start) / args.seconds)
        for name, head in heads.items():
            loss = -(wanted * head(document, states, mask, shift, units, 0.1)).sum(-1).mean()
            (loss * (3.0 if source is hand else 1.0) / BATCH).backward()
            lost[name] += loss.detach()
            if done % BATCH == 0:
                for group in steps[name].param_groups:
                    group["lr"] = head.rate * min(1.0, done / 400) * max(0.02, 1 - progress)
                torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
                steps[name].step()
                steps[name].zero_grad(set_to_none=True)
        if done % 500 == 0:
            print(
                done,
                total,
                f"{time.time() - start:.0f} s",
                {n: round(float(v) / 500, 3) for n, v in lost.items()},
                flush=True,
            )
            lost = {name: torch.zeros((), device=device) for name in heads}
        if time.time() - start > args.seconds:
            break
    for name, head in heads.items():
        np.savez(args.o / f"{name}.npz", **head.weights())
    for name, found in ranks(drafter, heads, hand, held, taken, device).items():
        row = np.array(found)
        first = [f"{(row < share).mean():.3f}" for share in (0.1, 0.05, 0.02)]
        print(f"{name}: held back n = {len(row)}, median rank {np.median(row):.4f}, in the first 10, 5, 2 %: {first}")
    (args.o / "variants.json").write_text(json.dumps({name: list(how) for name, how in variants.items()}))
    print(f"{done} readings, {time.time() - start:.0f} s")


def feature_scales(drafter: Drafter, some, taken, device: str) -> dict[str, torch.Tensor]:
    """Root mean square of each channel on a few windows."""
    squares: dict[str, list[torch.Tensor]] = {}
    for source, number in some:
        ids, asked, mask, _, factor = source.window(number, source.questions[number], device)
        document, states = drafter.read(ids, asked, taken, factor)
        for name, value in document.items():
            squares.setdefault(name, []).append(value.float().square().mean(0))
        for name, value in states.items():
            if name[0] != "h":
                squares.setdefault(name, []).append(value.float()[mask].square().mean(0))
    return {name: torch.stack(rows).mean(0).sqrt() + 1e-6 for name, rows in squares.items()}


if __name__ == "__main__":
    main()
