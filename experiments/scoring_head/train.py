"""Train a head of low rank that finds evidence in what the drafter's layers make of a prompt; see README.md.

    python train.py DRAFTER.gguf data.npz hand.npz -o OUT

The drafter stays as it is. It reads each window once, and the window's questions behind it, each by itself; what its
layers made of both stays in GPU memory (some 60 GB), and the head learns from that. Held back is every sixth document
of the hand-written questions.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import dataclass
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
"""Windows a step."""
STRETCH = (1, 2, 4)
"""Factors by which the YaRN factor of a second reading may be larger than its window needs: prompts come in all
lengths."""
UNITS = (8, 64)
"""Tokens of the units that compete, from and to."""
STRANGERS = 96_000
"""Tokens of other windows that compete with a window's own, as those of a long prompt would."""


def names(letters: str, layers: tuple[int, ...]) -> tuple[str, ...]:
    """Features of layers, as `Drafter.read` names them."""
    return tuple(f"{letter}{layer}" for layer in layers for letter in letters)


ASKING, LOOKED, RANK = names("q", (12, 14, 16, 18)), names("kv", (10, 12, 14, 16, 17, 18)), 96
"""Features of the tokens that ask, and of the document's; dimensions of the space."""
TAKEN = (10, 12, 14, 16, 17, 18)


@dataclass
class Reading:
    """What the drafter made of a window and of its questions, as bfloat16 on the device.

    Parameters
    ----------
    document : tensor (n, features)
    asked : tensor (questions, m, features)
    mask : bool tensor (questions, m)
        Which of their places are real.
    spans : list of (int, int)
        Evidence of each question.
    written : bool
        Whether they were written for the document, and not made of it.
    """

    document: torch.Tensor
    asked: torch.Tensor
    mask: torch.Tensor
    spans: list[tuple[int, int]]
    written: bool


class Head(nn.Module):
    """Late interaction: a unit is worth, by each asking token, what its most similar token is; gates weigh these.

    `wide`, `deep`: root mean square of each channel of the features that ask, and of the document's; inputs are divided
    by it, and in the end the weights.
    """

    def __init__(self, wide: torch.Tensor, deep: torch.Tensor) -> None:
        super().__init__()
        self.wide, self.deep = wide, deep
        self.query = nn.Parameter(torch.randn(len(wide), RANK, device=wide.device) / len(wide) ** 0.5)
        self.key = nn.Parameter(torch.randn(len(deep), RANK, device=wide.device) / len(deep) ** 0.5)
        self.gate = nn.Parameter(torch.zeros(len(wide), device=wide.device))
        self.sharp = nn.Parameter(torch.tensor(2.7, device=wide.device))

    def place(self, document: torch.Tensor, drop: float = 0.0) -> torch.Tensor:
        """Tokens (n, features) in the space, of length one."""
        x = nn.functional.dropout(document / self.deep.to(document.dtype), drop)
        return nn.functional.normalize((x @ self.key.to(x.dtype)).float(), dim=-1)

    def ask(self, asked: torch.Tensor, mask: torch.Tensor, drop: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        """Asking tokens (questions, m, features) in the space, and their gates."""
        y = nn.functional.dropout(asked / self.wide.to(asked.dtype), drop)
        gate = (y @ self.gate.to(y.dtype)).float().masked_fill(~mask, -torch.inf).softmax(-1)
        return nn.functional.normalize((y @ self.query.to(y.dtype)).float(), dim=-1), gate

    def weights(self) -> dict[str, np.ndarray]:
        """For inputs that are not scaled."""
        found = {
            "query": self.query / self.wide[:, None],
            "key": self.key / self.deep[:, None],
            "gate": self.gate / self.wide,
        }
        return {name: value.detach().float().cpu().numpy() for name, value in found.items()}


def worth(q: torch.Tensor, gate: torch.Tensor, k: torch.Tensor, units: torch.Tensor | int) -> torch.Tensor:
    """Of units (questions, units): of so many tokens each, or of the tokens (units, longest) named, -1 for none."""
    likes = q.bfloat16() @ k.bfloat16().T
    if isinstance(units, int):
        best = likes[..., : len(k) // units * units].unflatten(-1, (-1, units)).amax(-1)
    else:
        best = nn.functional.pad(likes, (0, 1), value=-2.0)[..., units].amax(-1)
    return torch.einsum("bmu,bm->bu", best.float(), gate)


class Data:
    """Windows with questions, of a file that `corpus.py` or `hand.py` wrote."""

    def __init__(self, path: Path, written: bool) -> None:
        z = np.load(path)
        self.z, self.written = {name: z[name] for name in z.files}, written
        self.count = len(self.z["factors"])
        self.questions: list[list[int]] = [[] for _ in range(self.count)]
        for number, of in enumerate(self.z["made_of"]):
            self.questions[self.z["evidence"][of][0]].append(number)

    def read(self, drafter: Drafter, number: int, stretch: int, rng: random.Random) -> Reading:
        """A window and at most `A_READING` of its questions, at a YaRN factor larger than it needs by `stretch`."""
        z, device = self.z, drafter.device
        chosen = self.questions[number]
        chosen = rng.sample(chosen, min(len(chosen), A_READING))
        ids = torch.from_numpy(z["ids"][z["bounds"][number] : z["bounds"][number + 1]].astype(np.int64)).to(device)
        rows = [z["made_ids"][z["made_at"][q] : z["made_at"][q + 1]].astype(np.int64)[:LONGEST] for q in chosen]
        asked, mask = (np.zeros((len(rows), max(map(len, rows))), kind) for kind in (np.int64, bool))
        for i, row in enumerate(rows):
            asked[i, : len(row)], mask[i, : len(row)] = row, True
        spans = [tuple(map(int, z["evidence"][z["made_of"][q]][1:])) for q in chosen]
        asked, mask = (torch.from_numpy(array).to(device) for array in (asked, mask))
        document, states = drafter.read(ids, asked, TAKEN, int(z["factors"][number]) * stretch)
        x, y = (torch.cat([part[n] for n in which], -1) for part, which in ((document, LOOKED), (states, ASKING)))
        return Reading(x.to(drafter.dtype), y.to(drafter.dtype), mask, spans, self.written)


def cut(n: int, spans: list[tuple[int, int]], rng: np.random.Generator) -> np.ndarray:
    """Bounds of units: of equal length from a random place on, or of random ones that evidence may bound."""
    least, most = UNITS
    if rng.random() < 0.4:
        size = int(rng.choice([16, CHUNK, 64]))
        bounds = np.arange(-int(rng.integers(size)), n, size)
    else:
        bounds = np.cumsum(rng.integers(least, most + 1, 2 * n // (least + most) + 64))
        if rng.random() < 0.7:
            inside = np.zeros(n + most + 1, bool)
            for start, end in spans:
                inside[start + 1 : end] = end - start <= most
            bounds = np.append(bounds[~inside[np.minimum(bounds, n)]], np.ravel(spans))
    bounds = np.unique(np.clip(np.append(bounds, [0, n]), 0, n))
    over = np.flatnonzero(np.diff(bounds) > most)
    extra = [np.arange(bounds[i] + most, bounds[i + 1], most) for i in over]
    return np.unique(np.concatenate([bounds, *extra]))


def shares(spans: list[tuple[int, int]], bounds: np.ndarray) -> np.ndarray:
    """Of the evidence in each unit, (questions, units)."""
    out = np.zeros((len(spans), len(bounds) - 1), np.float32)
    for row, (start, end) in zip(out, spans, strict=True):
        row[:] = np.clip(np.minimum(bounds[1:], end) - np.maximum(bounds[:-1], start), 0, None)
    return out / np.maximum(out.sum(1, keepdims=True), 1)


def table(bounds: np.ndarray, device: str) -> torch.Tensor:
    """Tokens of each unit, (units, longest), -1 where it is shorter."""
    index = bounds[:-1, None] + np.arange(np.diff(bounds).max())
    return torch.from_numpy(np.where(index < bounds[1:, None], index, -1)).to(device)


def strangers(readings: list[Reading], own: Reading, rng: random.Random) -> torch.Tensor:
    """Documents of other windows (tokens, features), `STRANGERS` tokens and more where there are so many."""
    found, total = [], 0
    for reading in rng.sample(readings, min(len(readings), 24)):
        if total < STRANGERS and reading.document.shape != own.document.shape:
            found.append(reading.document)
            total += len(reading.document)
    return torch.cat(found) if found else own.document[:0]


def train(
    readings: list[Reading],
    scales: tuple[torch.Tensor, torch.Tensor],
    device: str,
    count: int,
    rate: float,
    drop: float,
) -> Head:
    """A head that saw `count` readings, those of written questions every second time."""
    rng, units = random.Random(0), np.random.default_rng(0)
    torch.manual_seed(0)
    head = Head(*scales).to(device)
    adam = torch.optim.AdamW(head.parameters(), rate, betas=(0.9, 0.98), weight_decay=0.02)
    sources = [part for part in ([r for r in readings if r.written], [r for r in readings if not r.written]) if part]
    lost, start = torch.zeros((), device=device), time.time()
    for done in range(1, count + 1):
        one = rng.choice(sources[done % len(sources)])
        bounds = cut(len(one.document), one.spans, units)
        wanted = torch.from_numpy(shares(one.spans, bounds)).to(device)
        q, gate = head.ask(one.asked, one.mask, drop)
        scores = worth(q, gate, head.place(one.document, drop), table(bounds, device))
        if rng.random() < 0.7:
            others = head.place(strangers(readings, one, rng), drop)
            scores = torch.cat([scores, worth(q, gate, others, rng.choice((16, 32, 64)))], -1)
        share = (scores * head.sharp.exp()).log_softmax(-1)[:, : wanted.shape[1]]
        loss = -(wanted * share).sum(-1).mean()
        (loss / BATCH).backward()
        lost += loss.detach()
        if done % BATCH == 0:
            for group in adam.param_groups:
                group["lr"] = rate * min(1.0, done / 400) * max(0.02, 1 - done / count)
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            adam.step()
            adam.zero_grad(set_to_none=True)
        if done % 1000 == 0:
            print(f"{done} of {count}, {time.time() - start:.0f} s, loss {float(lost) / 1000:.3f}", flush=True)
            lost.zero_()
    return head


@torch.no_grad()
def ranks(head: Head, held: list[Reading], readings: list[Reading]) -> tuple[np.ndarray, np.ndarray]:
    """Share of chunks above that of the evidence which is lowest: of its window, and with strangers among them."""
    rng, own, among = random.Random(0), [], []
    for one in held:
        q, gate = head.ask(one.asked, one.mask)
        n = len(one.document)
        mine = worth(q, gate, head.place(one.document), table(np.append(np.arange(0, n, CHUNK), n), q.device)).cpu()
        rest = worth(q, gate, head.place(strangers(readings, one, rng)), CHUNK).cpu()
        for row, more, (start, end) in zip(mine, rest, one.spans, strict=True):
            least = row[start // CHUNK : (end - 1) // CHUNK + 1].min()
            above = int((row > least).sum())
            own.append(above / len(row))
            among.append((above + int((more > least).sum())) / (len(row) + len(more)))
    return np.array(own), np.array(among)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafter", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("hand", type=Path)
    parser.add_argument("-o", type=Path, default=Path("out"))
    parser.add_argument("--windows", type=int, default=700, help="of data.npz that are read")
    parser.add_argument("--readings", type=int, nargs="+", default=[8000], help="that a head sees; a head for each")
    parser.add_argument("--drop", type=float, nargs="+", default=[0.1], help="share of inputs left out, for each head")
    parser.add_argument("--rate", type=float, default=1e-3)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rng, start = random.Random(0), time.time()
    args.o.mkdir(parents=True, exist_ok=True)
    drafter, data, hand = Drafter(args.drafter, device), Data(args.data, False), Data(args.hand, True)
    mine = [i for i in range(hand.count) if hand.questions[i]]
    held = [hand.read(drafter, i, 1, rng) for i in mine if i % 6 == 0]
    readings = [hand.read(drafter, i, by, rng) for i in mine if i % 6 for by in (1, rng.choice(STRETCH[1:]))]
    asked = [i for i in range(data.count) if data.questions[i]]
    readings += [
        data.read(drafter, i, rng.choice(STRETCH), rng) for i in rng.sample(asked, min(args.windows, len(asked)))
    ]
    some = rng.sample(readings, min(24, len(readings)))
    scales = tuple(
        torch.stack([part.float().square().mean(0) for part in parts]).mean(0).sqrt() + 1e-6
        for parts in ([r.asked[r.mask] for r in some], [r.document for r in some])
    )
    print(f"{len(readings)} readings, {len(held)} held back, {time.time() - start:.0f} s", flush=True)
    for number, (count, drop) in enumerate(zip(args.readings, args.drop, strict=True)):
        head = train(readings, scales, device, count, args.rate, drop)
        np.savez(args.o / f"head{number}.npz", **head.weights())
        for what, row in zip(("own window", "with strangers"), ranks(head, held, readings), strict=True):
            first = [f"{(row < share).mean():.3f}" for share in (0.1, 0.05, 0.02)]
            print(f"head {number}, drop {drop}, {count} readings: held back n = {len(row)}, {what}: median rank "
                  f"{np.median(row):.4f}, in the first 10, 5, 2 %: {first}", flush=True)  # fmt: skip
    (args.o / "layers.json").write_text(json.dumps({"asking": ASKING, "looked": LOOKED, "rank": RANK}))
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
