"""Measure anew whatever results/<machine>/ holds of kernels that have changed, the most important first.

    python experiments/record_all.py --list                     # what is current, what is left, how long it takes
    python experiments/record_all.py --seconds 540 --new OUT    # as much of it as fits, new lines also below OUT
    python experiments/record_all.py --only headline,products   # items whose name begins so; --skip likewise
    python experiments/record_all.py --seconds 540 --gpus 4    # on four GPUs: items of all, then one each
    python experiments/record_all.py --gpus 2 --only build,GPUs --machine nvidia-h100-80gb-hbm3
    python experiments/record_all.py --take OUT                 # add what another machine's run left below OUT
    python experiments/record_all.py --restate                  # write the counts of results/OLD.json as they are
    python experiments/record_all.py --prune                    # of each record key leave the newest, as a test asks

An item whose records are of today's kernels is passed over, so the same command goes on where the last one ended. No
item is begun that would not end in time, by the seconds which `records.yaml` states; one that takes longer is ended
with the time. Below --new stand results/<machine>/*.jsonl with the lines that are new, and the dispatch table if it is
new: since hashes cover that table, take it over together with the records. In a copy without its git folder name the
commit in SP_COMMIT. With --llama-bench PROGRAM --gguf FILE the peer is measured too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from record_plan import ROOT, TABLE, TESTS, Item, peer, plan, several

from sp.bench.record import prune, restate

LAST_LINES = 12
WHY = "to be measured anew"


class Run:
    """Runs items within a time and writes down what is new.

    Parameters
    ----------
    results : Path
        Folder of records.
    machine : str
        Name of the folder in it.
    seconds : float
        For all items together.
    new : Path or None
        Where new lines are copied to.
    """

    def __init__(self, results: Path, machine: str, seconds: float, new: Path | None) -> None:
        self.results, self.machine, self.new = results, machine, new
        self.start = time.perf_counter()
        self.end = self.start + seconds
        self.table = TABLE.read_bytes()
        self.sizes = {path.name: path.stat().st_size for path in self.folder.glob("*.jsonl")}
        self.said: dict[str, str] = {}

    @property
    def folder(self) -> Path:
        """Of the machine's records."""
        return self.results / self.machine

    def item(self, item: Item, gpu: int | None = None) -> None:
        """Run one item if it is not done and fits; tell how it ended."""
        if item.done(self.folder):
            self.tell(item, "is current")
        elif (left := self.end - time.perf_counter()) < item.seconds:
            self.tell(item, f"left: {item.seconds:.0f} s do not fit into {left:.0f}")
        else:
            began = time.perf_counter()
            ended, tail = self.call(item, left, gpu)
            took = f"{time.perf_counter() - began:.0f} of {item.seconds:.0f} s"
            if ended == "ended" and item.wants and not item.done(self.folder):
                ended = "ended, but not all its records are there"
            self.tell(item, f"{ended}, {took}{tail if ended != 'ended' else ''}")
            self.copy()

    def call(self, item: Item, seconds: float, gpu: int | None) -> tuple[str, str]:
        """How a command ended, and what it said last."""
        environment = {
            **os.environ,
            "SP_RESULTS": str(self.results),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
        with TemporaryDirectory() as scratch:
            accepted = self.folder / "decode_accepted.json"
            if accepted.exists():
                shutil.copy(accepted, Path(scratch) / "accepted.json")
            command = [part.format(results=self.results, scratch=scratch) for part in item.command]
            try:
                done = subprocess.run(
                    command, cwd=ROOT, env=environment, timeout=seconds, check=False, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                )  # fmt: skip
            except subprocess.TimeoutExpired as late:
                said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
                return "ended by the time", _tail(said)
        return ("ended" if done.returncode == 0 else f"failed with {done.returncode}"), _tail(done.stdout)

    def copy(self) -> None:
        """Write the lines that are new, and the table, below `new`."""
        if self.new is None:
            return
        folder = self.new / "results" / self.machine
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob("*.jsonl"):
            lines = path.read_bytes()[self.sizes.get(path.name, 0) :]
            if lines:
                (folder / path.name).write_bytes(lines)
        if TABLE.read_bytes() != self.table:
            shutil.copy(TABLE, self.new / TABLE.name)

    def tell(self, item: Item, how: str) -> None:
        """Say at once how an item ended."""
        self.said[item.name] = how
        print(f"{time.perf_counter() - self.start:6.1f} {item.name}: {how}", flush=True)


def run_all(run: Run, items: Sequence[Item], gpus: int) -> Mapping[str, str]:
    """Run items in order, those not `alone` side by side on several GPUs; how each ended."""
    for item in items:
        if item.alone:
            run.item(item)
    free: SimpleQueue[int] = SimpleQueue()
    for gpu in range(gpus):
        free.put(gpu)

    def one(item: Item) -> None:
        gpu = free.get()
        try:
            run.item(item, gpu if gpus > 1 else None)
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(gpus) as pool:
        list(pool.map(one, [item for item in items if not item.alone]))
    return run.said


def take(folder: Path, results: Path) -> list[str]:
    """Append lines below `folder` that are not there yet, and put the table in its place; what was changed."""
    said = []
    for source in sorted((folder / "results").glob("*/*.jsonl")):
        target = results / source.parent.name / source.name
        have = set(target.read_bytes().splitlines()) if target.exists() else set()
        lines = [line for line in source.read_bytes().splitlines() if line not in have]
        if lines:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("ab") as file:
                file.write(b"\n".join(lines) + b"\n")
            said.append(f"{target}: {len(lines)} records")
    if (table := folder / TABLE.name).exists():
        shutil.copy(table, TABLE)
        said.append(f"{TABLE}: taken over")
    return said


def _tail(text: str) -> str:
    lines = text.strip().splitlines()[-LAST_LINES:]
    return "".join(f"\n         | {line[:200]}" for line in lines)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--machine", default="nvidia-h200", help="folder of the GPU below the results")
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--new", type=Path, help="copy new lines below this folder")
    parser.add_argument("--only", type=_names, default=(), help="items whose names begin with one of these")
    parser.add_argument("--skip", type=_names, default=())
    parser.add_argument("--llama-bench", default="")
    parser.add_argument("--gguf", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--take", type=Path)
    parser.add_argument("--restate", action="store_true")
    parser.add_argument("--prune", action="store_true")
    given = parser.parse_args()
    results = given.results.absolute()
    if given.take is not None:
        print("\n".join(take(given.take, results)) or f"{given.take} holds nothing new")
        return
    if given.prune:
        print("\n".join(f"{path}: {count} superseded records taken out" for path, count in prune(results).items()))
        return
    if given.restate:
        for name, stated in restate(results, TESTS, WHY).items():
            print(f"{name}: {stated['old']} old, {stated['why']}")
        return
    items = [*plan(results / given.machine, several(given.gpus)), *peer(given.llama_bench, given.gguf)]
    items = [item for item in items if not given.only or item.name.startswith(given.only)]
    items = [item for item in items if not given.skip or not item.name.startswith(given.skip)]
    if given.list:
        for item in items:
            state = "current" if item.done(results / given.machine) else f"{item.seconds:4.0f} s"
            print(f"{state:>8}  {item.name}: {' '.join(item.command)}")
        left = sum(item.seconds for item in items if not item.done(results / given.machine))
        print(f"{left:8.0f} s of one GPU are left")
        return
    run = Run(results, given.machine, given.seconds, given.new and given.new.absolute())
    ended = run_all(run, items, given.gpus)
    left_over = [name for name, how in ended.items() if not how.startswith(("ended,", "is current"))]
    print(f"{len(ended) - len(left_over)} of {len(ended)} items are done; left: {', '.join(left_over) or 'nothing'}")


if __name__ == "__main__":
    main()
