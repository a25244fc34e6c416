"""`sp run`: read a long text speculatively and answer a question about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sp import __version__
from sp.chat import Thinking
from sp.commands.common import RunArguments, Speculator, open_pair, scorers_of, speculator_file, warn_thinking
from sp.commands.shell.parser import opt
from sp.commands.shell.terminal import STANDARD_INPUT, AsJson, print_json, progress_bar, read_text
from sp.errors import ConfigError, PromptError
from sp.session.options import ModelOptions, PlaceOptions


def run(
    models: ModelOptions,
    arguments: RunArguments,
    thinking: Thinking,
    place: PlaceOptions,
    prompt_file: Annotated[
        Path | None, opt(help="File of the long text, - for standard input; the embedded sample if omitted.")
    ] = None,
    question: Annotated[str | None, opt(help="Question about the text.")] = None,
    needle: Annotated[str | None, opt(help="Passage with the answer, to mark in the report; changes nothing.")] = None,
    answer_prefix: Annotated[str, opt(help="Text with which the answer must begin.")] = "",
    speculator: Speculator = None,
    full: Annotated[bool, opt(help="Also run the full prefill, for comparison.")] = True,
    show_kept: Annotated[bool, opt(help="Print all selected text in place of an excerpt.")] = False,
    out: Annotated[Path, opt(writes="folder", help="Folder for report.html, trace, arrays and picture.")] = Path(
        "sp-run"
    ),
    verbose: Annotated[
        bool, opt("-v", "--verbose", help="Also print the times of all stages, attention's density, and memory.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read a long text speculatively and answer a question about it.

    Without arguments it uses the embedded pair of small models, the embedded document and its question.

    Examples
    --------
      sp run
      sp run --keep-ratio 0.1 --scorer tail --set scorer.queries=16
      sp run --prompt-file book.txt --question "What is the special magic number for quiet-lantern?"
      git log -p | sp run --prompt-file - --question "Which commit renamed the parser?"
      sp run --scorer 'tail[queries=16]' --decode ddtree --set decode.budget=22
      sp run --target Qwen3-8B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --thinking off --prompt-file book.txt ...
      sp run --precision int8 --drafter-precision int8
      sp run --gpus 2 --target Qwen3.6-27B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --prompt-file book.txt ...
      sp run --gpus 4 --target-gpus 1 --prompt-file book.txt ...
      sp run --thinking on --max-new-tokens 2048 ...
      sp run --target Qwen3.6-27B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --prompt-file book.txt --question "..."
    """
    from rich.console import Console

    from sp.decode import DECODERS, Speculative
    from sp.prompt import Prompt
    from sp.studies.pages import run_report
    from sp.studies.pages.kept_text import as_text
    from sp.studies.sample import sample

    options = arguments.options
    name = DECODERS.name_of(options.decode)
    if isinstance(options.decode, Speculative):
        speculator = speculator_file(models.target, speculator, name)
    elif speculator is not None:
        raise ConfigError(f"--decode {name} is not speculative; add --decode dflash or ddtree, or omit --speculator")
    expected: list[str] | None = None
    if prompt_file is None:
        document, example = sample()
        if question is None:
            question, needle, expected = example.question, needle or example.needle, list(example.answers)
    elif question is None:
        about = "standard input" if prompt_file == STANDARD_INPUT else prompt_file
        raise PromptError(f"the question is missing; ask one about {about} with --question")
    else:
        document = read_text(prompt_file, "--prompt-file", piped=True)
    pipeline = open_pair(models, place, scorers_of(options), speculator)
    warn_thinking(thinking, pipeline.target)
    parts = {"needle": needle, "answer_prefix": answer_prefix, "thinking": thinking}
    prompt = Prompt.from_document(document, question, pipeline.target.template, **parts)  # type: ignore[arg-type]
    pipeline.check(prompt, options, full=full)
    if full:
        pipeline.warm_up(min(1024, len(prompt.text) // 32))  # about an eighth of the prompt
    # by_head: the trace has the importance by head, which `sp report` draws
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
