"""Perplexity of the text that follows a compressed prompt, and divergence from the predictions after the full prompt.

The continuation is that of the text, token by token, at the positions it has after the whole prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.errors import PromptError
from sp.evals.base import Count
from sp.evals.run import Row, cell_columns, scoring_of, seeded
from sp.evals.text.filler import filler, haystack
from sp.gguf import Tokenizer
from sp.kernels import is_device
from sp.models import decode_step, prefill
from sp.prompt import Prompt, TokenisedPrompt
from sp.scoring.controls import OracleScorer
from sp.selection import Selection
from sp.session import Pipeline, RunOptions, Scored
from sp.session.compress import SelectionDetails, compress, positions_for
from sp.session.decision import check_context

ROOM = 256  # tokens by which generated text is longer than requested

RESULTS = ("nll", "perplexity", "kl", "agreement", "kept_tokens", "realised_keep")


@dataclass(frozen=True)
class Passage:
    """A text and its continuation, which begins with white space; `tokens` is the requested length of the context."""

    id: str
    context: str
    continuation: str
    tokens: int


def passages(text: str, tokens: int, continuation: int, amount: int, tokenizer: Tokenizer) -> list[Passage]:
    """Cut windows of `tokens` and `continuation` tokens at equal distances from a text.

    PromptError: the text is shorter than one window.
    """
    encoding = tokenizer.encode(text)
    raw, size = text.encode(), tokens + continuation
    if len(encoding) < size:
        raise PromptError(f"the text has {len(encoding)} tokens, but a passage needs {size}; pass a longer text")
    starts = np.append(encoding.spans[:, 0], len(raw))
    # Windows begin and end at white space, so that context and continuation tokenise as they do in the text.
    edges = np.isin(np.frombuffer(raw + b" ", np.uint8)[starts], list(b" \n\t\r"))
    edges[0] = True
    places = np.flatnonzero(edges)

    def boundary(token: int) -> int:
        """Return the byte of the last white space at or before a token."""
        return int(starts[places[np.searchsorted(places, token, side="right") - 1]])

    texts = []
    for number, first in enumerate(np.linspace(0, len(encoding) - size, amount).astype(int).tolist()):
        begin, middle, end = boundary(first), boundary(first + tokens), boundary(first + size)
        pieces = raw[begin:middle].decode().lstrip(), raw[middle:end].decode()
        texts.append(Passage(f"ppl-{tokens}-{number}", *pieces, tokens))
    return texts


def generated_text(tokens: int, count: Count, seed: int = 0) -> str:
    """Generate prose of a little more than `tokens` tokens."""
    rng = random.Random(f"ppl {seed}")
    return haystack(filler("grammar", rng), (), (), tokens + ROOM, count, rng).text


def perplexity(
    pipeline: Pipeline,
    texts: Iterable[Passage],
    cells: Sequence[RunOptions],
    *,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Row]:
    """Compare every cell with the full prefill of the same passage.

    Yields rows with the columns of `evaluate` that apply; `status` is ``no_needle`` for scorer oracle, which has no
    needle here. Further columns are ``nll`` (mean over the continuation, in nats), ``perplexity`` (its exponential),
    ``kl`` (mean Kullback-Leibler divergence of the predictions from those of the full prefill, in nats), ``agreement``
    (share of tokens with the same likeliest prediction) and ``continuation_tokens``.
    """
    report = progress or (lambda done: None)
    order, config = sorted(range(len(cells)), key=lambda i: scoring_of(cells[i])), pipeline.target.model.config
    for text in texts:
        prompt = pipeline.tokenise(Prompt(text.context))
        ids = pipeline.target.tokenizer.encode(text.continuation, begins=False).ids
        check_context(pipeline.target, len(prompt), len(ids))
        head: Row = {
            "task": "ppl", "example": text.id, "tokens_asked": text.tokens, "prompt_tokens": len(prompt),
            "continuation_tokens": len(ids),
        }  # fmt: skip
        first = cells[0] if cells else RunOptions()
        full = log_probabilities(pipeline, prompt, np.ones(len(prompt), bool), ids, first)
        columns, size = cell_columns(-1, first, config) | {"status": "ok"}, len(prompt)
        yield head | columns | _results(full, full, ids, size, size)
        report(1)
        scored: Scored | None = None
        scoring = ""
        for index in order:
            options = seeded(cells[index], text.id)
            if scoring != scoring_of(options):
                scoring, scored = scoring_of(options), None
            row = head | cell_columns(index, cells[index], config)
            if isinstance(options.scorer, OracleScorer):
                yield row | {"status": "no_needle"} | dict.fromkeys(RESULTS)
            else:
                scored = scored or pipeline.score(prompt, options)
                _, selection = pipeline.select(scored, prompt, options)
                predictions = log_probabilities(pipeline, prompt, selection, ids, options)
                selected = int(selection.selected.sum())
                yield row | {"status": "ok"} | _results(predictions, full, ids, selected, len(prompt))
            report(1)


def log_probabilities(
    pipeline: Pipeline, prompt: TokenisedPrompt, selection: Bools | Selection, ids: Ints, options: RunOptions
) -> Floats:
    """Return the log-probabilities (m, vocab) before each token of the continuation `ids` (m,)."""
    selection, byte_ranges = (
        (selection.selected, selection.byte_ranges) if isinstance(selection, Selection) else (selection, {})
    )
    target, whole = pipeline.target, bool(selection.all())
    compressed = compress(
        prompt, selection, target.tokenizer,
        "original" if whole else positions_for(options, target.model.config),
        "byte_span" if whole else options.mapping,
        SelectionDetails(byte_ranges, options.mark_omitted, options.selector.whole),
    )  # fmt: skip
    cache = target.model.new_cache(len(compressed.ids) + len(ids), options.kv, rotate=options.rotate)
    logits = prefill(target.model, compressed.ids, compressed.positions, cache)
    rows = [_log_softmax(logits)]
    for number, token in enumerate(ids[:-1].tolist()):
        rows.append(_log_softmax(decode_step(target.model, token, compressed.next_position + number, cache)))
    return np.stack(rows)


def _log_softmax(logits: Floats) -> Floats:
    values: Any = logits
    host = np.asarray(values.get() if is_device(values) else values, np.float64)
    shifted = host - host.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), np.float32)


def _results(predictions: Floats, full: Floats, ids: Ints, selected: int, tokens: int) -> Row:
    """Compare predictions (m, vocab) with those of the full prefill."""
    nll = -float(predictions[np.arange(len(ids)), ids].mean())
    kl = float((np.exp(full) * (full - predictions)).sum(axis=1).mean())
    agreement = float((predictions.argmax(axis=1) == full.argmax(axis=1)).mean())
    return dict(
        zip(RESULTS, (nll, float(np.exp(nll)), max(kl, 0.0), agreement, selected, selected / tokens), strict=True)
    )
