"""`sp bench decode`: tokens a second and tokens a pass, greedily and with a draft, by budget of guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sp.commands.asked import Q8_0, FileType, OnDevice, Results, ShapeName, Speculator, kernels_of, speculator_file
from sp.commands.shell.line import Part, opt
from sp.commands.shell.terminal import check_folder, progress_bar
from sp.config import Tokens
from sp.errors import ConfigError, unknown_name
from sp.named import read_strategies
from sp.session import RunOptions

if TYPE_CHECKING:
    from sp.bench.decode import DecodePrompt, DecodeTiming
    from sp.bench.simulate import Acceptance

TASKS = "needle,needle_multikey,needle_multivalue,needle_multiquery,needle[value=uuid],needle[value=word],vt"


# options of a run that decoding alone has nothing of
DECODED = (
    "keep_ratio scorer selector compress threshold sparse positions mapping mark_omitted decode max_new_tokens seed"
)
MAIN = (
    "method", "draft tokens", "simulated acceptance", "tokens per pass", "tok/s", "against greedy",
    "pass", "nodes", "pass (ms)", "in greedy steps", "draft step (ms)",
)  # fmt: skip


def bench_decode(
    results: Results,
    run: Annotated[RunOptions, Part(DECODED)],
    target: Annotated[
        Path | None, opt(help="GGUF of the target, or a known name; the embedded one if left out.")
    ] = None,
    speculator: Speculator = None,
    synthetic: Annotated[
        ShapeName | None, opt(help="Random weights in a named shape instead of a target, e.g. qwen3.6-27b.")
    ] = None,
    type_: Annotated[
        FileType | None,
        opt("--type", help="File type of the target's random weights; the shape's own if left out, q4_k_m of most."),
    ] = None,
    speculator_type: Annotated[FileType, opt(help="File type of the draft's random weights.")] = Q8_0,
    accept: Annotated[
        tuple[int, ...], opt(help="Simulate acceptance: so many tokens a pass, comma-separated, e.g. 4,8.")
    ] = (),
    simulate: Annotated[
        Path | None, opt(help="Simulate acceptance: lengths recorded by --trace, of another pair perhaps.")
    ] = None,
    methods: Annotated[tuple[str, ...], opt(help="greedy, dflash, ddtree, comma-separated; greedy is always run.")] = (
        "greedy",
        "dflash",
        "ddtree",
    ),
    budgets: Annotated[tuple[int, ...], opt(help="Guesses a pass, comma-separated.")] = (1, 4, 8, 15, 22, 32, 48, 63),
    tasks: Annotated[
        str, opt(help="Tasks of sp eval to answer, with options; six of needles and vt if left out.")
    ] = TASKS,
    prompt: Annotated[Tokens, opt("-p", "--prompt", least=1, help="Tokens read before, e.g. 1k.")] = 1024,
    examples: Annotated[int, opt("-n", "--examples", least=1, help="Prompts a task.")] = 4,
    new: Annotated[Tokens, opt(least=1, help="Tokens a repetition, where acceptance is simulated.")] = 256,
    repeats: Annotated[int, opt("-r", "--repeats", least=1, help="Repetitions, and samples of a pass.")] = 5,
    nodes: Annotated[
        tuple[int, ...],
        opt(empty=True, help="Also time rounds of so many tokens a pass, or all a draft can fill; comma-separated."),
    ] = (16, 23),
    device: OnDevice = "auto",
    trace: Annotated[Path | None, opt(help="Write the accepted lengths of every way, for --simulate.")] = None,
    plots: Annotated[Path | None, opt(help="Draw acceptance and speed over budget into this folder.")] = None,
) -> None:
    """Time decoding with a draft by budget, beside plain greedy decoding of the same prompts in the same run.

    A real pair answers generated prompts of several tasks; answers are compared with the greedy ones token for token.
    Random weights guess nothing right: with them (or with --accept, --simulate) draft and verification run for real,
    but how many tokens a pass gives is taken from elsewhere. All of that is called simulated acceptance wherever it
    stands.

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

    for folder, option in ((plots, "--plots"), (trace.parent if trace else None, "--trace")):
        check_folder(folder, option)
    simulated = bool(accept or simulate)
    if synthetic is not None and not simulated:
        raise ConfigError("random weights guess nothing right; say what to simulate with --accept N or --simulate FILE")
    if simulated and trace is not None:
        raise ConfigError("--trace writes what was accepted, but here it is simulated; leave one of them out")
    check_methods(methods, budgets, nodes)
    acceptances = [Acceptance.always(n) for n in accept]
    acceptances += [read_trace(simulate)] if simulate else []
    options = replace(run, compress="off")
    made = read_strategies(tasks, KNOWN, "--tasks")
    where = pick_device(device)
    type_ = type_ if synthetic is None else FileType(type_of_shape(synthetic, type_))
    loaded, guesser = open_models(target, speculator, synthetic, type_, speculator_type, where)
    ways, sizes = settings_of([*methods], [*budgets], guesser.block_size), fitting([*nodes], guesser.block_size)
    facts = model_facts(loaded.path.name, loaded.model.config, type_of(loaded, synthetic and type_))
    cached = {"kv": cache_name(run.kv, run.rotate), "context": prompt}
    common = {**facts, **cached, **running(kernels_of("auto", where)[0]), "engine": "sp"}
    found: list[dict[str, Any]] = []

    def keep(measured: DecodeTiming) -> None:
        found.append(kept(describe(measured, loaded, guesser, common), results))

    if simulated:
        loaded = without_ends(loaded)
        check_known(acceptances, ways, guesser.block_size)
        runs = [a for way in ways[1:] for a in acceptances if a.of(way, guesser.block_size)]
        with progress_bar("measuring", repeats * (1 + len(runs))) as advance:
            for measured in measure_simulated(
                *(loaded, guesser, ways, acceptances, options),
                context=prompt, tokens=new, repeats=repeats, progress=lambda: advance(1),
            ):  # fmt: skip
                keep(measured)
    else:
        questions = questions_of(made, examples, prompt, loaded)
        with progress_bar("measuring", (1 + len(questions)) * len(ways)) as advance:
            answered = measure_pair(loaded, guesser, questions, ways, options, lambda: advance(1))
        for measured in answered:
            keep(measured)
        if trace is not None:
            origin = {"target": loaded.path.name, "draft": guesser.path.name, "on": where, "tasks": tasks,
                      "prompt tokens": prompt, "prompts a task": examples}  # fmt: skip
            lengths_of = {m.setting: [n for answer in m.answers for n in answer.passes] for m in answered[1:]}
            write_trace(trace, origin, lengths_of)
    greedy_ms = found[0]["metrics"]["pass_ms"]
    with progress_bar("a round's parts", len(sizes)) as advance:
        for size in sizes:
            part = time_round(loaded, guesser, size, greedy_ms, options, context=prompt, repeats=4 * repeats)
            found.append(kept(describe_round(part, loaded, guesser, common), results))
            advance(1)
    from sp.studies.plots.ttft_plots import draw_decoding

    show(found, list(draw_decoding(found, plots)) if plots is not None else [], results)


def check_methods(methods: Sequence[str], budgets: Sequence[int], nodes: Sequence[int]) -> None:
    """ConfigError for a method that there is not, and for more guesses than a pass has room for."""
    from sp.decode import DECODERS
    from sp.models.run.tree import MOST_NODES

    for name in methods:
        if name not in DECODERS:
            raise unknown_name("method", name, DECODERS)
    if any(not 1 <= n < MOST_NODES for n in budgets):
        raise ConfigError(f"--budgets {budgets}: a pass with a draft has 1 to {MOST_NODES - 1} guesses")
    if any(not 2 <= n <= MOST_NODES for n in nodes):
        raise ConfigError(f"--nodes {nodes}: a pass with guesses has 2 to {MOST_NODES} nodes")


def open_models(
    target: Path | None,
    speculator: Path | None,
    synthetic: str | None,
    type_: str | None,
    speculator_type: str,
    where: Any,
) -> tuple[Any, Any]:
    """Target and draft, from files or with random weights."""
    from sp.models.drafts.dflash import load_draft
    from sp.models.synthetic.dflash_synthetic import synthetic_draft
    from sp.session import embedded, load
    from sp.session.loaded import synthetic as random_target

    if synthetic is None:
        file = speculator_file(target, speculator, "dflash")
        loaded = load(target or embedded("target"), device=where)
        return loaded, load_draft(file, loaded.model)
    if target is not None:
        raise ConfigError("give either --target or --synthetic")
    loaded = random_target(synthetic, type_, device=where)
    if speculator is not None:
        return loaded, load_draft(speculator, loaded.model)
    return loaded, synthetic_draft(f"dflash-{synthetic}", speculator_type, loaded.model)


def questions_of(tasks: Sequence[Any], examples: int, tokens: int, loaded: Any) -> list[DecodePrompt]:
    """Prompts of every task in turn, so that what drifts during a run falls on all of them."""
    from sp.bench.decode import DecodePrompt
    from sp.evals import TASKS as KNOWN
    from sp.evals.run import counter, label

    def make(task: Any, index: int) -> DecodePrompt:
        example = task.example(index, tokens, counter(loaded.tokenizer))
        ids = example.prompt(loaded.template).tokenise(loaded.tokenizer).ids
        return DecodePrompt(label(KNOWN, task), ids, example.max_new_tokens)

    return [make(task, index) for index in range(examples) for task in tasks]


def check_known(acceptances: Sequence[Acceptance], ways: Sequence[tuple[str, int]], block_size: int) -> None:
    """ConfigError for an acceptance that tells of none of the ways."""
    for one in acceptances:
        if any(one.of(way, block_size) for way in ways[1:]):
            continue
        if one.constant is not None:
            raise ConfigError(
                f"--accept {one.constant}: no method and budget asked for gives so many; the draft's blocks have "
                f"{block_size} tokens"
            )
        known = ", ".join(f"{method} {budget}" for method, budget in one.lengths)
        raise ConfigError(f"the trace {one.name} tells nothing of the methods and budgets asked for, but of {known}")


def type_of(loaded: Any, random: str | None) -> str | None:
    """File type of a target: that of its random weights, or what its file says."""
    from sp.bench.record import file_type_name
    from sp.gguf import GGUFFile

    return random or file_type_name(loaded.file or GGUFFile.open(loaded.path))


def kept(described: dict[str, Any], results: Results) -> dict[str, Any]:
    """The record of a measurement, on disk at once if asked for."""
    from sp.bench.record import make_record

    results.keep(made := make_record(**described))
    return made


def show(records: Sequence[dict[str, Any]], drawn: Sequence[Path], results: Results) -> None:
    """The tables, or all of it as JSON or CSV."""
    from sp.studies.tables.decode_table import decode_tables, row_of

    rows, samples = [row_of(record) for record in records], [record["samples"] for record in records]
    if results.plain(rows, samples, pictures=[str(path) for path in drawn]):
        return
    for title, heads, cells, left in decode_tables(records):
        results.title(title)
        main = MAIN if {*MAIN} & {*heads[left:]} else ()  # all tasks are, in a table of tasks
        results.table(heads, cells, left, main)
        print()
    for path in drawn:
        print(path)


LLAMA_MAIN = ("engine", "kv", "batch", "test", "seconds", "tok/s", "best")


def bench_llama_cpp(
    results: Results,
    program: Annotated[Path, opt("--llama-bench", help="llama.cpp's llama-bench program.")],
    model: Annotated[Path, opt("-m", "--model", help="The GGUF file to run it on.")],
    prompts: Annotated[
        tuple[Tokens, ...], opt("-p", "--prompts", help="Prompt lengths, comma-separated; 0 for none.")
    ] = (512,),
    new: Annotated[tuple[Tokens, ...], opt("-n", "--new", help="Decoded tokens, comma-separated; 0 for none.")] = (64,),
    batches: Annotated[
        tuple[Tokens, ...], opt("-b", "--batch", help="Tokens taken at once, comma-separated; llama.cpp's if left out.")
    ] = (),
    ubatches: Annotated[
        tuple[Tokens, ...], opt("-ub", "--ubatch", help="Tokens that go through a layer together, comma-separated.")
    ] = (),
    repeats: Annotated[int, opt("-r", "--repeats", least=1, help="Samples a test.")] = 5,
    kv: Annotated[str, opt(help="Cached keys and values, as llama.cpp names types.")] = "f16",
    timeout: Annotated[float, opt(least=1, help="Seconds all tests together may take.")] = 3600.0,
) -> None:
    """Time full prefill and decoding of a GGUF file by llama.cpp, on this machine.

    Its rows have the form of `sp bench model`; of several batches all are recorded, and the best of each size is
    marked. llama-bench counts neither tokenising nor sampling.

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
        raise ConfigError(f"cannot read {model}: no such file; name a GGUF file with -m")
    lengths, decoded, *sizes = ([n for n in given if n] for given in (prompts, new, batches, ubatches))
    if not lengths and not decoded:
        raise ConfigError("nothing to time; give a prompt length with -p or tokens to decode with -n")
    command = bench_command(program, model, lengths, decoded, repeats, kv, *sizes)
    where, facts = pick_device("auto"), file_facts(model)
    with progress_bar("llama-bench", None):
        tests = with_best(run_bench(command, timeout))
    records = [make_record(**describe_peer(test, facts), device=where) for test in tests]
    for made in records:
        results.keep(made)
    rows = [_llama_row(made) for made in records]
    if results.plain(rows, [made["samples"] for made in records]):
        return
    heads = ["engine", "build", "backend", "kv", "batch", "ubatch", "test", "seconds", "tok/s", "runs", "best"]
    cells = [[*("" if row[name] is None else str(row[name]) for name in heads[:7]), f"{row['seconds']:.3f}",
              f"{row['tok_s']:.1f}", str(row["runs"]), "*" if row["best"] else ""] for row in rows]  # fmt: skip
    results.table(heads, cells, 7, LLAMA_MAIN)


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
