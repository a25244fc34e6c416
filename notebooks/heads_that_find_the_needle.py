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
# # Which heads find the needle?
#
# A head *retrieves* when, while the model says a token of the answer, the head's strongest key is that very token in the
# needle (retrieval score, arXiv 2404.15574). In large models fewer than one head in twenty does. The embedded drafter
# has twenty heads: which of them carry the selection?

# %%
# %matplotlib inline
import json
from importlib.resources import files

import numpy as np
from matplotlib.figure import Figure

import sp
from sp.evals import TASKS
from sp.evals.heads import measure_heads
from sp.evals.trained_for import note_of_file
from sp.session import embedded, load
from sp.scoring import SCORERS
from sp.studies.figures import tidy

drafter = load(embedded("drafter"), device="cpu", extrapolate=True)
count = lambda text: len(drafter.tokenizer.encode(text).ids)
shipped = json.loads((files("sp") / "assets" / "drafter_heads.json").read_text())
task = TASKS.build(shipped["made"]["tasks"][0])

# %% [markdown]
# ## Measured here, on eight prompts, and shipped with the pair, on sixty

# %%
measured = measure_heads(drafter.model, drafter.tokenizer, drafter.template, [task.example(i, 768, count) for i in range(8)])
layers, heads = len(shipped["scores"]), len(shipped["scores"]["0"])
here = np.array([measured.scores[layer] for layer in sorted(measured.scores)])
there = np.array([shipped["scores"][str(layer)] for layer in range(layers)])
figure = Figure(figsize=(6, 2.6), layout="constrained")
axes = figure.subplots()
x = np.arange(here.size)
axes.bar(x - 0.2, here.ravel(), 0.4, color="#74c0fc", label="here, 8 prompts of 768 tokens")
axes.bar(x + 0.2, there.ravel(), 0.4, color="#1c7ed6", label=f"shipped, {shipped['made']['prompts']} prompts")
axes.set_xticks(x, [f"{layer}.{head}" for layer in range(layers) for head in range(heads)])
axes.set_xlabel("layer.head")
axes.set_ylabel("retrieval score")
axes.legend(frameon=False, fontsize=8)
tidy(axes)
figure

# %% [markdown]
# ## Where those heads look
#
# Importance of one prompt head by head. Heads of the last two layers look at the needle, and nearly all heads at both ends of
# the prompt. `tail` takes the maximum over all heads, so whatever one of them looks at competes with the needle;
# `retrieval_heads` uses only those that were measured to retrieve.

# %%
pipeline = sp.load(device="cpu")
example = task.example(3, 2048, lambda text: len(pipeline.target.tokenizer.encode(text).ids))
prompt = pipeline.tokenise(example.prompt(pipeline.target.template))
scored = pipeline.score(prompt, sp.RunOptions(0.1, SCORERS.build("tail")), by_head=True)
maps = scored.importance.by_head.reshape(-1, scored.importance.by_head.shape[-1])
needle = scored.drafted.mask("needle").nonzero()[0] / 32
figure = Figure(figsize=(8, 2.8), layout="constrained")
axes = figure.subplots()
image = axes.imshow(np.log10(np.maximum(maps, 1e-6)), aspect="auto", cmap="magma", interpolation="nearest")
axes.axvspan(needle[0] - 0.5, needle[-1] - 0.5, fill=False, edgecolor="#2f9e44", linewidth=1.5)
axes.set_yticks(x, [f"{layer}.{head}" for layer in range(layers) for head in range(heads)], fontsize=7)
axes.set_xlabel("chunk of 32 drafter tokens (needle in green)")
axes.set_ylabel("layer.head")
figure.colorbar(image, ax=axes, label="log10 importance")
figure

# %% [markdown]
# ## Does it pay to use only them?
#
# Share of the needle's tokens that 10 % of the prompt holds, over six prompts that share no run of three words with
# their question besides the key. Six prompts show the mechanism, not a ranking: see the study for that.

# %%
hard = TASKS.build("needle", {"no_shared_ngrams": 3})
target_count = lambda text: len(pipeline.target.tokenizer.encode(text).ids)
for name in ("tail", "layer_subset", "retrieval_heads", "mid_layer", "random"):
    options, recalls = sp.RunOptions(0.1, SCORERS.build(name)), []
    for index in range(6):
        tokenised = pipeline.tokenise(hard.example(index, 1536, target_count).prompt(pipeline.target.template))
        _, selection = pipeline.select(pipeline.score(tokenised, options), tokenised, options)
        recalls.append(selection.selected[tokenised.mask("needle")].mean())
    print(f"{name:16} needle kept {np.mean(recalls):4.0%} (prompts with all of it: {sum(r == 1 for r in recalls)} of 6)")
print(f"\n{note_of_file(pipeline.drafter.path)}")
