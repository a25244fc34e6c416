"""Shorten texts: a drafter scores them for a question, a selector keeps whole units, and marks replace the rest."""

from __future__ import annotations

import re
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
from sp.selection import Selection, Selector
from sp.session import request
from sp.session.compress import Omitted, selection_request, widen
from sp.session.loaded import Loaded, default_drafter, embedded
from sp.session.memory import DrafterMemory, message_ends
from sp.session.options import ConversationOptions, RunOptions, check_run
from sp.session.pipeline import Pipeline
from sp.session.recall import OmittedRun, choose_recalled
from sp.structure import NOTHING, scalar_content
from sp.trace import Reporter, Trace, silent

GAP = "\n\n"  # between the texts of a transcript
BLANK_LINE = re.compile(r"(?>\r\n|[\r\n]){2,}")  # atomic, as the two characters of one CRLF are no blank line
LONE_CR = re.compile(r"\r(?!\n)")
WHOLE = "the text is one JSON value without parts, so it was not shortened"
MEMORIES = 4  # transcripts whose keys the drafter keeps
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TranscriptText:
    """A text of a transcript.

    Attributes
    ----------
    kind : str
        Role of its author: ``user``, ``assistant``, ``tool`` or ``system``.
    text : str
    kept_ranges : tuple of (int, int), optional
        Byte ranges of it that an earlier request kept; None for all of it.
    open : bool
        True if it may be shortened now.
    """

    kind: SegmentKind
    text: str
    kept_ranges: Ranges | None = None
    open: bool = False


@dataclass(frozen=True)
class ShortText:
    """A text after shortening. `text`: its replacement; `kept_ranges`: byte ranges of the original in it;
    `tokens`, `kept_tokens`: lengths of original and replacement, in the drafter's vocabulary.
    """

    text: str
    kept_ranges: Ranges
    tokens: int
    kept_tokens: int


@dataclass(frozen=True)
class Shortened:
    """Result of `Compressor.shorten`. `texts`: the shortened texts by index; `recalled`: passages that were omitted
    earlier and matter for this question; `tokens`: length of the transcript; `seconds`: time of scoring and selection.
    """

    texts: dict[int, ShortText]
    recalled: tuple[str, ...]
    tokens: int
    seconds: float


@dataclass(frozen=True)
class CompressedText:
    """Result of `compress`.

    Attributes
    ----------
    text : str
        The document, with marks in place of omitted passages.
    kept : tuple of (int, int)
        Byte ranges of the document that `text` has.
    tokens, kept_tokens : int
        Lengths of the document and of its kept part, in tokens of the drafter's vocabulary.
    seconds : float
        Time of scoring and selection, without loading the drafter.
    reason : str
        Why nothing was left out, of a text that cannot be shortened.
    """

    text: str
    kept: Ranges
    tokens: int
    kept_tokens: int
    seconds: float
    reason: str = ""

    def __str__(self) -> str:
        return self.text


class _TranscriptKeys:
    """The drafter's keys of one transcript, as scorers request them."""

    def __init__(self, memory: DrafterMemory) -> None:
        self.memory, self.ids = memory, np.empty(0, np.int64)

    def keys(self, drafted: TokenisedPrompt) -> PrefixKeys:
        self.ids = drafted.ids
        return self.memory.keys(drafted.ids, message_ends(drafted))


@dataclass(eq=False)
class Compressor:
    """A drafter that shortens texts for models whose engine and vocabulary are unknown.

    It keeps its keys of the last transcripts, so that it reads only the new part of one that has grown. One thread at a
    time may use it.

    Parameters
    ----------
    pipeline : Pipeline
        Its drafter reads the texts.
    options : RunOptions
        `keep_ratio`, `scorer`, `selector` and `mark_omitted` apply; others are ignored.
    memory : ConversationOptions
        Bounds of the passages that are restored.

    Examples
    --------
    >>> compressor = Compressor.open(scorer="bm25")  # goes by words: no drafter reads
    >>> text = "The sky is blue. " * 40 + "The code is 8301947. " + "The sky is blue. " * 40
    >>> "8301947" in compressor.compress(text, "What is the code?", keep_ratio=0.2).text
    True
    """

    pipeline: Pipeline
    options: RunOptions
    memory: ConversationOptions = field(default_factory=ConversationOptions)
    _memories: list[_TranscriptKeys] = field(default_factory=list)

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
        """Load a drafter by path or known name; the best downloaded one if omitted, none if the scorer runs no model.
        `places`: fields of `sp.session.options.PlaceOptions`, such as `device`.

        Raises
        ------
        ConfigError
            No drafter is downloaded, or an option does not exist.
        """
        options = RunOptions(keep_ratio=keep_ratio, scorer=scorer, selector=selector, compress="always")
        options = replace(options, scorer=by_length(options.scorer))
        if options.scorer.reads_target:
            name = SCORERS.name_of(options.scorer)
            raise ConfigError(f"scorer {name} runs on the target, and there is none here; use a drafter-based scorer")
        by_words = isinstance(options.scorer, ModelFreeScorer)
        file = drafter or (embedded("drafter") if by_words else default_drafter("", [type(options.scorer)]))
        pipeline = Pipeline.open(file, file, scorers=[options.scorer], reporter=reporter, **places)
        pipeline.ready(options, reporter)
        check_run(options, pipeline.drafter)
        return cls(pipeline, replace(options, mark_omitted=mark))

    @property
    def name(self) -> str:
        """Name of the drafter's file, or of the scorer if it runs no model."""
        drafter = self.pipeline.drafter
        if drafter is None or isinstance(self.options.scorer, ModelFreeScorer):
            return SCORERS.name_of(self.options.scorer)
        return drafter.path.name

    @property
    def _drafter(self) -> Loaded:
        assert self.pipeline.drafter is not None
        return self.pipeline.drafter

    @property
    def device(self) -> str:
        """Device of the drafter."""
        return self.pipeline.target.model.device

    def compress(self, text: str, question: str = "", *, keep_ratio: float | None = None) -> CompressedText:
        """Shorten a document for a question; without one, for its last paragraph.

        Raises
        ------
        PromptError
            The document is empty.
        """
        if not text.strip():
            raise PromptError("the text is empty; give one to shorten")
        if scalar_content(raw := text.encode()) == NOTHING:
            tokens = len(self._drafter.tokenizer.encode(text))
            return CompressedText(text, ((0, len(raw)),), tokens, tokens, 0.0, WHOLE)
        result = self.shorten([TranscriptText("user", text, open=True)], question, keep_ratio=keep_ratio)
        short = result.texts[0]
        return CompressedText(short.text, short.kept_ranges, short.tokens, short.kept_tokens, result.seconds)

    def shorten(
        self,
        texts: Sequence[TranscriptText],
        question: str,
        *,
        keep_ratio: float | None = None,
        recall: bool = False,
        reporter: Reporter = silent,
    ) -> Shortened:
        """Score a transcript for a question, and shorten its open texts.

        Parameters
        ----------
        texts : sequence of TranscriptText
            From the first message on. A prefix that they share with an earlier call is not read again.
        question : str
            Current question; it is read after all texts.
        keep_ratio : float, optional
            Share of the open texts' tokens to keep, in place of that of the options.
        recall : bool
            Look for passages that were omitted from the other texts and matter now.
        """
        options = self.options if keep_ratio is None else replace(self.options, keep_ratio=keep_ratio)
        layout = TranscriptLayout.of(texts, question)
        trace = Trace()
        drafted = layout.prompt.tokenise(self._drafter.tokenizer)
        fixed = drafted.mask("protected")
        prepared: Future[object] | None = None
        if any(text.open for text in texts) and not fixed.all():
            # What follows from the text alone overlaps with the drafter's prefill.
            prepared = self.pipeline.executor.submit(layout.prepare, options.selector, drafted, fixed)
        scored = request.score(
            self.pipeline,
            drafted,
            options,
            reporter,
            drafted=drafted,
            memory=self._memory(drafted, options),  # type: ignore[arg-type]
        )
        shorts: dict[int, ShortText] = {}
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

    def _memory(self, drafted: TokenisedPrompt, options: RunOptions) -> _TranscriptKeys | None:
        """Return the keys of the transcript with the longest common prefix, new ones if that is under half of it."""
        layers = check_run(replace(options, mark_omitted=False), self.pipeline.drafter)
        if layers is None:
            return None
        prefixes = [(same_start(memory.ids, drafted.ids), memory) for memory in self._memories]
        common, memory = max(prefixes, key=lambda pair: pair[0], default=(0, None))
        if memory is not None and 2 * common > len(memory.ids):
            self._memories.remove(memory)
        else:
            keys = DrafterMemory(self._drafter, layers, self.memory.keys, self.memory.snapshots)
            memory = _TranscriptKeys(keys)
        self._memories = [*self._memories, memory][-MEMORIES:]  # the most recently used ones
        return memory

    def _recalled(
        self, layout: TranscriptLayout, drafted: TokenisedPrompt, scores: Floats, options: RunOptions, fineness: int
    ) -> tuple[str, ...]:
        """Passages that were omitted earlier and score among the highest now, in their order."""
        present = layout.present(drafted)
        if present.all():
            return ()
        runs, _ = choose_recalled(scores, drafted, present, options, self.memory, fineness)
        return layout.passages(drafted, runs)


@dataclass(frozen=True)
class TranscriptLayout:
    """A transcript as the drafter reads it: the texts, with blank lines between them, and the question.

    `places`: byte range of each text in the prompt; `raw`: the same text as it came. In the prompt a lone CR is LF, so
    that it ends a line; both have one byte.
    """

    texts: tuple[TranscriptText, ...]
    places: Ranges
    raw: bytes
    prompt: Prompt

    @classmethod
    def of(cls, texts: Sequence[TranscriptText], question: str) -> TranscriptLayout:
        """Join the texts; everything but those that are open is protected."""
        raw, places, spans, segments = bytearray(), list[tuple[int, int]](), list[Span](), list[Segment]()
        for index, text in enumerate(texts):
            own = text.text.encode()
            start, end = len(raw), len(raw) + len(own)
            raw += own + GAP.encode()
            places.append((start, end))
            segment = Segment(text.kind, start, end, index)
            if text.open and (content := scalar_content(own)) is not None:  # the quotes of a JSON string stay
                low, high = start + content.start, start + content.stop
                segment = replace(segment, start=low, end=high, quoted=True)
                spans += [Span("protected", start, low), Span("protected", high, end)]
            segments.append(segment)
            spans.append(Span("protected", end if text.open else start, len(raw)))
        question = question.strip() or last_paragraph(texts)
        start = len(raw)
        raw += (question + "\n").encode()
        end = start + len(question.encode())
        spans += [Span("protected", start, len(raw)), Span("question", start, end), Span("plain", 0, end)]
        spans = [span for span in spans if span.start < span.end]
        segments = [segment for segment in segments if segment.start < segment.end]
        prompt = Prompt(LONE_CR.sub("\n", raw.decode()), tuple(spans), segments=tuple(segments))
        return cls(tuple(texts), tuple(places), bytes(raw), prompt)

    @cached_property
    def omitted(self) -> Omitted:
        """Marks for gaps; locates the JSON values of the whole transcript once."""
        return Omitted(self.prompt)

    def prepare(self, selector: Selector, drafted: TokenisedPrompt, fixed: Bools) -> object:
        """Return what the selector finds in the text before it knows scores. `fixed`: protected tokens, (n,)."""
        _ = self.omitted.values  # where marks may stand: stored for `short`
        return selector.prepare(selection_request(np.zeros(len(drafted), np.float32), fixed, 1.0, drafted, 0, 1))

    def short(self, index: int, drafted: TokenisedPrompt, selection: Selection, mark: bool, whole: bool) -> ShortText:
        """Write a text without its omitted parts. `whole`: the selector keeps whole units."""
        start, end = self.places[index]
        first = bisect_right(drafted.bytes[:, 1], start)
        stop = max(bisect_left(drafted.bytes[:, 0], end), first)
        tokens = first + np.flatnonzero(selection.selected[first:stop])
        raw, cut = self.raw, selection.byte_ranges
        # Tokens that are read in part come with the ranges of the parts, in the place of their own.
        partly = np.isin(tokens, list(cut))
        parts = [part for token in tokens[partly].tolist() for part in cut[token]]
        pieces = np.concatenate([drafted.bytes[tokens[~partly]], np.array(parts, np.int64).reshape(-1, 2)])
        pieces = np.clip(pieces, start, end)  # a token may span the border of two texts
        if not whole:  # the selector may keep only some bytes of a word
            pieces = np.array([widen(raw, *piece) for piece in pieces.tolist()], np.int64).reshape(-1, 2)
            pieces = np.clip(pieces, start, end)
        pieces = pieces[np.argsort(pieces[:, 0], kind="stable")]
        ranges = merge_spans(pieces[pieces[:, 0] < pieces[:, 1]])
        out, last = b"", start
        for low, high in [*ranges.tolist(), (end, end)]:
            if last < low and mark:
                out += self.omitted.mark(last, low).encode()
            out += raw[low:high]
            last = high
        kept_ranges = tuple((low - start, high - start) for low, high in ranges.tolist())
        return ShortText(out.decode(), kept_ranges, stop - first, len(tokens))

    def present(self, drafted: TokenisedPrompt) -> Bools:
        """Mask of the tokens that the reader has, (n,): all but those that were omitted from a text earlier."""
        present = np.ones(len(drafted), bool)
        starts, ends = drafted.bytes[:, 0], drafted.bytes[:, 1]
        for text, (start, end) in zip(self.texts, self.places, strict=True):
            if text.kept_ranges is None:
                continue
            present[(starts >= start) & (ends <= end) & (starts < ends)] = False
            for low, high in text.kept_ranges:
                present[(starts < start + high) & (ends > start + low)] = True
        return present

    def passages(self, drafted: TokenisedPrompt, runs: Sequence[OmittedRun]) -> tuple[str, ...]:
        """Return the text of runs of tokens; runs that are joined become one passage."""
        raw, ranges = self.raw, list[tuple[int, int]]()
        edges: Ints = drafted.bytes
        for run in runs:
            low, high = int(edges[run.start, 0]), int(edges[run.end - 1, 1])
            if run.joined and ranges:
                low = ranges.pop()[0]
            ranges.append((low, high))
        return tuple(text for low, high in ranges if (text := raw[low:high].decode(errors="ignore").strip()))


def last_paragraph(texts: Sequence[TranscriptText]) -> str:
    """Return the last paragraph of the last text, which replaces a missing question."""
    last = next((text.text.strip() for text in reversed(texts) if text.text.strip()), "")
    return BLANK_LINE.split(last)[-1][-1024:]


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
) -> CompressedText:
    """Shorten a text for a question, so that any model can read it.

    Whole units are kept: lines of code, sentences, JSON values with the keys that lead to them. The drafter is loaded
    for each call; open a `Compressor` once for many texts.

    Parameters
    ----------
    text : str
        The document.
    question : str
        Question about it; its last paragraph if omitted.
    keep_ratio : float
        Share of its tokens to keep, in (0, 1].
    drafter : str or Path, optional
        A GGUF file or a known name; the best downloaded one if omitted.
    scorer, selector
        Names as on the command line, or objects. ``bm25`` goes by words alone and loads no model.
    mark : bool
        Write ``[... 212 lines ...]`` in place of omitted passages.
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
    options: dict[str, Any] = {"scorer": scorer, "selector": selector, "mark": mark, **places}
    return Compressor.open(drafter, keep_ratio=keep_ratio, **options).compress(text, question)
