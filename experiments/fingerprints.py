"""Hashes of what `sp` computes on a GPU, to show that two commits compute the same to the bit.

    PYTHONPATH=OLD python experiments/fingerprints.py old.jsonl --files shared/folder
    PYTHONPATH=NEW python experiments/fingerprints.py new.jsonl --files shared/folder
    python experiments/fingerprints.py --compare old.jsonl new.jsonl

Names are found wherever they are defined, so the script runs on commits whose files lie elsewhere. Inputs are seeded;
what ops allocate is full of NaN before. A line a case: its name and the first digits of a SHA-256, or the error.
`--files` holds the random models: the first run makes them, the second reads the same ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
Case = tuple[str, Callable[[], Any]]


def main() -> int:
    """Run the cases, or compare two runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="JSON lines to write")
    parser.add_argument("--compare", nargs=2, type=Path, metavar="JSONL", help="print what differs in two runs")
    parser.add_argument("--files", type=Path, help="folder of the random models, made where they are missing")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--whole", action="store_true", help="only whole models and requests, no single ops")
    parser.add_argument("--twice", action="store_true", help="run every case again, which must give the same")
    parser.add_argument("--dry", type=Path, metavar="FOLDER", help="without a GPU, with the dry_device.py there")
    parser.add_argument("--compile-ahead", action="store_true", help="only fill the cache of kernels, on all cores")
    parser.add_argument("--quiet", action="store_true", help="print errors and the count alone")
    given = parser.parse_args()
    if given.compare:
        return compare(*given.compare)
    if given.dry is not None:
        sys.path.insert(0, str(given.dry))
        import dry_device

        dry_device.install()
    from fingerprint.models import Files

    Files.folder = given.files or Path(mkdtemp())
    Files.folder.mkdir(parents=True, exist_ok=True)
    return run(given)


def families() -> Iterator[tuple[bool, Iterable[Case]]]:
    """Cases, and whether they are single ops: what these allocate is poisoned."""
    from fingerprint import attention, gpus, layers, matmul, models, requests

    for cases in (matmul.packing, matmul.kernels, matmul.layers, attention.kernels, attention.around,
                  attention.sampling, layers.sparse_cases, layers.delta_cases):  # fmt: skip
        yield True, cases()
    yield False, models.model_cases()
    yield False, requests.request_cases()
    yield False, gpus.gpu_cases()


def run(given: argparse.Namespace) -> int:
    """Run all cases; 1 if one failed."""
    from fingerprint.ahead import compile_ahead
    from fingerprint.hashing import fingerprint
    from fingerprint.models import Files

    start, failed, lines = time.perf_counter(), 0, []
    chosen = [(ops, cases) for ops, cases in families() if not (ops and given.whole)]
    work = [(ops, [c for c in cases if given.only in c[0]]) for ops, cases in chosen]
    if given.compile_ahead:
        count = compile_ahead([one for _, cases in work for _, one in cases])
        print(f"{count} variants of kernels compiled ahead in {time.perf_counter() - start:.1f} s", file=sys.stderr)
        return 0
    if given.dry is None:  # in a process of its own: models loaded there hold rubbish
        again = [*sys.argv[1:], "--compile-ahead", "--files", str(Files.folder)]
        subprocess.run([sys.executable, __file__, *again], check=False)
    for ops, cases in work:
        for name, one in cases:
            try:
                with poisoned() if ops else nothing():
                    line = {"name": name, "sha": fingerprint(one())}
                    if given.twice and fingerprint(one()) != line["sha"]:
                        line["error"] = "a second run differs"
            except Exception as error:  # the others are still of interest
                line = {"name": name, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
                if failed < 3:
                    traceback.print_exc()
            failed += "error" in line
            lines.append(line)
            if given.out is not None:  # at once: a run may be cut off
                with given.out.open("a" if len(lines) > 1 else "w", encoding="utf-8") as out:
                    out.write(json.dumps(line) + "\n")
            if "error" in line or not given.quiet:
                print(f"{name}  {line.get('error') or line['sha']}")
    print(f"{len(lines)} cases, {failed} failed, {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return int(failed > 0)


@contextmanager
def nothing() -> Iterator[None]:
    """As it is."""
    yield


@contextmanager
def poisoned() -> Iterator[None]:
    """Every byte that CuPy allocates without filling it is 0xFF: a NaN, so that what is not written shows."""
    import cupy

    plain, runtime = cupy.empty, cupy.cuda.runtime
    fill = getattr(runtime, "memsetAsync", None)

    def empty(*shape: Any, **options: Any) -> Any:
        made = plain(*shape, **options)
        if fill is not None and made.nbytes:
            fill(made.data.ptr, 0xFF, made.nbytes, cupy.cuda.get_current_stream().ptr)
        return made

    cupy.empty = empty
    try:
        yield
    finally:
        cupy.empty = plain


def compare(first: Path, second: Path) -> int:
    """Print what differs; 1 if anything does, is missing, or failed."""
    one, other = ({line["name"]: line for line in map(json.loads, path.read_text().splitlines())}
                  for path in (first, second))  # fmt: skip
    counts = {"equal": 0, "different": 0, "failed": 0, "in one run alone": 0}
    for name in [*one, *(name for name in other if name not in one)]:
        if name not in one or name not in other:
            counts["in one run alone"] += 1
            print(f"{name}: only in {first if name in one else second}")
        elif "error" in one[name] or "error" in other[name]:
            counts["failed"] += 1
            print(f"{name}: {one[name].get('error', 'ran')} | {other[name].get('error', 'ran')}")
        elif one[name]["sha"] != other[name]["sha"]:
            counts["different"] += 1
            print(f"{name}: {one[name]['sha']} | {other[name]['sha']}")
        else:
            counts["equal"] += 1
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    return int(counts["equal"] != sum(counts.values()))


if __name__ == "__main__":
    sys.exit(main())
