"""Mutations of files that users write, and what reads each kind: run with a count, e.g.

    PYTHONPATH=tests python tests/fuzz_inputs.py 20000

A mutated file is read, or refused with one short line by an `SpError`; anything else, and what takes long, is a fault.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from input_cases import CASES, Case

from sp.errors import SpError

LONGEST_MESSAGE = 600
"""Characters, without the path; some list all known names."""
SLOWEST = 5.0
"""Seconds; on a machine that does other work, too."""

RAW = "@@raw@@"
TOKENS = (
    "9" * 6000, "-1e999", "1e400", "NaN", "-Infinity", "[" * 3000 + "]" * 3000, '"\\ud800"', '"\\udfff x"', "1" * 25,
    "[" * 70 + "]" * 70, '{"a":' * 90 + "1" + "}" * 90, "9223372036854775808", "1.0e308", "5e-324", "", "tru",
)  # fmt: skip
"""What JSON of Python does not write, put in place of a value."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 0.5, 1.5, -0.0, 1e300, 1 << 40, 1 << 62, "", " ", "x", "x" * 4000, "a\nb", "\x00",
    "$x_{$", "\u202e<b>|", [], {}, [[]], [None], [1, 2], ["x"] * 40, {"a": 1}, {"": []}, [{}], "0", "-1", "nan",
)  # fmt: skip
YAML_TOKENS = (
    "!!timestamp 2001-01-01", "2001-01-01", "2001-01-01 10:00:00 +99:99", "!!int abc", "1:30", "190:20:30.15",
    "9" * 6000, "!!binary x", "!!set {a}", "!!python/object:os.system x", "&r [*r]", "&r {a: *r}", "*none",
    "<<: {a: 1}",
    "!!float abc", "0x" + "f" * 200, "0b", "0o", "1e9", "1000000000", "99999999999", ".inf", "-.nan", "1.0e+400",
    '"\\ud800"', '"\\U00110000"', '"\\UFFFFFFFF"', "[" * 200, "{" * 200, "- - - - x", "? [a]\n: b", "%YAML 9.9", "---",
    "%YAML 1." + "9" * 6000, "\t", "\x01", "~", "null", "true", "[]", "{}", "''", "!", "!!null x", "!!bool 7", "|\n x",
    "{grid: {keep_ratio: [" + ",".join(["0.1"] * 999) + "]}}", "x" * 5000, "-1", "0", "0.5", "*a", "&a x", "!<x> y",
    "&a [x,x,x,x,x,x,x,x,x,x]", "[*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]", "2147483648", "4611686018427387904",
)  # fmt: skip


@dataclass
class Told:
    """What came of mutations."""

    read: int = 0
    refused: int = 0
    slowest: tuple[float, str] = (0.0, "")
    longest: tuple[int, str] = (0, "")
    faults: Counter[str] = field(default_factory=Counter)
    samples: dict[str, tuple[bytes, str]] = field(default_factory=dict)

    def fault(self, what: str, data: bytes, more: str = "") -> None:
        """Count a fault and keep its first file."""
        self.faults[what] += 1
        self.samples.setdefault(what, (data, more))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all values inside a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from places(each, (*path, key))


def changed_json(value: Any, rng: random.Random) -> str:
    """A JSON text with one to three values replaced, gone, doubled or wrapped."""
    value, raw = deepcopy(value), ""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = rng.choice(list(places(value))[1:] or [()])
        if not path:
            return rng.choice((*TOKENS, json.dumps(rng.choice(VALUES))))
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        how = rng.random()
        if how < 0.2:
            del holder[path[-1]]
        elif how < 0.3:
            holder[path[-1]] = [holder[path[-1]]] * rng.choice((1, 2))
        elif how < 0.45 and not raw:
            raw, holder[path[-1]] = rng.choice(TOKENS), RAW
        else:
            holder[path[-1]] = deepcopy(rng.choice(VALUES))
    return json.dumps(value, ensure_ascii=rng.random() < 0.5).replace(f'"{RAW}"', raw)


def changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """Some bytes cut off, flipped, put in or doubled."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(4)
        if how == 0:
            data = data[:at]
        elif how == 1:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif how == 2:
            data = (
                data[:at]
                + rng.choice((b"\xff", b"\x00", b"\xed\xa0\x80", b"\n", b'"', b"{", b"]", b"9" * 30))
                + data[at:]
            )
        else:
            data = data[:at] + data[max(0, at - rng.randrange(80)) :]
    return data


def changed_yaml(text: str, rng: random.Random) -> bytes:
    """A YAML text with values replaced or lines gone, doubled or moved in."""
    lines = text.split("\n")
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, how = rng.randrange(len(lines)), rng.random()
        if how < 0.6:
            begin, colon, rest = lines[at].partition(rng.choice((": ", ", ", "[")))
            token = rng.choice(YAML_TOKENS)
            lines[at] = f"{begin}{colon}{token}" if rng.random() < 0.6 else f"{begin}{colon}{token}{rest[-1:]}"
        elif how < 0.7:
            lines.insert(at, rng.choice(YAML_TOKENS))
        elif how < 0.8:
            del lines[at]
            lines = lines or [""]
        elif how < 0.9:
            lines[at] = " " * rng.randrange(5) + lines[at]
        else:
            lines.insert(at, lines[rng.randrange(len(lines))])
    return "\n".join(lines).encode()


def mutated(case: Case, rng: random.Random) -> bytes:
    """A damaged file of a kind."""
    if case.kind == "yaml":
        data = changed_yaml(rng.choice(case.seeds), rng)
        return changed_bytes(data, rng) if rng.random() < 0.1 else data
    seed = rng.choice(case.seeds)
    if case.kind == "json":
        data = changed_json(seed, rng).encode("utf-8", "surrogatepass")
        return changed_bytes(data, rng) if rng.random() < 0.1 else data
    lines = [json.dumps(each) for each in seed]
    at, how = rng.randrange(len(lines)), rng.random()
    if how < 0.8:
        lines[at] = changed_json(seed[at], rng)
    elif how < 0.9:
        del lines[at]
    data = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")
    return data if how < 0.9 else changed_bytes(data, rng)


@contextmanager
def quiet() -> Iterator[None]:
    """What commands print is not looked at."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


class SlowError(Exception):
    """Reading was given up."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """`SlowError` in what takes longer."""

    def ring(*_: object) -> None:
        raise SlowError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def try_one(case: Case, data: bytes, folder: Path, told: Told) -> None:
    """Read a file and note what came of it."""
    path = folder / case.file
    path.write_bytes(data)
    start = time.perf_counter()
    try:
        with quiet(), alarm(SLOWEST):
            case.read(path)
        told.read += 1
    except SpError as error:
        told.refused += 1
        message = str(error).replace(str(path), path.name).replace(str(folder), "")
        told.longest = max(told.longest, (len(message), f"{case.name}: {message}"))
        if "\n" in message or len(message) > LONGEST_MESSAGE:
            told.fault(f"{case.name}: message of {len(message) // 100 * 100} characters", data, message)
        if not message.isprintable():
            told.fault(f"{case.name}: message that cannot be printed", data, ascii(message))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        ours = [each for each in traceback.extract_tb(error.__traceback__) if "/sp/" in each.filename][-1]
        told.fault(
            f"{case.name}: {type(error).__name__} in {Path(ours.filename).name}:{ours.lineno} ({last.name})", data,
            str(error)[:200],
        )  # fmt: skip
    seconds = time.perf_counter() - start
    told.slowest = max(told.slowest, (seconds, case.name))


@contextmanager
def without_pictures() -> Iterator[None]:
    """Those of rows are not drawn: they take seconds, and show what tables say."""
    with patch.multiple("sp.studies.pages.quality", **NO_PICTURES):
        yield


def fuzz(count: int, seed: int, folder: Path, names: Callable[[str], bool] = lambda name: True) -> Told:
    """So many mutations, the kinds of file in turn; pictures are not drawn."""
    told, cases = Told(), [case for case in CASES if names(case.name)]
    with without_pictures():
        for number in range(count):
            rng = random.Random(f"{seed}-{number}")
            case = cases[number % len(cases)]
            try_one(case, mutated(case, rng), folder, told)
    return told


def _nothing(*_: Any, **__: Any) -> None:
    """In place of what draws."""


NO_PICTURES = dict.fromkeys(("save_png", "pareto_figure", "stage_figure", "needle_figure"), _nothing)


def main() -> None:
    count = int(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    wanted = sys.argv[3] if len(sys.argv) > 3 else ""
    with TemporaryDirectory() as name:
        folder = Path(name)
        start = time.perf_counter()
        told = fuzz(count, seed, folder, lambda each: wanted in each)
    print(f"{count} mutations in {time.perf_counter() - start:.0f} s: {told.read} read, {told.refused} refused")
    print(
        f"slowest {told.slowest[0]:.2f} s ({told.slowest[1]}); "
        f"longest message {told.longest[0]} ({told.longest[1][:150]!a})"
    )
    for what, times in told.faults.most_common():
        data, more = told.samples[what]
        print(f"{times:5} {what}: {ascii(more)[:160]}\n      {data[:200]!r}")
    sys.exit(bool(told.faults))


if __name__ == "__main__":
    main()
