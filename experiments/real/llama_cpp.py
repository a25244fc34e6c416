"""Gemma 3 270M on the CPU beside a prebuilt llama.cpp: distance to float64, KL, equal tokens.

    npm i --ignore-scripts node-llama-cpp@3.22.1 @node-llama-cpp/linux-x64@3.22.1
    git clone node_modules/node-llama-cpp/llama/gitRelease.bundle headers
    python llama_cpp.py gemma-3-270m.gguf headers node_modules/@node-llama-cpp/linux-x64/bins/linux-x64

Every eighth token's logits are also held to those of float32 by `sp`.
"""

import ctypes
import json
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from sp.models import prefill
from sp.models.run.layer_major import stream_layer_major
from sp.session import load

HERE = Path(__file__).parent
WANTED = json.loads((HERE.parents[1] / "tests/real/gemma3.json").read_text("utf-8"))
IDS, PLAIN = np.array(WANTED["ids"]), WANTED["plain"]
CACHES, ROWS = {"f32": 0, "f16": 1}, np.append(np.arange(7, 999, 8), 999)  # types as ggml numbers them


def built(path: Path, headers: Path, bins: Path) -> tuple[Any, int]:
    """A library with llama.cpp behind it that has read the model, and the size of the vocabulary."""
    out = Path(tempfile.mkdtemp()) / "peer.so"
    linked = [*bins.glob("libllama.v*.so"), *bins.glob("libggml.v*.so"), bins / "libggml-base.so"]
    flags = [f"-I{headers}/include", f"-I{headers}/ggml/include", f"-Wl,-rpath,{bins}", "-Wl,--allow-shlib-undefined"]
    subprocess.run(["cc", "-shared", "-fPIC", *flags, HERE / "llama_cpp.c", *linked, "-o", out], check=True)
    peer = ctypes.CDLL(str(out))
    return peer, peer.peer_open(str(bins).encode(), str(path).encode())


def read(peer: Any, vocab: int, ids: Any, start: int, rows: Any = (-1,)) -> np.ndarray:
    """Logits of some rows, by default of the last one."""
    ids, out, logits = np.array(ids, np.int32), np.zeros(len(ids), np.int8), np.empty((len(rows), vocab), np.float32)
    out[list(rows)] = 1
    assert not peer.peer_read(ids.ctypes, start, out.ctypes, len(ids), logits.ctypes), "llama.cpp refused the batch"
    return logits


def logs(logits: Any) -> np.ndarray:
    """Logarithms of probabilities."""
    logits = np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def judged(rows: np.ndarray, near: np.ndarray) -> str:
    """The last row beside float64, all of them beside `near`, which is float32."""
    true, found = np.array(PLAIN["logits"]), rows[-1, PLAIN["at"]].astype(np.float64)
    rms, at = np.sqrt(((found - true) ** 2).mean() / (true**2).mean()), np.exp(logs(true)) * (logs(true) - logs(found))
    kl = [(np.exp(logs(a)) * (logs(a) - logs(b))).sum() for a, b in zip(near, rows, strict=True)]
    same = 100 * (near.argmax(1) == rows.argmax(1)).mean()
    return f"rms {rms:.2e} | KL {at.sum():.1e} | of all: KL {np.mean(kl):.1e}, most {max(kl):.1e}, same {same:.1f} %"


def main(path: Path, headers: Path, bins: Path) -> None:
    loaded, (peer, vocab), near = load(path, device="cpu"), built(path, headers, bins.resolve()), None
    model, n = loaded.model, len(IDS)
    for kv, kind in CACHES.items():
        stream = stream_layer_major(model, IDS, np.arange(n), model.new_cache(n, kv))
        rows = np.asarray(model.head(stream[ROWS]))
        rows[-1] = prefill(model, IDS, np.arange(n), model.new_cache(n, kv))
        near = rows if near is None else near
        print(f"sp {kv}:", judged(rows, near), flush=True)
        for flash in (False, True):
            assert peer.peer_context(n, kind, kind, flash, 2), "llama.cpp has no such cache"
            rows = read(peer, vocab, IDS, 0, ROWS)
            print(f"llama.cpp {kv}, flash attention {'on' if flash else 'off'}:", judged(rows, near), flush=True)
    equal = tokens = 0
    texts = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    for text in texts:
        raw = text.read_bytes()
        ids = np.empty(len(raw) + 16, np.int32)
        ids = ids[: peer.peer_tokens(raw, len(raw), ids.ctypes, len(ids))]
        equal += np.array_equal(loaded.tokenizer.encode(raw.decode(), framed=True).ids, ids)
        tokens += len(ids)
    print(f"tokens: {equal} of {len(texts)} texts equal, {tokens:,} tokens")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
