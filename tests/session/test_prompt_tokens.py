"""Tokens of which only the end is encoded anew are those of the whole text."""

from __future__ import annotations

import numpy as np
import pytest
from talks import loaded, said

from sp.gguf import Tokenizer
from sp.models.synthetic.synthetic_vocab import tokenizer_metadata
from sp.prompt import Prompt, Span
from sp.prompt.prompt import prompt_of
from sp.session.tokenise import CachingTokeniser

PIECES = [
    "mora ",
    "12 ",
    "\n",
    "é",
    "語 ",
    "<|im_end|>",
    "<|im_start|>user\n",
    "  ",
    "x",
    "</s>",
    "<s>",
    "<|eot_id|>",
    "long " * 60,
]


def vocabulary(pre: str) -> Tokenizer:
    return Tokenizer.from_metadata(tokenizer_metadata(pre, 600, 640))


def random_prompt(rng: np.random.Generator, before: Prompt | None) -> Prompt:
    """Often one that begins like the one before."""
    size = len(before.text) if before else 0
    start = before.text[: int(rng.integers(size // 2, size + 1))] if before and rng.random() < 0.9 else ""
    text = start + "".join(rng.choice(PIECES, int(rng.integers(1, 12))))
    edges = np.unique(rng.integers(0, len(text) + 1, 2 * int(rng.integers(0, 4))))
    fresh = [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=False) if low >= len(start)]
    old = [(s.start, s.end) for s in before.spans] if before and rng.random() < 0.9 else []
    in_bytes = [tuple(len(text[:edge].encode()) for edge in part) for part in fresh]
    limit = len(start.encode())
    spans = [part for part in old if part[1] <= limit] + in_bytes
    return Prompt(text, tuple(Span("plain", low, high) for low, high in spans if low < high))


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "llama"])
@pytest.mark.parametrize("most", [1, 3])
def test_tokens_are_those_of_the_whole_text(pre: str, most: int) -> None:
    tokenizer, rng, before = vocabulary(pre), np.random.default_rng(4), None
    tokens, reused = CachingTokeniser(tokenizer, most), 0
    encode, whole = tokenizer.encode, tokenizer.encode
    for _ in range(150):
        prompt = random_prompt(rng, before)
        sizes: list[int] = []
        tokenizer.encode = lambda text, *rest, sizes=sizes, **how: (
            sizes.append(len(text)),
            encode(text, *rest, **how),
        )[1]
        got = tokens(prompt)
        tokenizer.encode = whole
        want = prompt.tokenise(tokenizer)
        np.testing.assert_array_equal(got.ids, want.ids)
        np.testing.assert_array_equal(got.bytes, want.bytes)
        reused += sum(sizes) < len(prompt.text)
        before = prompt
    assert reused > 25


def test_a_turn_encodes_only_what_is_new() -> None:
    target = loaded("qwen3", 600)
    tokens, history = CachingTokeniser(target.tokenizer), [said("user", "mora " * 400)]
    tokens(prompt_of(history, target))
    seen: list[int] = []
    encode = tokens.tokenizer.encode
    try:
        tokens.tokenizer.encode = lambda text, *rest, **how: (seen.append(len(text)), encode(text, *rest, **how))[1]
        history += [said("assistant", "ok " * 100), said("user", "why?")]
        tokens(prompt_of(history, target))
        history += [said("assistant", "ok"), said("user", "so?")]
        tokens(prompt_of(history, target))
        tokens(prompt_of(history, target))
    finally:
        del tokens.tokenizer.encode
    assert seen[0] > 2000  # the first message's end was too near to where the texts part
    assert len(seen) == 2
    assert seen[1] < 600
