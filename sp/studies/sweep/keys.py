"""Keys at the top of a sweep file and of its tasks, with their types, limits and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from sp.config import Option, Tokens

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class TopKeys:
    """Keys at the top of a sweep file.

    Parameters
    ----------
    name : str
        Name of the sweep; by default the name of the file without its suffix.
    out : str
        Folder of rows and report; by default sp-sweep/NAME.
    device : {"auto", "cpu", "cuda"}
        Device of the models; `auto` is the GPU if there is one.
    full : bool
        Also read every prompt in full.
    report : bool
        Write tables and pictures once all runs are finished.
    plugins : str or list of str
        Python files or modules with your own strategies and tasks; a file is looked for in the folder where the sweep
        is started, then in that of the sweep file.
    """

    name: str = ""
    out: str = ""
    device: Device = "auto"
    full: bool = True
    report: bool = False
    plugins: str | tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskKeys:
    """Keys in `tasks`.

    Parameters
    ----------
    task : str
        Registered name.
    tokens : int
        Length of the prompts, such as 8k; omit it for task natural, whose documents have their own lengths.
    examples : int
        Number of examples; for task natural all questions by default.
    first : int
        Number of the first example.
    per_run : int
        Maximum number of examples in a run; an interruption loses one run at most.
    thinking : {"off", "on", "auto"}
        Thinking mode of the target.
    reasoning_effort : str
        Amount of thinking, if the chat template has such an option.
    """

    task: str
    tokens: Annotated[Tokens, Option(least=1, most=1 << 24)]
    examples: Annotated[int, Option(least=1, most=1_000_000)]
    first: Annotated[int, Option(least=0, most=1_000_000_000)] = 0
    per_run: Annotated[int, Option(least=1, most=1_000_000)] = 10
    thinking: Literal["off", "on", "auto"] = "off"
    reasoning_effort: str | None = None
