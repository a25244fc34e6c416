"""Tables of speed: whole models next to llama.cpp, and kernels next to libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sp.bench.llama_cpp import ENGINE, best_peer
from sp.studies.tables.headline import first_result
from sp.studies.tables.lookup import LIBRARIES, Record, age, find, markdown, metric, percent

MODEL = {"shape": "qwen3.6-27b", "type": "q4_k_m", "kv": "f16", "cards": 1}
OURS = MODEL | {"engine": "sp", "math": "bf16", "draft": None, "asked_density": None, "asked_sparse": None}
PROMPTS = (512, 8192, 32768, 131072)
PORTABLE = 8192  # tokens of the prefill that is also measured with portable kernels and with other models
OTHERS = {
    "27B in the UD-Q4_K_XL mix": {"shape": "qwen3.6-27b", "type": "ud-q4_k_xl"},
    "Llama 3.1 70B": {"shape": "llama-3.1-70b", "type": "q4_k_m"},
}  # other models, with one prefill and decoding
NO_SPEED = "No record of a whole model's speed; `sp bench model --record results` makes such records."
NO_KERNELS = "No record of a kernel and its library; the benchmarks below `tests/benchmarks` make such records."
PRODUCT = {"m": 8192, "n": 17408, "k": 5120}
MODES = {"graph": "graph replays", "eager": "single eager calls", "burst": "bursts of 50 calls"}
ATTENTION = {path: LIBRARIES[path] for path in ("cudnn", "flash-attention-2")}
"""Libraries with records of dense attention."""


def whole_models(records: Sequence[Record]) -> str:
    """Return a table of prefill, decoding and loading of the 27B shape and `OTHERS`, and llama.cpp's best records."""
    peers = peers_of(records, MODEL)
    rows = []
    for tokens in PROMPTS:
        own = find(records, "prefill", **OURS, prompt_tokens=tokens, path="sm_90a")
        best = best_peer(peers, tokens)
        rows.append([f"prefill {tokens:,} tokens (tok/s)", metric(own, "tok_s", ",.0f"), *of_peer(best, ",.0f")])
    own = find(records, "prefill", **OURS, prompt_tokens=PORTABLE, path="portable")
    rows.append([f"prefill {PORTABLE:,} tokens, portable path forced (tok/s)", metric(own, "tok_s", ",.0f"), "", ""])
    own = find(records, "decode", **OURS, context=0, path="sm_90a")
    best = best_decoding(peers)
    rows.append(["decode, 64 tokens at empty context (tok/s)", metric(own, "tok_s", ".1f"), *of_peer(best, ".1f")])
    for name, which in OTHERS.items():
        own = find(records, "prefill", **OURS | which, prompt_tokens=PORTABLE, path="sm_90a")
        rows.append([f"{name}: prefill {PORTABLE:,} tokens (tok/s)", metric(own, "tok_s", ",.0f"), "", ""])
        own = find(records, "decode", **OURS | which, context=0, path="sm_90a")
        rows.append([f"{name}: decode (tok/s)", metric(own, "tok_s", ".1f"), "", ""])
    loaded = [r for r in records if r.get("bench") == "load" and r["config"]["mode"] == "repeated"]
    for record in loaded:
        gigabytes = record["config"]["file_bytes"] / 1e9
        label = f"load {gigabytes:.1f} GB from the page cache, ready to run (s)"
        rows.append([label, metric(record, "seconds", ".2f"), "", ""])
    rows = [row for row in rows if row[1]]  # without a record of ours there is nothing to compare
    if not rows:
        return NO_SPEED
    table = markdown(["work", "sp", "llama.cpp", "its best setting"], rows)
    # The shortest prefill gets a note, as its time is that of launches on the host and varies.
    short = find(records, "prefill", **OURS, prompt_tokens=PROMPTS[0], path="sm_90a")
    return f"{table}\n\n{_spread(short)}" if short else table


def kernels(records: Sequence[Record]) -> str:
    """Return a table of the widest product in every mode and of dense attention, with libraries of the same process."""
    rows = []
    for mode, words in MODES.items():
        keys = {"type": "Q4_K", **PRODUCT, "mode": mode, "math": "bf16", "epilogue": None}
        own, portable, library = (find(records, "matmul", **keys, path=p) for p in ("sm_90a", "portable", "cublas"))
        size = " x ".join(str(size) for size in PRODUCT.values())
        rate_of_library = f"{metric(library, 'tflops', '.0f')} (cuBLAS, the same weight in bf16)" if library else ""
        rows.append([f"Q4_K x bf16, {size}, {words}", _tflops(own), _tflops(portable), rate_of_library])
    for head_dim, heads in ((128, "16/8"), (256, "24/4")):
        own, *others = (
            find(records, "attention", head_dim=head_dim, tokens=32768, path=path) for path in ("sm_90a", *ATTENTION)
        )
        named = zip(others, ATTENTION.values(), strict=True)
        rate_of_library = ", ".join(f"{_tflops(record)} ({name})" for record, name in named if record)
        rows.append([f"dense causal attention, d {head_dim}, {heads} heads, 32K", _tflops(own), "", rate_of_library])
    rows = [row for row in rows if row[1]]
    return markdown(["kernel (TFLOP/s)", "sm_90a", "portable", "library"], rows) if rows else NO_KERNELS


def peers_of(records: Sequence[Record], model: Mapping[str, object]) -> list[Record]:
    """Return the records of prefill and decoding of a model by llama.cpp, at all settings."""
    wanted_config = {**model, "engine": ENGINE}
    speeds = (r for r in records if r.get("bench") in ("prefill", "decode"))
    return [r for r in speeds if all(r["config"].get(key) == value for key, value in wanted_config.items())]


def best_decoding(peers: Sequence[Record]) -> Record | None:
    """Return the fastest decoding from an empty context among `peers_of`; None if there is none."""
    empty = [r for r in peers if r["bench"] == "decode" and not r["config"]["context"]]
    return max(empty, key=lambda r: float(r["metrics"]["tok_s"]), default=None)


def of_peer(record: Record | None, form: str) -> tuple[str, str]:
    """Return the rate of a peer's record, and its setting; empty without a record."""
    if record is None:
        return "", ""
    config = record["config"]
    batches = "default" if config["batch"] is None else f"`-b {config['batch']} -ub {config['ubatch']}`"
    return metric(record, "tok_s", form), f"{batches}, build {config['build']}"


def _tflops(record: Record | None) -> str:
    return metric(record, "tflops", ".0f")


def _spread(record: Record) -> str:
    rates = sorted(record["samples"])
    return (
        f"A prefill of {PROMPTS[0]} tokens is as fast as the host launches kernels, which varies: its {len(rates)} "
        f"samples are {rates[0]:,.0f} to {rates[-1]:,.0f} tok/s."
    )


SHAPE, FILE = "qwen3.6-35b-a3b", "qwen3.6-35b-a3b (synthetic)"
NAME = "35B-A3B"
TARGET = f"{SHAPE}-q4_k_m.synthetic"
OTHER_MIXTURES = {
    "35B-A3B in the UD-Q4_K_XL mix": {"shape": SHAPE, "type": "ud-q4_k_xl"},
    "Qwen3-30B-A3B": {"shape": "qwen3-30b-a3b", "type": "q4_k_m"},
}  # other models, with one prefill and decoding
KERNEL_TOKENS = 8192
NO_MIXTURES = (
    "No record of a mixture's speed; `sp bench model --synthetic qwen3.6-35b-a3b --record results` makes some."
)
NO_EXPERTS = "No record of products of experts; `sp kernels bench --family experts --record results` makes some."


def mixtures(records: Sequence[Record]) -> str:
    """Tabulate prefill and decoding of the 35B-A3B shape and `OTHER_MIXTURES`, next to llama.cpp's best records."""
    ours = OURS | {"shape": SHAPE}
    random, from_file = ours | {"model": f"{SHAPE} q4_k_m (random)"}, ours | {"model": FILE}
    peers = peers_of(records, MODEL | {"shape": SHAPE})
    rows = []

    def add(label: str, own: Record | None, form: str, peer: Record | None = None, file: Record | None = None) -> None:
        imbalance = None if own is None else own["metrics"].get("imbalance")
        loads = "" if imbalance is None else f"{imbalance:.1f}"
        rows.append([label, metric(own, "tok_s", form), loads, metric(file, "tok_s", form), *of_peer(peer, form)])

    for tokens in PROMPTS:
        keys = {"prompt_tokens": tokens, "path": "sm_90a"}
        own = find(records, "prefill", **random | keys)
        file = find(records, "prefill", **from_file | keys)
        add(f"{NAME}: prefill {tokens:,} tokens (tok/s)", own, ",.0f", best_peer(peers, tokens), file)
    own = find(records, "prefill", **random, prompt_tokens=PORTABLE, path="portable")
    add(f"{NAME}: prefill {PORTABLE:,} tokens, portable path forced (tok/s)", own, ",.0f")
    empty = {"context": 0, "path": "sm_90a"}
    file = find(records, "decode", **from_file | empty)
    own, label = find(records, "decode", **random | empty), f"{NAME}: decode, 64 tokens at empty context (tok/s)"
    add(label, own, ".1f", best_decoding(peers), file)
    for name, which in OTHER_MIXTURES.items():
        keys = {"prompt_tokens": PORTABLE, "path": "sm_90a"}
        add(f"{name}: prefill {PORTABLE:,} tokens (tok/s)", find(records, "prefill", **OURS | which | keys), ",.0f")
        add(f"{name}: decode (tok/s)", find(records, "decode", **OURS | which | empty), ".1f")
    rows = [row for row in rows if row[1]]
    heads = ["work", "sp", "imbalance", "sp, the file", "llama.cpp, the file", "its best setting"]
    return markdown(heads, rows) if rows else NO_MIXTURES


def mixture_result(records: Sequence[Record]) -> str:
    """Return `first_result` of the mixture alone, with llama.cpp's full prefill."""
    requests = [r for r in records if r.get("bench") == "ttft" and r["config"]["target"] == TARGET]
    return first_result([*requests, *(r for r in records if r.get("bench") == "prefill")])


def experts(records: Sequence[Record]) -> str:
    """Return a table of expert products of 8K tokens, next to dense products of as many weights.

    The dense products have the average number of rows of an expert.
    """
    rows = []
    for part, dense_n in (("gated", 131072), ("down", 524288)):
        for path in ("sm_90a", "portable"):
            own = find(records, "experts", part=part, tokens=KERNEL_TOKENS, path=path)
            dense = find(records, "experts", part="dense", n=dense_n, path=path)
            if own is None or dense is None:
                continue
            config, rates = own["config"], [r["metrics"]["tflops"] for r in (own, dense)]
            rows.append(
                [
                    f"{'gate and up' if part == 'gated' else part}, {path}",
                    f"{config['imbalance']:.1f}",
                    metric(own, "ms", ".2f"),
                    f"{rates[0]:.0f}",
                    f"{rates[1]:.0f}{age(dense)}",
                    percent(rates[0] / rates[1]),
                ]
            )
    heads = ["product", "imbalance", "ms", "TFLOP/s", "dense TFLOP/s", "share"]
    return markdown(heads, rows) if rows else NO_EXPERTS


TOKENS = 131072
PATHS = ("sm_90a", "portable")
FIRST = {"variant": "FlashPrefill", "share": "head", "mean_correction": False}
SECOND = {"variant": "FlashPrefill", "share": "group", "alpha": 0.1}
LAYERS: Mapping[str, Mapping[str, Any]] = {
    "alpha 0.1": FIRST | {"alpha": 0.1, "head_dim": 128},
    "alpha 0.85": FIRST | {"alpha": 0.85, "head_dim": 128},
    "alpha 0.1, version 2 without its correction": SECOND | {"mean_correction": False, "head_dim": 128},
    "alpha 0.1, version 2": SECOND | {"mean_correction": True, "head_dim": 128},
    "strongest 5 %": {"variant": "TopDensity", "density": 0.05, "head_dim": 128},
    "alpha 0.1, d 256, 24/4 heads": FIRST | {"alpha": 0.1, "head_dim": 256},
}
SPARSE_PROMPTS = (8192, 32768, 65536, 131072, 262144)
DRAFTER = {"model": "qwen3-0.6b bf16 (random)", "path": "sm_90a", "density": 0.05, "tokens": "random", "math": "bf16"}
TARGET_TOKENS = 32768
NO_LAYERS = "No record of a sparse layer; `tests/benchmarks/test_bench_flashprefill.py` makes such records."
NO_DRAFTERS = "No record of a drafter's speed; `sp bench drafter --record results` makes such records."


def sparse_layers(records: Sequence[Record]) -> str:
    """Return a table of one sparse layer of 128K tokens, block selection and attention together.

    Below it is a sentence on the dense attention of libraries at that size.
    """
    rows = []
    for text, config in LAYERS.items():
        by_path = [find(records, "flashprefill_layer", **config, tokens=TOKENS, path=path) for path in PATHS]
        if by_path[0] is None:
            continue
        density, rates = percent(by_path[0]["metrics"]["density"]), [metric(r, "tflops_live", ".0f") for r in by_path]
        rows.append([text, density, *(metric(r, "ms", ".1f") for r in by_path), " / ".join(r for r in rates if r)])
    if not rows:
        return NO_LAYERS
    heads = ["one layer, 128K tokens", "blocks read", "sm_90a (ms)", "portable (ms)", "TFLOP/s on blocks read"]
    return "\n\n".join([markdown(heads, rows), *_dense(records)])


def drafters(records: Sequence[Record]) -> str:
    """Return a table of scoring a prompt with random weights, and a sentence on sparse prefill of the target."""
    rows = []
    for tokens in SPARSE_PROMPTS:
        record = find(records, "drafter", **DRAFTER, prompt_tokens=tokens)
        if record is None:
            continue
        times = [metric(record, "score_s", ".3f"), f"{record['metrics']['limit_s']:.3f}"]
        density, peak = percent(record["metrics"]["density"]), f"{record['metrics']['peak_bytes'] / 1e9:.2f}"
        rows.append([f"score {tokens:,} tokens", density, *times, peak])
    if not rows:
        return NO_DRAFTERS
    heads = ["work", "blocks read", "seconds", "limit (s)", "peak memory (GB)"]
    return "\n\n".join([markdown(heads, rows), *_target(records)])


def _dense(records: Sequence[Record]) -> list[str]:
    parts = []
    for head_dim in (128, 256):
        keys = {"head_dim": head_dim, "tokens": TOKENS}
        by_library = {name: find(records, "attention", **keys, path=path) for path, name in ATTENTION.items()}
        rates = [f"{metric(record, 'tflops', '.0f')} in {name}" for name, record in by_library.items() if record]
        parts += [f"d {head_dim} {' and '.join(rates)}"] if rates else []
    return [f"Dense attention of 128K tokens reaches, in TFLOP/s: {'; '.join(parts)}."] if parts else []


def _target(records: Sequence[Record]) -> list[str]:
    keys = OURS | {"prompt_tokens": TARGET_TOKENS, "path": "sm_90a"}
    sparse, dense = (find(records, "prefill", **keys | {"asked_density": share}) for share in (0.05, None))
    if sparse is None or dense is None:
        return []
    sparse_rate, dense_rate = (f"{record['metrics']['tok_s']:,.0f} tok/s" for record in (sparse, dense))
    return [
        f"The 27B target (Q4_K_M mix, random weights) reads 32K tokens at {sparse_rate} with "
        f"{percent(sparse['metrics']['density'])} of the blocks{age(sparse)}, and at {dense_rate} with all of them"
        f"{age(dense)}; its attention is a small part of that work."
    ]
