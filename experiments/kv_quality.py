"""What packed caches cost on real text: KL of logits from those of an f16 cache, equal best tokens, nats a token.

    python experiments/kv_quality.py --model smollm2-135m --text alice.txt GPL-3 argparse.py --kv 4bit q8_0 q4_0
    python experiments/kv_quality.py --model gemma-3-270m --text alice.txt --tokens 8192 --every 16 --kv 4bit

A text's first tokens are read layer by layer, and every so many's logits are scored. The reader stores the keys and
values of all tokens before any of them attends, and attention reads the cache: a query meets its own token, too, as it
is packed. A `4bit` cache keeps the newest tokens exactly, and a prompt's own ones while it is read: it is read a few
tokens at a time (`--run`), as in decoding, where a query has the fewest exact tokens. Its bits a value include those.
The bases of keys are the model's own, as in any run: measured first, where they are not kept yet.
Records are added to `results`, in the file of the machine; those that are there are not measured again. Fields are as
in those of `experiments/real/llama_cpp_kv.py`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sp.bench import record as bench
from sp.bench.record import file_facts, key_of, make_record
from sp.errors import ConfigError
from sp.json_lines import read_jsonl
from sp.kernels.machine import machine_slug
from sp.models import KVType, Model, stream_layer_major
from sp.models.cache.kv_type import USUAL, rotates
from sp.models.run.hooks import run_layers
from sp.ops.array_module import array_module, on_host
from sp.session import load
from sp.trace import Reporter

ROWS = 16  # of logits at a time: in float64, those of large vocabularies take much memory


@dataclass
class Judged:
    """Sums over scored rows."""

    kl: list[Any]
    same: list[Any]
    nll: list[Any]

    def metrics(self) -> dict[str, float]:
        """As records have them."""
        kl, same, nll = (np.concatenate(one) for one in (self.kl, self.same, self.nll))
        rows = len(kl)
        return {
            "kl": float(kl.mean()),
            "kl_error": float(kl.std() / np.sqrt(rows)),
            "top1": float(same.mean()),
            "nll": float(nll.mean()),
            "rows": rows,
        }


def log_softmax(logits: Any) -> Any:
    """Logarithms of probabilities, float64."""
    x = np.asarray(on_host(logits), np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def stream(model: Model, ids: Any, every: int, kv: KVType, rotate: bool | None, run: int) -> Any:
    """The residual stream behind the last layer, of the scored rows."""
    if kv.keeps_recent:
        return stream_of_runs(model, ids, every, kv, run)
    cache = model.new_cache(len(ids), kv, rotate=rotate, layers=1)
    whole = stream_layer_major(model, ids, np.arange(len(ids)), cache)
    return whole[every - 1 :: every].copy()


def stream_of_runs(model: Model, ids: Any, every: int, kv: KVType, run: int) -> Any:
    """The same of tokens that come `run` at a time, each run through all layers."""
    cache, rows = model.new_cache(len(ids), kv), []
    for first in range(0, len(ids), run):
        part = np.arange(first, min(first + run, len(ids)))
        x = run_layers(model, model.embed(ids[part]), model.place(part), cache, rows=len(part))
        rows += [x[i].copy() for i, token in enumerate(part) if (token + 1) % every == 0]
    return array_module(rows[0]).stack(rows)


def bits_per_value(model: Model, kv: KVType, tokens: int) -> float:
    """Bits of a cached value, with exact rows of the newest tokens."""
    sizes = [model.config.heads_of(layer) for layer in model.config.attention_layers]
    values = sum(2 * size.kv_heads * size.head_dim for size in sizes)
    exact = 8 * model.new_cache(tokens, kv).ring_nbytes / (values * tokens)
    return kv.bits_per_value + exact


def judged(model: Model, exact: Any, near: Any, wanted: Any) -> dict[str, float]:
    """Metrics of a cache's stream beside the exact one's, and the tokens that follow the scored ones."""
    found = Judged([], [], [])
    for at in range(0, len(exact), ROWS):
        part = slice(at, at + ROWS)
        p, q = (log_softmax(model.head(one[part].copy())) for one in (exact, near))
        found.kl.append((np.exp(p) * (p - q)).sum(axis=1))
        found.same.append(p.argmax(axis=1) == q.argmax(axis=1))
        found.nll.append(-q[np.arange(len(q)), wanted[part]])
    return found.metrics()


def measured(
    model: Model, ids: Any, given: argparse.Namespace, facts: dict[str, Any], known: set[str]
) -> Iterator[dict[str, Any]]:
    """Records of the caches on one text; `ids` have one token more than are read."""
    exact, wanted = None, ids[given.every :: given.every]
    for name in given.kv:
        kv = KVType.parse(name, "--kv")
        k, v = kv.sides
        config = {**facts, "tokens": len(ids) - 1, "k": k, "v": v, "rotate": rotates(kv, given.rotate)}
        config |= {"every": given.every} | ({"run": given.run} if kv.keeps_recent else {})
        if key_of({"bench": "kv_quality", "config": config}) in known:
            continue
        if exact is None:
            exact = stream(model, ids[:-1], given.every, USUAL, None, given.run)
        start = time.perf_counter()
        near = stream(model, ids[:-1], given.every, kv, given.rotate, given.run)
        seconds = time.perf_counter() - start
        metrics = {**judged(model, exact, near, wanted), "seconds": seconds}
        metrics["bits_per_value"] = bits_per_value(model, kv, len(ids) - 1)
        yield make_record("kv_quality", config, metrics, [], device=given.device)


def reporter() -> Reporter:
    """Tells of slow work as `sp` does."""
    from sp.commands.common import report_once

    return report_once


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a known name, or a file")
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024])
    parser.add_argument("--every", type=int, default=1, help="which tokens' logits are scored")
    parser.add_argument("--kv", nargs="+", default=["4bit", "5bit", "q8_0", "q4_0"])
    parser.add_argument("--run", type=int, default=16, help="tokens that a 4bit cache takes at a time")
    parser.add_argument("--rotate", action=argparse.BooleanOptionalAction, help="by default what the format says")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of records")
    given = parser.parse_args(arguments)
    if not 1 <= given.every <= min(given.tokens):
        parser.error(f"--every is {given.every}; it must be from 1 to --tokens, {min(given.tokens)}")
    try:
        for name in given.kv:
            rotates(KVType.parse(name, "--kv"), given.rotate)
    except ConfigError as error:
        parser.error(str(error))
    loaded = load(given.model, device=given.device, reporter=reporter())
    facts = {**file_facts(loaded.path), "engine": "sp"}
    for text in given.text:
        ids = np.array(loaded.tokenizer.encode(text.read_text("utf-8"), framed=True).ids, np.int64)
        for tokens in given.tokens:
            if len(ids) <= tokens:
                raise SystemExit(f"{text} has {len(ids)} tokens, and {tokens + 1} are wanted")
            known = set(map(key_of, known_records(given)))
            for one in measured(loaded.model, ids[: tokens + 1], given, {**facts, "text": text.name}, known):
                bench.append(one, given.out)
                config, metrics = one["config"], one["metrics"]
                what = f"{config['model']} {text.name} {tokens} {config['k']}:{config['v']}"
                print(what, " ".join(f"{name} {value:.5g}" for name, value in metrics.items()), flush=True)


def known_records(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Those of this machine so far."""
    slug = machine_slug(make_record("kv_quality", {}, {}, [], [], device=given.device))
    path = given.out / slug / "kv_quality.jsonl"
    return list(read_jsonl(path)) if path.exists() else []


if __name__ == "__main__":
    main()
