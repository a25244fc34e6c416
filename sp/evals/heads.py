"""Measure which attention heads retrieve, on prompts with a needle that the model copies into its answer.

References
----------
Wu et al., "Retrieval Head Mechanistically Explains Long-Context Factuality" (arXiv 2404.15574), section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from sp.arrays import Bools, Doubles
from sp.errors import ConfigError, ModelError
from sp.evals.base import Example
from sp.evals.matches import score_answer
from sp.gguf import ChatTemplate, Tokenizer
from sp.models import Model
from sp.ops.array_module import on_host
from sp.ops.attention.importance import attention_rows
from sp.prompt import TokenisedPrompt
from sp.scoring import ScoreRequest
from sp.scoring.attention.heads import HeadMap, model_key
from sp.scoring.attention.lookahead import LookaheadScorer


@dataclass(frozen=True)
class HeadCopies:
    """Copies by the heads of a model on one prompt.

    Attributes
    ----------
    generated : tuple of int
        Tokens of the answer.
    share : dict of int to float64 (heads,)
        By attention layer, share of the value's tokens that had a head's largest weight as they were generated.
    """

    generated: tuple[int, ...]
    share: dict[int, Doubles]


def copy_shares(request: ScoreRequest, value: Bools, new_tokens: int) -> HeadCopies:
    """Let a model answer, and count for each head the tokens that it copies.

    A head copies token j of `value`, bool (n,), when j has the largest weight of all prompt tokens for the query that
    predicts the next token, and that token is the one at j.
    """
    ahead = LookaheadScorer(queries=new_tokens + 1).look_ahead(request)
    steps, share = len(ahead.generated), {}
    for layer, queries in ahead.queries.items():
        cache = replace(ahead.cache.stored(layer), tokens=len(request.ids))
        weights = attention_rows(queries[:steps], cache, causal=False)
        best = np.asarray(on_host(weights.argmax(axis=-1)))  # (heads, steps)
        hit = value[best] & (request.ids[best] == np.array(ahead.generated))
        share[layer] = np.array([len(set(row[seen])) for row, seen in zip(best, hit, strict=True)]) / value.sum()
    return HeadCopies(ahead.generated, share)


def measure_heads(
    model: Model,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    examples: Iterable[Example],
    progress: Callable[[int], None] | None = None,
) -> HeadMap:
    """Return the mean of `copy_shares` over the prompts that the model answers right.

    ConfigError: an example does not have one answer in exactly one needle, so that copies cannot be attributed.
    ModelError: no answer is right.
    """
    total: dict[int, Doubles] = {}
    right, tried, lengths, tasks = 0, 0, [], set()
    for example in examples:
        prompt = example.prompt(template).tokenise(tokenizer)
        n, nothing = len(prompt), np.zeros(len(prompt), bool)
        request = ScoreRequest(model, prompt.ids, np.arange(n), nothing, nothing, tokenizer.eos_ids)
        copies = copy_shares(request, value_tokens(prompt, example), example.max_new_tokens)
        tried += 1
        tasks.add(example.task)
        lengths.append(n)
        if score_answer(tokenizer.decode(list(copies.generated)), example.answers, example.match) == 1:
            right += 1
            for layer, share in copies.share.items():
                total[layer] = total.get(layer, 0) + share
        if progress:
            progress(1)
    if not right:
        raise ModelError(f"the model answers none of {tried} prompts right; use a better model or an easier task")
    provenance = {
        "tasks": sorted(tasks),
        "prompts": tried,
        "right": right,
        "prompt_tokens": [min(lengths), max(lengths)],
    }
    scores = {layer: tuple((row / right).tolist()) for layer, row in total.items()}
    return HeadMap(model_key(model), scores, provenance)


def value_tokens(prompt: TokenisedPrompt, example: Example) -> Bools:
    """Return the tokens (n,) of the answer in its needle; ConfigError unless there is one answer in one needle."""
    holding = [needle for needle in example.needles if all(answer in needle for answer in example.answers)]
    if len(example.answers) != 1 or len(holding) != 1:
        raise ConfigError(f"task {example.task}: measuring heads needs one answer in one needle; choose another task")
    (needle,), (answer,) = holding, example.answers
    start = prompt.prompt.text.encode().index(needle.encode()) + len(needle[: needle.rindex(answer)].encode())
    first, last = prompt.bytes[:, 0], prompt.bytes[:, 1]
    inside: Bools = (last > start) & (first < start + len(answer.encode()))
    return inside
