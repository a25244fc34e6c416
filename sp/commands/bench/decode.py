"""`sp bench decode`: speed of greedy and speculative decoding by budget; `sp bench llama-cpp`: that of llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sp.commands.common import (
    Q8_0,
    FileType,
    OnDevice,
    OutputOptions,
    ShapeName,
    Speculator,
    kernels_of,
    speculator_file,
)
from sp.commands.shell.parser import Adjusted, opt
from sp.commands.shell.terminal import progress_bar
from sp.config import Tokens
from sp.errors import ConfigError, unknown_name
from sp.named import read_strategies
from sp.session import RunOptions

if TYPE_CHECKING:
    from sp.bench.decode import DecodePrompt, DecodeTiming
    from sp.bench.simulate import Acceptance

TASKS = "needle,needle_multikey,needle_multivalue,needle_multiquery,needle[value=uuid],needle[value=word],vt"


OMITTED = (  # options of a run that do not concern decoding
    "keep_ratio scorer selector compress threshold sparse positions mapping mark_omitted decode max_new_tokens seed"
)
MAIN = (
    "method", "draft tokens", "simulated acceptance", "tokens per pass", "tok/s", "against greedy",
    "pass", "nodes", "pass (ms)", "in greedy steps", "draft step (ms)",
)  # fmt: skip


def bench_decode(
    results: OutputOptions,
    run: Annotated[RunOptions, Adjusted(OMITTED)],
    target: Annotated[
        Path | None, opt(help="GGUF file or known name of the target; the embedded one if omitted.")
    ] = None,
    speculator: Speculator = None,
    synthetic: Annotated[
        ShapeName | None, opt(help="Shape of random weights in place of a target, e.g. qwen3.6-27b.")
    ] = None,
    type_: Annotated[
        FileType | None,
        opt("--type", help="File type of the target's random weights; the shape's own if omitted, mostly q4_k_m."),
    ] = None,
    speculator_type: Annotated[FileType, opt(help="File type of the draft model's random weights.")] = Q8_0,
    accept: Annotated[
        tuple[int, ...], opt(help="Simulate an acceptance of this many tokens per pass, comma-separated, e.g. 4,8.")
    ] = (),
    simulate: Annotated[
        Path | None, opt(help="Simulate the accepted lengths that --trace recorded, also of another pair.")
    ] = None,
    methods: Annotated[tuple[str, ...], opt(help="greedy, dflash, ddtree, comma-separated; greedy always runs.")] = (
        "greedy",
        "dflash",
        "ddtree",
    ),
    budgets: Annotated[tuple[int, ...], opt(help="Draft tokens per pass, comma-separated.")] = (
        1,
        4,
        8,
        15,
        22,
        32,
        48,
        63,
    ),
    tasks: Annotated[
        str, opt(help="Tasks of sp eval to answer, with options; six needle tasks and vt if omitted.")
    ] = TASKS,
    prompt: Annotated[Tokens, opt("-p", "--prompt", least=1, help="Tokens of each prompt, e.g. 1k.")] = 1024,
    examples: Annotated[int, opt("-n", "--examples", least=1, help="Prompts per task.")] = 4,
    new: Annotated[Tokens, opt(least=1, help="Decoded tokens per repetition with simulated acceptance.")] = 256,
    repeats: Annotated[int, opt("-r", "--repeats", least=1, help="Repetitions, and samples of a pass.")] = 5,
    nodes: Annotated[
        tuple[int, ...],
        opt(empty=True, help="Also time rounds with this many tokens per pass, at most a full draft; comma-separated."),
    ] = (16, 23),
    device: OnDevice = "auto",
    trace: Annotated[
        Path | None, opt(writes="file", help="Write the accepted lengths of every method, for --simulate.")
    ] = None,
    plots: Annotated[
        Path | None, opt(writes="folder", help="Draw acceptance and speed over budget into this folder.")
    ] = None,
) -> None:
    """Time speculative decoding by budget, next to greedy decoding of the same prompts in the same run.

    A real pair answers generated prompts of several tasks; answers are compared with the greedy ones token by token.
    With random weights no draft token would be right. With them (or with --accept, --simulate) draft and verification
    run, but the number of accepted tokens per pass is given. All outputs call that simulated acceptance.

    Examples
    --------
      sp bench decode -n 10 --trace accepted.json
      sp bench decode --tasks 'needle,vt[chains=2]' --methods ddtree --budgets 8,22 --device cpu
      sp bench decode --synthetic qwen3.6-27b --simulate accepted.json --accept 4,8 -p 2k --record results
    """
    from sp.bench.decode import (
        describe,
        describe_round,
        fitting,
        measure_pair,
        measure_simulated,
        settings_of,
        time_round,
    )
    from sp.bench.record import model_facts, running
    from sp.bench.simulate import Acceptance, read_trace, write_trace
    from sp.bench.ttft import without_ends
    from sp.evals import TASKS as KNOWN
    from sp.kernels.device import pick_device
    from sp.models.cache.kv_type import cache_name
    from sp.models.synthetic.shapes import type_of_shape

    simulated = bool(accept or simulate)
    if synthetic is not None and not simulated:
        raise ConfigError("drafts of random weights are never right; pass --accept N or --simulate FILE")
    if simulated and trace is not None:
        raise ConfigError("--trace records real acceptance, but it is simulated here; omit --trace")
    check_methods(methods, budgets, nodes)
    acceptances = [Acceptance.always(n) for n in accept]
    acceptances += [read_trace(simulate)] if simulate else []
    options = replace(run, compress="off")  # only decoding is timed, after a full prefill
    answered_tasks = read_strategies(tasks, KNOWN, "--tasks")
    where = pick_device(device)
    type_ = type_ if synthetic is None else FileType(type_of_shape(synthetic, type_))
    loaded, draft = open_models(target, speculator, synthetic, type_, speculator_type, where)
    settings, sizes = settings_of([*methods], [*budgets], draft.block_size), fitting([*nodes], draft.block_size)
    facts = model_facts(loaded.path.name, loaded.model.config, type_of(loaded, synthetic and type_))
    cached = {"kv": cache_name(run.kv, run.rotate), "context": prompt}
    common = {**facts, **cached, **running(kernels_of("auto", where)[0]), "engine": "sp"}
    records: list[dict[str, Any]] = []

    def append(measured: DecodeTiming) -> None:
        records.append(record(describe(measured, loaded, draft, common), results))

    if simulated:
        loaded = without_ends(loaded)  # with simulated acceptance answers have a fixed length
        check_known(acceptances, settings, draft.block_size)
        runs = [a for setting in settings[1:] for a in acceptances if a.of(setting, draft.block_size)]
        with progress_bar("measuring", repeats * (1 + len(runs))) as advance:
            for measured in measure_simulated(
                *(loaded, draft, settings, acceptances, options),
                context=prompt, tokens=new, repeats=repeats, progress=lambda: advance(1),
            ):  # fmt: skip
                append(measured)
    else:
        questions = questions_of(answered_tasks, examples, prompt, loaded)
        with progress_bar("measuring", (1 + len(questions)) * len(settings)) as advance:
            answered = measure_pair(loaded, draft, questions, settings, options, lambda: advance(1))
        for measured in answered:
            append(measured)
        if trace is not None:
            origin = {"target": loaded.path.name, "draft": draft.path.name, "on": where, "tasks": tasks,
                      "prompt tokens": prompt, "prompts a task": examples}  # fmt: skip
            lengths_of = {m.setting: [n for answer in m.answers for n in answer.passes] for m in answered[1:]}
            write_trace(trace, origin, lengths_of)
    greedy_ms = records[0]["metrics"]["pass_ms"]
    with progress_bar("parts of a round", len(sizes)) as advance:
        for size in sizes:
            part = time_round(loaded, draft, size, greedy_ms, options, context=prompt, repeats=4 * repeats)
            records.append(record(describe_round(part, loaded, draft, common), results))
            advance(1)
    from sp.studies.plots.ttft_plots import draw_decoding

    show(records, list(draw_decoding(records, plots)) if plots is not None else [], results)


def check_methods(methods: Sequence[str], budgets: Sequence[int], nodes: Sequence[int]) -> None:
    """Raise ConfigError for an unknown method, or for more draft tokens than a pass can have."""
    from sp.decode import DECODERS
    from sp.models.run.tree import MOST_NODES

    for name in methods:
        if name not in DECODERS:
            raise unknown_name("method", name, DECODERS)
    if any(not 1 <= n < MOST_NODES for n in budgets):
        raise ConfigError(f"--budgets {budgets}: a pass verifies 1 to {MOST_NODES - 1} draft tokens")
    if any(not 2 <= n <= MOST_NODES for n in nodes):
        raise ConfigError(f"--nodes {nodes}: a pass with draft tokens has 2 to {MOST_NODES} nodes")


def open_models(
    target: Path | None,
    speculator: Path | None,
    synthetic: str | None,
    type_: str | None,
    speculator_type: str,
    where: Any,
) -> tuple[Any, Any]:
    """Open target and draft model, from files or with random weights."""
    from sp.models.drafts.dflash import load_draft
    from sp.models.synthetic.dflash_synthetic import synthetic_draft
    from sp.session import embedded, load
    from sp.session.loaded import synthetic as random_target

    if synthetic is None:
        file = speculator_file(target, speculator, "dflash")
        loaded = load(target or embedded("target"), device=where)
        return loaded, load_draft(file, loaded.model)
    if target is not None:
        raise ConfigError("--target and --synthetic exclude each other; omit one")
    loaded = random_target(synthetic, type_, device=where)
    if speculator is not None:
        return loaded, load_draft(speculator, loaded.model)
    return loaded, synthetic_draft(f"dflash-{synthetic}", speculator_type, loaded.model)


def questions_of(tasks: Sequence[Any], examples: int, tokens: int, loaded: Any) -> list[DecodePrompt]:
    """Make prompts of all tasks in turn, so that drifts during a run affect them equally."""
    from sp.bench.decode import DecodePrompt
    from sp.evals import TASKS as KNOWN
    from sp.evals.run import counter, label

    def make(task: Any, index: int) -> DecodePrompt:
        example = task.example(index, tokens, counter(loaded.tokenizer))
        ids = example.prompt(loaded.template).tokenise(loaded.tokenizer).ids
        return DecodePrompt(label(KNOWN, task), ids, example.max_new_tokens)

    return [make(task, index) for index in range(examples) for task in tasks]


def check_known(acceptances: Sequence[Acceptance], settings: Sequence[tuple[str, int]], block_size: int) -> None:
    """Raise ConfigError for a simulated acceptance that applies to none of the methods and budgets."""
    for acceptance in acceptances:
        if any(acceptance.of(setting, block_size) for setting in settings[1:]):
            continue
        if acceptance.constant is not None:
            raise ConfigError(
                f"--accept {acceptance.constant}: no pair of --methods and --budgets accepts so many tokens; "
                f"the draft's blocks have {block_size} tokens"
            )
        known = ", ".join(f"{method} {budget}" for method, budget in acceptance.lengths)
        raise ConfigError(
            f"the trace {acceptance.name} has none of these methods and budgets; pass --methods and --budgets "
            f"of {known}"
        )


def type_of(loaded: Any, random: str | None) -> str | None:
    """Return the file type of a target: that of its random weights, or that of its file."""
    from sp.bench.record import file_type_name
    from sp.gguf import GGUFFile

    return random or file_type_name(loaded.file or GGUFFile.open(loaded.path))


def record(description: dict[str, Any], results: OutputOptions) -> dict[str, Any]:
    """Return the record of a measurement; with `--record` it is written at once."""
    from sp.bench.record import make_record

    results.append_record(row := make_record(**description))
    return row


def show(records: Sequence[dict[str, Any]], drawn: Sequence[Path], results: OutputOptions) -> None:
    """Print the tables, or all records as JSON or CSV."""
    from sp.studies.tables.decode_table import decode_tables, row_of

    rows, samples = [row_of(record) for record in records], [record["samples"] for record in records]
    if results.print_plain(rows, samples, pictures=[str(path) for path in drawn]):
        return
    for title, heads, cells, text_columns in decode_tables(records):
        results.print_title(title)
        main = MAIN if {*MAIN} & {*heads[text_columns:]} else ()  # a table by task shows all columns
        results.print_table(heads, cells, text_columns, main)
        print()
    for path in drawn:
        print(path)


LLAMA_MAIN = ("engine", "kv", "batch", "test", "seconds", "tok/s", "best")


def bench_llama_cpp(
    results: OutputOptions,
    program: Annotated[Path, opt("--llama-bench", help="Path of llama.cpp's program llama-bench.")],
    model: Annotated[Path, opt("-m", "--model", help="GGUF file of the model.")],
    prompts: Annotated[
        tuple[Tokens, ...], opt("-p", "--prompts", help="Prompt lengths, comma-separated; 0 for none.")
    ] = (512,),
    new: Annotated[tuple[Tokens, ...], opt("-n", "--new", help="Decoded tokens, comma-separated; 0 for none.")] = (64,),
    batches: Annotated[
        tuple[Tokens, ...], opt("-b", "--batch", help="Batch sizes in tokens, comma-separated; llama.cpp's if omitted.")
    ] = (),
    ubatches: Annotated[
        tuple[Tokens, ...], opt("-ub", "--ubatch", help="Physical batch sizes in tokens, comma-separated.")
    ] = (),
    repeats: Annotated[int, opt("-r", "--repeats", least=1, help="Samples per test.")] = 5,
    kv: Annotated[str, opt(help="Format of the KV cache, by llama.cpp's names.")] = "f16",
    timeout: Annotated[float, opt(least=1, help="Limit of all tests together, in seconds.")] = 3600.0,
) -> None:
    """Time full prefill and decoding of a GGUF file by llama.cpp, on this machine.

    Rows have the same columns as those of `sp bench model`. All batch sizes are recorded, and the best of each test is
    marked. llama-bench includes neither tokenisation nor sampling.

    Examples
    --------
      sp bench llama-cpp --llama-bench ~/llama.cpp/build/bin/llama-bench -m target.gguf -p 8k,32k -b 2048,8192 \\
      -ub 512,2048 --record results
    """
    from sp.bench.llama_cpp import bench_command, describe_peer, run_bench, with_best
    from sp.bench.record import file_facts, make_record
    from sp.hub import model_path
    from sp.kernels.device import pick_device

    model = model_path(model)
    if not model.is_file():
        raise ConfigError(f"cannot read {model}: no such file; pass a GGUF file with -m")
    lengths, decoded, *sizes = ([n for n in numbers if n] for numbers in (prompts, new, batches, ubatches))
    if not lengths and not decoded:
        raise ConfigError("nothing to time; pass prompt lengths with -p or numbers of decoded tokens with -n")
    command = bench_command(program, model, lengths, decoded, repeats, kv, *sizes)
    where, facts = pick_device("auto"), file_facts(model)
    with progress_bar("llama-bench", None):
        tests = with_best(run_bench(command, timeout))
    records = [make_record(**describe_peer(test, facts), device=where) for test in tests]
    for row in records:
        results.append_record(row)
    rows = [_llama_row(row) for row in records]
    if results.print_plain(rows, [row["samples"] for row in records]):
        return
    heads = ["engine", "build", "backend", "kv", "batch", "ubatch", "test", "seconds", "tok/s", "runs", "best"]
    cells = [[*("" if row[name] is None else str(row[name]) for name in heads[:7]), f"{row['seconds']:.3f}",
              f"{row['tok_s']:.1f}", str(row["runs"]), "*" if row["best"] else ""] for row in rows]  # fmt: skip
    results.print_table(heads, cells, 7, LLAMA_MAIN)


def _llama_row(record: dict[str, Any]) -> dict[str, Any]:
    config, metrics = record["config"], record["metrics"]
    decoding = record["bench"] == "decode"
    name = f"tg{config['tokens']}" if decoding else f"pp{config['prompt_tokens']}"
    return {
        "engine": config["engine"],
        "build": config["build"],
        "backend": config["path"],
        "kv": config["kv"],
        "batch": config["batch"],
        "ubatch": config["ubatch"],
        "test": name,
        "seconds": (config["tokens"] if decoding else config["prompt_tokens"]) / metrics["tok_s"],
        "tok_s": metrics["tok_s"],
        "best": metrics["best"],
        "runs": len(record["samples"]),
    }
