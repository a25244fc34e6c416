"""The peer: the user's own llama-bench, run on the same GGUF file, with its output as records like those of `sp`.

Its prefill speed depends on its batch (``-b``, tokens per call) and micro-batch (``-ub``, tokens that pass a layer
together). So it is measured over a grid of both, and its best setting is the one to compare with.
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
MESSAGE_CHARACTERS = 200  # of the last output of a failing program


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
    """Build the command for this version of llama-bench, as its help describes it: early versions take `-fa` 0 or 1,
    later ones a word. Prompts are read with every combination of `batches` and `ubatches`, llama-bench's own defaults
    if empty."""
    done = _run([str(program), "--help"], HELP_SECONDS, program)
    usage = done.stdout + done.stderr
    if "--n-prompt" not in usage:
        raise ConfigError(f"{program} is not llama-bench: its --help lists no --n-prompt; check --llama-bench")
    words = re.search(r"--flash-attn\s+<[^>]*\bon\b", usage)
    lists = {"-p": prompts or (0,), "-n": new or (0,), "-b": batches, "-ub": ubatches}
    return [
        *(str(program), "-m", str(model), "-o", "json", "-r", str(repeats), "-ngl", "99", "-ctk", kv, "-ctv", kv),
        *(item for flag, values in lists.items() if values for item in (flag, ",".join(map(str, values)))),
        *(("-fa", "on" if words else "1") if "--flash-attn" in usage else ()),
    ]


def run_bench(command: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """Run llama-bench and return its tests. ConfigError: it cannot be started, fails, takes longer than `seconds`, or
    prints no tests."""
    done = _run(command, seconds, Path(command[0]))
    if done.returncode != 0:
        raise ConfigError(f"{command[0]} failed with status {done.returncode}: {_last(done.stderr or done.stdout)}")
    return parse(done.stdout, command[0])


def parse(text: str, source: str) -> list[dict[str, Any]]:
    """Extract the tests from the output of llama-bench with ``-o json``, whatever text is around them. ConfigError:
    there is no list of tests, or a test lacks its size or its times."""
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
    """Build the arguments of `make_record` for a test of `run_bench` or `with_best`: `prefill` or `decode`, with the
    engine llama.cpp. llama-bench times neither tokenising nor sampling, so a time to first token is longer."""
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
    """Add to each test whether it is the fastest of its size (`best`), and the speed of every setting (`grid`).

    >>> tests = [{"n_prompt": 8, "n_gen": 0, "n_batch": b, "seconds": [s]} for b, s in ((4, 2.0), (8, 1.0))]
    >>> [(test["n_batch"], test["best"], len(test["grid"])) for test in with_best(tests)]
    [(4, False, 2), (8, True, 2)]
    """
    sizes: dict[tuple[int, int, int], list[Mapping[str, Any]]] = {}
    for test in tests:
        sizes.setdefault(_size(test), []).append(test)
    rated = []
    for test in tests:
        group = sizes[_size(test)]
        grid = [
            {"batch": t.get("n_batch"), "ubatch": t.get("n_ubatch"), "tok_s": max(_size(t)[:2]) / median(t["seconds"])}
            for t in group
        ]
        rated.append({**test, "best": test is min(group, key=lambda t: median(t["seconds"])), "grid": grid})
    return rated


def best_peer(records: Iterable[Mapping[str, Any]], tokens: int) -> Mapping[str, Any] | None:
    """Return this engine's fastest `prefill` record of a prompt of `tokens` tokens; None without one."""
    own = [r for r in records if r["config"].get("engine") == ENGINE and r["config"].get("prompt_tokens") == tokens]
    return max(own, key=lambda r: float(r["metrics"]["tok_s"]), default=None)


def _size(test: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the sizes of a test: prompt tokens, new tokens, tokens before those."""
    return test["n_prompt"], test["n_gen"], test.get("n_depth") or 0


def _run(command: Sequence[str], seconds: float, program: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{program} did not end within {seconds:g} s; raise --timeout or measure less") from None
    except OSError as error:
        raise ConfigError(
            f"cannot run {program}: {error.strerror}; pass the path of llama-bench as --llama-bench"
        ) from None


def _checked(test: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Check a test, and add its counts as int and its samples in seconds; versions differ in the times they print."""
    samples = test.get("samples_ns") or ([test["avg_ns"]] if "avg_ns" in test else [])
    try:
        counts = {name: int(test[name] or 0) for name in ("n_prompt", "n_gen")}
        seconds = [float(value) / 1e9 for value in samples]
    except (KeyError, TypeError, ValueError):
        counts, seconds = {}, []
    if not seconds or min(seconds) <= 0 or sorted(map(bool, counts.values())) != [False, True]:
        raise ConfigError(f"{source}: a test without one size and its times: {json.dumps(test)[:MESSAGE_CHARACTERS]}")
    return {**test, **counts, "seconds": seconds}


def _last(text: str) -> str:
    """Return the last line that is not blank, truncated to `MESSAGE_CHARACTERS`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "".join(c if c.isprintable() else "?" for c in lines[-1][:MESSAGE_CHARACTERS]) if lines else ""
