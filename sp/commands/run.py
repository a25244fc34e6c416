"""`sp run`: a long text read speculatively, and a question about it answered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sp import __version__
from sp.commands.known.strategies import read_settings
from sp.commands.open_pair import asked_maths, asked_ropes, draft_of, open_pair, scorers_of, tell_thinking, thinking_of
from sp.commands.options import (
    VRAM,
    BreakEven,
    Cache,
    Compress,
    Decode,
    Draft,
    Drafter,
    DrafterMath,
    DrafterRope,
    OnDevice,
    ReasoningEffort,
    Rotate,
    RunCards,
    Scorer,
    Target,
    TargetCards,
    TargetMath,
    TargetRope,
    ThinkingMode,
    tokens_option,
)
from sp.commands.terminal import STANDARD_INPUT, AsJson, check_folder, print_json, progress_bar, read_text
from sp.config import from_mapping
from sp.errors import ConfigError, PromptError


def run(
    prompt_file: Annotated[
        Path | None, typer.Option(help="Long text to read, - for standard input; the embedded sample if left out.")
    ] = None,
    question: Annotated[str | None, typer.Option(help="What to ask about the text.")] = None,
    needle: Annotated[str | None, typer.Option(help="Piece of the text that holds the answer; report only.")] = None,
    answer_prefix: Annotated[str, typer.Option(help="Text the answer must begin with.")] = "",
    target: Target = None,
    drafter: Drafter = None,
    target_rope: TargetRope = None,
    drafter_rope: DrafterRope = None,
    math: TargetMath = "bf16",
    drafter_math: DrafterMath = "bf16",
    keep_ratio: Annotated[
        float, typer.Option(help="Share the target reads of what may be left out, in (0, 1].")
    ] = 0.05,
    scorer: Scorer = "auto",
    selector: Annotated[str, typer.Option(help="How tokens are chosen by importance: top_chunks, ...")] = "top_chunks",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Option of a strategy, e.g. scorer.queries=16 or decode.budget=22, or of sparse prefill, "
            "target.alpha=0.1; repeatable.",
        ),
    ] = None,
    compress: Compress = "auto",
    break_even: BreakEven = None,
    positions: Annotated[str | None, typer.Option(help="Of kept tokens: original (default) or contiguous.")] = None,
    mapping: Annotated[str, typer.Option(help="Drafter to target: byte_span, or text_rejoin.")] = "byte_span",
    mark_omitted: Annotated[
        bool, typer.Option("--mark-omitted", help="Mark what is left out: [... 212 lines ...]")
    ] = False,
    kv: Cache = "f16",
    rotate: Rotate = None,
    decode: Decode = "greedy",
    draft: Draft = None,
    thinking: ThinkingMode = "auto",
    reasoning_effort: ReasoningEffort = None,
    max_new_tokens: Annotated[int, tokens_option(least=1, help="Longest answer, thinking included, in tokens.")] = 64,
    device: OnDevice = "auto",
    cards: RunCards = 1,
    target_cards: TargetCards = None,
    vram: VRAM = None,
    full: Annotated[bool, typer.Option(help="Also run the full prefill, for comparison.")] = True,
    show_kept: Annotated[bool, typer.Option(help="Print all kept text, not an excerpt, if any was left out.")] = False,
    seed: Annotated[int, typer.Option(help="For scorers that draw random numbers, and for sampled answers.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for report.html, trace, arrays and picture.")] = Path("sp-run"),
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Also tell what every stage took, what attention read, and memory.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read a long text speculatively and answer a question about it.

    With no arguments: the embedded pair of small models, the embedded document and its question.

    [bold]Examples[/bold]

      sp run

      sp run --keep-ratio 0.1 --scorer tail --set scorer.queries=16

      sp run --prompt-file book.txt --question "What is the special magic number for quiet-lantern?"

      git log -p | sp run --prompt-file - --question "Which commit renamed the parser?"

      sp run --scorer 'tail\\[queries=16]' --decode ddtree --set decode.budget=22

      sp run --target Qwen3-8B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --thinking off --prompt-file book.txt ...

      sp run --math int8 --drafter-math int8

      sp run --cards 2 --target Qwen3.6-27B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --prompt-file book.txt ...

      sp run --cards 4 --target-cards 1 --prompt-file book.txt ...

      sp run --thinking on --max-new-tokens 2048 ...

      sp run --target Qwen3.6-27B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --prompt-file book.txt --question "..."
    """
    from sp.decode import Speculative
    from sp.prompt import Prompt
    from sp.session import RunOptions
    from sp.studies.pages import run_report
    from sp.studies.pages.kept_text import as_text
    from sp.studies.sample import sample

    given = {
        "keep_ratio": keep_ratio,
        **read_settings(scorer, selector, decode, settings or []),
        "compress": compress,
        "positions": positions or ("contiguous" if mapping == "text_rejoin" else "original"),
        "mapping": mapping,
        "mark_omitted": mark_omitted,
        "kv": kv,
        "rotate": rotate,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
    }
    options, asked = from_mapping(RunOptions, given, "sp run"), thinking_of(thinking, reasoning_effort)
    check_folder(out, "--out")
    ropes, maths = asked_ropes(target_rope, drafter_rope), asked_maths(math, drafter_math)
    if isinstance(options.decode, Speculative):
        draft = draft_of(target, draft)
    elif draft is not None:
        raise ConfigError(f"--decode {decode} reads no draft; add --decode dflash or ddtree, or leave --draft out")
    expected: list[str] | None = None
    if prompt_file is None:
        document, example = sample()
        if question is None:
            question, needle, expected = example.question, needle or example.needle, list(example.answers)
    elif question is None:
        about = "standard input" if prompt_file == STANDARD_INPUT else prompt_file
        raise PromptError(f"the question is missing: say what to ask about {about} with --question")
    else:
        document = read_text(prompt_file, "--prompt-file", piped=True)
    on = {"cards": cards, "target_cards": target_cards, "scorers": scorers_of(options)}
    pipeline = open_pair(target, drafter, device, vram, break_even, draft, ropes | maths | on)
    tell_thinking(asked, pipeline.target)
    told = {"needle": needle, "answer_prefix": answer_prefix, "thinking": asked}
    prompt = Prompt.from_document(document, question, pipeline.target.template, **told)  # type: ignore[arg-type]
    pipeline.check(prompt, options, full=full)
    if full:
        pipeline.warm_up(min(1024, len(prompt.text) // 32))  # about an eighth of the prompt
    result = pipeline.run(prompt, options, full=full, reporter=progress_bar, by_head=True)
    facts = {"sp": __version__, "question": question, "answer": result.answer.text}
    files = run_report.write_files(result, pipeline, options, out, facts, expected)
    report = run_report.summary(result, files, expected)
    if as_json:
        print_json(report)
        return
    console = Console()
    if result.kept_tokens < len(result.prompt):
        console.print(as_text(result, None if show_kept else 1600))
        console.print()
    run_report.print_outcome(console, report, result, verbose)
