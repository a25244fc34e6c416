"""Tokenising for the target on a thread of its own, beside the drafter's work on the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from sp.prompt import Prompt, TokenisedPrompt
from sp.trace import Trace


def timed(work: Callable[[Prompt], TokenisedPrompt], prompt: Prompt) -> tuple[TokenisedPrompt, float]:
    """What work on a prompt gives, and the seconds it took."""
    start = time.perf_counter()
    done = work(prompt)
    return done, time.perf_counter() - start


def awaited(waiting: Future[tuple[TokenisedPrompt, float]], trace: Trace) -> TokenisedPrompt:
    """What `timed` work gives, waited for as the stage "tokenise"; what it took before that is told as beside."""
    with trace.stage("tokenise") as stage:
        tokenised, took = waiting.result()
    stage.tokens, stage.beside = len(tokenised), max(0.0, took - stage.seconds)
    return tokenised
