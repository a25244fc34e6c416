"""The keys of a sweep file as dataclasses: what each must be, its default, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from sp.config import Option, Tokens

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class TopKeys:
    """At the top of a file.

    Parameters
    ----------
    name : str
        What the sweep is called; the name of the file without its ending if left out.
    out : str
        Folder of rows and report; sp-sweep/NAME if left out.
    device : {"auto", "cpu", "cuda"}
        Where models run; `auto` is the GPU where there is one.
    full : bool
        Also read every prompt whole.
    report : bool
        Write tables and pictures once all runs are done.
    plugins : str or list of str
        Python files or modules with strategies and tasks of your own; a file is looked for where the sweep is started,
        then beside the sweep file.
    """

    name: str = ""
    out: str = ""
    device: Device = "auto"
    full: bool = True
    report: bool = False
    plugins: str | tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskKeys:
    """In `tasks`: what is asked.

    Parameters
    ----------
    task : str
        Registered name.
    tokens : int
        Length of the prompts, such as 8k; not of task natural, whose documents are as long as they are.
    examples : int
        How many; of task natural all questions if left out.
    first : int
        Number of the first one.
    per_run : int
        Most examples of one run, which is the least that is done again after an interruption.
    thinking : {"off", "on", "auto"}
        What the target is asked of thinking.
    reasoning_effort : str
        How much, where the chat template takes it.
    """

    task: str
    tokens: Annotated[Tokens, Option(least=1, most=1 << 24)]
    examples: Annotated[int, Option(least=1, most=1_000_000)]
    first: Annotated[int, Option(least=0, most=1_000_000_000)] = 0
    per_run: Annotated[int, Option(least=1, most=1_000_000)] = 10
    thinking: Literal["off", "on", "auto"] = "off"
    reasoning_effort: str | None = None
