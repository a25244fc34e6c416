"""What rounding to eight bits costs attention, against float64: made-up heads, and those of the embedded drafter.

    python experiments/eight_bit/attention_errors.py --out results        # on the CPU, a minute

The last QUERIES of TOKENS tokens attend to all before them; errors are relative, root mean square over root mean square
of the outputs. Inputs:

`normal`     queries, keys and values are normal
`peaked`     queries are six times as large: few keys take all of the weight
`shared`     all keys of a head have a vector in common that is ten times as large as what tells them apart
`channels`   4 of 128 channels of keys are 100 times as large and constant but for a hundredth, as RoPE leaves slow ones
`loud value` one value is 1,000 times as large as the others
`sink`       the first key takes about half of the weight of every query; its value is a hundredth of the others
`layer 0..4` queries, keys and values of the embedded drafter, for a document of its sample task

Ways: float16 as the kernels of `--math bf16` have it; the kernel in eight bits; without taking what keys share; bytes
for scores alone; e4m3 for scores too. A row of ``eight_bit_attention.jsonl`` is one kind of inputs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from sp.arrays import Floats
from sp.bench.record import append, make_record
from sp.models import load_model, read_by_layer
from sp.ops.attention.byte_attention.codes import key_centre, key_codes, query_codes
from sp.ops.attention.byte_attention.twin import byte_attention
from sp.ops.byte_rows.e4m3 import LARGEST, round_e4m3
from sp.session.load import embedded, load
from sp.studies.sample import sample

TOKENS, QUERIES, HEADS, KV_HEADS, D, SEED = 4096, 256, 4, 2, 128, 1
SCALE = D**-0.5
Inputs = tuple[Floats, Floats, Floats]
Rounding = Callable[[Floats], Floats]


def made_up() -> Iterator[tuple[str, Inputs]]:
    """Inputs by their name: q (QUERIES, HEADS, D), k and v (TOKENS, KV_HEADS, D)."""
    for number, kind in enumerate(("normal", "peaked", "shared", "channels", "loud value", "sink")):
        rng = np.random.default_rng([SEED, number])
        q = rng.standard_normal((QUERIES, HEADS, D)).astype(np.float32)
        k, v = rng.standard_normal((2, TOKENS, KV_HEADS, D)).astype(np.float32)
        if kind == "peaked":
            q *= 6
        elif kind == "shared":
            k += 10 * rng.standard_normal((KV_HEADS, D)).astype(np.float32)
        elif kind == "channels":
            k[:, :, :4] = 100 * (1 + 0.01 * k[:, :, :4])
        elif kind == "loud value":
            v[TOKENS // 2, 0, 7] = 1000
        elif kind == "sink":
            direction = np.linalg.qr(rng.standard_normal((D, 1)))[0][:, 0].astype(np.float32)
            q += 4 * direction
            k[0] += 1.1 * np.log(TOKENS) / 4 / SCALE * direction
            v[0] *= 0.01
        yield kind, (q, k, v)


def of_the_drafter() -> Iterator[tuple[str, Inputs]]:
    """What the layers of the embedded drafter attend with."""
    drafter = load(embedded("drafter"), device="cpu")
    document, _ = sample()
    ids = np.asarray(drafter.tokenizer.encode(document).ids)[:TOKENS]
    model, seen = load_model(embedded("drafter")), dict[int, Inputs]()

    def watch(layer: int, q: Floats, cache: object) -> None:
        seen[layer] = (q[-QUERIES:].copy(), *(each.copy() for each in cache.gather(layer)))  # type: ignore[attr-defined]

    read_by_layer(model, ids, np.arange(len(ids)), model.new_cache(len(ids), "f32", layers=1), watch, rows=QUERIES)
    for layer, inputs in seen.items():
        yield f"layer {layer}", inputs


def rounded(q: Floats, k: Floats, v: Floats, weights: Rounding, values: Rounding, dtype: type = np.float32) -> Floats:
    """Attention with weights, relative to the largest of a row, and values rounded; q is scaled already."""
    n, heads, _ = q.shape
    tokens, kv_heads, _ = k.shape
    out = np.empty((n, heads, v.shape[2]), dtype)
    seen = np.arange(tokens) <= np.arange(tokens - n, tokens)[:, None]
    for head in range(heads):
        kv = head * kv_heads // heads
        scores = np.where(seen, q[:, head].astype(dtype) @ k[:, kv].astype(dtype).T, -np.inf)
        exact = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights(exact) @ values(v[:, kv].astype(dtype)) / exact.sum(axis=1, keepdims=True)
    return out


def to_f16(x: Floats) -> Floats:
    return x.astype(np.float16).astype(np.float32)


def to_e4m3(x: Floats) -> Floats:
    """By the largest of all, or of each row of a matrix of three axes."""
    peak = np.abs(x).max()
    return round_e4m3((x * (LARGEST / peak)).astype(np.float32)) * (peak / LARGEST)


def same(x: Floats) -> Floats:
    return x


def as_bytes(q: Floats, k: Floats) -> tuple[Floats, Floats]:
    """Queries and keys as the kernel rounds them."""
    queries, keys = query_codes(q), key_codes(k, key_centre(k))
    return queries.codes * queries.scales, keys.codes * keys.scales.repeat(128, axis=0)[: len(k)]


def in_e4m3(q: Floats, k: Floats) -> tuple[Floats, Floats]:
    """Queries and keys as e4m3, with the scales of bytes."""
    k = k - key_centre(k)
    peaks = np.abs(q).max(axis=2, keepdims=True)
    blocks = np.maximum.reduceat(np.abs(k).max(axis=2, keepdims=True), np.arange(0, len(k), 128), axis=0)
    largest = blocks.repeat(128, axis=0)[: len(k)]
    return round_e4m3(q / peaks * LARGEST) * peaks / LARGEST, round_e4m3(k / largest * LARGEST) * largest / LARGEST


def ways(q: Floats, k: Floats, v: Floats) -> dict[str, Floats]:
    """Outputs of every way to round."""
    zeros = np.zeros(k.shape[1:], np.float32)
    bytes_q, bytes_k = as_bytes(q, k)
    fp8_q, fp8_k = in_e4m3(q, k)
    return {
        "float16": rounded(to_f16(q) * SCALE, to_f16(k), v, to_f16, to_f16),
        "bytes and e4m3": byte_attention(q, k, v, SCALE),
        "nothing taken from keys": byte_attention(q, k, v, SCALE, centre=zeros),
        "bytes for scores alone": rounded(bytes_q * SCALE, bytes_k, v, same, same),
        "e4m3 throughout": rounded(fp8_q * SCALE, fp8_k, v, to_e4m3, to_e4m3),
    }


def relative(got: Floats, want: Floats) -> float:
    return float(np.sqrt(((got - want) ** 2).sum() / (want**2).sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="append the rows below this folder")
    out, began, lines = parser.parse_args().out, time.perf_counter(), list[str]()
    for kind, inputs in (*made_up(), *of_the_drafter()):
        q, k, v = inputs
        want = rounded(q * SCALE, k, v, same, same, np.float64)
        errors = {name: relative(got, want) for name, got in ways(*inputs).items()}
        if not lines:
            lines += [f"| inputs | {' | '.join(errors)} |", "|---|" + "---:|" * len(errors)]
        lines.append(f"| {kind} | {' | '.join(f'{100 * error:.3g}' for error in errors.values())} |")
        if out is not None:
            config = {"inputs": kind, "tokens": len(k), "queries": len(q), "head_dim": D, "seed": SEED}
            append(make_record("eight_bit_attention", config, errors, [], [], device="cpu"), out)
    print("\n".join(lines), f"\n\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
