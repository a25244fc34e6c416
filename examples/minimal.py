"""Speculative prefill in one file: a small drafter reads a long prompt, and the heavy target only what matters of it.

Read it from top to bottom; each step is a function of what the one before gave:

1. open      a GGUF file becomes a model, its tokenizer and its chat template
2. draft     the drafter reads the whole prompt, and shows how its last tokens attend to all the others
3. score     these weights become one number a token: its importance
4. select    of the tokens that may be left out, the most important ones are kept
5. prefill   the target reads the kept tokens at the positions they had in the whole prompt
6. decode    the target answers, one token after the other

`python examples/minimal.py` asks the embedded pair about the embedded document, on the CPU. `sp run` gives the same
answer from the same tokens (scorer `tail`, selector `top_chunks`); `tests/test_minimal.py` holds both together.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np

import sp
from sp.gguf import ChatTemplate, GGUFFile, Tokenizer, chat_template
from sp.models import Cache, Hooks, Model, decode_step, flops, load_model, prefill, read_layer_major
from sp.prompt import Prompt, TokenisedPrompt, transfer_scores
from sp.selection import SELECTORS, Selection, SelectionRequest, token_budget

ASSETS = Path(str(files(sp) / "assets"))
QUERIES = 8
"""Tokens at the end of a prompt whose attention says what is important: they have read the question."""
WINDOW = 13
"""Tokens that attention is averaged over, so that a word counts with its neighbours."""
LEAST = 64
"""Where fewer tokens of the document would be kept, the prompt is read whole: both ends take half of what is kept."""


# 1. Open


class Opened(NamedTuple):
    """What one GGUF file holds: weights, the vocabulary they were trained with, and how a chat is written for them."""

    model: Model
    tokenizer: Tokenizer
    template: ChatTemplate | None


def open_gguf(path: Path) -> Opened:
    """Read a file's metadata and weights; quantised weights stay packed, and are decoded as they are used."""
    file = GGUFFile.open(path)
    tokenizer = Tokenizer.from_gguf(file)
    return Opened(load_model(file), tokenizer, ChatTemplate.of_file(chat_template(file), tokenizer))


# 2. Draft


def draft(drafter: Model, ids: np.ndarray) -> list[np.ndarray]:
    """Let the drafter read all `ids` (n,), and keep the attention weights of its last `QUERIES` tokens.

    `read_layer_major` takes the whole prompt through one layer, then through the next, and holds the keys of one layer
    at a time. Before a layer attends it shows its queries and keys. Nothing is generated.

    Returns a float32 array (heads, queries, n) for each layer.
    """
    weights = []
    rows = min(QUERIES, len(ids))

    def watch(layer: int, q: np.ndarray, cache: Cache) -> None:
        weights.append(attention_weights(q[-rows:], cache.keys(layer)))

    read_layer_major(drafter, ids, np.arange(len(ids)), drafter.new_cache(len(ids), layers=1), Hooks(watch), rows=rows)
    return weights


def attention_weights(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """softmax(q k / sqrt(d)): queries (rows, heads, d) of the last tokens, keys (n, kv_heads, d) of all.

    Heads of queries share heads of keys in groups; a token sees those up to itself. Returns (heads, rows, n).
    """
    (rows, heads, d), (n, kv_heads, _) = q.shape, k.shape
    k = np.repeat(k, heads // kv_heads, axis=1)
    logits = np.einsum("rhd,nhd->hrn", q, k, optimize=True) / np.float32(np.sqrt(d))
    logits[:, np.arange(n) > np.arange(n - rows, n)[:, None]] = -np.inf
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


# 3. Score


def score(weights: list[np.ndarray]) -> np.ndarray:
    """Importance (n,) of each token: pooled along the prompt, the largest of all heads, the mean of the queries.

    So does SpecPrefill (arXiv 2502.02789). The largest and not the mean of the heads, because only a few heads of a
    model look for what a question asks; all others would drown them.
    """
    largest = moving_mean(weights[0], WINDOW).max(axis=0)  # (queries, n)
    for layer in weights[1:]:
        np.maximum(largest, moving_mean(layer, WINDOW).max(axis=0), out=largest)
    return largest.mean(axis=0)


def moving_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Mean over the `width` values around each along the last axis; over fewer at the ends."""
    n, half = values.shape[-1], width // 2
    sums = np.zeros((*values.shape[:-1], n + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    low, high = np.maximum(np.arange(n) - half, 0), np.minimum(np.arange(n) + half + 1, n)
    return ((sums[..., high] - sums[..., low]) / (high - low)).astype(np.float32)


# 4. Select


def pays(target: Model, drafter: Model, tokens: int, protected: int, keep_ratio: float) -> bool:
    """Whether it costs less to draft all tokens and read the kept ones than to read all of them.

    `protected` tokens (the question, markup of the chat) are always read; the ratio is one of the others.
    """
    kept = token_budget(keep_ratio, tokens, protected)
    if keep_ratio == 1 or kept - protected < LEAST:
        return False
    return flops(target.config, tokens) > flops(drafter.config, tokens) + flops(target.config, kept)


def select(scores: np.ndarray, prompt: TokenisedPrompt, keep_ratio: float) -> Selection:
    """Which of the target's tokens to keep: chunks of 32 by their mean score, whatever is protected besides."""
    selector = SELECTORS.build("top_chunks")
    text = prompt.prompt.text.encode()
    protected = prompt.mask("protected")
    return selector(SelectionRequest(scores, protected, keep_ratio, text, prompt.bytes, prompt.prompt.free))


# 5. Prefill and 6. decode


def answer(target: Opened, prompt: TokenisedPrompt, kept: np.ndarray, max_new_tokens: int) -> Iterator[int]:
    """Read the kept tokens, then choose the likeliest token until one ends the answer.

    Kept tokens stand where they stood: rotary embedding sees the gaps, and the answer begins behind the whole prompt.
    So the target knows that the sentence it reads next was far away. The cache holds the kept tokens alone.
    """
    model, positions = target.model, np.flatnonzero(kept)
    cache = model.new_cache(len(positions) + max_new_tokens)
    logits = prefill(model, prompt.ids[positions], positions, cache)
    for number in range(max_new_tokens):
        token = int(logits.argmax())
        if token in target.tokenizer.eos_ids:
            break
        yield token
        if number + 1 < max_new_tokens:
            logits = decode_step(model, token, len(prompt) + number, cache)


# All together


class Outcome(NamedTuple):
    """What came of a prompt; `scores` are None where the target read all of it."""

    prompt: TokenisedPrompt
    scores: np.ndarray | None
    kept: np.ndarray
    text: str
    seconds: dict[str, float]


def speculative_prefill(
    target: Opened, drafter: Opened, document: str, question: str, keep_ratio: float, max_new_tokens: int
) -> Outcome:
    """Answer a question about a document of which the target reads a share."""
    seconds: dict[str, float] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - start

    with stage("tokenise"):
        prompt = Prompt.from_document(document, question, target.template)
        read = prompt.tokenise(target.tokenizer)
    scores, kept = None, np.ones(len(read), bool)
    if pays(target.model, drafter.model, len(read), int(read.mask("protected").sum()), keep_ratio):
        with stage("draft"):
            drafted = prompt.tokenise(drafter.tokenizer)  # a vocabulary of its own
            weights = draft(drafter.model, drafted.ids)
        with stage("score"):
            scores = transfer_scores(score(weights), drafted.bytes, read.bytes)  # by the bytes both cover
        with stage("select"):
            kept = select(scores, read, keep_ratio).selected
    with stage("prefill and decode"):
        tokens = list(answer(target, read, kept, max_new_tokens))
    return Outcome(read, scores, kept, target.tokenizer.decode(tokens).strip(), seconds)


def kept_text(outcome: Outcome) -> str:
    """What the target read, with a mark in each gap."""
    raw, kept = outcome.prompt.prompt.text.encode(), outcome.kept
    edges = np.flatnonzero(np.diff(np.concatenate([[0], kept, [0]]))).reshape(-1, 2)
    pieces = [raw[outcome.prompt.bytes[first, 0] : outcome.prompt.bytes[end - 1, 1]] for first, end in edges]
    return " [...] ".join(piece.decode(errors="replace") for piece in pieces)


def main() -> None:
    """Answer on the command line."""
    parser = argparse.ArgumentParser(description="The method in one file.")
    parser.add_argument("--target", type=Path, default=ASSETS / "target.gguf", help="GGUF of the heavy model")
    parser.add_argument("--drafter", type=Path, default=ASSETS / "drafter.gguf", help="GGUF of the small one")
    parser.add_argument("--prompt-file", type=Path, help="long text in UTF-8; the embedded document if left out")
    parser.add_argument("--question", help="what to ask about it")
    parser.add_argument("--keep-ratio", type=float, default=0.05, help="share of it that the target reads")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="longest answer")
    asked = parser.parse_args()
    question = asked.question
    if asked.prompt_file is None:
        document = (ASSETS / "sample.txt").read_text("utf-8")
        question = question or json.loads((ASSETS / "sample.json").read_text("utf-8"))["question"]
    else:
        document = asked.prompt_file.read_text("utf-8")
    if not question:
        parser.error("say what to ask about the text with --question")
    target, drafter = open_gguf(asked.target), open_gguf(asked.drafter)
    found = speculative_prefill(target, drafter, document, question, asked.keep_ratio, asked.max_new_tokens)
    print(kept_text(found))
    print(f"\nKept    {int(found.kept.sum()):,} of {len(found.kept):,} tokens")
    print("Seconds " + ", ".join(f"{name} {value:.2f}" for name, value in found.seconds.items()))
    print(f"Answer  {found.text}")


if __name__ == "__main__":
    main()
