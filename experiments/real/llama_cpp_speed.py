"""Seconds of Gemma 3 270M on the CPU beside llama.cpp, in turn, the best of three; arguments as of llama_cpp.py.

    OMP_NUM_THREADS=2 python llama_cpp_speed.py gemma-3-270m.gguf headers BINS [f32|f16 ...]

What else the machine does counts: two threads of llama.cpp wait for each other, so one busy core halts both.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import CACHES, IDS, built, read

from sp.models import decode_step, prefill
from sp.session import load

THREADS, REPEATS, STEPS, ROOM = int(os.environ["OMP_NUM_THREADS"]), 3, 64, 2304


def timed(go: Callable[..., Any], n: int) -> dict[str, float]:
    """Seconds of a prompt, and of greedy steps after the shorter one."""
    begun = time.perf_counter()
    token, seen = int(np.argmax(go(np.resize(IDS, n), 0))), time.perf_counter()
    if n > len(IDS):
        return {f"{n} tokens": seen - begun}
    for place in range(n, n + STEPS):
        token = int(np.argmax(go([token], place)))
    return {f"{n} tokens": seen - begun, f"{STEPS} steps": time.perf_counter() - seen}


def main(path: Path, headers: Path, bins: Path, *kvs: str) -> None:
    model, (peer, vocab) = load(path, device="cpu").model, built(path, headers, bins.resolve())

    def ours(kv: str) -> Callable[..., Any]:
        cache = model.new_cache(ROOM, kv)
        return lambda ids, start: (
            prefill(model, ids, np.arange(len(ids)), cache) if start == 0 else decode_step(model, ids[0], start, cache)
        )

    def theirs(kv: str, flash: bool) -> Callable[..., Any]:
        assert peer.peer_context(ROOM, CACHES[kv], flash, THREADS), "llama.cpp has no such cache"
        return lambda ids, start: read(peer, vocab, ids, start)

    ways: dict[str, Callable[[], Callable[..., Any]]] = {}
    for kv in kvs or CACHES:
        ways |= {
            f"sp {kv}": lambda kv=kv: ours(kv),
            f"llama.cpp {kv}, flash attention off": lambda kv=kv: theirs(kv, False),
            f"llama.cpp {kv}, flash attention on": lambda kv=kv: theirs(kv, True),
        }
    best: dict[str, dict[str, float]] = {name: {} for name in ways}
    for count in range(1, REPEATS + 1):
        for name, fresh in ways.items():
            for what, seconds in (timed(fresh(), len(IDS)) | timed(fresh(), 2 * len(IDS))).items():
                best[name][what] = min(seconds, best[name].get(what, seconds))
            row = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in best[name].items())
            print(f"best of {count}, {THREADS} threads, {name}: {row}", flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *sys.argv[4:])
