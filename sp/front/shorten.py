"""Shorten texts: a drafter scores them for a question, a selector keeps whole units, marks stand for the rest."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sp.arrays import Bools, Floats, Ints
from sp.chat.located import Segment, SegmentKind
from sp.errors import ConfigError, PromptError
from sp.prompt import Prompt, Span, TokenisedPrompt, merge_spans
from sp.prompt.spans import same_start
from sp.scoring.base import SCORERS, ModelFreeScorer, PrefixKeys, by_length
from sp.selection import Selection
from sp.session import request
from sp.session.compress import Omitted, selection_request, widen
from sp.session.loaded import default_drafter, embedded
from sp.session.memory import DrafterMemory, message_ends
from sp.session.options import ConversationOptions, RunOptions, check_run
from sp.session.pipeline import Pipeline
from sp.session.recall import Run, choose_recalled
from sp.trace import Reporter, Trace, silent

GAP = "\n\n"  # between the texts of a transcript
MEMORIES = 4  # transcripts whose keys the drafter keeps
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Text:
    """One text of a transcript.

    Attributes
    ----------
    kind : str
        Whose it is: ``user``, ``assistant``, ``tool``, ``system``.
    text : str
    kept : tuple of (int, int), optional
        Bytes that an earlier request kept of it; None for all of it.
    open : bool
        Whether it may be shortened now.
    """

    kind: SegmentKind
    text: str
    kept: Ranges | None = None
    open: bool = False


@dataclass(frozen=True)
class Short:
    """A text after shortening. `text`: what to send in its place; `kept`: the bytes of the original that stand in it;
    `tokens`, `kept_tokens`: in the drafter's vocabulary.
    """

    text: str
    kept: Ranges
    tokens: int
    kept_tokens: int


@dataclass(frozen=True)
class Shortened:
    """What `Compressor.read` makes of a transcript. `texts`: by their index, those that were shortened; `recalled`:
    passages that were left out earlier and matter for this question; `tokens`: of the transcript.
    """

    texts: dict[int, Short]
    recalled: tuple[str, ...]
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Compressed:
    """What `compress` returns.

    Attributes
    ----------
    text : str
        The document without what was left out, and with marks in its place.
    kept : tuple of (int, int)
        Byte ranges of the document that stand in `text`.
    tokens, kept_tokens : int
        Of the document and of what was kept, in the drafter's vocabulary.
    seconds : float
        Scoring and selection, the loading of the drafter not counted.
    """

    text: str
    kept: Ranges
    tokens: int
    kept_tokens: int
    seconds: float

    def __str__(self) -> str:
        return self.text


class _Keys:
    """What a scorer asks of the memory of one transcript."""

    def __init__(self, memory: DrafterMemory) -> None:
        self.memory, self.ids = memory, np.empty(0, np.int64)

    def keys(self, drafted: TokenisedPrompt) -> PrefixKeys:
        self.ids = drafted.ids
        return self.memory.keys(drafted.ids, message_ends(drafted))


@dataclass(eq=False)
class Compressor:
    """A drafter that shortens texts for readers whose engine and vocabulary it does not know.

    It remembers what it has read of the last transcripts, so that of one that grows it reads only what is new. One
    thread at a time may use it.

    Parameters
    ----------
    pipeline : Pipeline
        Its drafter is the one that reads.
    options : RunOptions
        Of these count `keep_ratio`, `scorer`, `selector` and `mark_omitted`.
    memory : ConversationOptions
        How much of what was left out comes back.

    Examples
    --------
    >>> shop = Compressor.open(scorer="bm25")  # words alone: no drafter reads
    >>> text = "The sky is blue. " * 40 + "The code is 8301947. " + "The sky is blue. " * 40
    >>> "8301947" in shop.compress(text, "What is the code?", keep_ratio=0.2).text
    True
    """

    pipeline: Pipeline
    options: RunOptions
    memory: ConversationOptions = field(default_factory=ConversationOptions)
    _memories: list[_Keys] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        drafter: str | Path | None = None,
        *,
        keep_ratio: float = 0.2,
        scorer: Any = "auto",
        selector: Any = "segments",
        mark: bool = True,
        reporter: Reporter | None = None,
        **places: Any,
    ) -> Compressor:
        """Load a drafter, by path or known name; the best one that was fetched if left out, none for a scorer that
        runs no model. `places`: fields of `sp.session.options.PlaceOptions`, such as `device`.

        Raises
        ------
        ConfigError
            No drafter was fetched, or an option that does not exist.
        """
        options = RunOptions(keep_ratio=keep_ratio, scorer=scorer, selector=selector, compress="always")
        options = replace(options, scorer=by_length(options.scorer))
        if options.scorer.reads_target:
            raise ConfigError("this scorer has the target read everything, and a front has none; take another")
        words = isinstance(options.scorer, ModelFreeScorer)
        file = drafter or (embedded("drafter") if words else default_drafter("", [type(options.scorer)]))
        pipeline = Pipeline.open(file, file, scorers=[options.scorer], reporter=reporter, **places)
        pipeline.ready(options, reporter)
        check_run(options, pipeline.drafter)
        return cls(pipeline, replace(options, mark_omitted=mark))

    @property
    def name(self) -> str:
        """Who reads: the drafter's file, or the scorer where no model does."""
        drafter = self.pipeline.drafter
        if drafter is None or isinstance(self.options.scorer, ModelFreeScorer):
            return SCORERS.name_of(self.options.scorer)
        return drafter.path.name

    @property
    def device(self) -> str:
        """Where the drafter is."""
        return self.pipeline.target.model.device

    def compress(self, text: str, question: str = "", *, keep_ratio: float | None = None) -> Compressed:
        """Shorten a document for a question; without one, for what its last paragraph asks.

        Raises
        ------
        PromptError
            An empty document.
        """
        if not text.strip():
            raise PromptError("the text is empty; there is nothing to shorten")
        found = self.read([Text("user", text, open=True)], question, keep_ratio=keep_ratio)
        short = found.texts[0]
        return Compressed(short.text, short.kept, short.tokens, short.kept_tokens, found.seconds)

    def read(
        self,
        texts: Sequence[Text],
        question: str,
        *,
        keep_ratio: float | None = None,
        recall: bool = False,
        reporter: Reporter = silent,
    ) -> Shortened:
        """Score a transcript for a question, and shorten those of its texts that are open.

        Parameters
        ----------
        texts : sequence of Text
            From the first message on. As far as they begin like those of an earlier call, what was read then counts.
        question : str
            What is asked now; it is read behind all texts.
        keep_ratio : float, optional
            Share of the open texts' tokens to keep, in place of that of the options.
        recall : bool
            Whether to look for passages that were left out of the others and matter now.
        """
        options = self.options if keep_ratio is None else replace(self.options, keep_ratio=keep_ratio)
        layout = Layout.of(texts, question)
        trace = Trace()
        drafter = self.pipeline.drafter
        assert drafter is not None
        drafted = layout.prompt.tokenise(drafter.tokenizer)
        fixed = drafted.mask("protected")
        opened = any(text.open for text in texts) and not fixed.all()
        prepared: Future[object] | None = None
        if opened:  # what follows from the text alone, beside the reading
            blank = selection_request(np.zeros(len(drafted), np.float32), fixed, 1.0, drafted, 0, 1)
            prepared = self.pipeline.beside.submit(options.selector.prepare, blank)
        scored = request.score(
            self.pipeline,
            drafted,
            options,
            reporter,
            drafted=drafted,
            memory=self._memory(drafted, options),  # type: ignore[arg-type]
        )
        shorts: dict[int, Short] = {}
        scores = scored.importance.scores
        if prepared is not None:
            scores, selection = request.select(scored, drafted, options, trace, fixed, prepared=prepared.result())
            assert selection is not None
            whole = options.selector.whole
            shorts = {
                index: layout.short(index, drafted, selection, options.mark_omitted, whole)
                for index, text in enumerate(texts)
                if text.open
            }
        recalled: tuple[str, ...] = ()
        if recall:
            recalled = self._recalled(layout, drafted, scores, options, scored.importance.fineness)
        return Shortened(shorts, recalled, len(drafted), scored.trace.seconds + trace.seconds)

    def _memory(self, drafted: TokenisedPrompt, options: RunOptions) -> _Keys | None:
        """The memory of the transcript that begins most like this one, if that is more than half of what it holds."""
        layers = check_run(replace(options, mark_omitted=False), self.pipeline.drafter)
        if layers is None:
            return None
        alike = [(same_start(one.ids, drafted.ids), one) for one in self._memories]
        best = max(alike, key=lambda pair: pair[0], default=None)
        if best is not None and 2 * best[0] > len(best[1].ids):
            found = best[1]
            self._memories.remove(found)
        else:
            assert self.pipeline.drafter is not None
            found = _Keys(DrafterMemory(self.pipeline.drafter, layers, self.memory.keys, self.memory.snapshots))
        self._memories = [*self._memories, found][-MEMORIES:]
        return found

    def _recalled(
        self, layout: Layout, drafted: TokenisedPrompt, scores: Floats, options: RunOptions, fineness: int
    ) -> tuple[str, ...]:
        """Passages that were left out earlier and are among what matters most now, in their order."""
        present = layout.present(drafted)
        if present.all():
            return ()
        runs, _ = choose_recalled(scores, drafted, present, options, self.memory, fineness)
        return layout.passages(drafted, runs)


@dataclass(frozen=True)
class Layout:
    """A transcript as the drafter reads it: the texts, a blank line between them, and the question behind."""

    texts: tuple[Text, ...]
    places: Ranges  # bytes of each text
    prompt: Prompt

    @classmethod
    def of(cls, texts: Sequence[Text], question: str) -> Layout:
        raw, places, spans, segments = bytearray(), list[tuple[int, int]](), list[Span](), list[Segment]()
        for index, text in enumerate(texts):
            start, end = len(raw), len(raw) + len(text.text.encode())
            raw += (text.text + GAP).encode()
            places.append((start, end))
            segments.append(Segment(text.kind, start, end, index))
            if not text.open:
                spans.append(Span("protected", start, end))
            spans.append(Span("protected", end, len(raw)))
        asked = question.strip() or last_paragraph(texts)
        start = len(raw)
        raw += (asked + "\n").encode()
        end = start + len(asked.encode())
        spans += [Span("protected", start, len(raw)), Span("question", start, end), Span("plain", 0, end)]
        spans = [span for span in spans if span.start < span.end]
        segments = [each for each in segments if each.start < each.end]
        return cls(tuple(texts), tuple(places), Prompt(raw.decode(), tuple(spans), segments=tuple(segments)))

    @cached_property
    def omitted(self) -> Omitted:
        """What is written in gaps, which looks for JSON values in the whole transcript once."""
        return Omitted(self.prompt)

    def short(self, index: int, drafted: TokenisedPrompt, selection: Selection, mark: bool, whole: bool) -> Short:
        """A text without what was left out of it."""
        start, end = self.places[index]
        first = bisect_right(drafted.bytes[:, 1], start)
        behind = max(bisect_left(drafted.bytes[:, 0], end), first)
        tokens = first + np.flatnonzero(selection.selected[first:behind])
        pieces: list[tuple[int, int]] = []
        raw = self.omitted.raw
        for token in tokens.tolist():
            low, high = drafted.bytes[token].tolist()
            pieces += [(max(a, start), min(b, end)) for a, b in selection.byte_ranges.get(token, ((low, high),))]
        if not whole:
            pieces = [(max(a, start), min(b, end)) for a, b in (widen(raw, *piece) for piece in pieces)]
        ranges = merge_spans(np.array([piece for piece in pieces if piece[0] < piece[1]], np.int64).reshape(-1, 2))
        out, last = b"", start
        for low, high in [*ranges.tolist(), (end, end)]:
            if last < low and mark:
                out += self.omitted.mark(last, low).encode()
            out += raw[low:high]
            last = high
        held = tuple((low - start, high - start) for low, high in ranges.tolist())
        return Short(out.decode(), held, behind - first, len(tokens))

    def present(self, drafted: TokenisedPrompt) -> Bools:
        """Which tokens the reader has, (n,): all but those that were left out of a text earlier."""
        found = np.ones(len(drafted), bool)
        starts, ends = drafted.bytes[:, 0], drafted.bytes[:, 1]
        for text, (start, end) in zip(self.texts, self.places, strict=True):
            if text.kept is None:
                continue
            found[(starts >= start) & (ends <= end) & (starts < ends)] = False
            for low, high in text.kept:
                found[(starts < start + high) & (ends > start + low)] = True
        return found

    def passages(self, drafted: TokenisedPrompt, runs: Sequence[Run]) -> tuple[str, ...]:
        """The text of runs of tokens, those that follow each other in one."""
        raw, found = self.omitted.raw, list[tuple[int, int]]()
        edges: Ints = drafted.bytes
        for run in runs:
            low, high = int(edges[run.start, 0]), int(edges[run.end - 1, 1])
            if run.joined and found:
                low = found.pop()[0]
            found.append((low, high))
        return tuple(text for low, high in found if (text := raw[low:high].decode(errors="ignore").strip()))


def last_paragraph(texts: Sequence[Text]) -> str:
    """What stands in place of a question where none is asked: the last paragraph of the last text."""
    last = next((text.text.strip() for text in reversed(texts) if text.text.strip()), "")
    return last.rpartition(GAP)[2][-1024:]


def compress(
    text: str,
    question: str = "",
    *,
    keep_ratio: float = 0.2,
    drafter: str | Path | None = None,
    scorer: Any = "auto",
    selector: Any = "segments",
    mark: bool = True,
    **places: Any,
) -> Compressed:
    """Shorten a text for a question, so that any model can read it.

    Whole units are kept: lines of code, sentences, JSON values with the keys that lead to them. Loads the drafter each
    time; for many texts open a `Compressor` once.

    Parameters
    ----------
    text : str
        The document.
    question : str
        What will be asked of it; its last paragraph if left out.
    keep_ratio : float
        Share of its tokens to keep, in (0, 1].
    drafter : str or Path, optional
        A GGUF file or a known name; the best one that was fetched if left out.
    scorer, selector
        Names, as on the command line, or objects. ``bm25`` goes by words alone and loads no model.
    mark : bool
        Whether to write ``[... 212 lines ...]`` where something was left out.
    places
        As for `sp.load`: `device`, `vram`.

    Examples
    --------
    >>> import sp
    >>> text = "The sky is blue. " * 40 + "The code is 8301947. " + "The sky is blue. " * 40
    >>> short = sp.compress(text, "What is the code?", keep_ratio=0.2, scorer="bm25")
    >>> "8301947" in short.text and len(short.text) < len(text) / 3
    True
    """
    how: dict[str, Any] = {"scorer": scorer, "selector": selector, "mark": mark, **places}
    return Compressor.open(drafter, keep_ratio=keep_ratio, **how).compress(text, question)
