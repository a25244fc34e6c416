"""`sp inspect`: what a GGUF file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sp.commands.terminal import AsJson, print_json


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
