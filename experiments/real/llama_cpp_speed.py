"""Speed of a model on the CPU beside a prebuilt llama.cpp, in turn: greedy decoding, and reading a prompt.

    OMP_NUM_THREADS=2 python llama_cpp_speed.py MODEL.gguf HEADERS BINS [--record FILE.jsonl]

`HEADERS` and `BINS` as of llama_cpp.py; both use as many threads as ``OMP_NUM_THREADS`` says, on as many cores
(``taskset -c 0`` for one). The best of all rounds counts, as other programs on the machine only make either slower:
two threads of llama.cpp wait for each other, so one busy core halts both.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import built, read

from sp.bench.record import make_record
from sp.models import decode_step, prefill
from sp.ops.threads import cores
from sp.session import load

PROMPT, STEPS, LONG, ROOM = 16, 64, 2048, 4096
F16 = 1  # as ggml numbers it
Read = Callable[[Any, int], np.ndarray]  # token ids and where they go -> logits of the last


def decoding(go: Read, rng: np.random.Generator) -> float:
    """Tokens a second, greedy, behind a short prompt."""
    token = int(np.argmax(go(rng.integers(100, 5000, PROMPT), 0)))
    for place in range(3):
        token = int(np.argmax(go([token], PROMPT + place)))
    begun = time.perf_counter()
    for place in range(STEPS):
        token = int(np.argmax(go([token], PROMPT + 3 + place)))
    return STEPS / (time.perf_counter() - begun)


def reading(go: Read, rng: np.random.Generator) -> float:
    """Tokens a second of a long prompt."""
    ids = rng.integers(100, 5000, LONG)
    begun = time.perf_counter()
    go(ids, 0)
    return LONG / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("headers", type=Path)
    parser.add_argument("bins", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=2, help="rounds that read a long prompt as well")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    model, threads = load(args.model, device="cpu").model, cores()
    peer, _ = built(args.model, args.headers, args.bins.resolve())

    def ours() -> Read:
        cache = model.new_cache(ROOM)

        def go(ids: Any, start: int) -> np.ndarray:
            if len(ids) == 1:
                return decode_step(model, ids[0], start, cache)
            return prefill(model, ids, np.arange(len(ids)), cache)

        return go

    def theirs(flash: bool) -> Read:
        assert peer.peer_context(ROOM, F16, F16, flash, threads), "llama.cpp has no such cache"
        return lambda ids, start: read(peer, model.config.vocab, ids, start)[0]

    ways: dict[str, Callable[[], Read]] = {
        "sp": ours,
        "llama.cpp, flash attention": lambda: theirs(True),
        "llama.cpp": lambda: theirs(False),
    }
    found: dict[tuple[str, str], list[float]] = {}
    for count in range(args.rounds):
        for name, fresh in ways.items():
            for what, timed in {"decode": decoding, "prefill": reading}.items():
                if what == "decode" or count < args.prompts:
                    found.setdefault((what, name), []).append(timed(fresh(), np.random.default_rng(count)))
        told = ", ".join(f"{what} {name} {max(rates):.1f}" for (what, name), rates in sorted(found.items()))
        print(f"best of {count + 1}, {threads} threads, tokens a second: {told}", flush=True)
    for (what, name), rates in found.items() if args.record else ():
        engine, _, flash = name.partition(", ")
        tokens = {"context": PROMPT, "tokens": STEPS} if what == "decode" else {"prompt_tokens": LONG}
        config = {"model": args.model.stem, "engine": engine, "threads": threads, "kv": "f16", **tokens}
        config |= {"flash_attention": bool(flash)} if engine != "sp" else {}
        row = make_record(what, config, {"tok_s": max(rates)}, rates, (), device="cpu")
        with args.record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
