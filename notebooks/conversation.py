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
# # A conversation
#
# Two texts, five questions, one transcript. Each turn reads only what is new; what was left out comes back when a later
# question asks for it. Everything runs on a CPU, with the embedded pair of small models.

# %%
# %matplotlib inline
import sp
from sp.session import turn_row
from sp.evals import TASKS
from sp.selection import SELECTORS
from sp.studies.plots.maps import conversation_figure

pipeline = sp.load(device="cpu")
pipeline.warm_up()
count = lambda text: len(pipeline.target.tokenizer.encode(text).ids)
options = sp.RunOptions(0.1, "tail", selector=SELECTORS.build("sentence"), compress="always", max_new_tokens=16)

# %% [markdown]
# ## Two texts with three facts
#
# The first text holds two facts, and the first question asks for one of them. A compressor drops the other.

# %%
fact = TASKS.build("fact", {"form": 0, "facts": 1})  # one plain fact among prose
one, other, third = (fact.example(index, 2000, count) for index in (1, 2, 3))
cut = one.document.find(". ", 2 * len(one.document) // 3) + 2
first_text = f"{one.document[:cut]}{other.needles[0]} {one.document[cut:]}"
asked = [(first_text, one), ("", other), (third.document, third), ("", other), ("", one)]
for text, example in asked:
    print(f"{count(text) if text else 0:5} tokens and: {example.question}")


# %% [markdown]
# ## Turn after turn
#
# `kept_from` says where the question begins in the last message: text before it may be left out.

# %%
def talk_through(recall):
    talk = sp.Conversation(pipeline, options, sp.ConversationOptions(recall=recall))
    chat, results = [], []
    for text, example in asked:
        before = f"{text}\n\n" if text else ""
        chat.append({"role": "user", "content": before + example.question})
        results.append(talk.ask(chat, kept_from=len(before)))
        chat.append({"role": "assistant", "content": results[-1].answer.text})
    return results


def show(results):
    print("turn  cached   new  kept  recalled  read  first token  answer")
    for number, (result, (_, example)) in enumerate(zip(results, asked), 1):
        usage, right = result.usage, all(answer in result.answer.text for answer in example.answers)
        print(f"{number:4} {usage.cached:7} {usage.new:5} {usage.kept:5} {usage.recalled:9} {usage.read:5} "
              f"{result.answer.ttft_s:10.2f} s  {result.answer.text} {'' if right else '(wrong)'}")


results = talk_through("auto")
show(results)
assert all(example.answers[0] in result.answer.text for result, (_, example) in zip(results, asked))

# %% [markdown]
# The second question asks for what the first turn left out. The drafter's keys of the whole transcript are kept, so all
# of it is scored again, and the sentence comes back:

# %%
for span in results[1].recalled:
    print(f"tokens {span.start} to {span.end}, {span.score / span.threshold:.0f} times the score it took, by {span.way}:")
    print(f"   {' '.join(span.text.split())[:110]} ...")

# %% [markdown]
# ## What the target had of the transcript
#
# The transcript runs from left to right, turn below turn. Triangles below a row mark the three facts, filled where the
# target had read all of one; those above it point at what came back. `sp chat --picture talk.png` draws the same.

# %%
needles = [example.needles[0] for example in (one, other, third)]
conversation_figure([turn_row(result, number, needles) for number, result in enumerate(results, 1)], width=7)

# %% [markdown]
# ## Without recall
#
# What was left out once stays out, whatever is asked.

# %%
show(talk_through("off"))

# %% [markdown]
# Five questions prove nothing about a strategy; `sp eval turns` asks many, with controls and intervals.
