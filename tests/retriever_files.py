"""Constructed retrievers as files, prompts for them whose answer is known, and the rule they must follow.

A retriever answers with what followed the last n tokens where they occurred before: `sp.models.synthetic.retriever`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase

import numpy as np
import pytest

from sp.arrays import Ints
from sp.models import Model, decode_step, load_model, prefill
from sp.models.synthetic.retriever import write_retriever

ARCHS = ("qwen3", "qwen35")


@pytest.fixture(scope="session")
def retriever_drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3 architecture, 48-dimensional codes, Q8_0, one token a byte."""
    path = tmp_path_factory.mktemp("retriever") / "drafter.gguf"
    return write_retriever(path, "retriever-qwen3", "q8_0", seed=11, code_dim=48)


@pytest.fixture(scope="session")
def retriever_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """qwen35 hybrid, 64-dimensional codes of its own, Q8_0, another vocabulary than the drafter."""
    path = tmp_path_factory.mktemp("retriever") / "target.gguf"
    return write_retriever(path, "retriever-qwen35", "q8_0", seed=12, code_dim=64)


@pytest.fixture(scope="session")
def retrievers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """One retriever of each architecture, Q8_0."""
    folder = tmp_path_factory.mktemp("retrievers")
    return {
        arch: load_model(write_retriever(folder / f"{arch}.gguf", f"retriever-{arch}", "q8_0", seed=3))
        for arch in ARCHS
    }


@dataclass(frozen=True)
class TokenTask:
    """A prompt in token ids that ends with the key of one of its needles."""

    ids: Ints
    value: list[int]
    start: int  # where the needle (key, then value) begins


def token_task(
    tokens: int, needles: int, seed: int, *, key: int = 3, value: int = 4, vocab: int = 256, hard: bool = True
) -> TokenTask:
    """Needles at random places in random filler; no run of `key` tokens occurs twice, but for the question's.

    With `hard`, all keys share their first or their last token with the key that is asked for.
    """
    rng = np.random.default_rng(seed)
    size = key + value
    while True:
        ids = rng.integers(0, vocab, tokens)
        keys = rng.integers(0, vocab, (needles, key))
        if hard:
            keys[::2, 0], keys[1::2, -1] = keys[0, 0], keys[0, -1]
        places = size * np.sort(rng.choice((tokens - size - key) // size, needles, replace=False))
        for place, words in zip(places, rng.permutation(keys), strict=True):
            ids[place : place + key] = words
        start = int(next(p for p in places if np.array_equal(ids[p : p + key], keys[0])))
        ids[tokens - key :] = keys[0]
        runs = Counter(zip(*(ids[i : tokens - key + i].tolist() for i in range(key)), strict=False))
        answer = [tuple(ids[start + i : start + i + key].tolist()) for i in range(value)]
        if all(runs[run] == 1 for run in answer):
            return TokenTask(ids, ids[start + key : start + size].tolist(), start)


@dataclass(frozen=True)
class TextTask:
    """A document whose needles are lines such as ``QTX83019``, and a question that both retrievers can answer."""

    document: str
    question: str
    needle: str
    answer: str


def text_task(length: int, needles: int = 12, seed: int = 0) -> TextTask:
    """About `length` bytes of lower-case lines, with needles at random lines; the chat template adds the key.

    Runs of three characters inside needles are unique, so that the answer is.
    """
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), rng.integers(2, 8))) for _ in range(300)]
    lines = [" ".join(rng.choice(words, 8)) + "." for _ in range(max(1, round(length / 46) - needles // 5))]
    pairs: list[tuple[str, str]] = []
    seen: set[str] = set()
    while len(pairs) < needles:
        key, value = (
            "".join(rng.choice(list(letters), size)) for letters, size in ((ascii_uppercase, 3), ("0123456789", 5))
        )
        runs = [(key + value)[i : i + 3] for i in range(6)]
        if len(set(runs)) == len(runs) and not seen & set(runs):
            seen |= set(runs)
            pairs.append((key, value))
    for key, value in pairs:
        lines.insert(int(rng.integers(len(lines) + 1)), key + value)
    key, value = pairs[0]
    return TextTask("\n".join(lines) + "\n", f"What is the value of {key.lower()}?", key + value, value)


def expected_next(ids: Sequence[int], ngram: int) -> int | None:
    """What exact induction answers after `ids`: the one token that always followed its last n; else None."""
    last = list(ids[-ngram:])
    after = {ids[i + ngram] for i in range(len(ids) - ngram) if list(ids[i : i + ngram]) == last}
    return after.pop() if len(after) == 1 else None


def answer(model: Model, ids: Ints, tokens: int, *, positions: Ints | None = None, kv: str = "f16") -> list[int]:
    """Prefill, then decode greedily; decoded tokens follow the last position."""
    positions = np.arange(len(ids)) if positions is None else positions
    cache = model.new_cache(len(ids) + tokens, kv)
    logits = prefill(model, ids, positions, cache)
    out = [int(logits.argmax())]
    while len(out) < tokens:
        logits = decode_step(model, out[-1], int(positions[-1]) + len(out), cache)
        out.append(int(logits.argmax()))
    return out
