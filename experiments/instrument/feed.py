"""Training batches of fixed shape, made by worker processes: skipped positions (PoSE) and dropped chunks."""

from __future__ import annotations

import multiprocessing as mp
import random
from dataclasses import dataclass, field
from pathlib import Path
from queue import Full
from typing import Any

import numpy as np
from bank import Bank, Ints
from compose import Composer, Mix, Sample
from numpy.typing import NDArray
from tokenizer import Encoder


@dataclass
class Stage:
    """One stage of a curriculum.

    Attributes
    ----------
    length, batch : int
    seconds : float
        Wall time.
    lr, muon : float
        Rate of AdamW; matrices take `muon` times as much, and 0 leaves them as they are.
    mix : dict
        Fields of `Mix`.
    rows, lm_rows : int
        Rows of answers and of other tokens that are predicted, a sample; the others weigh `lm_weight`.
    until : float
        Leave when a first token of an answer is right this often.
    pose, drop : float
        Shares of samples with skipped positions, and with dropped chunks.
    shape : (start, end)
        Factors of the rate at the two ends of the stage.
    turns, workers : int
        Steps in a round and processes that write batches, where stages take turns (`in_turns.py`).
    """

    name: str
    length: int
    batch: int
    seconds: float
    lr: float
    mix: dict[str, Any] = field(default_factory=dict)
    rows: int = 128
    lm_rows: int = 32
    lm_weight: float = 0.05
    until: float = 1.1
    pose: float = 0.0
    pose_max: int = 163_840
    drop: float = 0.0
    quantise: bool = False
    shape: tuple[float, float] = (1.0, 1.0)
    warmup: int = 30
    muon: float = 1.0
    turns: int = 1
    workers: int = 1


Batch = dict[str, NDArray[Any]]


def collate(items: list[Batch], stage: Stage, pad: int, rng: random.Random) -> Batch:
    """Items as arrays of the stage's shape."""
    b, length, rows, more = len(items), stage.length, stage.rows, stage.lm_rows
    out: Batch = {
        "ids": np.full((b, length), pad, np.int32),
        "positions": np.zeros((b, length), np.int32),
        "rows": np.zeros((b, rows + more), np.int32),
        "labels": np.zeros((b, rows + more), np.int32),
        "weight": np.zeros((b, rows + more), np.float32),
        "first": np.zeros((b, rows + more), np.int32),
        "kind": np.zeros((b, rows + more), np.int32),
    }
    for j, item in enumerate(items):
        ids, n, k = item["ids"], len(item["ids"]), min(len(item["rows"]), rows)
        out["ids"][j, :n] = ids
        out["positions"][j, :n] = item["positions"]
        out["positions"][j, n:] = item["positions"][-1] + 1 + np.arange(length - n)
        at = item["rows"][:k]
        out["rows"][j, :k], out["labels"][j, :k] = at, ids[at + 1]
        out["first"][j, :k], out["kind"][j, :k] = item["first"][:k], item["kind"][:k]
        out["weight"][j, :k] = np.where(item["first"][:k] > 0, 2.0, 1.0)
        if more:
            other = np.array([rng.randrange(n - 1) for _ in range(more)])
            out["rows"][j, rows:], out["labels"][j, rows:] = other, ids[other + 1]
            out["weight"][j, rows:] = stage.lm_weight
    return out


def skip_positions(n: int, rng: random.Random, largest: int) -> Ints:
    """Positions with 1 to 16 random jumps, ending below a log-uniform limit of at most ``largest``."""
    room = largest - n
    if room <= 0:
        return np.arange(n)
    limit = int(np.exp(rng.uniform(np.log(64), np.log(room))))
    jumps = rng.randint(1, 16)
    at = sorted(rng.randrange(1, n) for _ in range(jumps))
    cuts = sorted(rng.randrange(limit + 1) for _ in range(jumps))
    add = np.zeros(n, np.int64)
    prev = 0
    for a, c in zip(at, cuts, strict=True):
        add[a:] += c - prev
        prev = c
    return np.arange(n) + add


def kept_mask(s: Sample, keep: float, rng: random.Random) -> NDArray[np.bool_]:
    """Tokens of a compressed prompt: chunks at random, what the asked questions rest on, often other passages too."""
    n = len(s.ids)
    start, end = s.document
    size, phase = rng.randint(24, 40), rng.randrange(32)
    chunk = (np.arange(n) + phase) // size
    kept = np.array([rng.random() < keep for _ in range(int(chunk[-1]) + 1)])
    kept[0] = True
    others = rng.random() if rng.random() < 0.5 else 0.0
    for a, z in [*s.evidence, *(one for one in s.passages if rng.random() < others)]:
        kept[chunk[a] : chunk[min(z, n) - 1] + 1] = True
    mask = np.ones(n, bool)
    mask[start:end] = kept[chunk[start:end]]
    for a, z in s.markup:
        mask[a:z] = True
    return mask


def draw(composer: Composer, stage: Stage, mix: Mix, rng: random.Random) -> Batch:
    """One training item no longer than the stage's length."""
    while True:
        plain = rng.random() < mix.lines
        dropped = not plain and rng.random() < stage.drop
        keep = rng.uniform(0.04, 0.4)
        big = min(int(stage.length * 0.6 / keep), 12 * stage.length, 48_000)
        length = max(big, stage.length) if dropped else stage.length
        s = composer.lines(length) if plain else composer.sample(length, mix)
        if s is None:
            continue
        n = len(s.ids)
        mask = kept_mask(s, keep, rng) if dropped else np.ones(n, bool)
        if mask.sum() > stage.length:
            continue
        skipped = not dropped and rng.random() < stage.pose
        positions = skip_positions(n, rng, stage.pose_max) if skipped else np.arange(n)
        index = np.cumsum(mask) - 1
        return {
            "ids": s.ids[mask],
            "positions": positions[mask],
            "rows": index[np.array(s.rows)],
            "first": np.array(s.first),
            "kind": np.array(s.kind),
        }


def work(data: Path, stages: list[Stage], current: Any, queue: Any, seed: int) -> None:
    """A worker process."""
    encoder = Encoder(data / "vocabulary.json")
    composer = Composer(encoder, Bank.load(encoder, data / "bank.json", "train"), seed)
    rng = random.Random(seed + 1)
    mixes = [Mix(**stage.mix) for stage in stages]
    while (i := current.value) >= 0:
        items: list[Batch] = []
        while len(items) < stages[i].batch and current.value == i:
            items.append(draw(composer, stages[i], mixes[i], rng))
        if len(items) < stages[i].batch:
            continue
        batch = collate(items, stages[i], encoder.end_of_text, rng)
        offer(batch, i, current, queue)


def offer(batch: Batch, stage: int, current: Any, queue: Any) -> None:
    """Put a batch into the queue once there is room, unless its stage is over by then."""
    while current.value == stage:
        try:
            queue.put((stage, batch), timeout=1.0)
            break
        except Full:
            continue


class Feed:
    """Worker processes, started before the GPU is touched, and a queue of batches of the current stage."""

    def __init__(self, data: Path, stages: list[Stage], workers: int, seed: int) -> None:
        self.current = mp.Value("i", 0, lock=False)
        self.queue: mp.Queue = mp.Queue(maxsize=4 * workers)
        self.procs = [
            mp.Process(target=work, args=(data, stages, self.current, self.queue, seed + 1000 * (w + 1)), daemon=True)
            for w in range(workers)
        ]
        for p in self.procs:
            p.start()

    def next(self) -> Batch:
        """One of the current stage, once there is one."""
        while True:
            i, batch = self.queue.get()
            if i == self.current.value:
                return batch

    def stop(self) -> None:
        """End the processes."""
        self.current.value = -1
        for p in self.procs:
            p.terminate()
