"""Every GPU figure of the README is what its record says."""

from __future__ import annotations

from pathlib import Path

import pytest

from sp.bench.record import newest
from sp.studies.tables.decode_table import BEGIN, END, decoding
from sp.studies.tables.headline import headline, insert_between, insert_headline

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


def test_the_tables_of_decoding_are_what_their_records_say() -> None:
    records = [record for file in sorted(FOLDER.glob("*.jsonl")) for record in newest(file) if "bench" in record]
    assert insert_between(README, BEGIN, END, decoding(records)) == README


V1 = {"variant": "FlashPrefill", "share": "head", "mean_correction": False}
V2 = {"variant": "FlashPrefill", "share": "group", "alpha": 0.1}


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("alpha 0.1", V1 | {"alpha": 0.1, "head_dim": 128}),
        ("alpha 0.85", V1 | {"alpha": 0.85, "head_dim": 128}),
        ("alpha 0.1, version 2 without its correction", V2 | {"mean_correction": False, "head_dim": 128}),
        ("alpha 0.1, version 2", V2 | {"mean_correction": True, "head_dim": 128}),
        ("strongest 5 %", {"variant": "TopDensity", "density": 0.05, "head_dim": 128}),
        ("alpha 0.1, d 256, 24/4 heads", V1 | {"alpha": 0.1, "head_dim": 256}),
    ],
)
def test_sparse_layers(text: str, config: dict[str, object]) -> None:
    shape = config | {"tokens": 131072}
    found = {
        name: [metric("flashprefill_layer", name, path=path, **shape) for path in ("sm_90a", "portable")]
        for name in ("ms", "tflops_live", "density")
    }
    rates = " / ".join(f"{rate:.0f}" for rate in found["tflops_live"])
    row(text, f"{found['density'][0]:.1%}".replace("%", " %"), *(f"{ms:.1f}" for ms in found["ms"]), rates)


@pytest.mark.parametrize("tokens", [8192, 32768, 65536, 131072, 262144])
def test_drafter(tokens: int) -> None:
    names = ("density", "score_s", "limit_s", "peak_bytes")
    config = {"prompt_tokens": tokens, "path": "sm_90a", "density": 0.05, "tokens": "random"}
    read, seconds, limit, peak = (metric("drafter", name, **config) for name in names)
    row(
        f"score {tokens:,} tokens",
        f"{read:.1%}".replace("%", " %"),
        f"{seconds:.3f}",
        f"{limit:.3f}",
        f"{peak / 1e9:.2f}",
    )


@pytest.mark.parametrize("alpha", [None, 0.02, 0.05, 0.1, 0.2, 0.5])
def test_quality_of_sparse_drafting(alpha: float | None) -> None:
    config = {"alpha": alpha, "prompt_tokens": 131072, "keep_ratio": 0.05, "scorer": "tail"}
    names = ("density", "rank_correlation", "overlap", "found", "cases")
    read, ranks, overlap, found, cases = (metric("flashprefill_quality", name, **config) for name in names)
    text = "dense drafter" if alpha is None else f"drafter at alpha {alpha:g}"
    row(text, f"{read:.1%}".replace("%", " %"), f"{ranks:.3f}", f"{overlap:.2f}", f"{found:.0f} of {cases:.0f}")


@pytest.mark.parametrize("name", ["random", "lexical", "head_tail", "oracle"])
def test_controls_of_sparse_drafting(name: str) -> None:
    config = {"row": name, "prompt_tokens": 131072, "keep_ratio": 0.05}
    overlap, found, cases = (metric("flashprefill_quality", one, **config) for one in ("overlap", "found", "cases"))
    row(f"{name} (no drafter)", f"{overlap:.2f}", f"{found:.0f} of {cases:.0f}")


def test_sparse_prefill_of_the_target() -> None:
    shape = {"prompt_tokens": 32768, "path": "sm_90a"}
    sparse, density = (metric("prefill", name, asked_density=0.05, **shape) for name in ("tok_s", "density"))
    text = " ".join(README.split())
    assert f"32K tokens at {sparse:,.0f} tok/s with {100 * density:.1f} % of the blocks" in text
    assert f"and at {metric('prefill', 'tok_s', **shape):,.0f} tok/s with all of them" in text
