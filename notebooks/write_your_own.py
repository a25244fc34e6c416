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
# # Write your own scorer and selector
#
# A scorer gives each token an importance; a selector decides which tokens to keep. Both are frozen dataclasses with one
# pure method. Registered under a name, they work in Python, in a sweep and in `sp run`.

# %%
from dataclasses import dataclass

import numpy as np

import sp
from sp import Importance, Scorer, Selection, Selector, register_scorer, register_selector
from sp.evals import TASKS, evaluate
from sp.evals.summary import wilson
from sp.evals.trained_for import note_of_file
from sp.scoring import SCORERS
from sp.selection import SELECTORS

# %% [markdown]
# ## A scorer in ten lines: rare words of the question
#
# A token matters if it is a token of the question, and the more, the rarer it is in the prompt; a neighbourhood of 16
# tokens shares in it. No model is read.

# %%
@register_scorer("rare_words")
@dataclass(frozen=True)
class RareWords(Scorer):
    """Tokens that the question names, weighted by how rare they are."""

    reach: int = 16

    def score(self, request):
        ids, counts = np.asarray(request.ids), np.bincount(request.ids)
        hits = np.isin(ids, ids[request.question]) / counts[ids]
        return Importance(np.convolve(hits, np.ones(2 * self.reach + 1), "same").astype(np.float32))


# %% [markdown]
# ## A selector in ten lines: peaks with their surroundings
#
# Take the best token, keep the 48 tokens after it and 16 before, and go on until the budget is spent. Protected tokens
# (question, chat markup) are always kept; the budget counts them, and the keep ratio of the others.

# %%
@register_selector("peaks")
@dataclass(frozen=True)
class Peaks(Selector):
    """The best tokens with what surrounds them."""

    before: int = 16
    after: int = 48

    def select(self, request):
        kept, n = request.protected.copy(), len(request.scores)
        for best in np.argsort(-request.scores, kind="stable"):
            window = np.arange(max(0, best - self.before), min(n, best + self.after + 1))
            new = window[~kept[window]]
            kept[new[: request.budget - int(kept.sum())]] = True
        return Selection(kept, request.protected, request.scores, np.arange(n + 1))


# %% [markdown]
# ## Does it follow the rules?
#
# Every selector keeps what is protected, stays within the budget, and keeps everything at ratio 1. The library's own
# selectors are tested for this with random scores by hypothesis, in `tests/selection/test_matrix.py`.

# %%
from sp.selection import SelectionRequest

rng = np.random.default_rng(0)
for n, ratio in ((100, 0.3), (1000, 0.05), (777, 1.0)):
    request = SelectionRequest(rng.random(n, dtype=np.float32), np.arange(n) >= n - 5, ratio)
    chosen = SELECTORS.build("peaks").select(request)
    assert chosen.selected[request.protected].all()
    assert chosen.selected.sum() <= request.budget
    assert ratio < 1 or chosen.selected.all()
print("within the budget, protected kept, everything at ratio 1")

# %% [markdown]
# ## Is it any good?
#
# Never judge a strategy without the full prefill and the controls. Eight prompts give wide intervals; a sweep
# gives narrow ones: put `scorer: [rare_words, tail, ...]` into the grid of a sweep file once your module is imported.

# %%
pipeline = sp.load(device="cpu")
count = lambda text: len(pipeline.target.tokenizer.encode(text).ids)
examples = [TASKS.build("needle").example(i, 1024, count) for i in range(5)]
names = [("tail", "top_chunks"), ("rare_words", "top_chunks"), ("rare_words", "peaks"), ("random", "top_chunks"),
         ("lexical", "top_chunks"), ("oracle", "top_chunks")]
cells = [sp.RunOptions(0.2, SCORERS.build(scorer), SELECTORS.build(selector)) for scorer, selector in names]
rows = list(evaluate(pipeline, examples, cells))
for cell in range(-1, len(cells)):
    mine = [row for row in rows if row["cell"] == cell]
    right, n = sum(row["correct"] for row in mine), len(mine)
    low, high = wilson(right, n)
    name = " + ".join(names[cell]) if cell >= 0 else "full prefill"
    print(f"{name:24} right {right} of {n} ({low:.0%} to {high:.0%}), kept {np.mean([r['kept_tokens'] for r in mine]):5.0f} tokens")
print(f"\n{note_of_file(pipeline.drafter.path)}")
