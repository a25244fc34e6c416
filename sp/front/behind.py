"""A pipeline whose target is another server's model: tokens are selected here, and the server answers their text."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import httpx

from sp.arrays import Bools
from sp.errors import ConfigError, PromptError, plain
from sp.front.upstream import CONNECT_SECONDS
from sp.prompt import TokenisedPrompt
from sp.selection import Selection
from sp.session.compress import SelectionDetails, rejoin
from sp.session.options import RunOptions
from sp.session.pipeline import Pipeline
from sp.session.result import Answer, OnToken
from sp.trace import Reporter, Trace, silent

SECONDS = 3600.0  # most seconds between two pieces of an answer


@dataclass(frozen=True, repr=False)
class BehindPipeline(Pipeline):
    """A pipeline whose target is a server's model.

    Lengths and shares are counted in the drafter's vocabulary, and prompts have no chat markup: the server writes its
    own around the one message of the user.

    Parameters
    ----------
    upstream : str
        Address, as `sp.front.upstream.upstream_of` returns it.
    """

    upstream: str = ""

    @classmethod
    def before(cls, pipeline: Pipeline, upstream: str) -> Self:
        """Replace the target of a pipeline by a server's model."""
        assert pipeline.drafter is not None
        values = {field.name: getattr(pipeline, field.name) for field in fields(Pipeline) if field.init}
        return cls(**values | {"target": replace(pipeline.drafter, template=None)}, upstream=upstream)

    def read(
        self,
        tokenised: TokenisedPrompt,
        selected: Bools | Selection,
        options: RunOptions,
        trace: Trace | None = None,
        reporter: Reporter = silent,
        label: str = "upstream",
        on_token: OnToken | None = None,
    ) -> Answer:
        """Let the server answer the selected text. PromptError: it refused; ConfigError: it cannot be reached."""
        mask, parts = (selected.selected, selected.byte_ranges) if isinstance(selected, Selection) else (selected, {})
        details = SelectionDetails(parts, options.mark_omitted, options.selector.whole)
        trace = Trace() if trace is None else trace
        # The server tokenises with its own vocabulary, so it gets text, not tokens.
        with trace.stage("compress", int(mask.sum())):
            prompt_text = tokenised.prompt.text if mask.all() else rejoin(tokenised, mask, details).text
        start, first, text = time.perf_counter(), 0.0, ""
        with trace.stage("upstream", int(mask.sum())):
            for piece in pieces(self.upstream, prompt_text, options.max_new_tokens):
                first = first or time.perf_counter() - start
                text += piece
        return Answer(text, (), trace.seconds - (time.perf_counter() - start) + first, trace)


def pieces(upstream: str, text: str, most: int) -> Iterator[str]:
    """Yield the pieces of a server's greedy answer to a user message as they arrive; at most `most` tokens."""
    body = {
        "model": model_of(upstream), "messages": [{"role": "user", "content": text}],
        "max_tokens": most, "temperature": 0, "stream": True,
    }  # fmt: skip
    url = f"{upstream}/v1/chat/completions"
    try:
        with httpx.stream(
            "POST", url, json=body, timeout=httpx.Timeout(SECONDS, connect=CONNECT_SECONDS), trust_env=False
        ) as reply:
            if reply.status_code != 200:
                raise PromptError(f"{upstream} refused with status {reply.status_code}: {_reason(reply.read())}")
            for line in reply.iter_lines():
                if line.startswith("data:") and line[5:].strip() != "[DONE]":
                    yield _piece_of(line[5:])
    except httpx.HTTPError as error:
        raise ConfigError(_unreachable(upstream, error)) from None


def model_of(upstream: str) -> str:
    """Return the name of the first model that a server lists; ConfigError if it cannot be reached."""
    try:
        models = httpx.get(
            f"{upstream}/v1/models", timeout=httpx.Timeout(30.0, connect=CONNECT_SECONDS), trust_env=False
        ).json()
        return str(models["data"][0]["id"])
    except httpx.HTTPError as error:
        raise ConfigError(
            f"{upstream} cannot be reached ({type(error).__name__}); start it, or see --upstream"
        ) from None
    except (ValueError, LookupError, TypeError):
        return "default"


def _unreachable(upstream: str, error: httpx.HTTPError) -> str:
    return f"{upstream} cannot be reached ({type(error).__name__}); start it, or see --upstream"


def _piece_of(line: str) -> str:
    try:
        choices = json.loads(line).get("choices") or [{}]
        return choices[0].get("delta", {}).get("content") or ""
    except (ValueError, AttributeError, LookupError):
        return ""


def _reason(raw: bytes) -> str:
    try:
        body: Any = json.loads(raw)
    except ValueError:
        return plain(raw.decode(errors="replace"), 200)
    error = body.get("error") if isinstance(body, Mapping) else None
    return plain(str(error.get("message") if isinstance(error, Mapping) else error or body), 200)
