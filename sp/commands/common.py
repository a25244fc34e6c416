"""Options that several commands share, and how commands open a pair of models."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from sp.commands.shell.parser import opt
from sp.commands.shell.terminal import print_csv, print_json, print_table, progress_bar, text_width
from sp.config import Option, Tokens
from sp.errors import ConfigError, short, unknown_name
from sp.named import read_name, read_strategy, read_value
from sp.session.device_memory import Where
from sp.session.options import ModelOptions, PlaceOptions, RunOptions

if TYPE_CHECKING:
    from sp.chat import Thinking
    from sp.scoring import Scorer
    from sp.session import Pipeline, RunOptions
    from sp.session.loaded import Loaded

GROUPS = ("scorer", "selector", "target", "decode")


def read_settings(scorer: str, selector: str, decode: str, settings: Sequence[str]) -> dict[str, Any]:
    """Build the strategies of a run, as keywords of `RunOptions`.

    `scorer`, `selector`, `decode`: texts such as ``name`` or ``name[option=value]``; `settings`: values of `--set`.
    Unless they set it, a scorer's attention depends on device and prompt length.
    """
    from sp.decode import DECODERS
    from sp.scoring import SCORERS
    from sp.scoring.base import by_length
    from sp.scoring.sparse import target_rule
    from sp.selection import SELECTORS

    scoring, selecting, sparse, decoding = (overrides(settings, group) for group in GROUPS)
    name, own = read_name(scorer, SCORERS, "--scorer")
    options = getattr(SCORERS.class_of(name), "renamed", dict)(own | scoring)
    chosen = SCORERS.build(name, options)
    return {
        "scorer": chosen if "sparse" in options else by_length(chosen),
        "selector": read_strategy(selector, SELECTORS, "--selector", selecting),
        "target_sparse": target_rule(sparse) if sparse else None,
        "decode": read_strategy(decode, DECODERS, "--decode", decoding),
    }


def overrides(settings: Sequence[str], group: str) -> dict[str, object]:
    """Return the options of a group among ``group.name=value`` settings; values are read as YAML."""
    options = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        owner, dot, name = key.partition(".")
        if equals and dot and owner not in GROUPS:
            raise unknown_name("group of --set", owner, GROUPS)
        if not (equals and dot and name):
            raise ConfigError(
                "--set takes scorer.NAME=VALUE, selector.NAME=VALUE, target.NAME=VALUE or decode.NAME=VALUE, "
                f"not {short(setting)!r}"
            )
        if owner == group:
            options[name] = read_value(value, f"--set {short(key)}")
    return options


def read_shares(text: str, option: str) -> list[float]:
    """Read numbers from 0 to 1: a list such as ``0,0.5,1``, or ``0..1/11`` for 11 evenly spaced ones.

    >>> read_shares("0..1/5", "--depths"), read_shares("0.05,0.1", "--keep-ratio")
    ([0.0, 0.25, 0.5, 0.75, 1.0], [0.05, 0.1])
    """
    syntax = f"{option} takes numbers from 0 to 1 such as 0.05,0.1, or 0..1/11 for eleven of them, not {short(text)!r}"
    grid = re.fullmatch(r"\s*([\d.]+?)\.\.([\d.]+)/(\d+)\s*", text)
    try:
        if grid:
            low, high, amount = float(grid[1]), float(grid[2]), int(grid[3])
            shares = [low + (high - low) * i / max(1, amount - 1) for i in range(amount)]
        else:
            shares = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(syntax) from None
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise ConfigError(syntax)
    return shares


OnDevice = Annotated[Where, opt(help="cuda, cpu, or auto: the GPU if there is one.")]
Devices = Annotated[str, opt("--devices", help="GPUs to distribute the runs over, e.g. 0,1; one process per GPU.")]
RayAddress = Annotated[
    str | None,
    opt(help="HOST:PORT of a Ray cluster's head; RAY_ADDRESS if omitted, or a cluster on this machine."),
]
Speculator = Annotated[
    Path | None,
    opt(help="DFlash draft model of the target, .gguf or .safetensors; the embedded target has an embedded one."),
]
KernelPath = Annotated[Literal["auto", "portable"], opt(help="Kernels: auto, or portable (those for every GPU).")]
PromptLength = Annotated[Tokens, Option(least=1)]
Prompts = Annotated[tuple[PromptLength, ...], opt("-p", "--prompts", help="Prompt lengths, comma-separated.")]


@dataclass(frozen=True)
class RunArguments(RunOptions):
    """Options of a run on the command line, where strategies are texts.

    Parameters
    ----------
    settings : list of str
        Option of a strategy, e.g. scorer.queries=16 or decode.budget=22, or of the target's sparse prefill, e.g.
        target.alpha=0.1 or target.skip=0.05; repeatable.
    """

    settings: Annotated[list[str], Option(flags=("--set",))] = ()  # type: ignore[assignment]

    def __post_init__(self) -> None:
        built = read_settings(self.scorer, self.selector, self.decode, self.settings)  # type: ignore[arg-type]
        for name, value in built.items():
            object.__setattr__(self, name, value)
        super().__post_init__()

    @property
    def options(self) -> RunOptions:
        """The same options as a `RunOptions`."""
        return RunOptions(**{field.name: getattr(self, field.name) for field in fields(RunOptions)})


class FileType(str):
    """Name of a file type, checked when the command line is parsed."""

    @classmethod
    def parse(cls, text: str, where: str) -> FileType:
        """Check a name; ConfigError if it is unknown. `where`: option, for the message."""
        from sp.models.file.file_type import FILE_TYPES

        if text not in FILE_TYPES:
            raise unknown_name(f"file type of {where}", text, FILE_TYPES)
        return cls(text)


class ShapeName(str):
    """Name of a shape of random weights, checked when the command line is parsed."""

    @classmethod
    def parse(cls, text: str, where: str) -> ShapeName:
        """Check a name; ConfigError if it is unknown. `where`: option, for the message."""
        from sp.models.synthetic.shapes import list_shapes

        if text not in list_shapes():
            raise unknown_name(f"shape of {where}", text, list_shapes())
        return cls(text)


BF16, Q8_0 = FileType("bf16"), FileType("q8_0")
Share = Annotated[float, Option(least=1e-6, most=1)]
"""A keep ratio above 0."""


@dataclass(frozen=True)
class Synthetic:
    """Random weights in place of models.

    Parameters
    ----------
    synthetic_target, synthetic_drafter : str, optional
        Shape of random weights in place of a model, e.g. qwen3.6-27b or qwen3-0.6b.
    target_type : str, optional
        File type of the target's random weights; the usual one of its shape if omitted, mostly q4_k_m.
    drafter_type : str
        File type of the drafter's random weights.
    """

    group: ClassVar[str] = "Models"

    synthetic_target: ShapeName | None = None
    target_type: FileType | None = None
    synthetic_drafter: ShapeName | None = None
    drafter_type: FileType = BF16


@dataclass(frozen=True)
class OutputOptions:
    """Output of a benchmark: format, and folder of records.

    Parameters
    ----------
    record : Path, optional
        Append the results as records below this folder, e.g. results.
    output : {"table", "md", "json", "csv"}
        Format of the results.
    wide : bool
        Show all columns of tables side by side, whatever the width of the terminal.
    as_json : bool
        Print one JSON object instead of tables.
    """

    group: ClassVar[str] = "Output"

    record: Annotated[Path | None, Option(writes="folder")] = None
    output: Annotated[Literal["table", "md", "json", "csv"], Option(flags=("-o", "--output"))] = "table"
    wide: bool = False
    as_json: Annotated[bool, Option(flags=("--json",))] = False

    def __post_init__(self) -> None:
        if self.as_json:
            object.__setattr__(self, "output", "json")

    def append_record(self, record: Mapping[str, Any]) -> None:
        """Append a record with `--record`; call it after each test, as a later one may fail."""
        from sp.bench.record import append

        if self.record is not None:
            append(dict(record), self.record)

    def print_plain(self, rows: Sequence[Mapping[str, Any]], samples: Sequence[Any], **more: Any) -> bool:
        """Print rows as JSON, each with its samples, or as CSV; return False if the output is a table."""
        if self.output == "json":
            tests = [{**row, "samples": values} for row, values in zip(rows, samples, strict=True)]
            print_json({"tests": tests, **more})
        elif self.output == "csv":
            print_csv(rows)
        return self.output in ("json", "csv")

    def print_title(self, text: str) -> None:
        """Print the title of a table, folded to the width of the terminal."""
        print((fill(text, text_width()) if self.output == "table" else text) + "\n")

    def print_table(
        self, heads: Sequence[str], cells: Sequence[Sequence[str]], text_columns: int, main: Sequence[str] = ()
    ) -> None:
        """Print a table in the format of `output`; arguments as for `sp.commands.shell.terminal.print_table`."""
        print_table(heads, cells, self.output, text_columns, main=main, wide=self.wide)


def kernels_of(path: str, device: str) -> tuple[str, AbstractContextManager[None]]:
    """Return the kernel path on a device, as records name it, and a context in which kernels take it."""
    from sp.kernels import forced_path
    from sp.kernels.path import native_path

    if device != "cuda":
        return "numpy", nullcontext()
    return (native_path(), nullcontext()) if path == "auto" else (path, forced_path(path))


def speculator_file(target: Path | None, speculator: Path | None, decoder: str) -> Path:
    """Return the file of the draft model; for the embedded target the embedded one if omitted.

    `decoder`: name of the speculative decoder, for the message. ConfigError if another target has no draft model.
    """
    from sp.session import embedded

    if speculator is None and target is not None:
        raise ConfigError(
            f"--decode {decoder} is speculative and needs a draft model for {target.name}; pass --speculator FILE"
        )
    return speculator or embedded("draft")


def warn_thinking(thinking: Thinking, target: Loaded) -> None:
    """Print a line if the target's chat template does not support the thinking options."""
    if note := thinking.note(target.template):
        print(f"sp: {target.path.name}: {note}", file=sys.stderr)


def scorers_of(options: RunOptions) -> list[Scorer]:
    """Return the scorers that runs with these options use, as an argument of `Pipeline.open`."""
    return [] if options.compress == "off" else [options.scorer]


def open_pair(
    models: ModelOptions, place: PlaceOptions, scorers: Sequence[Scorer] | None = None, speculator: Path | None = None
) -> Pipeline:
    """Open the pair on its device and compile missing kernels.

    `scorers`: those that will run, so that unused layers of the drafter are not loaded; None for all layers;
    `speculator`: draft model for speculative decoding.
    """
    from sp.kernels.device import pick_device
    from sp.session import Pipeline

    if pick_device(place.device) == "cuda":
        compile_kernels()
    pair = Pipeline.open(**vars(models), **vars(place), scorers=scorers, reporter=report_once)
    pair = pair if place.break_even else pair.with_break_evens()
    if pair.drafter is not None and pair.drafter.chosen:  # automatically, as --drafter is omitted
        print(f"sp: drafter: {pair.drafter.path.stem}, {pair.drafter.chosen}", file=sys.stderr)
    return freeze_loaded(pair if speculator is None else pair.with_speculator(speculator))


@contextmanager
def report_once(stage: str, total: int) -> Iterator[Any]:
    """Report work whose result is cached: a `Reporter` that also prints a line on stderr if that is no terminal."""
    purpose = "the bases of its keys" if stage.startswith("measuring") else "its retrieval layers"
    print(f"sp: {stage}: {purpose}; only once, the result is cached", file=sys.stderr)
    with progress_bar(stage.split()[0], total) as progress:
        yield progress


def freeze_loaded(pair: Pipeline) -> Pipeline:
    """Return the same pair; on a GPU exclude all objects loaded so far from garbage collection.

    There a collection of the loaded modules and models takes a noticeable part of a request.
    """
    if pair.target.model.device == "cuda":
        gc.collect()
        gc.freeze()
    return pair


def compile_kernels() -> None:
    """Compile the kernels that the cache lacks for this GPU; prints a line only if some are missing."""
    from sp.kernels.device import require_device
    from sp.kernels.jit import device_arches
    from sp.kernels.manifest import kernels
    from sp.kernels.tools.build import build_all, missing
    from sp.kernels.tools.check import plan

    jobs = missing(plan(kernels().values(), device_arches(require_device())))
    if jobs:
        print(f"sp: compiling {len(jobs)} kernels for this GPU, once (later: sp kernels build)", file=sys.stderr)
        with progress_bar("compiling", len(jobs)) as progress:
            build_all(jobs, progress)
