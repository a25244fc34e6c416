"""Run examples through a pair: each with a full prefill and in every cell, with one scoring for cells of one scorer."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sp.chat import Thinking
from sp.config import Registry
from sp.decode import DECODERS, Greedy
from sp.errors import ConfigError, PromptError
from sp.evals.base import WITHOUT, Count, Example
from sp.evals.matches import Evidence, EvidenceRecall, evidence_recall, score_answer
from sp.gguf import Tokenizer
from sp.json_lines import ATOM, check, parse_object
from sp.models import ModelConfig
from sp.prompt import TokenisedPrompt
from sp.scoring import SCORERS, Scorer
from sp.scoring.controls import OracleScorer
from sp.scoring.sparse import rule_text
from sp.selection import SELECTORS
from sp.session import Answer, Pipeline, RunOptions, Scored, request
from sp.session.compress import with_positions
from sp.session.decision import check_context
from sp.trace import Trace

Row = dict[str, Any]  # one example in one cell: a flat mapping for JSON; see `evaluate`
THINKING_TOKENS = 1024  # longest thinking before an answer, where thinking is not off
FULL = "full"  # scorer and selector of the row of a full prefill


def evaluate(
    pipeline: Pipeline,
    examples: Iterable[Example],
    cells: Sequence[RunOptions],
    *,
    full: bool | RunOptions = True,
    thinking: Thinking = WITHOUT,
    pass_over_long: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Row]:
    """Answer every example with a full prefill and in every cell, with compression even where it does not pay.

    Cells with one scorer share its pass over the prompt; each time to first token includes the whole pass, as if the
    cell had run alone. The longest answer is the example's; the seed combines the cell's and the example's.

    Parameters
    ----------
    cells : sequence of RunOptions
        Options of the compressed runs; `compress`, `threshold` and `max_new_tokens` are ignored.
    full : bool or RunOptions
        Also prefill every prompt whole and answer greedily, with the cache format of the first cell, or these options.
    thinking : Thinking
        Thinking of the target; an answer that may begin with it is `THINKING_TOKENS` longer, and scored without it.
    pass_over_long : bool
        Give prompts that do not fit the target's context rows of status ``long``, instead of an error.
    progress : callable, optional
        Called with 1 after every row.

    Yields
    ------
    dict
        ``task, example, tokens_asked, prompt_tokens``; ``cell`` (index, -1 for the full prefill), ``scorer, selector,
        decode`` (name and options that were set), then `COLUMNS`; ``status``: ``ok``, ``no_needle`` (scorer oracle
        where the whole text counts) or ``long`` (see above), and None in all that follows if it is not ``ok``:
        ``answer, correct`` (0 or 1), ``score`` (0 to 1),
        ``kept_tokens, forced_tokens, realised_keep``; ``needle_recall, needle_rank, needle_margin, given_kept``, see
        `EvidenceRecall`; ``ttft_s`` and seconds by stage ``tokenise_s, score_s, select_s, compress_s, prefill_s,
        decode_s``; ``drafter_density``; ``acceptance_length``, tokens per pass of speculative decoding; ``expected,
        depth`` and other facts of the example; ``rope_needed`` of a drafter; ``thinking`` if not off,
        ``reasoning_effort`` if set.

    Raises
    ------
    PromptError
        A prompt and its answer do not fit the target's context.
    """
    report, target = progress or (lambda done: None), pipeline.target
    # Cells of one scoring come one after the other, so that only one scoring is in memory.
    order = sorted(range(len(cells)), key=lambda i: scoring_of(cells[i]))
    for drawn in examples:
        example = with_thinking(drawn, thinking)
        trace = Trace()
        with named(example), trace.stage("tokenise") as stage:
            prompt = pipeline.tokenise(example.prompt(target.template, thinking, target.tokenizer))
            stage.tokens = len(prompt)
        evidence = Evidence.of(prompt, example.answers)
        seen = ExampleRun(pipeline, example, prompt, evidence, trace)
        if pass_over_long and len(prompt) + example.max_new_tokens > target.model.config.context:
            for index in (*((-1,) if full else ()), *order):
                cell = (cells or [RunOptions()])[max(index, 0)]
                yield seen.row(index, cell) | {"status": "long"} | dict.fromkeys(RESULTS)
                report(1)
            continue
        with named(example):
            check_context(target, len(prompt), example.max_new_tokens)
        if full:
            yield seen.full(full if isinstance(full, RunOptions) else cells[0] if cells else RunOptions())
            report(1)
        scored: Scored | None = None
        scoring, drafts = "", dict[bool, Scored]()
        for index in order:
            options = _options(cells[index], example)
            if scoring != scoring_of(options):
                scoring, scored = scoring_of(options), None
            if isinstance(options.scorer, OracleScorer) and not example.needles:
                yield seen.row(index, cells[index]) | {"status": "no_needle"} | dict.fromkeys(RESULTS)
            else:
                scored = scored or score_again(pipeline, prompt, options, drafts.get(options.scorer.drafts))
                drafts.setdefault(options.scorer.drafts, scored)
                yield seen.cell(index, cells[index], options, scored)
            report(1)


@contextmanager
def named(example: Example) -> Iterator[None]:
    """Add the example's name to errors about its prompt."""
    try:
        yield
    except PromptError as error:
        raise PromptError(f"example {example.id}: {error}") from None


def score_again(pipeline: Pipeline, prompt: TokenisedPrompt, options: RunOptions, first: Scored | None) -> Scored:
    """Score a prompt with the scoring model's tokens of the `first` scoring, and include the time to tokenise it."""
    if first is None:
        return pipeline.score(prompt, options)
    scored = pipeline.score(prompt, options, drafted=first.drafted)
    before = [stage for stage in first.trace.stages if stage.name == request.TOKENISING]
    return replace(scored, trace=Trace([*before, *scored.trace.stages], facts=scored.trace.facts))


@dataclasses.dataclass(frozen=True)
class ExampleRun:
    """An example with its tokenised prompt, and the rows that are measured on it."""

    pipeline: Pipeline
    example: Example
    prompt: TokenisedPrompt
    evidence: Evidence
    tokenised: Trace

    def full(self, options: RunOptions) -> Row:
        """Return the row of the full prefill."""
        everything = np.ones(len(self.prompt), bool)
        options = replace(_options(options, self.example), decode=Greedy())
        answer = self.pipeline.read(self.prompt, everything, options, Trace(list(self.tokenised.stages)))
        recall = EvidenceRecall(1.0, True, None, None) if self.evidence.needles else None
        return self.row(-1, options) | self.results(answer, len(self.prompt), 0, recall, None)

    def cell(self, index: int, cell: RunOptions, options: RunOptions, scored: Scored) -> Row:
        """Return the row of a compressed prompt."""
        trace = Trace([*self.tokenised.stages, *scored.trace.stages])
        _, selection = self.pipeline.select(scored, self.prompt, options, trace)
        answer = self.pipeline.read(self.prompt, selection, options, trace)
        density = float(np.mean(densities)) if (densities := scored.importance.densities) else None
        counts = int(selection.selected.sum()), int(selection.forced.sum())
        rope = {name: fact for name, fact in scored.trace.facts.items() if name == "rope_needed"}
        return (
            self.row(index, cell)
            | self.results(answer, *counts, evidence_recall(selection, self.evidence), density)
            | rope
        )

    def row(self, index: int, options: RunOptions) -> Row:
        """Return the columns that are known before the models run."""
        return {
            "task": self.example.task,
            "example": self.example.id,
            "tokens_asked": self.example.tokens,
            "prompt_tokens": len(self.prompt),
            **cell_columns(index, options, self.pipeline.target.model.config),
            "status": "ok",
            "expected": list(self.example.answers),
            "depth": None,
            **self.example.told_facts(),
        }

    def results(
        self, answer: Answer, selected: int, forced: int, recall: EvidenceRecall | None, density: float | None
    ) -> Row:
        """Return the measured columns."""
        score = score_answer(answer.text, self.example.answers, self.example.match)
        seconds = {stage.name: stage.seconds for stage in answer.trace.stages}
        values = (
            answer.text, int(score == 1), score, selected, forced, selected / len(self.prompt),
            *((recall.recall, recall.rank, recall.margin, recall.complete) if recall else (None,) * 4),
            answer.ttft_s, *map(seconds.get, STAGES.values()), density, answer.acceptance_length,
        )  # fmt: skip
        return dict(zip(RESULTS, values, strict=True))


COLUMNS = ("keep_ratio", "positions", "mapping", "mark_omitted", "kv", "rotate", "state_gaps", "target_sparse", "seed")
"""Options that are columns of a row."""
STAGES = {
    "tokenise_s": "tokenise",
    "score_s": "score",
    "select_s": "select",
    "compress_s": "compress",
    "prefill_s": "target prefill",
    "decode_s": "decode",
}
RESULTS = (
    "answer", "correct", "score", "kept_tokens", "forced_tokens", "realised_keep",
    "needle_recall", "needle_rank", "needle_margin", "given_kept",
    "ttft_s", *STAGES, "drafter_density", "acceptance_length",
)  # fmt: skip


def counter(tokenizer: Tokenizer) -> Count:
    """Return a function that counts the tokens of a text."""
    return lambda text: len(tokenizer.encode(text))


def cell_columns(index: int, options: RunOptions, target: ModelConfig) -> Row:
    """Return the columns of a cell, with what `auto` means for the target; index -1 is the full prefill."""
    options = with_positions(options, target)
    columns = {
        "cell": index,
        "scorer": label(SCORERS, options.scorer),
        "selector": label(SELECTORS, options.selector),
        "decode": label(DECODERS, options.decode),
        **{name: getattr(options, name) for name in COLUMNS},
        "rotate": options.rotated,
        "target_sparse": options.target_sparse and rule_text(options.target_sparse),
    }
    whole = {
        "scorer": FULL, "selector": FULL, "decode": "greedy", "keep_ratio": 1.0, "positions": "original",
        "mapping": "byte_span", "mark_omitted": False, "state_gaps": "compact",
    }  # fmt: skip
    return columns | whole if index < 0 else columns


def label(registry: Registry[Any], strategy: Any) -> str:
    """Return the name of a strategy and the options that differ from its defaults.

    >>> label(SCORERS, SCORERS.build("tail", {"queries": 16}))
    'tail queries=16'
    """
    name = registry.name_of(strategy)
    changed = [
        f"{field.name}={getattr(strategy, field.name)}"
        for field in dataclasses.fields(strategy)
        if getattr(strategy, field.name) != field.default
    ]
    return " ".join([name, *changed])


def scorer_class(name: str) -> type[Scorer]:
    """Return the class of the scorer at the start of a label; `Scorer` for a plugin that is not loaded."""
    known = name.partition(" ")[0]
    return SCORERS.class_of(known) if known in SCORERS else Scorer


def seeded(cell: RunOptions, name: str) -> RunOptions:
    """Return the options with a seed for the example; without, the random control would be the same for all."""
    return replace(cell, seed=cell.seed + zlib.crc32(name.encode()))


def thinking_facts(thinking: Thinking) -> dict[str, str]:
    """Return the columns that describe thinking; empty where it is off, the default."""
    facts = {} if thinking.mode == "off" else {"thinking": str(thinking.mode)}
    return facts | ({} if thinking.effort is None else {"reasoning_effort": thinking.effort})


def with_thinking(example: Example, thinking: Thinking) -> Example:
    """Return the example with tokens for thinking, and with the columns that describe it."""
    facts = thinking_facts(thinking)
    room = 0 if thinking.mode == "off" else THINKING_TOKENS
    limit = example.max_new_tokens + room
    return replace(example, facts={**example.facts, **facts}, max_new_tokens=limit) if room or facts else example


def _options(cell: RunOptions, example: Example) -> RunOptions:
    return replace(seeded(cell, example.id), max_new_tokens=example.max_new_tokens)


def scoring_of(options: RunOptions) -> str:
    """Return a key that is equal for cells that share one scoring."""
    return f"{options.scorer!r} {options.seed}"


SLACK = 1024  # tokens by which a prompt may be shorter than requested


def check_lengths(pipeline: Pipeline, lengths: Iterable[int]) -> None:
    """Raise PromptError if a length exceeds the target's context, before prompts are made, which takes long."""
    context = pipeline.target.model.config.context
    if (longest := max(lengths, default=0)) > context + SLACK:
        name = pipeline.target.path.name
        raise PromptError(
            f"prompts of {longest} tokens do not fit {name}, which has a context of {context}; pass smaller lengths"
        )


def check_example(pipeline: Pipeline, drawn: Example, thinking: Thinking) -> None:
    """Raise PromptError if an example and its answer do not fit the target's context in `evaluate`."""
    target, example = pipeline.target, with_thinking(drawn, thinking)
    with named(example):
        prompt = pipeline.tokenise(example.prompt(target.template, thinking, target.tokenizer))
        check_context(target, len(prompt), example.max_new_tokens)


Key = tuple[Any, ...]


def known_rows(
    path: Path,
    models: Mapping[str, Any],
    names: Sequence[str],
    key_of: Callable[[Mapping[str, Any]], Key],
    optional: Sequence[str] = (),
) -> dict[Key, Row]:
    """Return the rows of a file with these models (column ``models``), by `key_of`.

    Empty if there is no file yet. An incomplete last line is removed from the file; rows of other models, or without
    the columns `names`, are skipped. ConfigError: a line is not a JSON object.
    """
    rows: dict[Key, Row] = {}
    if not path.exists():
        return rows
    with path.open("r+b") as file:
        whole, number = 0, 0
        for line in file:
            if not line.endswith(b"\n"):  # the run that wrote it was stopped
                file.truncate(whole)
                break
            whole, number = whole + len(line), number + 1
            where = f"{path}, line {number}"
            try:
                row = parse_object(line, where)
            except ConfigError as error:
                reason = str(error).removeprefix(where).lstrip(": ")
                raise ConfigError(f"{where}: not a row of results ({reason}); pass another file with --out") from None
            if row.get("models") == models and all(name in row for name in names):
                check(row, dict.fromkeys((*names, *optional), ATOM.optional), where)
                rows[key_of(row)] = row
    return rows
