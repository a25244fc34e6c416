"""Every GPU figure of the README and of docs is what its record says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sp.bench.drafter import LIMIT_TFLOPS
from sp.bench.record import newest
from sp.studies.tables.page import PARTS, fill, marked

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "nvidia-h200"
PAGES = {path: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
MARKED = {path: page for path, page in PAGES.items() if marked(page)}
TOLD = "\n".join(MARKED.values())
SPECIAL = {"asked_density", "asked_sparse", "layout", "engine", "draft", "epilogue", "weights"}
"""Keys of special forms: a record that has one is meant only where it is named."""
TARGET = {"engine": "sp", "shape": "qwen3.6-27b", "type": "q4_k_m", "kv": "f16", "math": "bf16", "cards": 1}
SPEED = [*MARKED, *(ROOT / "docs" / f"{name}.md" for name in ("gpu", "sparse-attention", "decoding"))]
"""Pages that tell of speed on a GPU; what else tells of times was measured on a CPU and says so."""
QUOTED = "## Quoted, not measured here"
UNITS = r"tok/s|TFLOP/s|TFLOP|GB/s|TB/s|GB|ms|us|seconds|s|x"


def metric(bench: str, name: str, **config: object) -> float:
    """The metric of the newest record whose configuration contains `config` and none of the special forms beside it."""
    found = records_of(bench, **config)
    assert len(found) == 1, f"{bench} {config}: {len(found)} records"
    return float(found[0]["metrics"][name])


def records_of(bench: str, **config: object) -> list[dict[str, Any]]:
    file = FOLDER / f"{bench}.jsonl"
    return [
        record
        for record in (newest(file) if file.exists() else [])
        if all(record["config"].get(key) == value for key, value in config.items())
        and not {key for key in SPECIAL - set(config) if record["config"].get(key) is not None}
    ]


def outside(page: str) -> str:
    """The page without what stands between marks, without code, and without the quoted table."""
    for part in PARTS:
        page = re.sub(f"{re.escape(part.begin)}.*?{re.escape(part.end)}", "", page, flags=re.DOTALL)
    page = re.sub(r"```.*?```|`[^`\n]*`", "", page, flags=re.DOTALL)
    return page.split(QUOTED)[0]


def row(text: str, *figures: str) -> None:
    """A table row with these figures, in this order, stands in these pages."""
    lines = [line for line in TOLD.splitlines() if line.startswith(f"| {text} |")]
    assert len(lines) == 1, f"{len(lines)} rows {text!r}"
    rest = lines[0]
    for figure in figures:
        assert figure in rest, f"{text}: {figure} not in {lines[0]!r}"
        rest = rest[rest.index(figure) + len(figure) :]


@pytest.mark.parametrize("tokens", [512, 8192, 32768, 131072])
def test_prefill(tokens: int) -> None:
    rate = metric("prefill", "tok_s", prompt_tokens=tokens, path="sm_90a", **TARGET)
    row(f"prefill {tokens:,} tokens (tok/s)", f"{rate:,.0f}")


def test_portable_prefill_decode_and_load() -> None:
    rate = metric("prefill", "tok_s", prompt_tokens=8192, path="portable", **TARGET)
    row("prefill 8,192 tokens, portable path forced (tok/s)", f"{rate:,.0f}")
    row("decode, 64 tokens at empty context (tok/s)", f"{metric('decode', 'tok_s', context=0, **TARGET):.1f}")
    row("load 16.5 GB from the page cache, ready to run (s)", f"{metric('load', 'seconds', mode='repeated'):.2f}")


@pytest.mark.parametrize(
    ("name", "shape", "file_type"),
    [("27B in the UD-Q4_K_XL mix", "qwen3.6-27b", "ud-q4_k_xl"), ("Llama 3.1 70B", "llama-3.1-70b", "q4_k_m")],
)
def test_other_models(name: str, shape: str, file_type: str) -> None:
    which = {"shape": shape, "type": file_type, "engine": "sp", "path": "sm_90a"}
    row(f"{name}: prefill 8,192 tokens (tok/s)", f"{metric('prefill', 'tok_s', prompt_tokens=8192, **which):,.0f}")
    row(f"{name}: decode (tok/s)", f"{metric('decode', 'tok_s', context=0, **which):.1f}")


@pytest.mark.parametrize("tokens", [8192, 131072])
def test_a_mixture_beside_llama_cpp_on_the_same_file(tokens: int) -> None:
    shape = {"shape": "qwen3.6-35b-a3b", "type": "q4_k_m", "prompt_tokens": tokens}
    names = ("qwen3.6-35b-a3b q4_k_m (random)", "qwen3.6-35b-a3b (synthetic)")
    random, file = (metric("prefill", "tok_s", engine="sp", model=name, path="sm_90a", **shape) for name in names)
    peer = max(r["metrics"]["tok_s"] for r in records_of("prefill", engine="llama.cpp", **shape))
    row(f"35B-A3B: prefill {tokens:,} tokens (tok/s)", f"{random:,.0f}", f"{file:,.0f}", f"{peer:,.0f}")


@pytest.mark.parametrize(
    ("mode", "words"),
    [("graph", "graph replays"), ("eager", "single eager calls"), ("burst", "bursts of 50 calls")],
)
def test_matmul(mode: str, words: str) -> None:
    """In every mode, by its key; a mode that nobody has recorded has no row."""
    text = f"Q4_K x bf16, 8192 x 17408 x 5120, {words}"
    keys = {"type": "Q4_K", "m": 8192, "n": 17408, "k": 5120, "mode": mode, "math": "bf16"}
    if not records_of("matmul", **keys, path="sm_90a"):
        assert text not in TOLD
        return
    rates = [metric("matmul", "tflops", **keys, path=path) for path in ("sm_90a", "portable", "cublas")]
    row(text, *(f"{rate:.0f}" for rate in rates))


@pytest.mark.parametrize(("head_dim", "heads"), [(128, "16/8"), (256, "24/4")])
def test_attention(head_dim: int, heads: str) -> None:
    shape = {"head_dim": head_dim, "tokens": 32768}
    rates = [metric("attention", "tflops", path=path, **shape) for path in ("sm_90a", "cudnn", "flash-attention-2")]
    row(f"dense causal attention, d {head_dim}, {heads} heads, 32K", *(f"{rate:.0f}" for rate in rates))


@pytest.mark.parametrize("head_dim", [128, 256])
def test_dense_attention_of_libraries(head_dim: int) -> None:
    paths = ("cudnn", "flash-attention-2")
    cudnn, flash = (metric("attention", "tflops", path=path, head_dim=head_dim, tokens=131072) for path in paths)
    assert f"d {head_dim} {cudnn:.0f} in cuDNN and {flash:.0f} in FlashAttention-2" in TOLD


def test_what_stands_between_marks_is_what_the_records_say() -> None:
    """As `sp report results/nvidia-h200 --pages README.md --pages docs` writes it."""
    assert [part.begin for part in PARTS if TOLD.count(part.begin) != 1] == []
    records = [record for file in sorted(FOLDER.glob("*.jsonl")) for record in newest(file) if "bench" in record]
    assert [path for path, page in MARKED.items() if fill(page, records) != page] == []


def test_no_speed_is_told_outside_the_marks() -> None:
    """But for the rate that a limit is taken at, and the tables that tests of their own look up."""
    found = set()
    for path in SPEED:
        figures = re.findall(rf"\d[\d,.]*\s?(?:{UNITS})(?![\w/])", outside(PAGES[path]))
        found |= {" ".join(one.split()) for one in figures}
    assert found == {f"{LIMIT_TFLOPS:.0f} TFLOP/s"}


def test_quoted_figures_name_source_and_date() -> None:
    [page] = [page for page in PAGES.values() if f"\n{QUOTED}\n" in page]
    table = page.split(QUOTED)[1]
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")][2:]
    assert len(lines) >= 5
    for what, figure, source, date in lines:
        assert what.strip()
        assert re.search(r"\d", figure)
        assert source.strip()
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", date.strip())


def test_the_headline_reads_as_many_blocks_as_the_embedded_drafter() -> None:
    plan = yaml.safe_load((ROOT / "experiments" / "records.yaml").read_text())
    runs = [
        row["run"].replace("{shares}", plan["words"]["shares"]) for row in plan["models"] if "headline" in row["name"]
    ]
    for kilo in (32, 64, 128):
        density = metric("flashprefill_quality", "density", alpha=0.1, prompt_tokens=kilo << 10, scorer="tail")
        [run] = [run for run in runs if f"-p {kilo}k " in run]
        assert f"--sparse density:0.05,density:{density:.2f} " in run
        assert f"{density:.0%}".replace("%", " %") in TOLD
    assert "--vram none,23g,18g" in run


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
    rates = (f"{rate:.0f}" for rate in found["tflops_live"])
    row(text, f"{found['density'][0]:.1%}".replace("%", " %"), *(f"{ms:.1f}" for ms in found["ms"]), *rates)


@pytest.mark.parametrize("tokens", [8192, 32768, 65536, 131072, 262144])
def test_drafter(tokens: int) -> None:
    names = ("density", "score_s", "limit_s", "peak_bytes")
    config = {"prompt_tokens": tokens, "path": "sm_90a", "density": 0.05, "tokens": "random", "math": "bf16"}
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
    shape = {"prompt_tokens": 32768, "path": "sm_90a", **TARGET}
    sparse, density = (metric("prefill", name, asked_density=0.05, **shape) for name in ("tok_s", "density"))
    text = " ".join(TOLD.split())
    assert f"32K tokens at {sparse:,.0f} tok/s with {100 * density:.1f} % of the blocks" in text
    assert f"and at {metric('prefill', 'tok_s', **shape):,.0f} tok/s with all of them" in text
