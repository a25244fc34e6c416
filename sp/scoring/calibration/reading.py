"""How hard every head of a drafter looks at a hidden needle when its question is asked, with and without rotation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.arrays import Floats, Ints
from sp.errors import ConfigError
from sp.gguf import ChatTemplate, Tokenizer
from sp.models import Model, Trail
from sp.ops.array_module import array_module, on_host
from sp.ops.attention.attention_rows import attention_rows
from sp.ops.attention.paged_kv import PagedKV
from sp.prompt import Prompt, TokenisedPrompt
from sp.scoring.attention.calibrated import up_to_question
from sp.scoring.attention.tail import TailScorer
from sp.scoring.base import HEATMAP_CHUNK, KeptKeys, ScoreRequest
from sp.scoring.calibration.phrasings import PHRASINGS
from sp.scoring.calibration.texts import Text, make_text

HALVES = (("prose", "json"), ("code", "log"))
"""Kinds of text that hide the first and the second half of the phrasings."""
ROTATIONS = ("none", "post")
PART = 0.5
"""Share of what the fullest chunk holds of a needle that another one must hold to stand for it as well."""


@dataclass(frozen=True)
class Sample:
    """What one question showed.

    Parameters
    ----------
    kind : str
        Of the text.
    half : int
        Of the phrasings and kinds, 0 or 1.
    chunks : tuple of int
        Those that hold a good part of the needle, among whole chunks before the question.
    weights : float32 (rotations, attention layers, heads, chunks, HEATMAP_CHUNK)
        Largest weight that a query of the question gave each token, un-rotated and rotated.
    """

    kind: str
    half: int
    chunks: tuple[int, ...]
    weights: Floats

    def rank(self, scores: Floats) -> Any:
        """Chunks with more than the needle's score, of scores (..., chunks); the first, with the sink, is none."""
        best = scores[..., list(self.chunks)].max(axis=-1, keepdims=True)
        return (scores[..., 1:] > best).sum(axis=-1)


def samples(
    model: Model,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    *,
    texts: int = 1,
    tokens: int = 1536,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Sample]:
    """Let a drafter read generated texts, each once, and ask it for every needle of them.

    `model`, `tokenizer`, `template`: the drafter, with all its layers; `progress`: called with 1 after every question;
    there are `questions` of them; ConfigError: the drafter reads fewer tokens, or this Python lacks the texts.
    """
    if model.config.context < 2 * tokens:
        raise ConfigError(f"a calibration reads texts of {tokens} tokens, and the drafter has room for half of that")

    def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    for half, kinds in enumerate(HALVES):
        phrasings = PHRASINGS[half * len(PHRASINGS) // 2 :][: len(PHRASINGS) // 2]
        for kind in kinds:
            for number in range(texts):
                text = make_text(kind, phrasings, tokens, count, random.Random(f"{seed} {kind} {number}"))
                for sample in read_text(model, tokenizer, template, text, half):
                    yield sample
                    if progress is not None:
                        progress(1)


def questions(texts: int) -> int:
    """Samples that so many texts of each kind give.

    >>> questions(2)
    64
    """
    return texts * sum(len(kinds) for kinds in HALVES) * len(PHRASINGS) // 2


def read_text(
    model: Model, tokenizer: Tokenizer, template: ChatTemplate | None, text: Text, half: int
) -> Iterator[Sample]:
    """One sample for each needle of a text, whose keys are kept from one question to the next."""
    layers = TailScorer().kept_layers(model.config)
    assert layers is not None, "a scorer of attention keeps keys"
    trail, before = Trail(layers, device=model.device, math=model.arithmetic.attention), np.empty(0, np.int64)
    for needle, question in text.needles:
        prompt = Prompt.from_document(text.document, question, template, needle=needle).tokenise(tokenizer)
        same = shared_start(before, prompt.ids)
        trail.back_to(min(same, trail.tokens))
        before = prompt.ids
        start = int(prompt.mask("question").argmax())
        keys = KeptKeys(trail, (start - 1,))  # behind it recurrent layers can go on
        yield Sample(text.kind, half, *look(model, prompt, keys))


def look(model: Model, prompt: TokenisedPrompt, keys: KeptKeys) -> tuple[tuple[int, ...], Floats]:
    """The needle's chunks, and the weights of a `Sample`."""
    nothing = np.zeros(len(prompt), bool)
    positions = np.arange(len(prompt), dtype=np.int64)
    request = up_to_question(
        ScoreRequest(model, prompt.ids, positions, prompt.mask("question"), nothing, keys=keys, asked=prompt.asked)
    )
    chunks = int(prompt.mask("question").argmax()) // HEATMAP_CHUNK
    whole = chunks * HEATMAP_CHUNK
    rotated, bare = TailScorer(queries="question"), TailScorer(queries="question", rotary="none")
    columns: dict[str, list[Any]] = {rotation: [] for rotation in ROTATIONS}

    def take(layer: int, q: Floats, at: PagedKV) -> None:
        columns["post"].append(attention_rows(q, at).max(axis=1)[:, :whole].copy())
        at = bare.keys(at, request.positions, model)
        q = bare.rows(q, request.positions[-len(q) :], model)
        columns["none"].append(attention_rows(q, at).max(axis=1)[:, :whole].copy())

    rotated.read(request, take)
    xp = array_module(columns["post"][0])
    weights: Floats = on_host(xp.stack([xp.stack(columns[rotation]) for rotation in ROTATIONS]))
    held = np.bincount(np.flatnonzero(prompt.mask("needle")[:whole]) // HEATMAP_CHUNK, minlength=chunks)
    chunks_held = tuple(np.flatnonzero(held >= PART * held.max()).tolist())
    return chunks_held, weights.reshape(*weights.shape[:-1], chunks, HEATMAP_CHUNK)


def shared_start(one: Ints, other: Ints) -> int:
    """Tokens that two prompts begin with alike.

    >>> shared_start(np.array([1, 2, 3]), np.array([1, 2, 4, 5]))
    2
    """
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size
