"""The peer: a llama-bench of the user's own, run on the same GGUF, its output as the records of our own rows."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from sp.errors import ConfigError
from sp.scoring.reading import DRAFTING

ENGINE = "llama.cpp"
HELP_SECONDS = 30.0
SHOWN = 200  # characters of what a failing program said last


def bench_command(
    program: Path, model: Path, prompts: Sequence[int], new: Sequence[int], repeats: int, kv: str
) -> list[str]:
    """Arguments for this llama-bench: `-fa` was 0 or 1, and is a word in later versions, as its help tells."""
    told = _run([str(program), "--help"], HELP_SECONDS, program)
    said = told.stdout + told.stderr
    if "--n-prompt" not in said:
        raise ConfigError(f"{program} is no llama-bench: its --help knows no --n-prompt; check --llama-bench")
    words = re.search(r"--flash-attn\s+<[^>]*\bon\b", said)
    lists = {"-p": prompts or (0,), "-n": new or (0,)}
    return [
        *(str(program), "-m", str(model), "-o", "json", "-r", str(repeats), "-ngl", "99", "-ctk", kv, "-ctv", kv),
        *(item for flag, values in lists.items() for item in (flag, ",".join(map(str, values)))),
        *(("-fa", "on" if words else "1") if "--flash-attn" in said else ()),
    ]


def run_bench(command: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """Run llama-bench and return its tests.

    Raises
    ------
    ConfigError
        It cannot be started, fails, takes longer than `seconds`, or prints no tests.
    """
    done = _run(command, seconds, Path(command[0]))
    if done.returncode != 0:
        raise ConfigError(f"{command[0]} failed with status {done.returncode}: {_last(done.stderr or done.stdout)}")
    return parse(done.stdout, command[0])


def parse(text: str, source: str) -> list[dict[str, Any]]:
    """The tests in what llama-bench printed with ``-o json``, whatever else stands before or after.

    Raises
    ------
    ConfigError
        There is no list of tests, or one has no size or no time.
    """
    decoder = json.JSONDecoder()
    for start in (match.start() for match in re.finditer(r"^\s*\[", text, re.MULTILINE)):
        try:
            tests, _ = decoder.raw_decode(text[start:].lstrip())
        except (json.JSONDecodeError, RecursionError):
            continue
        if isinstance(tests, list) and tests and all(isinstance(test, dict) and "n_prompt" in test for test in tests):
            return [_checked(test, source) for test in tests]
    raise ConfigError(f"{source} printed no list of tests in JSON, but: {_last(text) or 'nothing'}")


def describe_peer(test: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Arguments of `make_record` for a test: a prompt as a `ttft` row of its own engine, decoding as a `decode` row.

    llama-bench counts neither tokenising nor sampling, so its time to first token is a lower bound.
    """
    seconds, kv = test["seconds"], str(test.get("type_k") or "f16")
    common = {"engine": ENGINE, "kv": kv, "path": str(test.get("backends") or "unknown")}
    common["build"] = str(test.get("build_commit") or "unknown")
    if test["n_gen"]:
        rates = [test["n_gen"] / s for s in seconds]
        shape = {"model": model, "context": test.get("n_depth") or 0, "tokens": test["n_gen"]}
        metrics = {"tok_s": median(rates)}
        return {"bench": "decode", "config": common | shape, "metrics": metrics, "samples": rates, "sources": ()}
    middle = median(seconds)
    shape = {"target": model, "drafter": None, "prompt_tokens": test["n_prompt"], "keep_ratio": 1.0, "vram": None}
    metrics = {
        "ttft_s": middle,
        "full_ttft_s": middle,
        "full_runs": len(seconds),
        "error": None,
        "stages": {"target prefill": middle},
        "tok_s": test["n_prompt"] / middle,
    }
    config = common | shape | dict.fromkeys((*DRAFTING, "selector", "new_tokens"))
    return {"bench": "ttft", "config": config, "metrics": metrics, "samples": seconds, "sources": ()}


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
