"""`sp inspect`: describe a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.markup import escape

from sp.commands.shell.parser import arg
from sp.commands.shell.terminal import AsJson, print_json


def inspect(
    file: Annotated[Path, arg("A GGUF file, or the first of its shards.")],
    as_json: AsJson = False,
) -> None:
    """Describe a GGUF file: whether it runs, on which GPUs, and with how much memory.

    Prints the verdict of sp plan; family; formats, with native kernels or re-packed; bytes on the device; KV cache by
    length; the longest prompt on each GPU, alone and with a drafter; and the command to run it. For an unsupported file
    it prints the reason, and which file to use instead. A small model is described as a drafter, of which the default
    scorer may run only the first layers. Exit status 2 if no command accepts the file.

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
