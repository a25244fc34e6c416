"""Mutations of YAML, JSON and lines that users write: each is refused in one short line, or read.

A share runs as `test_hostile_inputs.py`; many more with `gguf/fuzz_inputs.py`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from input_cases import CASES, Case
from matplotlib.figure import Figure
from outcomes import Outcomes

from sp.studies.figures import save_figure

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


def meet(case: Case, data: bytes, outcomes: Outcomes) -> None:
    """Read a file, written to where one stands, and note what came of it."""
    path = Path(case.file)
    path.write_bytes(data)

    def read() -> None:
        with quiet():
            case.read(path)

    outcomes.meet([read], lambda: f"{case.name}: {data[:1500]!r}")


@contextmanager
def without_pictures() -> Iterator[None]:
    """Those of rows are not drawn: they take seconds, and show what tables say. Those of times are drawn small."""
    with (
        patch.multiple("sp.studies.pages.study_page", **NO_PICTURES),
        patch("sp.studies.plots.ttft_plots.save_figure", _small),
    ):
        yield


def read_whole(case: Case, path: Path) -> None:
    """Read the good files of a kind, one after the other at `path`."""
    for seed in case.seeds:
        lines = [json.dumps(each) for each in seed] if case.kind == "lines" else [json.dumps(seed)]
        path.write_text(seed if case.kind == "yaml" else "".join(f"{line}\n" for line in lines))
        with quiet(), without_pictures():
            case.read(path)


def try_many(count: int, seed: int, names: Callable[[str], bool] = lambda name: True) -> Outcomes:
    """So many mutations, the kinds of file in turn, written to where one stands; what became of them.

    Pictures are not drawn. Good files are read first: what a command imports is not what a file costs.
    """
    outcomes, cases = Outcomes(), [case for case in CASES if names(case.name)]
    for case in cases:
        read_whole(case, Path(case.file))
    with without_pictures():
        for number in range(count):
            rng = random.Random(f"{seed}-{number}")
            case = cases[number % len(cases)]
            meet(case, mutated(case, rng), outcomes)
    return outcomes


def _nothing(*_: Any, **__: Any) -> None:
    """In place of what draws."""


def _small(figure: Figure, path: Path, **_: Any) -> Path:
    """A picture that takes a fifth of the time, of the same texts."""
    return save_figure(figure, path, dpi=30)


NO_PICTURES = dict.fromkeys(
    ("save_figure", "pareto_figure", "forest_figure", "stage_figure", "needle_figure"), _nothing
)
