"""Small pairs and chats for tests of conversations, and what must hold after every turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import sp.session.answer
from sp.arrays import Floats
from sp.models import DeltaConfig, prefill
from sp.models.synthetic.shapes import ModelShape, find_shape
from sp.models.synthetic.synthetic import synthetic_metadata, write_random
from sp.ops.rope import Rope
from sp.prompt import TokenisedPrompt
from sp.scoring import SCORERS
from sp.session import Conversation, Loaded, Pipeline, RunOptions, TurnResult, load
from sp.session.compress import selection_request
from sp.session.decision import fixed

ARCHS = ("qwen3", "qwen35")
WINDOW = 16  # positions that the first layer of a small gemma3 sees
WORDS = [a + b for a in ("ra", "mo", "ti", "sel", "do", "ke") for b in ("n", "lo", "sta", "vi", "p", "ru", "x")]


def small(arch: str, text_tokens: int) -> ModelShape:
    """A model of two layers, of which the first of a hybrid is recurrent."""
    config = find_shape(f"tiny-{arch}").config
    kinds = ("attention", "attention") if config.delta is None else ("delta", "attention")
    sizes = {"hidden": 64, "vocab": 640, "ffn": (64, 64), "kinds": kinds, "heads": 2, "kv_heads": 1, "head_dim": 64}
    sizes |= (
        {"rope": Rope(1e6, 64)} if config.delta is None else {"rope": Rope(1e6, 32), "delta": DeltaConfig(1, 2, 128, 4)}
    )
    if config.windows:  # shorter than a turn
        sizes |= {"windows": (WINDOW, None), "local_rope": Rope(1e4, 64)}
    return ModelShape("small", replace(config, **sizes), tied=config.delta is None, text_tokens=text_tokens)


@cache
def folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory()


@cache
def loaded(arch: str, text_tokens: int) -> Loaded:
    """Random weights."""
    shape, path = small(arch, text_tokens), Path(folder().name) / f"{arch}-{text_tokens}.gguf"
    write_random(path, synthetic_metadata(shape, "q8_0"), shape.plan("q8_0"), text_tokens, fixed=shape.fixed_tensors())
    return load(path, device="cpu")


@cache
def pair(target: str = "qwen3", drafter: str = "qwen3") -> Pipeline:
    """Random weights, two vocabularies."""
    return Pipeline(loaded(target, 600), loaded(drafter, 500))


def options(keep_ratio: float = 0.3, **changes: object) -> RunOptions:
    """Exact pages, short answers, compression whatever it costs."""
    given = {"compress": "always", "kv": "f32", "max_new_tokens": 4, "scorer": SCORERS.build("tail")} | changes
    return RunOptions(keep_ratio=keep_ratio, **given)


def text(rng: np.random.Generator, words: int) -> str:
    return " ".join(rng.choice(WORDS, words))


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@contextmanager
def first_logits() -> Iterator[list[Floats]]:
    """The logits every answer begins with, in order."""
    seen: list[Floats] = []
    module = sp.session.answer
    generate = module.generate

    def spy(model, logits, *rest, **how):
        seen.append(np.array(logits))
        return generate(model, logits, *rest, **how)

    module.generate = spy
    try:
        yield seen
    finally:
        module.generate = generate


def chosen(scores, prompt: TokenisedPrompt, start: int, run: RunOptions):
    """Which tokens from `start` on a turn keeps by scores, (n - start,)."""
    wanted = selection_request(scores, fixed(prompt, start), run.keep_ratio, prompt, start, 32)
    return run.selector(wanted).selected | wanted.protected


def nmse(got: Floats, want: Floats) -> float:
    return float(((got - want) ** 2).sum() / (want**2).sum())


def replayed(talk: Conversation, result: TurnResult) -> Floats:
    """Logits of one prefill of all that stood in the cache when the turn answered."""
    model, held = talk.pipeline.target.model, result.usage.held
    slots, options = talk.slots.first(held), talk.options
    cache = model.new_cache(held, options.kv)
    return prefill(model, slots.ids, slots.positions, cache, gaps=options.state_gaps)


def check(talk: Conversation, result: TurnResult) -> None:
    """Nothing wrong in the cache, nothing lost of the prompt."""
    n, slots, usage = len(result.prompt), talk.slots, result.usage
    np.testing.assert_array_equal(talk.transcript[:n], result.prompt.ids)
    there = slots.source >= 0
    np.testing.assert_array_equal(slots.ids[there], talk.transcript[slots.source[there]])
    assert (np.diff(slots.place) >= 0).all()
    assert (np.diff(slots.positions) > 0).all()
    once = np.bincount(slots.source[there], minlength=len(talk.transcript))
    assert once.max() == 1, "a token stands twice"
    assert result.present[-1]
    protected = result.prompt.mask("protected")
    assert result.present[usage.cached :][protected[usage.cached :]].all()
    assert usage.new + usage.cached == usage.prompt == n
    assert usage.held >= int(result.present.sum())
    assert talk._memory.target.cache.tokens == len(slots)
