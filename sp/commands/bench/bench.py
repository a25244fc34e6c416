"""`sp bench`: the speed of whole models, and pictures of what was measured."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sp.commands.bench.asked import asked_output, kernels_of
from sp.commands.options import KernelPath, ModelMath, Output, RecordBelow, Rotate, tokens_option
from sp.commands.tables import Wide, print_table
from sp.commands.terminal import AsJson, print_csv, print_json, progress_bar
from sp.config import token_count
from sp.errors import ConfigError, short

bench_app = typer.Typer(
    help="Measure whole models, and draw what was measured.", no_args_is_help=True, rich_markup_mode="rich"
)


@bench_app.command("model")
def bench_model(
    file: Annotated[Path | None, typer.Argument(help="A GGUF file; or use --synthetic.")] = None,
    synthetic: Annotated[
        str | None, typer.Option(help="Random weights in a named shape instead of a file, e.g. qwen3.6-27b.")
    ] = None,
    type_: Annotated[str, typer.Option("--type", help="File type of the random weights.")] = "q4_k_m",
    prompts: Annotated[str, typer.Option("-p", "--prompts", help="Prompt lengths, comma-separated.")] = "512",
    new: Annotated[str, typer.Option("-n", "--new", help="Decoded tokens, comma-separated; 0 for none.")] = "64",
    depth: Annotated[str, typer.Option("-d", "--depth", help="Tokens read before decoding, comma-separated.")] = "0",
    repeats: Annotated[int, typer.Option("-r", "--repeats", min=1, help="Samples a test.")] = 5,
    device: Annotated[str, typer.Option(help="auto (the GPU if there is one), cuda or cpu.")] = "auto",
    path: KernelPath = "auto",
    math: ModelMath = "bf16",
    kv: Annotated[str, typer.Option(help="Cached keys and values: f16, q4_0, or on the CPU f32.")] = "f16",
    rotate: Rotate = None,
    chunk: Annotated[int | None, tokens_option(least=1, help="Tokens that go through a layer together.")] = None,
    density: Annotated[
        float | None, typer.Option(help="Prefill sparsely: share of the key blocks that attention reads.")
    ] = None,
    cards: Annotated[int, typer.Option(min=1, help="GPUs that share the model, from the first on.")] = 1,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Also list the kernels a test spends its time in.")
    ] = False,
    record: RecordBelow = None,
    output: Output = "table",
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Time prefill and decoding of a model with random tokens, after a warm-up.

    [bold]Examples[/bold]

      sp bench model Qwen3.6-27B-Q4_K_M.gguf -p 512,8192,32768,131072 -n 64 -r 5

      sp bench model --synthetic qwen3.6-27b -p 8192 --path portable -o md

      sp bench model --synthetic qwen3.6-27b -p 8192,131072 -n 0 --math int8

      sp bench model --synthetic qwen3.6-27b -p 131072 -n 0 --density 0.05

      sp bench model --synthetic qwen3.6-27b -p 8k,128k -n 64 --cards 2
    """
    from sp.bench.model import Trial, describe, run_tests
    from sp.bench.names import file_type_name, model_facts
    from sp.bench.record import append, make_record
    from sp.gguf import GGUFFile
    from sp.kernels.device import pick_device
    from sp.models import read_math
    from sp.models.cache.pages import cache_name
    from sp.parallel.nccl import group_of

    output = asked_output(output, as_json, record, path)
    if (file is None) == (synthetic is None):
        raise ConfigError("give either a GGUF file or --synthetic with the name of a shape")
    lengths, decoded, depths = (numbers(text, name) for text, name in ((prompts, "-p"), (new, "-n"), (depth, "-d")))
    tests = [Trial(n, density=density) for n in lengths if n] + [Trial(d, n) for d in depths for n in decoded if n]
    if not tests:
        raise ConfigError("nothing to time; give a prompt length with -p or tokens to decode with -n")
    where, asked = pick_device(device), read_math(math, "--math")
    if kernels and cards > 1:
        raise ConfigError("--kernels is for one card; leave --cards away")
    group = group_of(cards, where)
    with kernels_of(path, where)[1]:
        if group is None:
            model, name, load = open_model(file, synthetic, type_, where, asked)
            config, together = model.config, None
        else:
            shards, name, load = open_shards(file, synthetic, type_, group, asked)
            model, config, together = shards.models[0], shards.config, shards.run
    facts = model_facts(name, config, type_ if file is None else file_type_name(GGUFFile.open(file)))
    on_gpu = where == "cuda"
    taken, on_path = kernels_of(path, where)

    def keep(**entry: Any) -> None:
        """Write a result down at once: a later test may fail."""
        if record is not None and on_gpu:
            append(make_record(**entry), record)

    if load is not None and group is None:
        first = {"model": name, "file_bytes": load[1], "mode": "first"}
        keep(bench="load", config=first, metrics={"seconds": load[0]}, samples=[load[0]])
    timings = []
    with on_path:
        how: dict[str, Any] = {"kv": kv, "rotate": rotate, "chunk": chunk, "together": together}
        with progress_bar("measuring", repeats * len(tests)) as advance:
            for timing in run_tests(model, tests, repeats, progress=lambda _: advance(1), **how):
                timings.append(timing)
                if timing.refused is not None:
                    print(f"sp: {timing.test.name}: not in a CUDA graph: {timing.refused}", file=sys.stderr)
                keep(**describe(timing, facts, taken, cache_name(kv, rotate), model.arithmetic))
        profiles = [(t.name, _kernels(model, t, kv, rotate, chunk)) for t in tests] if kernels and on_gpu else []
    rows = [_row(timing, name, model, kv, taken) for timing in timings]
    loading = {"load_seconds": load[0] if load else None, "file_bytes": load[1] if load else None}
    if output == "json":
        samples = [timing.rates for timing in timings]
        tables = {test: [vars(item) for item in found] for test, found in profiles}
        print_json(
            loading | {"tests": [r | {"samples": s} for r, s in zip(rows, samples, strict=True)], "kernels": tables}
        )
        return
    print_rows(rows, output, wide)
    if load is not None and output == "table":
        print(f"loaded {load[1] / 1e9:.2f} GB in {load[0]:.2f} s ({load[1] / load[0] / 1e9:.1f} GB/s)")
    for timing in timings:
        if timing.imbalance is not None and output == "table":
            print(f"{timing.test.name}: the most loaded expert has {timing.imbalance:.2f} times the mean load")
    for test, found in profiles:
        print_kernels(test, found, wide)


@bench_app.command()
def roofline(
    results: Annotated[Path, typer.Argument(help="Folder of one card, e.g. results/nvidia-h200.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder of the pictures; that of the records if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the recorded kernels under the limits of their card: arithmetic rate over arithmetic intensity.

    Writes roofline.png with all of them and roofline-FAMILY.png for each family.

    [bold]Example[/bold]

      sp bench roofline results/nvidia-h200
    """
    from sp.studies.plots.roofline import draw, points
    from sp.studies.plots.roofline_families import draw_families

    found, folder = points(results), out or results
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [draw(found, folder / "roofline.png"), *draw_families(found, folder)]
    if as_json:
        print_json({"pictures": [str(picture) for picture in pictures], "points": [vars(point) for point in found]})
        return
    for picture in pictures:
        print(picture)


def _row(timing: Any, name: str, model: Any, kv: str, path: str) -> dict[str, Any]:
    """One line of the report."""
    from sp.bench.record import running

    metrics = timing.metrics()
    return {
        "model": name,
        "weights_gb": model.nbytes / 1e9,
        "kv": kv,
        "path": path,
        "math": running(path, model.arithmetic)["math"],
        "cards": timing.cards,
        "test": timing.test.name,
        "tok_s": metrics["tok_s_mean"],
        "sd": metrics["tok_s_sd"],
        "median": metrics["tok_s"],
        "peak_gb": metrics["peak_bytes"] / 1e9,
    }


def numbers(text: str, option: str) -> list[int]:
    """Numbers of tokens from a comma-separated list; ``8k`` is 8192."""
    try:
        return [token_count(part, option) for part in text.split(",")]
    except ConfigError:
        wanted = f"{option} takes whole numbers with commas between them, such as 512,8k"
        raise ConfigError(f"{wanted}, not {short(repr(text))}") from None


def lengths_of(text: str, option: str) -> list[int]:
    """Prompt lengths; as `numbers`, but 0 stands for none, and there must be one."""
    found = [n for n in numbers(text, option) if n]
    if not found:
        raise ConfigError(f"{option} {text}: nothing to time; give a number of tokens")
    return found


def open_model(
    file: Path | None, shape: str | None, file_type: str, device: Any, math: str
) -> tuple[Any, str, tuple[float, int] | None]:
    """The model, its name in the results, and seconds and bytes of loading if it came from a file."""
    from sp.gguf import GGUFFile
    from sp.models import load_model

    if shape is not None:
        if device == "cpu":
            raise ConfigError("--synthetic makes its weights on the GPU; for the CPU write a file with sp synth first")
        from sp.models.synthetic.random_store import random_model

        return random_model(shape, file_type, math=math), f"{shape} {file_type} (random)", None
    assert file is not None
    start = time.perf_counter()
    opened = GGUFFile.open(file)
    with progress_bar("loading", opened.nbytes) as progress:
        model = load_model(opened, device=device, progress=progress, math=math)
    return model, name_of(opened), (time.perf_counter() - start, opened.nbytes)


def name_of(file: Any) -> str:
    """What an open file is called in results."""
    from sp import values
    from sp.errors import plain

    name = values.text(file.metadata.get("general.name"))
    return plain(name, 80) if name else str(file.path.stem)


def open_shards(
    file: Path | None, shape: str | None, file_type: str, group: Any, math: str
) -> tuple[Any, str, tuple[float, int] | None]:
    """As `open_model`, shared by the cards of a group."""
    from sp.gguf import GGUFFile
    from sp.models.shards.load_shards import load_shards
    from sp.models.synthetic.random_shards import random_shards

    if shape is not None:
        return random_shards(shape, file_type, group, math), f"{shape} {file_type} (random)", None
    assert file is not None
    start = time.perf_counter()
    opened = GGUFFile.open(file)
    with progress_bar("loading", opened.nbytes) as progress:
        shards = load_shards(opened, group, device="cuda", progress=progress, math=math)
    return shards, name_of(opened), (time.perf_counter() - start, opened.nbytes)


def _kernels(model: Any, test: Any, kv: str, rotate: bool | None, chunk: int | None) -> Any:
    """Kernels of one run of a test: of its prefill, or of one decoded token."""
    import numpy as np

    from sp.bench.kernel_times import kernel_times
    from sp.bench.model import read
    from sp.models import decode_step, prefill

    cache = model.new_cache(max(1, test.prompt) + 2, kv, rotate=rotate)
    ids = np.random.default_rng(0).integers(0, model.config.vocab, max(1, test.prompt))
    if not test.new:
        return kernel_times(lambda: read(model, ids, cache, chunk, test.density))
    prefill(model, ids, np.arange(len(ids)), cache, chunk=chunk)
    decode_step(model, 0, len(ids), cache)
    return kernel_times(lambda: decode_step(model, 0, len(ids) + 1, cache), hold_ms=60.0)


def print_rows(rows: Sequence[Mapping[str, Any]], output: str, wide: bool = False) -> None:
    """Tests of `sp bench model`, one a row."""
    if output == "csv":
        print_csv(rows)
        return
    heads = ("model", "weights", "kv", "path", "math", "test", "tok/s", "median", "peak memory")
    cells = [
        (
            row["model"] + (f" on {row['cards']} cards" if row["cards"] > 1 else ""),
            f"{row['weights_gb']:.2f} GB",
            row["kv"],
            row["path"],
            row["math"],
            row["test"],
            f"{row['tok_s']:.2f} ± {row['sd']:.2f}",
            f"{row['median']:.2f}",
            f"{row['peak_gb']:.2f} GB" if row["peak_gb"] else "",
        )
        for row in rows
    ]
    print_table(heads, cells, output, 6, main=("model", "test", "tok/s", "median", "peak memory"), wide=wide)


def print_kernels(test: str, found: Any, wide: bool) -> None:
    """Kernels of a test, and what they take of its time."""
    total = sum(item.ms for item in found)
    print(f"{test}: {total:.3f} ms")
    cells = [[x.entry, x.variant, str(x.launches), f"{x.ms:.3f}", f"{x.ms / total:.1%}"] for x in found]
    print_table(["kernel", "variant and grid", "launches", "ms", "share"], cells, "table", 2, wide=wide)
