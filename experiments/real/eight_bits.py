"""What 8-bit products cost on real text: KL of logits from those of float32, equal best tokens, nats a token.

    python experiments/real/eight_bits.py --model smollm2-135m --text alice.txt argparse.py
    python experiments/real/eight_bits.py --model gemma-3-270m --text GPL-3 --tokens 4096 --ways attention

Every product of a layer but those of the first two is made in 8 bits, by the NumPy references of the kernels. Widths
that are no multiple of 256 are filled up with zeros: here such products are rounded too, which `--precision int8` would
leave in BF16. Ways: `int8` and `fp8`, as `--precision` has them; with nothing apart; without rotation; and
`blocks of 32`, activations and weights as llama.cpp has them (`q8_1` and Q8_0), written again in NumPy. `attention`
rounds no products, but what `--precision int8` rounds of attention: with heads of 256 queries and keys, from 2,049
tokens on.

Records are added to `results`, in the file of the machine; those that are there are not measured again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sp.bench import record as bench
from sp.bench.record import file_facts, key_of, make_record
from sp.json_lines import read_jsonl
from sp.kernels.machine import machine_slug
from sp.models import Model
from sp.models.cache.kv_type import USUAL
from sp.models.file.weights import layer_of
from sp.models.network.arithmetic import FIRST_LAYERS
from sp.ops.byte_rows.loud import loud_channels
from sp.ops.byte_rows.rows import ByteKind, byte_product, round_rows
from sp.ops.matmul import project
from sp.quant import Math, Weight
from sp.session import load

sys.path.insert(0, str(Path(__file__).parents[1]))
from kv_quality import judged, stream

NOTHING = np.empty(0, np.int64)
Product = Callable[[Any, Any], Any]  # of x, float32 (tokens, in), and rows of a weight, float32 (out, in)


def shipped(kind: ByteKind, apart: bool = True) -> Product:
    """A product as `--precision` has it, or without outlier channels."""

    def product(x: Any, w: Any) -> Any:
        loud = loud_channels(x) if apart else NOTHING
        return byte_product(round_rows(x, kind, loud, True), round_rows(w, kind, loud, False))

    return product


def by_absmax(x: Any, width: int) -> Any:
    """Rows rounded to whole numbers up to 127, each `width` values by their largest."""
    groups = x.reshape(-1, width)
    largest = np.abs(groups).max(axis=1, keepdims=True)
    scale = np.where(largest > 0, largest, 1) / np.float32(127)
    return (np.rint(groups / scale) * scale).reshape(x.shape)


def plain(width: int, apart: bool) -> Product:
    """A product without rotation, with a scale for so many values; 0: for a row."""

    def product(x: Any, w: Any) -> Any:
        loud = loud_channels(x) if apart else NOTHING
        quiet = x.copy()
        quiet[:, loud] = 0
        each = width or x.shape[1]
        return by_absmax(quiet, each) @ by_absmax(w, each).T + x[:, loud] @ w[:, loud].T

    return product


WAYS: dict[str, Product] = {
    "int8": shipped(ByteKind.INT8),
    "fp8": shipped(ByteKind.E4M3),
    "int8, nothing apart": shipped(ByteKind.INT8, apart=False),
    "int8, not rotated": plain(0, apart=True),
    "int8 by 256, not rotated": plain(256, apart=True),
    "int8 by row, nothing else": plain(0, apart=False),
    "blocks of 32": plain(32, apart=False),
}


ATTENTION = "attention"


@contextmanager
def rounded_attention(model: Model) -> Iterator[None]:
    """Attention of long runs is in 8 bits."""
    usual = model.arithmetic
    model.arithmetic = replace(usual, attention=Math.INT8)
    try:
        yield
    finally:
        model.arithmetic = usual


@contextmanager
def rounded(product: Product) -> Iterator[None]:
    """Layers from the first that is rounded on multiply so."""
    usual = project.linear

    def linear(x: Any, w: Weight) -> Any:
        layer = layer_of(w.name)
        if layer is None or layer < FIRST_LAYERS:
            return usual(x, w)
        dense = project.decoded(w.data, w.format).astype(np.float32)
        more = ((0, 0), (0, -dense.shape[1] % 256))
        return product(np.pad(np.asarray(x, np.float32), more), np.pad(dense, more)).astype(np.float32)

    project.linear = linear
    try:
        yield
    finally:
        project.linear = usual


def measured(
    model: Model, ids: Any, given: argparse.Namespace, facts: dict[str, Any], known: set[str]
) -> Iterator[dict[str, Any]]:
    """Records of the ways on one text; `ids` have one token more than are read."""
    exact, wanted = None, ids[given.every :: given.every]
    for way in given.ways:
        config = {**facts, "tokens": len(ids) - 1, "way": way, "every": given.every}
        if key_of({"bench": "eight_bits", "config": config}) in known:
            continue
        if exact is None:
            exact = stream(model, ids[:-1], given.every, USUAL, None, 1)
        start = time.perf_counter()
        with rounded_attention(model) if way == ATTENTION else rounded(WAYS[way]):
            near = stream(model, ids[:-1], given.every, USUAL, None, 1)
        metrics = {**judged(model, exact, near, wanted), "seconds": time.perf_counter() - start}
        yield make_record("eight_bits", config, metrics, [], device="cpu")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a known name, or a file")
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--every", type=int, default=4, help="which tokens' logits are scored")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=[*WAYS, ATTENTION])
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of records")
    given = parser.parse_args(arguments)
    if not 1 <= given.every <= given.tokens:
        parser.error(f"--every is {given.every}; it must be from 1 to --tokens, {given.tokens}")
    loaded = load(given.model, device="cpu")
    facts = {**file_facts(loaded.path), "engine": "sp"}
    for text in given.text:
        ids = np.array(loaded.tokenizer.encode(text.read_text("utf-8"), framed=True).ids, np.int64)
        if len(ids) <= given.tokens:
            raise SystemExit(f"{text} has {len(ids)} tokens, and {given.tokens + 1} are wanted")
        path = given.out / machine_slug(make_record("eight_bits", {}, {}, [], [], device="cpu")) / "eight_bits.jsonl"
        known = {key_of(one) for one in read_jsonl(path)} if path.exists() else set()
        for one in measured(loaded.model, ids[: given.tokens + 1], given, {**facts, "text": text.name}, known):
            bench.append(one, given.out)
            m = one["metrics"]
            said = f"KL {m['kl']:.2e} ± {m['kl_error']:.0e}, best token {m['top1']:.1%}, {m['nll']:.4f} nats a token"
            print(f"{one['config']['model']} {text.name}, {one['config']['way']}: {said}", flush=True)


if __name__ == "__main__":
    main()
