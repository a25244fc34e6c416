"""A plain prefix cache: at every turn the target reads what is new behind the longest prefix that it holds already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from sp.arrays import Floats, Ints
from sp.chat import split_reply
from sp.decode.greedy import gather, generate
from sp.evals.metrics import Caught, Evidence
from sp.evals.run import Reading, Row, named, with_thinking
from sp.evals.turns.session import Session
from sp.models import prefill
from sp.models.cache.checkpoint import Checkpoint
from sp.prompt import TokenisedPrompt
from sp.session import Answer, Pipeline, RunOptions
from sp.session.cache_pool import CachePool
from sp.session.decide import check_context
from sp.trace import Trace


def with_prefix_cache(session: Session, options: RunOptions) -> Iterator[Row]:
    """Rows of full prefills, each of which goes on from the one before; ``cached_tokens`` says how much it found.

    The prompts stay in the cache, the answers do not: those of the transcript may be others.
    """
    pipeline, thinking = session.pipeline, session.thinking
    target, asked = pipeline.target, [with_thinking(one, thinking) for one in session.examples]
    longest = max(asked, key=lambda one: sum(len(turn.content) for turn in one.turns) + len(one.document))
    size = len(pipeline.tokenise(longest.prompt(target.template, thinking, target.tokenizer)))
    held = HeldPrompt(pipeline, size + max(one.max_new_tokens for one in asked), options)
    try:
        for example in asked:
            trace = Trace()
            with named(example), trace.stage("tokenise") as stage:
                prompt = pipeline.tokenise(example.prompt(target.template, thinking, target.tokenizer))
                stage.tokens = len(prompt)
            with named(example):
                check_context(target, len(prompt), example.max_new_tokens)
            reading = Reading(pipeline, example, prompt, Evidence.of(prompt, example.answers), trace)
            answer, cached = held.answer(prompt, example.max_new_tokens, trace)
            everything = Caught(1.0, True, None, None) if reading.evidence.needles else None
            row = reading.row(-1, options) | reading.results(answer, len(prompt), 0, everything, None)
            yield row | {
                "cached_tokens": cached,
                "new_tokens": len(prompt) - cached,
                "read_tokens": len(prompt) - cached,
            }
            session.progress(1)
    finally:
        held.end()


class HeldPrompt:
    """A target's cache with the prompt it has read last.

    Parameters
    ----------
    pipeline : Pipeline
    tokens : int
        Of the longest prompt and its answer.
    options : RunOptions
        Say how keys and values are stored.
    """

    def __init__(self, pipeline: Pipeline, tokens: int, options: RunOptions) -> None:
        self.target, self.residency = pipeline.target, pipeline.residency
        self.pooled = CachePool(keep=False).take(self.target.model, tokens, options.kv, options.rotate)
        self.ids: Ints = np.zeros(0, np.int64)

    def answer(self, prompt: TokenisedPrompt, most: int, trace: Trace) -> tuple[Answer, int]:
        """Read what of a prompt is new and answer greedily in at most `most` tokens; and how many were not new."""
        model, cache, tokenizer = self.target.model, self.pooled.cache, self.target.tokenizer
        known, begun = self.keep(prompt.ids), False

        def read() -> Floats:
            nonlocal known, begun
            if begun:  # and memory ran out on the way
                cache.reset()
                known = 0
            begun = True
            return prefill(model, prompt.ids[known:], np.arange(known, len(prompt), dtype=np.int64), cache)

        with ExitStack() as stack:
            with trace.stage("target prefill", len(prompt) - known):
                logits = self.residency.attempt(stack, "target", len(prompt) - known, read)
            self.ids, ttft = np.asarray(prompt.ids), trace.seconds
            before = Checkpoint.of(cache)
            with trace.stage("decode") as stage:
                stream = generate(model, logits, len(prompt), cache, limit=most, decoder=self.pooled.greedy())
                tokens = gather(stream, tokenizer.eos_ids)
                stage.tokens = len(tokens)
            before.restore(cache)
        said = split_reply(tokenizer.decode(tokens), prompt.prompt.thinks)
        return Answer(said.content, tuple(tokens), ttft, trace, reasoning=said.reasoning), known

    def keep(self, ids: Ints) -> int:
        """Forget all but the longest prefix of these tokens, and leave at least one of them to be read; its length.

        Recurrent states cannot be cut back: there it is all that was read, or nothing.
        """
        cache, most = self.pooled.cache, min(len(self.ids), len(ids))
        differ = np.flatnonzero(self.ids[:most] != ids[:most])
        common = min(int(differ[0]) if len(differ) else most, max(len(ids) - 1, 0))
        if common < len(self.ids):
            if cache.config.delta_layers or not common:
                cache.reset()
                common = 0
            else:
                Checkpoint(common, {}).restore(cache)
        self.ids = self.ids[:common]
        return common

    def end(self) -> None:
        """Let go of everything."""
        self.pooled.end()
