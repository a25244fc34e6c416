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
# # Calibrating the keep ratio and alpha
#
# Two knobs set what a compressed prompt costs and what it loses: how many tokens the target reads (the keep ratio, or a
# threshold that finds it), and how much of its own attention the drafter computes (FlashPrefill's alpha). Both have to be
# set again for every pair. Scores do not depend on the keep ratio, so one scoring answers for all of them.

# %%
# %matplotlib inline
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import sp
from sp.bench.record import newest
from sp.evals import TASKS
from sp.evals.summary import wilson
from sp.evals.trained_for import note_of_file
from sp.scoring import SCORERS
from sp.selection import SELECTORS
from sp.studies.figures import looks, plain_log, tidy

pipeline = sp.load(device="cpu")
count = lambda text: len(pipeline.target.tokenizer.encode(text).ids)
task = TASKS.build("needle_multikey", {"no_shared_ngrams": 3})
prompts = [pipeline.tokenise(task.example(i, 2048, count).prompt(pipeline.target.template)) for i in range(8)]

# %% [markdown]
# ## Keep ratio
#
# Prompts whose needle is kept whole, over the keep ratio, with Wilson 95 % intervals. Below about 0.05 the 64 tokens
# at both ends and the question use up the budget of a prompt this short.

# %%
ratios = [0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5]
scored = {
    name: [pipeline.score(p, sp.RunOptions(0.5, SCORERS.build(name), seed=i)) for i, p in enumerate(prompts)]
    for name in ("tail", "lookahead", "random", "lexical", "oracle")
}


def found(name, options):
    """Prompts whose needle was kept whole, and the mean share of tokens kept."""
    chosen = [pipeline.select(s, p, options)[1] for s, p in zip(scored[name], prompts)]
    whole = [bool(c.selected[p.mask("needle")].all()) for c, p in zip(chosen, prompts)]
    return sum(whole), float(np.mean([c.keep_ratio for c in chosen]))


figure = Figure(figsize=(6, 3.2), layout="constrained")
axes = figure.subplots()
for name, look in looks(list(scored)).items():
    hits = [found(name, sp.RunOptions(ratio)) for ratio in ratios]
    low, high = np.array([wilson(k, len(prompts)) for k, _ in hits]).T
    axes.plot(ratios, [k / len(prompts) for k, _ in hits], look.line, marker=look.marker, color=look.colour, label=name)
    axes.fill_between(ratios, low, high, color=look.colour, alpha=0.08, linewidth=0)
plain_log(axes, ratios)
axes.set_xlabel("keep ratio")
axes.set_ylabel("needle kept whole")
axes.legend(frameon=False, fontsize=8, loc="center right")
tidy(axes)
print(note_of_file(pipeline.drafter.path))
figure

# %% [markdown]
# ## A threshold instead of a ratio
#
# The selector `alpha` keeps chunks above a share of the best (or mean) score, up to the keep ratio: what it really keeps
# varies with the prompt. The realised share is what the target pays for.

# %%
for of, values in (("max", (0.02, 0.05, 0.1, 0.2, 0.4)), ("mean", (1.0, 2.0, 4.0, 8.0))):
    for alpha in values:
        options = sp.RunOptions(0.5, selector=SELECTORS.build("alpha", {"alpha": alpha, "of": of}))
        whole, kept = found("tail", options)
        print(f"alpha {alpha:<5} of {of:5} needle kept whole in {whole:2} of {len(prompts)}, share kept {kept:.3f}")

# %% [markdown]
# ## FlashPrefill's alpha in the drafter
#
# Recorded on an NVIDIA H200 with the needle pair's drafter, 24 prompts a cell, keep ratio 0.05: a block of 128 keys is read if
# its mean score exceeds alpha times the best. The density is the share of causal blocks that the drafter then reads.

# %%
root = next(p for p in [Path.cwd(), *Path.cwd().parents] if (p / "results").is_dir())
records = newest(root / "results" / "nvidia-h200" / "flashprefill_quality.jsonl")
lengths = sorted({r["config"]["prompt_tokens"] for r in records})
rows = {}
for r in records:
    config = r["config"]
    name = config["scorer"] if config["scorer"] != "tail" else f"alpha {config['alpha']}" if config["alpha"] else "dense"
    rows.setdefault(name, {})[config["prompt_tokens"]] = r["metrics"]
print(f"{'needle kept (density)':24}", *(f"{n:>16,}" for n in lengths))
for name, cells in rows.items():
    shown = [cells.get(n) for n in lengths]
    print(f"{name:24}", *(
        f"{m['found']:>3} of {m['cases']}" + (f" ({m['density']:.3f})" if m.get("density") else " " * 8) if m else " " * 16
        for m in shown
    ))
