"""What the caches of a prebuilt llama.cpp cost on real text: KL of logits, equal best tokens, nats a token.

    npm i --ignore-scripts node-llama-cpp@3.22.1 @node-llama-cpp/linux-x64@3.22.1
    git clone node_modules/node-llama-cpp/llama/gitRelease.bundle headers
    bins=node_modules/@node-llama-cpp/linux-x64/bins/linux-x64
    python llama_cpp_kv.py smollm2-135m.gguf headers $bins --texts alice.txt GPL-3 argparse.py --every 1
    python llama_cpp_kv.py gemma-3-270m.gguf headers $bins --texts alice.txt GPL-3 argparse.py
    python llama_cpp_kv.py gemma-3-270m.gguf headers $bins --texts alice.txt --tokens 8192 --caches q8_0 q4_0
    python llama_cpp_kv.py gemma-3-270m.gguf headers $bins --texts alice.txt --unpacked

A text's first tokens are read 512 at a time, and every so many's logits are held to those of an f16 cache (`kl`), and
of an f32 cache without flash attention (`kl_from_f32`): with it, llama.cpp rounds what an f32 cache holds to f16. What
it cannot do is told and left out. `-flash` and `-rotation` behind a cache are it without these. With `--unpacked` the
weights are F32, so that products do not round their inputs to eight bits, which is noise that hides small distances.
Records are added to `--out`; those that are there are not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from llama_cpp import built, read

from sp.bench.record import file_facts, key_of, make_record
from sp.json_lines import read_jsonl

THREADS, PIECE, CHUNK = 1, 512, 2
OUT = Path(__file__).parents[2] / "results" / "amd-epyc-2core" / "real" / "llama_cpp_kv.jsonl"
CACHES = (
    *("f16", "f32", "f16-flash", "f32-flash", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "q8_0:q4_0"),
    *("f16:q4_0", "q4_0:f16", "q4_0:f16-flash", "q4_0-flash", "q4_0-rotation"),
)
UNROTATED = "LLAMA_ATTN_ROT_DISABLE"


class Cache(NamedTuple):
    """Types of keys and values, and what llama.cpp does with them."""

    k: str
    v: str
    flash: bool = True
    rotation: bool = True

    @classmethod
    def named(cls, name: str) -> Cache:
        """Of `q4_0`, `q8_0:q4_0`, `f16-flash`, `q4_0-rotation`."""
        types, *without = name.split("-")
        k, _, v = types.partition(":")
        return cls(k, v or k, "flash" not in without, "rotation" not in without)

    @property
    def rotates(self) -> bool:
        """Whether anything is rotated: only what is in blocks is."""
        return self.rotation and any(sizes(one)[0] > 1 for one in (self.k, self.v))


F16, F32 = Cache("f16", "f16"), Cache("f32", "f32", flash=False)


class Scored(NamedTuple):
    """Logits of some rows and the logarithms of their sums of exponentials."""

    logits: np.ndarray
    logs: np.ndarray


def number(kind: str) -> int:
    """A type as ggml numbers it."""
    return int(GGMLQuantizationType[kind.upper()])


def sizes(kind: str) -> tuple[int, int]:
    """Values and bytes of a block."""
    return GGML_QUANT_SIZES[GGMLQuantizationType(number(kind))]


def bits(kind: str) -> float:
    """Bits that a value takes."""
    values, size = sizes(kind)
    return 8 * size / values


def scored(peer: Any, vocab: int, ids: np.ndarray, cache: Cache, every: int) -> Scored | None:
    """Logits of every so many of the tokens; None if llama.cpp has no such cache."""
    os.environ[UNROTATED] = str(int(not cache.rotation))
    if not peer.peer_context(len(ids), number(cache.k), number(cache.v), cache.flash, THREADS):
        return None
    pieces = [(at, ids[at : at + PIECE]) for at in range(0, len(ids), PIECE)]
    logits = np.concatenate([read(peer, vocab, some, at, range(every - 1, len(some), every)) for at, some in pieces])
    logs = np.empty(len(logits))
    for at in chunks(len(logits)):
        some = logits[at].astype(np.float64)
        most = some.max(axis=1)
        logs[at] = most + np.log(np.exp(some - most[:, None]).sum(axis=1))
    return Scored(logits, logs)


def chunks(rows: int) -> Iterator[slice]:
    """Few rows at a time: in float64, those of large vocabularies take much memory."""
    return (slice(at, at + CHUNK) for at in range(0, rows, CHUNK))


def distances(true: Scored, found: Scored) -> np.ndarray:
    """KL of each row, nats."""
    kl = np.empty(len(true.logs))
    for at in chunks(len(kl)):
        exact, near = true.logits[at].astype(np.float64), found.logits[at].astype(np.float64)
        exact -= true.logs[at, None]
        near -= found.logs[at, None]
        kl[at] = (np.exp(exact) * (exact - near)).sum(axis=1)
    return kl


def judged(found: Scored, f16: Scored, f32: Scored, wanted: np.ndarray) -> dict[str, Any]:
    """Metrics of a cache's logits beside the references and the tokens that follow."""
    kl, rows = distances(f16, found), len(wanted)
    return {
        "kl": kl.mean(),
        "kl_error": kl.std() / np.sqrt(rows),
        "kl_from_f32": distances(f32, found).mean(),
        "top1": (f16.logits.argmax(axis=1) == found.logits.argmax(axis=1)).mean(),
        "nll": (found.logs - found.logits[np.arange(rows), wanted]).mean(),
    }


def measure(peer: Any, vocab: int, ids: np.ndarray, given: argparse.Namespace, facts: dict[str, Any]) -> Iterator[Any]:
    """Configurations and metrics of the caches on one text; `ids` have one token more than are read."""
    known = {key_of(record) for record in read_jsonl(given.out)} if given.out.exists() else set()
    references: dict[Cache, Scored] = {}
    for cache in map(Cache.named, given.caches):
        config = {**facts, "tokens": len(ids) - 1, "k": cache.k, "v": cache.v, "rotate": cache.rotates}
        config |= {"flash_attention": cache.flash, "every": given.every, "threads": THREADS}
        if key_of({"bench": "kv_quality", "config": config}) in known:
            continue
        for one in (F16, F32):
            if one not in references:
                found = scored(peer, vocab, ids[:-1], one, given.every)
                assert found is not None, "llama.cpp refused a plain cache"
                references[one] = found
        found = references.get(cache) or scored(peer, vocab, ids[:-1], cache, given.every)
        if found is None:
            print(facts["model"], cache, "refused", flush=True)
            continue
        metrics = judged(found, references[F16], references[F32], ids[given.every :: given.every])
        metrics = {name: float(value) for name, value in metrics.items()}
        yield config, {**metrics, "rows": len(found.logs), "bits_per_value": (bits(cache.k) + bits(cache.v)) / 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("headers", type=Path)
    parser.add_argument("bins", type=Path)
    parser.add_argument("--texts", type=Path, nargs="+", required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024])
    parser.add_argument("--every", type=int, default=8, help="which tokens' logits are scored")
    parser.add_argument("--caches", nargs="+", default=CACHES, help="TYPE or KEYS:VALUES, and -flash or -rotation")
    parser.add_argument("--unpacked", action="store_true", help="weights as F32")
    parser.add_argument("--out", type=Path, default=OUT, help="JSON lines to add to")
    given = parser.parse_args()
    bins, facts = given.bins.resolve(), file_facts(given.model)
    peer, vocab = built(given.model, given.headers, bins)
    if given.unpacked:
        facts["type"], unpacked = "f32", Path(tempfile.mkdtemp()) / "unpacked.gguf"
        assert not peer.peer_unpack(str(given.model).encode(), str(unpacked).encode(), THREADS), "not unpacked"
        peer.peer_open(str(bins).encode(), str(unpacked).encode())
        unpacked.unlink()  # it is mapped
    facts["engine"] = "llama.cpp " + next(bins.glob("libllama.v*.so")).stem.removeprefix("libllama.")
    for text in given.texts:
        raw = text.read_bytes()
        ids = np.empty(len(raw) + 16, np.int32)
        ids = ids[: peer.peer_tokens(raw, len(raw), ids.ctypes, len(ids))]
        for tokens in given.tokens:
            for config, metrics in measure(peer, vocab, ids[: tokens + 1], given, {**facts, "text": text.name}):
                record = make_record("kv_quality", config, metrics, [], [], device="cpu")
                with given.out.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(record) + "\n")
                kv = f"{config['k']}:{config['v']} flash {config['flash_attention']:d} rotate {config['rotate']:d}"
                values = " ".join(f"{name} {value:.5g}" for name, value in metrics.items())
                print(config["model"], config["type"], text.name, config["tokens"], kv, values, flush=True)


if __name__ == "__main__":
    main()
