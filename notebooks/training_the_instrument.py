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
# # Training the embedded pair
#
# A drafter that was *trained* where to look proves little about scorers that use its attention. The embedded pair was
# trained with next-token loss alone, on stories whose answers need a fact, an association, the latest of several
# versions. No head is supervised. Do heads that retrieve appear all the same, and when did the pair learn to read?
#
# These cells read the committed logs of the training (`experiments/instrument`, one H200 a part) and the embedded drafter.

# %%
# %matplotlib inline
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from IPython.display import Markdown
from matplotlib.figure import Figure

from sp.evals import TASKS
from sp.evals.heads import measure_heads
from sp.evals.matches import score_answer
from sp.ops.attention.importance import attention_rows
from sp.scoring import ScoreRequest
from sp.scoring.attention.lookahead import LookaheadScorer
from sp.studies.figures import tidy
from sp.session.loaded import embedded, load
from sp.studies.figures import tidy

root = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "experiments").is_dir())
instrument = root / "experiments" / "instrument"
sys.path.append(str(instrument))
from fit_curves import figure_of
from parts import LAST, by_stage, by_task, share, stages
from parts import TASKS as READ

logs = root / "results" / "nvidia-h200" / "instrument"
parts = [logs / f"fit_{part}.jsonl" for part in ("drafter_1", "target_hybrid", "drafter_2", "target_2", "drafter_3")]

# %% [markdown]
# ## 1. Curves
#
# Right first tokens of answers, by task, and the loss. Stages are named where they begin: accuracy falls where documents become
# longer or the questions harder, which is not forgetting; it rises where the rate falls.

# %%
figure_of(parts)

# %%
Markdown(by_stage(parts))

# %% [markdown]
# The table shows two things. A log does not say why, but the same shape of stage appears again and again: where the
# rate is held (`0.002 to 0.002`), accuracy hardly moves; where it falls to a tenth, several points come within a minute. And
# the third part, which begins from the second's annealed file, loses some of them at once:

# %%
second, third = (list(stages(logs / f"fit_drafter_{n}.jsonl").values()) for n in (2, 3))
print(f"end of part 2: {share(second[-1])} % at a length of 8K")
for line in third[0][:6]:
    print(f"   part 3, step {line['step']:4}, rate {line['lr']:.4f}: {100 * line['first_acc']:.1f} % at 3K")
print(f"end of part 3: {share(third[-1])} % at 10K")

# %% [markdown]
# ## 2. Which task came when
#
# The end of each part, as examples ask (means over the last lines of a log; training samples, not `sp eval`). Parts differ in
# the length and in the mix, so compare columns within a row, and rows with care.

# %%
print(f"means over the last {LAST} lines of each log")
Markdown(by_task(parts))

# %%
figure = Figure(figsize=(8, 3.2), layout="constrained")
axes = figure.subplots()
shown = [path for path in parts if "drafter" in path.stem]
for number, path in enumerate(shown):
    last = list(stages(path).values())[-1]
    axes.bar(
        np.arange(len(READ)) + 0.27 * (number - 1),
        [float(share(last, task) or "nan") for task in READ],
        0.25,
        color=("#d0ebff", "#74c0fc", "#1c7ed6")[number],
        label=path.stem.removeprefix("fit_").replace("_", ", part "),
    )
axes.set_xticks(range(len(READ)), READ)
axes.set_ylabel("right first tokens (%)")
figure.legend(frameon=False, fontsize=8, ncols=3, loc="outside upper center")
tidy(axes)
figure

# %% [markdown]
# ## 3. Where its heads look
#
# A question that shares no word with its evidence, of the task `nolima`: the text never says what joins the two, the drafter
# knows it from its training. It answers, and we look at the last layer's heads while it does. This is the first example whose
# evidence is in the first half of its document.

# %%
drafter = load(embedded("drafter"), device="cpu", extrapolate=True)
count = lambda text: len(drafter.tokenizer.encode(text).ids)


def asked(example):
    """An example in tokens, and the request that a scorer gets."""
    prompt = example.prompt(drafter.template).tokenise(drafter.tokenizer)
    nothing = np.zeros(len(prompt), bool)
    places = np.arange(len(prompt))
    return prompt, ScoreRequest(drafter.model, prompt.ids, places, nothing, nothing, drafter.tokenizer.eos_ids)


def seen(example):
    """What the drafter says, and the attention (heads, queries, tokens) of its last layer as it says it."""
    prompt, request = asked(example)
    ahead = LookaheadScorer(queries=example.max_new_tokens + 1).look_ahead(request)
    layer, queries = max(ahead.queries.items())
    kept = replace(ahead.cache.stored(layer), tokens=len(prompt))
    return prompt, ahead.generated, layer, attention_rows(queries[: len(ahead.generated)], kept, causal=False)


task = TASKS.build("nolima", {})
drawn = (task.example(index, 600, count) for index in range(50))
example = next(one for one in drawn if one.document.index(one.needles[0]) < len(one.document) / 2)
prompt, generated, layer, weights = seen(example)
said = drafter.tokenizer.decode(list(generated))
right = score_answer(said, example.answers, example.match) == 1
print(f"{len(prompt)} tokens. {example.question}\nevidence: {example.needles[0]}")
print(f"it says {said!r} ({'right' if right else 'wrong'}; expected {', '.join(example.answers)})")

# %%
needle = prompt.mask("needle")
heads = weights.shape[0]
figure = Figure(figsize=(9, 4.2), layout="constrained")
for head, axes in enumerate(figure.subplots(heads, 1, sharex=True)):
    axes.fill_between(np.flatnonzero(needle)[[0, -1]] + [-0.5, 0.5], 0, 1, color="#d3f9d8", linewidth=0)
    axes.vlines(np.arange(len(prompt)), 0, weights[head].max(0), color="#1c7ed6", linewidth=0.9)
    on = weights[head][:, needle].sum(-1)
    axes.set(ylim=(0, 1), xlim=(0, len(prompt)), ylabel=f"{layer}.{head}")
    axes.set_title(
        f"on the evidence: {on.max():.0%} of the attention at most, {on[0]:.0%} for the first token", fontsize=8
    )
    tidy(axes)
axes.set_xlabel("token of the prompt (evidence in green); the largest weight that any token of the answer gave it")
figure

# %% [markdown]
# One prompt shows a mechanism and proves none.
#
# ## 4. Which heads retrieve, though none was supervised
#
# The retrieval score of every head (arXiv 2404.15574): the share of the answer's tokens for which the head's strongest key was that
# very token, over the prompts that the drafter answers right. The drafter is its own reader here.

# %%
task = TASKS.build("fact", {})
measured = measure_heads(
    drafter.model, drafter.tokenizer, drafter.template, [task.example(i, 600, count) for i in range(12)]
)
scores = np.array([measured.scores[each] for each in sorted(measured.scores)])
made = measured.made
print(
    f"{made['right']} of {made['prompts']} prompts answered right, {made['prompt_tokens'][0]} to {made['prompt_tokens'][1]} tokens"
)
figure = Figure(figsize=(4.6, 3.2), layout="constrained")
axes = figure.subplots()
image = axes.imshow(scores, cmap="magma", vmin=0, vmax=1)
for (row, column), value in np.ndenumerate(scores):
    axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color="w" if value < 0.6 else "k")
axes.set(xlabel="head", ylabel="layer", xticks=range(scores.shape[1]), yticks=range(scores.shape[0]))
figure.colorbar(image, ax=axes, label="retrieval score")
figure

# %%
order = [tuple(map(int, np.unravel_index(i, scores.shape))) for i in scores.ravel().argsort()[::-1]]
print("best heads, found and not set:", ", ".join(f"{a}.{b} ({scores[a, b]:.2f})" for a, b in order[:4]))
print(f"heads with a score of at least 0.1: {(scores >= 0.1).sum()} of {scores.size}")

# %% [markdown]
# A dozen prompts rank the best heads well enough to look at them, no more; `sp heads` measures a file on many, and the map beside
# the embedded drafter comes from it.
