"""Every GPU figure of the README is what its record says."""

from __future__ import annotations

from pathlib import Path

import pytest

from sp.bench.record import newest
from sp.studies.headline import headline, insert_headline

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "results" / "nvidia-h200"
README = (ROOT / "README.md").read_text()


def metric(bench: str, name: str, **config: object) -> float:
    """The metric of the newest record whose configuration contains `config` and none of the special forms beside it."""
    found = [
        record
        for record in newest(FOLDER / f"{bench}.jsonl")
        if all(record["config"].get(key) == value for key, value in config.items())
        and {"mode", "steady", "asked_density", "layout", "engine"} & set(record["config"]) <= set(config)
    ]
    assert len(found) == 1, f"{bench} {config}: {len(found)} records"
    return float(found[0]["metrics"][name])


def row(text: str, *figures: str) -> None:
    """A table row with these figures, in this order, stands in the README."""
    lines = [line for line in README.splitlines() if line.startswith(f"| {text} |")]
    assert len(lines) == 1, f"{len(lines)} rows {text!r}"
    rest = lines[0]
    for figure in figures:
        assert figure in rest, f"{text}: {figure} not in {lines[0]!r}"
        rest = rest[rest.index(figure) + len(figure) :]


@pytest.mark.parametrize("tokens", [512, 8192, 32768, 131072])
def test_prefill(tokens: int) -> None:
    rate = metric("prefill", "tok_s", prompt_tokens=tokens, path="sm_90a")
    row(f"prefill {tokens:,} tokens (tok/s)", f"{rate:,.0f}")


def test_portable_prefill_decode_and_load() -> None:
    rate = metric("prefill", "tok_s", prompt_tokens=8192, path="portable")
    row("prefill 8,192 tokens, portable path forced (tok/s)", f"{rate:,.0f}")
    row("decode, 64 tokens at empty context (tok/s)", f"{metric('decode', 'tok_s', context=0):.1f}")
    row("load 16.5 GB from the page cache, ready to run (s)", f"{metric('load', 'seconds'):.2f}")


def test_matmul() -> None:
    shape = {"m": 8192, "n": 17408, "k": 5120}
    ours = metric("matmul", "tflops", type="Q4_K", path="sm_90a", **shape)
    portable = metric("matmul", "tflops", type="Q4_K", path="portable", **shape)
    row("Q4_K x bf16, 8192 x 17408 x 5120, single calls", f"{ours:.0f}")
    row("the same, portable path", f"{portable:.0f}")
    steady = [metric("matmul", "tflops", path=path, steady=True, **shape) for path in ("sm_90a", "cublas")]
    row("the same, calls back to back, taking turns", *(f"{rate:.0f}" for rate in steady))


@pytest.mark.parametrize(("head_dim", "heads"), [(128, "16/8"), (256, "24/4")])
def test_attention(head_dim: int, heads: str) -> None:
    shape = {"head_dim": head_dim, "queries": 32768, "tokens": 32768}
    rates = [metric("attention", "tflops", path=path, **shape) for path in ("sm_90a", "cudnn", "flash-attention-2")]
    row(f"dense causal attention, d {head_dim}, {heads} heads, 32K", *(f"{rate:.0f}" for rate in rates))


def test_the_headline_table_is_what_its_records_say() -> None:
    records = [record for file in sorted(FOLDER.glob("*.jsonl")) for record in newest(file) if "bench" in record]
    assert insert_headline(README, headline(records)) == README
