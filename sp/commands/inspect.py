"""`sp inspect`: what a GGUF file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.markup import escape

from sp.commands.shell.line import arg
from sp.commands.shell.terminal import AsJson, print_json


def inspect(
    file: Annotated[Path, arg("A GGUF file, or the first of its shards.")],
    as_json: AsJson = False,
) -> None:
    """Show what a GGUF file holds, whether it runs, and what that takes.

    A verdict as of `sp plan`; family, formats with native kernels or re-packed ones, bytes on the device, KV bytes by
    length, the GPUs that hold it up to which prompt, alone and with a drafter, the command to run it; or what keeps it
    from running, and which file to take instead. A small model is told of as a drafter, of which the default scorer may
    read only the first layers. Exit status 2 if no command takes the file.

    Examples
    --------
      sp inspect Qwen3.6-27B-Q4_K_M.gguf
    """
    from sp.planning.inspect import inspect_file
    from sp.planning.tables import render
    from sp.scoring.calibration.measure import default_depth

    info = inspect_file(file, depth=default_depth)
    if as_json:
        print_json(info)
    else:
        console = Console()
        console.print(render(info))
        if info["command"] is not None:
            console.print(f"\n{escape(info['command'])}", style="bold", soft_wrap=True)  # on one line, to be copied
    if info["refused"] is not None:
        raise SystemExit(2)
