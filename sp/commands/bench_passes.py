"""`sp bench passes`: reading a few tokens at once, as checking a draft does, beside one decoding step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sp.commands.bench import numbers, open_model
from sp.commands.terminal import AsJson, print_json, progress_bar, wide_console
from sp.errors import ConfigError


def bench_passes(
    file: Annotated[Path | None, typer.Argument(help="A GGUF file; or use --synthetic.")] = None,
    synthetic: Annotated[
        str | None, typer.Option(help="Random weights in a named shape instead of a file, e.g. qwen3.6-27b.")
    ] = None,
    type_: Annotated[str, typer.Option("--type", help="File type of the random weights.")] = "q4_k_m",
    rows: Annotated[str, typer.Option("-p", "--rows", help="Tokens read at once, comma-separated.")] = "16,23",
    depth: Annotated[str, typer.Option("-d", "--depth", help="Tokens read before, comma-separated.")] = "2k,8k",
    kv: Annotated[str, typer.Option(help="Cached keys and values: f16 or q4_0.")] = "f16",
    repeats: Annotated[int, typer.Option("-r", "--repeats", min=1, help="Samples a pass.")] = 10,
    record: Annotated[Path | None, typer.Option(help="Append the results below this folder, e.g. results.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time passes of a few tokens after a context on the GPU, and what they cost in decoding steps.

    [bold]Example[/bold]

      sp bench passes --synthetic qwen3.6-27b -p 16,23 -d 2k,8k
    """
    from sp.bench.passes import time_passes
    from sp.bench.record import append, make_record
    from sp.kernels.device import require_device
    from sp.kernels.path import native_path

    if (file is None) == (synthetic is None):
        raise ConfigError("give either a GGUF file or --synthetic with the name of a shape")
    wanted = [1, *(count for count in numbers(rows, "-p") if count > 1)]
    depths = numbers(depth, "-d")
    if not all(depths):
        raise ConfigError("-d takes at least one token to be read before")
    require_device()
    model, name, _ = open_model(file, synthetic, type_, "cuda")
    table = Table("depth", "rows", "ms", "decoding steps", "tok/s", box=None, title=f"{name}, {kv}")
    found = []
    with progress_bar("measuring", len(wanted) * len(depths)) as progress:
        for context in depths:
            step = 0.0
            for one in time_passes(model, wanted, context, repeats, kv):
                step = step or one.median
                config = {"model": name, "kv": kv, "depth": context, "rows": one.rows, "path": native_path()}
                metrics = {"ms": one.median, "steps": one.median / step, "tok_s": 1e3 * one.rows / one.median}
                found.append({**config, **metrics})
                table.add_row(
                    str(context), str(one.rows), f"{one.median:.3f}", f"{metrics['steps']:.2f}",
                    f"{metrics['tok_s']:.0f}",
                )  # fmt: skip
                if record is not None:
                    append(make_record("passes", config, metrics, one.ms, one.sources), record)
                progress(1)
    if as_json:
        print_json({"passes": found})
    else:
        wide_console().print(table)
