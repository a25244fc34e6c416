"""The peer: a llama-bench of the user's own, run on the same GGUF, its output as the records of our own rows.

How fast it reads a prompt depends on its batch (tokens it takes at once, ``-b``) and micro-batch (tokens that go
through a layer together, ``-ub``), so it is measured over a grid of both, and its best setting is what to compare with.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from sp.errors import ConfigError

ENGINE = "llama.cpp"
HELP_SECONDS = 30.0
SHOWN = 200  # characters of what a failing program said last


def bench_command(
    program: Path,
    model: Path,
    prompts: Sequence[int],
    new: Sequence[int],
    repeats: int,
    kv: str,
    batches: Sequence[int] = (),
    ubatches: Sequence[int] = (),
) -> list[str]:
    """Arguments for this llama-bench: `-fa` was 0 or 1, and is a word in later versions, as its help tells. Prompts are
    read with every one of `batches` and `ubatches`; its own defaults if there are none."""
    told = _run([str(program), "--help"], HELP_SECONDS, program)
    said = told.stdout + told.stderr
    if "--n-prompt" not in said:
        raise ConfigError(f"{program} is no llama-bench: its --help knows no --n-prompt; check --llama-bench")
    words = re.search(r"--flash-attn\s+<[^>]*\bon\b", said)
    lists = {"-p": prompts or (0,), "-n": new or (0,), "-b": batches, "-ub": ubatches}
    return [
        *(str(program), "-m", str(model), "-o", "json", "-r", str(repeats), "-ngl", "99", "-ctk", kv, "-ctv", kv),
        *(item for flag, values in lists.items() if values for item in (flag, ",".join(map(str, values)))),
        *(("-fa", "on" if words else "1") if "--flash-attn" in said else ()),
    ]


def run_bench(command: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """Run llama-bench and return its tests. ConfigError: it cannot be started, fails, takes longer than `seconds`, or
    prints no tests."""
    done = _run(command, seconds, Path(command[0]))
    if done.returncode != 0:
        raise ConfigError(f"{command[0]} failed with status {done.returncode}: {_last(done.stderr or done.stdout)}")
    return parse(done.stdout, command[0])


def parse(text: str, source: str) -> list[dict[str, Any]]:
    """The tests in what llama-bench printed with ``-o json``, whatever else stands before or after. ConfigError: there
    is no list of tests, or one has no size or no time."""
    decoder = json.JSONDecoder()
    for start in (match.start() for match in re.finditer(r"^\s*\[", text, re.MULTILINE)):
        try:
            tests, _ = decoder.raw_decode(text[start:].lstrip())
        except (json.JSONDecodeError, RecursionError):
            continue
        if isinstance(tests, list) and tests and all(isinstance(test, dict) and "n_prompt" in test for test in tests):
            return [_checked(test, source) for test in tests]
    raise ConfigError(f"{source} printed no list of tests in JSON, but: {_last(text) or 'nothing'}")


def describe_peer(test: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `make_record` for a test of `run_bench` or `with_best`: reading a prompt as `prefill`, decoding as
    `decode`, of its own engine. It counts neither tokenising nor sampling, so the time to a first token is longer."""
    config: dict[str, Any] = {
        **facts,
        "kv": str(test.get("type_k") or "f16"),
        "path": str(test.get("backends") or "unknown"),
        "math": None,
        "cards": 1,
        "engine": ENGINE,
        "build": str(test.get("build_commit") or "unknown"),
        "batch": test.get("n_batch"),
        "ubatch": test.get("n_ubatch"),
    }
    tokens = test["n_gen"] or test["n_prompt"]
    rates = [tokens / seconds for seconds in test["seconds"]]
    metrics = {"tok_s": median(rates), "best": test.get("best", True), "grid": test.get("grid", [])}
    if test["n_gen"]:
        shape = {"context": test.get("n_depth") or 0, "tokens": tokens, "method": "greedy", "budget": 1}
        metrics["acceptance_length"] = 1.0
    else:
        shape = {"prompt_tokens": tokens}
    bench = "decode" if test["n_gen"] else "prefill"
    return {"bench": bench, "config": config | shape, "metrics": metrics, "samples": rates, "sources": ()}


def with_best(tests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tests, each told whether it is the fastest of its size, and how fast every setting of that size was.

    >>> tests = [{"n_prompt": 8, "n_gen": 0, "n_batch": b, "seconds": [s]} for b, s in ((4, 2.0), (8, 1.0))]
    >>> [(test["n_batch"], test["best"], len(test["grid"])) for test in with_best(tests)]
    [(4, False, 2), (8, True, 2)]
    """
    sizes: dict[tuple[int, int, int], list[Mapping[str, Any]]] = {}
    for test in tests:
        sizes.setdefault(_size(test), []).append(test)
    made = []
    for test in tests:
        group = sizes[_size(test)]
        grid = [
            {"batch": t.get("n_batch"), "ubatch": t.get("n_ubatch"), "tok_s": max(_size(t)[:2]) / median(t["seconds"])}
            for t in group
        ]
        made.append({**test, "best": test is min(group, key=lambda t: median(t["seconds"])), "grid": grid})
    return made


def best_peer(records: Iterable[Mapping[str, Any]], tokens: int) -> Mapping[str, Any] | None:
    """The `prefill` record of this engine that reads a prompt of so many tokens fastest; None if there is none."""
    mine = [r for r in records if r["config"].get("engine") == ENGINE and r["config"].get("prompt_tokens") == tokens]
    return max(mine, key=lambda r: float(r["metrics"]["tok_s"]), default=None)


def _size(test: Mapping[str, Any]) -> tuple[int, int, int]:
    """What a test times: prompt, new tokens, tokens read before them."""
    return test["n_prompt"], test["n_gen"], test.get("n_depth") or 0


def _run(command: Sequence[str], seconds: float, program: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{program} did not end within {seconds:g} s; raise --timeout or ask for less") from None
    except OSError as error:
        raise ConfigError(
            f"cannot run {program}: {error.strerror}; name llama.cpp's program in --llama-bench"
        ) from None


def _checked(test: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The test with plain counts and its samples in seconds; versions differ in which times they print."""
    samples = test.get("samples_ns") or ([test["avg_ns"]] if "avg_ns" in test else [])
    try:
        counts = {name: int(test[name] or 0) for name in ("n_prompt", "n_gen")}
        seconds = [float(value) / 1e9 for value in samples]
    except (KeyError, TypeError, ValueError):
        counts, seconds = {}, []
    if not seconds or min(seconds) <= 0 or sorted(map(bool, counts.values())) != [False, True]:
        raise ConfigError(f"{source}: a test without one size and its times: {json.dumps(test)[:SHOWN]}")
    return {**test, **counts, "seconds": seconds}


def _last(text: str) -> str:
    """The last line that says something, cut."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "".join(c if c.isprintable() else "?" for c in lines[-1][:SHOWN]) if lines else ""
