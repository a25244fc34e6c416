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
# # Anatomy of one run
#
# A prompt of about 2,000 tokens, one sentence in it that answers, and every step between them and the answer: what the
# drafter sees, what it finds important, what is kept, and what the target makes of it. The question shares no word with that
# sentence (the *needle* below), so one has to know what belongs together. Everything runs on a CPU, with the embedded pair of
# small models.

# %%
# %matplotlib inline
import numpy as np

import sp
from sp.evals import TASKS
from sp.scoring import SCORERS
from sp.studies.pages.kept_text import as_text
from sp.studies.figures import importance_figure

pipeline = sp.load(device="cpu")
pipeline.warm_up()
count = lambda text: len(pipeline.target.tokenizer.encode(text).ids)
example = TASKS.build("nolima").example(0, 2048, count)
print(example.question)
print(example.needles[0])

# %% [markdown]
# ## 1. Tokens and bytes
#
# A drafter may tokenise the same text differently from its target. Scores are transferred by bytes: every token knows the bytes it covers.

# %%
prompt = example.prompt(pipeline.target.template)
for role, loaded in (("target", pipeline.target), ("drafter", pipeline.drafter)):
    tokens = prompt.tokenise(loaded.tokenizer)
    needle = tokens.mask("needle").nonzero()[0]
    pieces = [prompt.text.encode()[start:end].decode(errors="replace") for start, end in tokens.bytes[needle]]
    print(f"{role:8} {len(tokens):5} tokens; the needle is {len(needle)} of them: {'|'.join(pieces)}")

# %% [markdown]
# ## 2. Score, select, read
#
# The drafter reads everything once; `tail` uses the attention of the last 8 tokens, pools it over 13 tokens, takes the
# maximum over heads and layers and the mean over the 8. A token of the target inherits the best score among the drafter
# tokens it shares a byte with. `top_chunks` keeps the best chunks of 32 until the budget is spent.

# %%
options = sp.RunOptions(keep_ratio=0.1, scorer=SCORERS.build("tail"), compress="always", max_new_tokens=24)
result = pipeline.run(prompt, options, full=True, by_head=True)
print("compressed:", result.answer.text, "| full prefill:", result.full.text, "| expected:", *example.answers)
print(f"kept {result.kept_tokens} of {len(result.prompt)} tokens, {result.needle_recall:.0%} of the needle")

# %%
importance_figure(result)

# %% [markdown]
# ## 3. What the target read
#
# Gaps are replaced by their length. Kept tokens have their original positions, so every distance the target sees
# is the true one.

# %%
print(as_text(result, limit=900).plain)

# %% [markdown]
# ## 4. Where the time went

# %%
for name, answer in (("compressed", result.answer), ("full", result.full)):
    print(f"{name}: first token after {answer.ttft_s:.2f} s")
    for stage in answer.trace.stages:
        print(f"   {stage.name:22} {stage.seconds:7.3f} s {stage.tokens:6} tokens")

# %% [markdown]
# ## 5. What if the drafter had not read it?
#
# The same budget with controls. `lexical` looks for the question's words, of which the needle has none; `oracle` knows the needle.

# %%
for name in ("random", "head_tail", "lexical", "oracle"):
    control = pipeline.run(prompt, sp.RunOptions(0.1, SCORERS.build(name), compress="always", max_new_tokens=24), full=False)
    print(f"{name:10} needle kept {control.needle_recall:4.0%}  answer {control.answer.text!r}")

# %% [markdown]
# One prompt proves nothing about a strategy: `sp sweep` asks many, with every control, and `sp report` gives intervals.
