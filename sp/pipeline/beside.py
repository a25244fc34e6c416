"""Tokenising on a thread of its own, beside the drafter's work on the device or the other vocabulary's."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from sp.prompt import Prompt, TokenisedPrompt
from sp.trace import Trace

Waiting = Future[tuple[TokenisedPrompt, float]]


def timed(work: Callable[[Prompt], TokenisedPrompt], prompt: Prompt) -> tuple[TokenisedPrompt, float]:
    """What work on a prompt gives, and the seconds it took."""
    start = time.perf_counter()
    done = work(prompt)
    return done, time.perf_counter() - start


def awaited(waiting: Waiting, trace: Trace, name: str = "tokenise") -> TokenisedPrompt:
    """What `timed` work gives, waited for as the stage `name`; what it took before that is told as beside."""
    with trace.stage(name) as stage:
        tokenised, took = waiting.result()
    stage.tokens, stage.beside = len(tokenised), max(0.0, took - stage.seconds)
    return tokenised
