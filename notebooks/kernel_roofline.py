# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Roofline of the kernels
#
# What limits a kernel: arithmetic or memory? Recorded times of one NVIDIA H200 (`results/nvidia-h200`), drawn over
# arithmetic intensity under the highest bandwidth and the highest arithmetic rate that anything reached there. Nothing is
# measured here and no GPU is needed. Every record names its commit; `sp kernels bench --record results` makes new ones.

# %%
# %matplotlib inline
from pathlib import Path

from sp.bench.record import newest
from sp.studies.plots.roofline import Point, roof, roofline_figure

root = next(p for p in [Path.cwd(), *Path.cwd().parents] if (p / "results").is_dir())
folder = root / "results" / "nvidia-h200"
BITS = {"Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.5625, "Q8_0": 8.5, "Q4_0": 4.5, "BF16": 16, "F16": 16}

# %% [markdown]
# ## Operations and bytes that no implementation can avoid
#
# A product of `m` tokens with an `n x k` weight: `2 m n k` operations; the packed weight, the activations and the result
# are moved once. Causal attention: the recorded rate counts visible pairs only; queries, outputs, keys and values are
# moved once. Reads of weights in decoding (`decode_matmul`) and copies show how much of the bandwidth is attainable.


# %%
def matmul(record):
    c, tflops = record["config"], record["metrics"]["tflops"]
    flop = 2 * c["m"] * c["n"] * c["k"]
    moved = c["n"] * c["k"] * BITS[c["type"]] / 8 + 2 * c["m"] * (c["k"] + c["n"])
    return point("matmul " + c["type"], c["path"], flop, moved, tflops, record)


def attention(record):
    c, tflops = record["config"], record["metrics"]["tflops"]
    flop = tflops * record["metrics"]["ms"] * 1e9
    kept = 2 if c["kv"] == "f16" else BITS["Q4_0"] / 8
    moved = 4 * c["q_heads"] * c["queries"] * c["head_dim"] + 2 * kept * c["kv_heads"] * c["tokens"] * c["head_dim"]
    return point(f"attention d {c['head_dim']}", c["path"], flop, moved, tflops, record)


def point(family, path, flop, moved, tflops, record):
    return Point(family, path, flop / moved, tflops, 1e3 * tflops * moved / flop, record["gpu"], record["config"])


def read(bench):
    file = folder / f"{bench}.jsonl"
    return newest(file) if file.exists() else []


own = ("sm_90a", "portable", "cublas")
plain = [r for r in read("matmul") if r["config"]["mode"] == "graph" and "epilogue" not in r["config"]]
found = [matmul(r) for r in plain if r["config"]["path"] in own and r["config"]["type"] in BITS]
found += [attention(r) for r in [*read("attention"), *read("attention_chunk")] if r["config"]["path"] in own]
copies = [r for bench in ("decode_matmul", "elementwise") for r in read(bench)]
found += [Point(r["bench"], "", 0.0, 0.0, r["metrics"]["gb_s"], r["gpu"], r["config"]) for r in copies]
bandwidth, peak, _ = roof(found)
print("commits:", sorted({r["commit"] for bench in ("matmul", "attention") for r in read(bench)}))
print(f"limits as measured: {bandwidth:,.0f} GB/s, {peak:,.0f} TFLOP/s; ridge at {1e3 * peak / bandwidth:.0f} FLOP per byte")

# %%
roofline_figure(found)

# %% [markdown]
# ## How close to its limit does each kernel come?
#
# The attainable rate at an intensity is the smaller of the arithmetic limit and bandwidth times intensity. The best and
# the worst size of each kernel:

# %%
shares = {}
for each in found:
    if each.intensity:
        share = each.tflops / min(peak, bandwidth * each.intensity / 1e3)
        shares.setdefault((each.family, each.path), []).append((share, each.tflops, each.intensity))
print(f"{'kernel':18} {'path':9} {'best share':>10} {'TFLOP/s':>8} {'worst share':>12} {'TFLOP/s':>8} {'FLOP/byte':>10} sizes")
for (family, path), sizes in sorted(shares.items(), key=lambda item: -max(item[1])[0]):
    high, low = max(sizes), min(sizes)
    print(f"{family:18} {path:9} {high[0]:10.2f} {high[1]:8.0f} {low[0]:12.2f} {low[1]:8.0f} {low[2]:10.0f} {len(sizes):5}")
