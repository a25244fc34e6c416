"""The stages of a run as plain functions; each takes what it needs and returns what it made."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.decode import Speculative
from sp.decode.greedy import gather, generate
from sp.decode.speculate import speculate
from sp.errors import ConfigError, PromptError
from sp.gguf import Tokenizer
from sp.models import prefill, prefill_sparse
from sp.models.drafts.dflash import Draft
from sp.models.passes.tree import LayerFeatures
from sp.pipeline.load import Loaded
from sp.pipeline.options import Mapping, Positions, RunOptions
from sp.pipeline.slots import Slot, Slots
from sp.prompt import Prompt, Span, TokenisedPrompt, merge_spans, transfer_scores
from sp.scoring import Importance, ScoreRequest
from sp.selection import Selection, SelectionRequest

Progress = Callable[[int], None]
OnToken = Callable[[int], bool | None]


@dataclass(frozen=True)
class Compressed:
    """What the target reads: ids and positions (m,), and the position of the first generated token."""

    ids: Ints
    positions: Ints
    next_position: int


@dataclass(frozen=True)
class Begun:
    """An answer whose first token is known; `rest` computes the others as it is asked for them.

    `densities` are the shares of the causal blocks that sparse attention layers read; empty where attention was dense.
    `passes` fills with the tokens that each pass of the target gives, where a draft guesses; once `tokens` is closed,
    those that were taken from it are left.
    """

    first: int
    rest: Generator[int]
    densities: tuple[float, ...] = ()
    passes: list[int] = field(default_factory=list)

    def tokens(self) -> Generator[int]:
        """All tokens, the first one first; closes `rest` when closed."""
        taken = 0  # after the first
        try:
            with closing(self.rest):
                yield self.first
                for token in self.rest:
                    taken += 1
                    yield token
        finally:
            self.passes[:] = cut(self.passes, taken)


def cut(passes: Sequence[int], tokens: int) -> list[int]:
    """Tokens of each pass, up to so many in all: the last one cut, those after it left out.

    Examples
    --------
    >>> cut([3, 4, 2], 5)
    [3, 2]
    """
    found: list[int] = []
    for length in passes:
        if tokens <= 0:
            break
        found.append(min(length, tokens))
        tokens -= length
    return found


def check_context(loaded: Loaded, tokens: int, new_tokens: int) -> None:
    """PromptError if the prompt and the answer do not fit the target's context."""
    context = loaded.model.config.context
    if tokens + new_tokens > context:
        raise PromptError(
            f"the prompt has {tokens} tokens and the answer up to {new_tokens}, but {loaded.path.name} has a "
            f"context of {context}; shorten the prompt or lower --max-new-tokens"
        )


def check_draft(options: RunOptions, draft: Draft | None) -> None:
    """ConfigError if the options' way of decoding needs a draft and there is none."""
    if draft is None and isinstance(options.decode, Speculative):
        raise ConfigError("guessing ahead needs the target's draft; name its file with --draft, or in with_draft")


def score(
    drafter: Loaded,
    prompt: TokenisedPrompt,
    options: RunOptions,
    progress: Progress | None,
    by_head: bool = False,
) -> Importance:
    """Importance of each token of the prompt in the drafter's vocabulary; with `by_head` also that of every head."""
    request = ScoreRequest(
        model=drafter.model,
        ids=prompt.ids,
        positions=np.arange(len(prompt), dtype=np.int64),
        question=prompt.mask("question"),
        needle=prompt.mask("needle"),
        eos_ids=drafter.tokenizer.eos_ids,
        seed=options.seed,
        progress=progress,
        by_head=by_head,
    )
    return options.scorer.score(request)


def select(
    importance: Importance, drafted: TokenisedPrompt, prompt: TokenisedPrompt, options: RunOptions
) -> tuple[Floats, Selection]:
    """Scores carried to the target's tokens, and the target tokens to keep."""
    scores = transfer_scores(importance.scores, drafted.bytes, prompt.bytes)
    request = SelectionRequest(
        scores, prompt.mask("protected"), options.keep_ratio, prompt.prompt.text.encode(), prompt.bytes
    )
    return scores, options.selector.select(request)


def compress(
    prompt: TokenisedPrompt, kept: Bools, tokenizer: Tokenizer, positions: Positions, mapping: Mapping
) -> Compressed:
    """The kept tokens and where they stand."""
    if mapping == "text_rejoin":
        ids = rejoin(prompt, kept).tokenise(tokenizer).ids
        return Compressed(ids, np.arange(len(ids)), len(ids))
    index = kept.nonzero()[0]
    if positions == "original":
        return Compressed(prompt.ids[index], index, len(prompt))
    return Compressed(prompt.ids[index], np.arange(len(index)), len(index))


def rejoin(prompt: TokenisedPrompt, kept: Bools) -> Prompt:
    """Kept text joined in order, each piece first widened to whitespace so that no word is cut.

    What was plain stays so: text that spells a special token, or comes to spell one where pieces meet, stays text.
    """
    raw = prompt.prompt.text.encode()
    pieces = [widen(raw, int(start), int(end)) for start, end in merge_spans(prompt.bytes[kept])]
    merged = merge_spans(np.array(pieces, np.int64))
    plain, at = [], 0
    for start, end in merged.tolist():
        parts = [(max(s.start, start), min(s.end, end)) for s in prompt.prompt.spans if s.kind == "plain"]
        plain += [(at + low - start, at + high - start) for low, high in parts if low < high]
        at += end - start
    spans = (Span("plain", low, high) for low, high in merge_spans(np.array(plain, np.int64)).tolist())
    return Prompt(b"".join(raw[start:end] for start, end in merged).decode(), tuple(spans))


def widen(raw: bytes, start: int, end: int, reach: int = 64) -> tuple[int, int]:
    """Move both ends outward to the nearest whitespace, by at most `reach` bytes and never into a character."""
    spaces = b" \n\t\r"
    low, high = max(0, start - reach), min(len(raw), end + reach)
    while start > low and raw[start - 1] not in spaces:
        start -= 1
    while end < high and raw[end] not in spaces:
        end += 1
    while start > 0 and raw[start] & 0xC0 == 0x80:
        start -= 1
    while end < len(raw) and raw[end] & 0xC0 == 0x80:
        end += 1
    return start, end


def begin(
    target: Loaded,
    given: Compressed,
    options: RunOptions,
    progress: Progress | None,
    draft: Draft | None = None,
    slots: Slots | None = None,
) -> Begun:
    """Run the target over the given tokens, up to the first token of the answer.

    Parameters
    ----------
    target, given, options, progress
    draft : Draft, optional
        For the speculative ways of decoding.
    slots : Slots, optional
        Where the answer's cache comes from and goes; by default it is made for this answer.

    Raises
    ------
    ConfigError
        Without the draft that the options' way of decoding needs.
    """
    slots, decoder = slots or Slots(keep=False), options.decode
    tokens = len(given.ids) + options.max_new_tokens
    check_draft(options, draft)
    if draft is not None and isinstance(decoder, Speculative):
        tokens += decoder.nodes(draft.block_size)
    slot = slots.take(target.model, tokens, options.kv, options.rotate)
    try:
        if draft is not None and isinstance(decoder, Speculative):
            begun = _begin_with_draft(target, given, options, decoder, progress, draft, slot)
        else:
            begun = _begin_alone(target, given, options, progress, slot)
    except BaseException:
        slot.end()
        raise
    rest = _lent(slot, slots, begun.rest)
    return replace(begun, first=next(rest), rest=rest)


def _lent(slot: Slot, slots: Slots, stream: Generator[int]) -> Generator[int]:
    """The same stream; the slot it comes from goes back when it has ended or is closed, but not after an error."""
    try:
        with closing(stream):
            yield from stream
    except GeneratorExit:
        slots.give_back(slot)
        raise
    except BaseException:
        slot.end()
        raise
    slots.give_back(slot)


def _begin_alone(
    target: Loaded, given: Compressed, options: RunOptions, progress: Progress | None, slot: Slot
) -> Begun:
    """Read the prompt, for an answer without a draft; `first` is not known yet."""
    what = target.model, given.ids, given.positions, slot.cache
    densities: tuple[float, ...] = ()
    if options.sparse is None:
        logits = prefill(*what, gaps=options.state_gaps, progress=progress)
    else:
        logits, densities = prefill_sparse(*what, options.sparse, progress=progress)
    how = target.model, logits, given.next_position, slot.cache
    return Begun(-1, generate(*how, limit=options.max_new_tokens, decoder=slot.greedy()), densities)


def _begin_with_draft(
    target: Loaded,
    given: Compressed,
    options: RunOptions,
    decoder: Speculative,
    progress: Progress | None,
    draft: Draft,
    slot: Slot,
) -> Begun:
    """The same where a draft reads along: the outputs of some layers, as each part of the prompt passes them."""
    session, read = slot.session(draft), 0

    def take(features: Floats) -> None:
        nonlocal read
        session.remember(features, given.positions[read : read + len(features)])
        read += len(features)

    logits = prefill(
        *(target.model, given.ids, given.positions, slot.cache),
        after=LayerFeatures(draft.layers, take),
        # The last layer is whole only where the draft wants its outputs.
        rows=len(given.ids) if target.model.config.layers - 1 in draft.layers else 1,
        gaps=options.state_gaps,
        progress=progress,
    )
    passes: list[int] = []
    rest = speculate(
        *(target.model, session, decoder, logits, given.next_position, slot.cache),
        limit=options.max_new_tokens,
        seed=options.seed,
        on_pass=passes.append,
        cycle=slot.cycle(decoder),
    )
    return Begun(-1, rest, passes=passes)


def decode(target: Loaded, begun: Begun, on_token: OnToken | None = None) -> list[int]:
    """The answer up to its end; `on_token` as for `greedy`."""
    return gather(begun.tokens(), target.tokenizer.eos_ids, on_token)
