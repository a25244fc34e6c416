"""The command line: parse, call, print. Errors are one line on stderr and exit status 2."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sp import __version__
from sp.commands.bench.bench import bench_app
from sp.commands.bench.bench_decode import bench_decode
from sp.commands.bench.bench_drafter import bench_drafter
from sp.commands.bench.bench_llama_cpp import bench_llama_cpp
from sp.commands.bench.bench_ttft import bench_ttft
from sp.commands.doctor import doctor
from sp.commands.evals import eval_app
from sp.commands.heads import heads
from sp.commands.kernels import kernels_app
from sp.commands.open_pair import VRAM, Decode, Draft, OnDevice, draft_of, open_pair
from sp.commands.report import report
from sp.commands.serve import serve
from sp.commands.strategies import overrides
from sp.commands.sweep import sweep
from sp.commands.terminal import AsJson, check_folder, print_json, progress_bar, read_text
from sp.config import from_mapping
from sp.errors import ConfigError, PromptError, SpError, unknown_name
from sp.kernels import device_errors

app = typer.Typer(
    name="sp",
    help="Speculative prefill: a small drafter decides which tokens of a long prompt a heavy model reads.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

INTERRUPTED = 130
UsageError: Any = typer.BadParameter.__bases__[0]
"""What Typer raises for a wrong command line; its module differs between Typer versions."""


app.command()(doctor)
app.command()(heads)
app.command()(serve)
app.command()(sweep)
app.command()(report)
app.add_typer(kernels_app, name="kernels")
bench_app.command("decode")(bench_decode)
bench_app.command("drafter")(bench_drafter)
bench_app.command("ttft")(bench_ttft)
bench_app.command("llama-cpp")(bench_llama_cpp)
app.add_typer(bench_app, name="bench")
app.add_typer(eval_app, name="eval")


@app.callback(invoke_without_command=True)
def common(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Options that belong to no command."""
    if version:
        print(f"sp {__version__}")
        raise typer.Exit


@app.command()
def run(
    prompt_file: Annotated[
        Path | None, typer.Option(help="Long text to read; the embedded sample if left out.")
    ] = None,
    question: Annotated[str | None, typer.Option(help="What to ask about the text.")] = None,
    needle: Annotated[str | None, typer.Option(help="Piece of the text that holds the answer; report only.")] = None,
    answer_prefix: Annotated[str, typer.Option(help="Text the answer must begin with.")] = "",
    target: Annotated[Path | None, typer.Option(help="GGUF of the heavy model; the embedded one if left out.")] = None,
    drafter: Annotated[Path | None, typer.Option(help="GGUF of the small model; the embedded one if left out.")] = None,
    keep_ratio: Annotated[float, typer.Option(help="Share of the prompt's tokens the target reads, in (0, 1].")] = 0.05,
    scorer: Annotated[str, typer.Option(help="What makes a token important: tail, lookahead, ...")] = "tail",
    selector: Annotated[str, typer.Option(help="How tokens are chosen by importance: top_chunks, ...")] = "top_chunks",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Option of a strategy, e.g. scorer.queries=16 or decode.budget=22, or of sparse prefill, "
            "target.alpha=0.1; repeatable.",
        ),
    ] = None,
    compress: Annotated[str, typer.Option(help="auto (where it pays), always or off.")] = "auto",
    break_even: Annotated[
        Path | None, typer.Option(help="Records of sp bench ttft that decide with auto, in place of a prediction.")
    ] = None,
    positions: Annotated[str | None, typer.Option(help="Of kept tokens: original (default) or contiguous.")] = None,
    mapping: Annotated[str, typer.Option(help="Drafter to target: byte_span, or text_rejoin.")] = "byte_span",
    kv: Annotated[str, typer.Option(help="Cached keys and values of the target: f16, q4_0 or f32.")] = "f16",
    rotate: Annotated[bool, typer.Option(help="Hadamard-rotate cached keys and values.")] = False,
    decode: Decode = "greedy",
    draft: Draft = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 64,
    device: OnDevice = "auto",
    vram: VRAM = None,
    full: Annotated[bool, typer.Option(help="Also run the full prefill, for comparison.")] = True,
    show_kept: Annotated[bool, typer.Option(help="Print all kept text, not an excerpt.")] = False,
    seed: Annotated[int, typer.Option(help="For scorers that draw random numbers, and for sampled answers.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for trace, arrays, picture and highlighted text.")] = Path("sp-run"),
    as_json: AsJson = False,
) -> None:
    """Read a long text speculatively and answer a question about it.

    With no arguments: the embedded pair of small models, the embedded document and its question.

    [bold]Examples[/bold]

      sp run

      sp run --keep-ratio 0.1 --scorer tail --set scorer.queries=16

      sp run --prompt-file book.txt --question "What is the special magic number for quiet-lantern?"

      sp run --decode ddtree --set decode.budget=22

      sp run --target Qwen3.6-27B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --prompt-file book.txt --question "..."
    """
    from sp.decode import DECODERS, Speculative
    from sp.ops.sparse.flashprefill import FlashPrefill
    from sp.pipeline import RunOptions
    from sp.prompt import Prompt
    from sp.scoring import SCORERS
    from sp.scoring.reading import by_length
    from sp.selection import SELECTORS
    from sp.studies.pages import run_report
    from sp.studies.pages.kept_text import as_text
    from sp.studies.sample import sample

    stand = positions or ("contiguous" if mapping == "text_rejoin" else "original")
    scoring, sparse = (overrides(settings or [], group) for group in ("scorer", "target"))
    chosen = SCORERS.build(scorer, scoring)
    given = {
        "keep_ratio": keep_ratio,
        "scorer": chosen if "attention" in scoring else by_length(chosen),
        "selector": SELECTORS.build(selector, overrides(settings or [], "selector")),
        "compress": compress,
        "positions": stand,
        "mapping": mapping,
        "kv": kv,
        "rotate": rotate,
        "sparse": from_mapping(FlashPrefill, sparse, "target") if sparse else None,
        "decode": DECODERS.build(decode, overrides(settings or [], "decode")),
        "max_new_tokens": max_new_tokens,
        "seed": seed,
    }
    options = from_mapping(RunOptions, given, "sp run")
    check_folder(out, "--out")
    if isinstance(options.decode, Speculative):
        draft = draft_of(target, draft)
    elif draft is not None:
        raise ConfigError(f"--decode {decode} reads no draft; add --decode dflash or ddtree, or leave --draft out")
    expected: list[str] | None = None
    if prompt_file is None:
        document, example = sample()
        if question is None:
            question, needle, expected = example.question, needle or example.needle, list(example.answers)
    else:
        document = read_text(prompt_file, "--prompt-file")
    if question is None:
        raise PromptError(f"the question is missing: say what to ask about {prompt_file} with --question")
    pipeline = open_pair(target, drafter, device, vram, break_even, draft)
    prompt = Prompt.from_document(
        document, question, pipeline.target.template, needle=needle, answer_prefix=answer_prefix
    )
    if full:
        pipeline.warm_up(min(1024, len(prompt.text) // 32))  # about an eighth of the prompt
    result = pipeline.run(prompt, options, full=full, reporter=progress_bar, by_head=True)
    facts = {"sp": __version__, "question": question, "answer": result.answer.text}
    files = run_report.write_files(result, pipeline, options, out, facts)
    report = run_report.summary(result, files, expected)
    if as_json:
        print_json(report)
        return
    console = Console()
    console.print(as_text(result, None if show_kept else 1600))
    console.print()
    console.print(run_report.stage_table(result))
    run_report.print_outcome(console, report, result)


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A GGUF file, or the first of its shards.")],
    as_json: AsJson = False,
) -> None:
    """Show what a GGUF file holds: architecture, tensors by type, bytes, tokenizer, template, warnings.

    [bold]Example[/bold]

      sp inspect Qwen3.6-27B-Q4_K_M.gguf
    """
    from sp.models.inspect import inspect_file
    from sp.models.inspect_tables import render

    info = inspect_file(file)
    if as_json:
        print_json(info)
    else:
        Console().print(render(info))


@app.command()
def synth(
    shape: Annotated[
        str, typer.Option(help="Named shape: qwen3.6-27b, qwen3-0.6b, dflash-..., tiny-..., retriever-...")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="GGUF file to write.")],
    type_: Annotated[
        str | None,
        typer.Option("--type", help="q4_k_m (default of random weights), q8_0, bf16, f16 (of retrievers), f32."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write a model or a draft with random weights in a real shape, or a constructed retriever (for tests).

    [bold]Examples[/bold]

      sp synth --shape qwen3.6-27b --type q4_k_m -o target.gguf

      sp synth --shape dflash-qwen3.6-27b --type bf16 -o draft.gguf

      sp synth --shape retriever-qwen3 --type f16 -o retriever.gguf
    """
    from sp.models.drafts.dflash_shapes import find_draft_shape, list_draft_shapes
    from sp.models.drafts.dflash_synthetic import write_synthetic_draft
    from sp.models.synthetic.retriever import RETRIEVER_SHAPES, write_retriever
    from sp.models.synthetic.shapes import list_shapes, tensor_plan
    from sp.models.synthetic.synthetic import write_synthetic

    drafts = list_draft_shapes()
    if shape not in RETRIEVER_SHAPES and shape not in list_shapes() and shape not in drafts:
        raise unknown_name("shape", shape, [*list_shapes(), *drafts, *RETRIEVER_SHAPES])
    start = time.perf_counter()
    if shape in RETRIEVER_SHAPES:
        type_ = type_ or "f16"
        write_retriever(out, shape, type_, seed=seed)
    else:
        type_ = type_ or "q4_k_m"
        plan = find_draft_shape(shape).plan(type_) if shape in drafts else tensor_plan(shape, type_)
        write = write_synthetic_draft if shape in drafts else write_synthetic
        with progress_bar("writing", sum(fmt.nbytes(dims) for _, dims, fmt in plan)) as progress:
            write(out, shape, type_, seed, progress)
    seconds, size = time.perf_counter() - start, out.stat().st_size
    if as_json:
        print_json({"file": str(out), "bytes": size, "seconds": seconds, "shape": shape, "type": type_, "seed": seed})
    else:
        print(f"{out}: {size:,} bytes in {seconds:.1f} s ({size / seconds / 1e6:.0f} MB/s)")


def main() -> None:
    """Entry point of the `sp` command."""
    try:
        with device_errors():
            status = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except SpError as error:
        print(f"sp: error: {error}", file=sys.stderr)
        sys.exit(2)
    except UsageError as error:
        print(f"sp: error: {' '.join(error.format_message().split()).rstrip('.')} (see sp --help)", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        print(
            "sp: error: out of memory; use a shorter prompt, a lower --keep-ratio or smaller models",
            file=sys.stderr,
        )
        sys.exit(2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"sp: error: {where}{error.strerror or error}; what was asked for is not complete", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        status = INTERRUPTED
    if status == INTERRUPTED:  # newer versions of Typer catch the interrupt themselves
        print("sp: interrupted", file=sys.stderr)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
