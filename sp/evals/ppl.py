"""What a selection costs a language model: perplexity of the text that follows a compressed prompt, and how far the
predictions move from those after the full prompt.

The continuation is the text's own, token by token, at the positions it has behind the whole prompt.
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
from sp.session.compress import Cut, compress
from sp.session.decision import check_context

ROOM = 256

RESULTS = ("nll", "perplexity", "kl", "agreement", "kept_tokens", "realised_keep")


@dataclass(frozen=True)
class Passage:
    """A text and what follows it. `context`, `continuation`: they meet in front of white space; `tokens`: length of the
    context that was asked for."""

    id: str
    context: str
    continuation: str
    tokens: int


def passages(text: str, tokens: int, continuation: int, amount: int, tokenizer: Tokenizer) -> list[Passage]:
    """Windows of `tokens` and `continuation` tokens, spread evenly over a text. PromptError if the text is shorter than
    one window."""
    encoding = tokenizer.encode(text)
    raw, size = text.encode(), tokens + continuation
    if len(encoding) < size:
        raise PromptError(f"the text has {len(encoding)} tokens, but a passage takes {size}; give a longer text")
    starts = np.append(encoding.spans[:, 0], len(raw))
    edges = np.isin(np.frombuffer(raw + b" ", np.uint8)[starts], list(b" \n\t\r"))
    edges[0] = True
    places = np.flatnonzero(edges)

    def cut(token: int) -> int:
        """Byte of the last white space at or before a token."""
        return int(starts[places[np.searchsorted(places, token, side="right") - 1]])

    found = []
    for number, first in enumerate(np.linspace(0, len(encoding) - size, amount).astype(int).tolist()):
        begin, middle, end = cut(first), cut(first + tokens), cut(first + size)
        pieces = raw[begin:middle].decode().lstrip(), raw[middle:end].decode()
        found.append(Passage(f"ppl-{tokens}-{number}", *pieces, tokens))
    return found


def generated_text(tokens: int, count: Count, seed: int = 0) -> str:
    """Prose of a little more than so many tokens, where no text is given."""
    rng = random.Random(f"ppl {seed}")
    return haystack(filler("grammar", rng), (), (), tokens + ROOM, count, rng).text


def perplexity(
    pipeline: Pipeline,
    texts: Iterable[Passage],
    cells: Sequence[RunOptions],
    *,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Row]:
    """Compare every cell with the full prefill of the same passage. Yields columns as those of `evaluate`; `status` is
    ``no_needle`` for scorer oracle, which has nothing to know here. ``nll`` (mean over the continuation, in nats),
    ``perplexity`` (its exponential), ``kl`` (mean Kullback-Leibler divergence of the predictions from those of the full
    prefill, in nats), ``agreement`` (share of tokens with the same likeliest prediction), ``continuation_tokens``."""
    report = progress or (lambda done: None)
    order = sorted(range(len(cells)), key=lambda i: scoring_of(cells[i]))
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
        yield head | cell_columns(-1, first) | {"status": "ok"} | _results(full, full, ids, len(prompt), len(prompt))
        report(1)
        scored: Scored | None = None
        scoring = ""
        for index in order:
            options = seeded(cells[index], text.id)
            if scoring != scoring_of(options):
                scoring, scored = scoring_of(options), None
            row = head | cell_columns(index, cells[index])
            if isinstance(options.scorer, OracleScorer):
                yield row | {"status": "no_needle"} | dict.fromkeys(RESULTS)
            else:
                scored = scored or pipeline.score(prompt, options)
                _, selection = pipeline.select(scored, prompt, options)
                found = log_probabilities(pipeline, prompt, selection, ids, options)
                kept = int(selection.selected.sum())
                yield row | {"status": "ok"} | _results(found, full, ids, kept, len(prompt))
            report(1)


def log_probabilities(
    pipeline: Pipeline, prompt: TokenisedPrompt, kept: Bools | Selection, ids: Ints, options: RunOptions
) -> Floats:
    """Log-probabilities (m, vocab) of each token of the continuation `ids` (m,), given those before it."""
    kept, read = (kept.selected, kept.byte_ranges) if isinstance(kept, Selection) else (kept, {})
    target, whole = pipeline.target, bool(kept.all())
    given = compress(
        prompt, kept, target.tokenizer,
        "original" if whole else options.positions, "byte_span" if whole else options.mapping,
        Cut(read, options.mark_omitted, options.selector.whole),
    )  # fmt: skip
    cache = target.model.new_cache(len(given.ids) + len(ids), options.kv, rotate=options.rotate)
    logits = prefill(target.model, given.ids, given.positions, cache)
    rows = [_log_softmax(logits)]
    for number, token in enumerate(ids[:-1].tolist()):
        rows.append(_log_softmax(decode_step(target.model, token, given.next_position + number, cache)))
    return np.stack(rows)


def _log_softmax(logits: Floats) -> Floats:
    values: Any = logits
    host = np.asarray(values.get() if is_device(values) else values, np.float64)
    shifted = host - host.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), np.float32)


def _results(found: Floats, full: Floats, ids: Ints, kept: int, tokens: int) -> Row:
    """Measures of predictions (m, vocab) against those of the full prefill."""
    nll = -float(found[np.arange(len(ids)), ids].mean())
    kl = float((np.exp(full) * (full - found)).sum(axis=1).mean())
    agreement = float((found.argmax(axis=1) == full.argmax(axis=1)).mean())
    return dict(zip(RESULTS, (nll, float(np.exp(nll)), max(kl, 0.0), agreement, kept, kept / tokens), strict=True))
