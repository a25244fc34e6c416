# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Real weights
#
# These rows of `sp eval natural` say whether the evidence of a question was kept whole. SmolLM2-135M scores 203 natural questions on 29 real documents, and
# planted facts to 120K tokens. The page is `docs/results/real.md`; these cells read the same rows.

# %%
# %matplotlib inline
import gzip
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from sp.evals.summary import wilson

ROWS = next(p for p in (Path("results"), Path("../results")) if p.is_dir()) / "nvidia-h200" / "real"
SCORERS = {"auto": "C0", "calibrated": "C2", "tail": "C3", "bm25": "C1", "random": "0.6"}


def rows(name):
    with gzip.open(ROWS / f"{name}.jsonl.gz", "rt") as lines:
        return [row for row in map(json.loads, lines) if row["scorer"] in SCORERS and row["keep_ratio"]]


natural = rows("natural")
len(natural), len({row["question"] for row in natural})

# %% [markdown]
# ## Hard and easy questions
#
# *Hard* questions share at most 34 % of their words with the evidence. Bars are 95 % intervals (Wilson).

# %%
figure, axes = plt.subplots(1, 2, figsize=(7.2, 2.8), sharey=True, layout="constrained")
for axis, hard in zip(axes, (True, False), strict=True):
    for shift, (scorer, colour) in enumerate(SCORERS.items()):
        for place, keep in enumerate((0.2, 0.1, 0.05)):
            some = [r["whole"] for r in natural if (r["scorer"], r["keep_ratio"], r["hard"]) == (scorer, keep, hard)]
            low, high = wilson(sum(some), len(some))
            at = place + (shift - 2) * 0.14
            axis.plot([at, at], [100 * low, 100 * high], color=colour, lw=1.5)
            axis.plot(at, 100 * np.mean(some), "o", color=colour, ms=4, label=scorer if not place else None)
    count = len({r["question"] for r in natural if r["hard"] == hard})
    axis.set(title=f"{'hard' if hard else 'easy'} (n = {count})", xlabel="keep ratio", ylim=(0, 102))
    axis.set_xticks(range(3), ["0.2", "0.1", "0.05"])
axes[0].set_ylabel("evidence kept whole (%)")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
picture = ROWS / "kept_whole.png"
figure.savefig(picture, dpi=200)

# %% [markdown]
# ## Why evidence was lost, keep 0.1

# %%
reasons = ("rank", "cut", "budget", "one of several")
print(f"{'':12}" + "".join(f"{reason:>16}" for reason in reasons))
for scorer in SCORERS:
    lost = [r["reason"] for r in natural if r["scorer"] == scorer and r["keep_ratio"] == 0.1 and not r["whole"]]
    print(f"{scorer:12}" + "".join(f"{lost.count(reason):16}" for reason in reasons))

# %% [markdown]
# ## Rank of the evidence
#
# Of the best of its chunks, as a share of all chunks of the prompt.

# %%
figure, axis = plt.subplots(figsize=(4.6, 2.8), layout="constrained")
for scorer, colour in SCORERS.items():
    found = [
        min(place["rank"] or np.inf for place in r["places"]) / r["scored_chunks"]
        for r in natural
        if r["scorer"] == scorer and r["keep_ratio"] == 0.1
    ]
    axis.step(100 * np.sort(found), 100 * (np.arange(len(found)) + 1) / len(found), color=colour, label=scorer)
axis.set(
    xscale="log", xlim=(0.05, 100), ylim=(0, 101), xlabel="rank of the evidence (% of chunks)", ylabel="questions (%)"
)
axis.legend(frameon=False, fontsize=8)

# %% [markdown]
# ## Planted facts by length, keep 0.05

# %%
for name in ("needles-6k", "needles-28k", "needles-60k", "needles-120k"):
    planted = [row for row in rows(name) if row["keep_ratio"] == 0.05]
    shares = {s: [r["whole"] for r in planted if r["scorer"] == s] for s in SCORERS}
    print(
        f"{name:13}",
        "  ".join(f"{s} {100 * np.mean(some):.0f} (n = {len(some)})" for s, some in shares.items() if some),
    )

# %% [markdown]
# ## Rank of the evidence by layer and head
#
# Of planted facts at 6K tokens, by each head alone: the median share of chunks that rank above the evidence, where a chunk scores by the
# weights that the question gives it (`experiments/real/ranks.py`). The rotated weights are the model's own attention; without rotation
# queries and keys do not depend on distance. The line is where the default stops reading.

# %%
from matplotlib.colors import LogNorm

from sp.bench.record import newest
from sp.scoring.calibration.record import shipped

RANKS = ROWS.parents[1] / "intel-r-xeon-r-processor-2core" / "evidence_ranks.jsonl"
records = newest(RANKS)
every = {}
for rotary in ("post", "none"):
    samples = [s for record in records if record["config"]["rotary"] == rotary for s in record["samples"]]
    every[rotary] = np.stack([np.array(s["above"]) / (s["chunks"] - 2) for s in samples])
known = shipped()[records[0]["config"]["drafter"]]

figure, axes = plt.subplots(1, 2, figsize=(5.6, 5.4), sharey=True, layout="constrained")
for axis, above, title in zip(axes, every.values(), ("rotated", "un-rotated"), strict=True):
    median = 100 * np.median(above, axis=0)
    image = axis.imshow(median.clip(0.5), norm=LogNorm(0.5, 50), cmap="viridis_r", aspect="auto")
    axis.axhline(known.depth - 0.5, color="black", lw=1, ls="--")
    axis.set(title=f"{title} (n = {len(above)})", xlabel="head", xticks=range(median.shape[1]))
    axis.set_yticks(range(0, len(median), 2))
axes[0].set_ylabel("layer")
bar = figure.colorbar(image, ax=axes, label="chunks above the evidence (median, %)", ticks=(0.5, 1, 2, 5, 10, 20, 50))
bar.ax.set_yticklabels(("0.5 or less", "1", "2", "5", "10", "20", "50"))
bar.ax.minorticks_off()
bar.ax.invert_yaxis()
figure.savefig(RANKS.with_suffix(".png"), dpi=200)

# %% [markdown]
# Heads that rank most facts within the first 5 % of the chunks, and how many heads do so in the median.

# %%
for rotary, above in every.items():
    within = (above <= 0.05).sum(axis=0)
    places = [np.unravel_index(place, within.shape) for place in np.argsort(-within, axis=None, kind="stable")[:6]]
    best = ", ".join(f"layer {layer} head {head} ({within[layer, head]} of {len(above)})" for layer, head in places)
    print(f"{rotary:4} {(np.median(above, axis=0) <= 0.05).sum()} of {within.size} heads; {best}")
