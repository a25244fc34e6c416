"""Times of the two models people run, on random weights, to show that two commits are as fast as each other.

    for turn in 1 2; do
        PYTHONPATH=OLD python experiments/same_speed.py old$turn.json
        PYTHONPATH=NEW python experiments/same_speed.py new$turn.json
    done
    python experiments/same_speed.py --old old1.json old2.json --new new1.json new2.json

One process times one commit; names are found wherever they are defined. Prints JSON: milliseconds by what was timed,
medians and all samples. The comparison takes the median over all samples of a commit and fails past 2 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
TARGET, DRAFTER, LONG = "qwen3.6-27b", "qwen3-0.6b", 131072
SLOWER = 1.02
"""What counts as slower than before."""


def main() -> int:
    """Time this commit, or compare what was timed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="JSON to write")
    parser.add_argument("--repeats", type=int, default=5, help="samples of each; 3 of the longest prefill")
    parser.add_argument("--only", default="", help="what has this text in its name")
    parser.add_argument("--old", nargs="+", type=Path, help="results of one commit")
    parser.add_argument("--new", nargs="+", type=Path, help="and of the other")
    given = parser.parse_args()
    if given.old or given.new:
        return compare(given.old, given.new)
    found: dict[str, dict[str, Any]] = {}
    for part in (products, target, drafter, requests, turns):
        if given.only and given.only not in part.__name__:
            continue
        start = time.perf_counter()
        for name, samples in part(given.repeats):
            found[name] = {"ms": median(samples), "samples": samples}
            print(f"{name}: {median(samples):.4g} ms", file=sys.stderr)
        print(f"({part.__name__}: {time.perf_counter() - start:.0f} s)", file=sys.stderr)
        free()
    text = json.dumps(found, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")
    return 0


def free() -> None:
    """Give memory back, so that all parts find the device alike."""
    import gc

    import cupy

    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()


def products(repeats: int) -> Iterator[tuple[str, list[float]]]:
    """A prefill product, called one by one with the device idle before, and in bursts."""
    from fingerprint.finding import find
    from fingerprint.inputs import bf16, weight

    project = find("project")
    for name in ("Q4_K", "Q6_K", "BF16"):
        w = weight(name, 17408, 5120)
        for rows in (512, 8192):
            x = bf16(rows, 5120)
            work = project_of(project, x, w)
            yield f"project {name} {rows} rows, single calls", calls(work, 1, 8 * repeats)
            yield f"project {name} {rows} rows, bursts of 50", calls(work, 50, repeats)


def project_of(project: Callable[..., Any], x: Any, w: Any) -> Callable[[], Any]:
    """One product as layers make it."""
    return lambda: project(x, (w,))


def calls(work: Callable[[], Any], count: int, repeats: int) -> list[float]:
    """Milliseconds a call of `count` after each other, between two events, the device idle before."""
    import cupy

    stream, samples = cupy.cuda.get_current_stream(), []
    for _ in range(3):
        work()
    for _ in range(repeats):
        stream.synchronize()
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(count):
            work()
        end.record()
        end.synchronize()
        samples.append(float(cupy.cuda.get_elapsed_time(start, end)) / count)
    return samples


def target(repeats: int) -> Iterator[tuple[str, list[float]]]:
    """Prefill, decoding, and rounds of speculative decoding, of the heavy model."""
    from fingerprint.finding import find

    loaded, trial = find("synthetic", "load")(TARGET, device="cuda"), find("Trial")
    decode_ms = 0.0
    for tests, count in (([trial(512), trial(8192), trial(4096, 128)], repeats), ([trial(LONG)], min(repeats, 3))):
        for timing in find("run_tests")(loaded.model, tests, count):
            per = timing.test.new or 1
            samples = [1e3 * seconds / per for seconds in timing.seconds]
            decode_ms = median(samples) if timing.test.new else decode_ms
            yield f"target {timing.test.name}", samples
    draft = find("synthetic_draft")(f"dflash-{TARGET}", "q8_0", loaded.model)
    for nodes in (16, 23):
        options = find("RunOptions")(compress="off")
        timed = find("time_round")(loaded, draft, nodes, decode_ms, options, context=2048, repeats=4 * repeats)
        for part, samples in timed.ms.items():
            if part in ("verify", "guess", "keep", "remember"):
                yield f"round of {nodes}: {part}", list(samples)


def drafter(repeats: int) -> Iterator[tuple[str, list[float]]]:
    """Scoring a long prompt."""
    from fingerprint.finding import find

    loaded = find("synthetic", "load")(DRAFTER, "bf16", extrapolate=True, device="cuda")
    trial = find("ScoringTrial", "bench")
    tests = [trial(LONG, {"attention": "flashprefill", "density": share}) for share in (0.05, 0.24)]
    for test, timing in zip(tests, find("run_scoring")(loaded.model, tests, repeats), strict=True):
        yield f"drafter {LONG} at {test.attention}", [1e3 * seconds for seconds in timing.seconds]


def requests(repeats: int) -> Iterator[tuple[str, list[float]]]:
    """From text to the first token, compressed, and the stages of it."""
    from fingerprint.finding import defined, find

    measure = find("measure", "ttft" if "sp.bench.ttft" in defined()["measure"] else "request")
    pair, options = opened()
    document, example = find("sample", "studies")()
    made = find("PromptMaker")(document, example.question, example.needle, pair.target.tokenizer, pair.target.template)
    for tokens in (8192, LONG):
        taken = [measure(pair, made.make(tokens, number), options) for number in range(repeats + 2)][2:]
        yield f"first token of {tokens}", [1e3 * request.ttft_s for request in taken]
        for stage in taken[0].stages:
            yield f"first token of {tokens}: {stage}", [1e3 * request.stages.get(stage, 0.0) for request in taken]


def turns(repeats: int) -> Iterator[tuple[str, list[float]]]:
    """The first token of a turn of a conversation: 512 new tokens behind 32,768."""
    from fingerprint.finding import find

    pair, options = opened()
    document, example = find("sample", "studies")()
    maker = find("TranscriptMaker")(document, example.question, pair.target)
    bench = find("TurnBench")(pair, maker, repeats=2 * repeats, policies=("conversation",))
    for timing in bench.run([32768], 512, options, find("ConversationOptions")()):
        if timing.error is not None:
            raise RuntimeError(timing.error)
        yield "a turn of 512 after 32768", [1e3 * turn.ttft_s for turn in timing.turns]


def opened() -> tuple[Any, Any]:
    """The pair on random weights, and how it is asked."""
    from fingerprint.finding import find

    from sp.scoring import SCORERS

    synthetic, pipeline = find("synthetic", "load"), find("Pipeline")
    pair = pipeline.assemble(
        lambda at: synthetic(TARGET, device=at),
        lambda at: synthetic(DRAFTER, "bf16", extrapolate=True, device=at),
        device="cuda",
        vram=None,
    )
    scorer = SCORERS.build("tail", {"attention": "flashprefill", "density": 0.05})
    options = find("RunOptions")(keep_ratio=0.05, scorer=scorer, compress="always", max_new_tokens=32)
    return replace(pair, target=find("without_ends")(pair.target)), options


def compare(old: list[Path], new: list[Path]) -> int:
    """A table of both; 1 if anything is slower by more than 2 %."""
    before, after = (pooled(paths) for paths in (old, new))
    slower = 0
    for name in before:
        if name not in after:
            print(f"{name}: only before")
            slower += 1
            continue
        one, other = median(before[name]), median(after[name])
        runs = " ".join(f"{median(m):.4g}" for m in runs_of([*old, *new], name))
        note = "  SLOWER" if other > SLOWER * one else ""
        slower += bool(note)
        print(f"{name:44} {one:10.4f} -> {other:10.4f} ms  {other / one - 1:+7.2%}{note}   (runs: {runs})")
    return int(slower > 0)


def pooled(paths: list[Path]) -> dict[str, list[float]]:
    """All samples of a commit's runs, by what was timed."""
    found: dict[str, list[float]] = {}
    for path in paths:
        for name, timed in json.loads(path.read_text(encoding="utf-8")).items():
            found.setdefault(name, []).extend(timed["samples"])
    return found


def runs_of(paths: list[Path], name: str) -> list[list[float]]:
    """Samples of each run."""
    read = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return [list(np.asarray(one[name]["samples"])) for one in read if name in one]


if __name__ == "__main__":
    sys.exit(main())
