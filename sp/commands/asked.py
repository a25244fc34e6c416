"""What several commands take, each declared once, and how they open a pair, its kernels compiled ahead."""

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

from sp.commands.shell.line import opt
from sp.commands.shell.terminal import check_folder, print_csv, print_json, print_table, progress_bar, text_width
from sp.config import Option, Tokens, from_mapping
from sp.errors import ConfigError, short, unknown_name
from sp.named import read_name, read_strategy, read_value
from sp.session.device_memory import Where
from sp.session.options import ModelOptions, PlaceOptions, Positions, RunOptions

if TYPE_CHECKING:
    from sp.chat import Thinking
    from sp.scoring import Scorer
    from sp.session import Pipeline, RunOptions
    from sp.session.loaded import Loaded

GROUPS = ("scorer", "selector", "target", "decode")


def read_settings(scorer: str, selector: str, decode: str, settings: Sequence[str]) -> dict[str, Any]:
    """Strategies of a run, each as ``name`` or ``name[option=value]``, with `--set` options, as fields of `RunOptions`.
    A scorer's attention is left to device and prompt length unless it was set."""
    from sp.decode import DECODERS
    from sp.ops.sparse.flashprefill import FlashPrefill
    from sp.scoring import SCORERS
    from sp.scoring.base import by_length
    from sp.selection import SELECTORS

    scoring, selecting, sparse, decoding = (overrides(settings, group) for group in GROUPS)
    name, own = read_name(scorer, SCORERS, "--scorer")
    given = getattr(SCORERS.class_of(name), "renamed", dict)(own | scoring)
    chosen = SCORERS.build(name, given)
    return {
        "scorer": chosen if "sparse" in given else by_length(chosen),
        "selector": read_strategy(selector, SELECTORS, "--selector", selecting),
        "target_sparse": from_mapping(FlashPrefill, sparse, "target") if sparse else None,
        "decode": read_strategy(decode, DECODERS, "--decode", decoding),
    }


def overrides(settings: Sequence[str], group: str) -> dict[str, object]:
    """Options of `group` among `group.name=value` settings; values are read as YAML."""
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
    """Numbers from 0 to 1: a list ``0,0.5,1``, or ``0..1/11`` for so many from one to the other.

    >>> read_shares("0..1/5", "--depths"), read_shares("0.05,0.1", "--keep-ratio")
    ([0.0, 0.25, 0.5, 0.75, 1.0], [0.05, 0.1])
    """
    wanted = f"{option} takes numbers from 0 to 1 such as 0.05,0.1, or 0..1/11 for eleven of them, not {short(text)!r}"
    spread = re.fullmatch(r"\s*([\d.]+?)\.\.([\d.]+)/(\d+)\s*", text)
    try:
        if spread:
            low, high, amount = float(spread[1]), float(spread[2]), int(spread[3])
            found = [low + (high - low) * i / max(1, amount - 1) for i in range(amount)]
        else:
            found = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(wanted) from None
    if not found or not all(0 <= one <= 1 for one in found):
        raise ConfigError(wanted)
    return found


OnDevice = Annotated[Where, opt(help="The GPU, the CPU, or the GPU if there is one.")]
Devices = Annotated[
    str, opt("--devices", help="GPUs that share the runs, e.g. 0,1: a process each, which sees no other.")
]
RayAddress = Annotated[
    str | None, opt(help="HOST:PORT of a Ray cluster's head; RAY_ADDRESS, or else this machine alone, if left out.")
]
Speculator = Annotated[
    Path | None, opt(help="DFlash draft model of the target, .gguf or .safetensors; the embedded target has its own.")
]
KernelPath = Annotated[Literal["auto", "portable"], opt(help="Kernels: auto, or portable (those for any GPU).")]
RecordBelow = Annotated[Path | None, opt(help="Append the results below this folder, e.g. results.")]
PromptLength = Annotated[Tokens, Option(least=1)]
Prompts = Annotated[tuple[PromptLength, ...], opt("-p", "--prompts", help="Prompt lengths, comma-separated.")]


@dataclass(frozen=True)
class RunAsked(RunOptions):
    """The options of a run as the command line has them.

    Parameters
    ----------
    settings : list of str
        Option of a strategy, e.g. scorer.queries=16 or decode.budget=22, or of the target's sparse prefill,
        target.alpha=0.1; repeatable.
    """

    positions: Positions | None = None  # type: ignore[assignment]  # contiguous where the mapping asks for that
    settings: Annotated[list[str], Option(flags=("--set",))] = ()  # type: ignore[assignment]

    def __post_init__(self) -> None:
        built = read_settings(self.scorer, self.selector, self.decode, self.settings)  # type: ignore[arg-type]
        built["positions"] = self.positions or ("contiguous" if self.mapping == "text_rejoin" else "original")
        for name, value in built.items():
            object.__setattr__(self, name, value)
        super().__post_init__()

    @property
    def options(self) -> RunOptions:
        """Plain."""
        return RunOptions(**{one.name: getattr(self, one.name) for one in fields(RunOptions)})


class FileType(str):
    """Name of a file type; one that there is not is told before any work."""

    @classmethod
    def parse(cls, text: str, where: str) -> FileType:
        """Its name; ConfigError, which says where, for none."""
        from sp.models.file.file_type import FILE_TYPES

        if text not in FILE_TYPES:
            raise unknown_name(f"file type of {where}", text, FILE_TYPES)
        return cls(text)


class ShapeName(str):
    """Name of a shape of random weights, likewise."""

    @classmethod
    def parse(cls, text: str, where: str) -> ShapeName:
        """Its name; ConfigError, which says where, for none."""
        from sp.models.synthetic.shapes import list_shapes

        if text not in list_shapes():
            raise unknown_name(f"shape of {where}", text, list_shapes())
        return cls(text)


BF16, Q8_0 = FileType("bf16"), FileType("q8_0")
Share = Annotated[float, Option(least=1e-6, most=1)]
"""A share of tokens that are kept, above 0."""


@dataclass(frozen=True)
class Synthetic:
    """Random weights in place of models.

    Parameters
    ----------
    synthetic_target, synthetic_drafter : str, optional
        Random weights in a named shape instead, e.g. qwen3.6-27b or qwen3-0.6b.
    target_type : str, optional
        File type of the target's random weights; the one that its shape is meant in if left out, q4_k_m of most.
    drafter_type : str
        File type of the drafter's random weights.
    """

    group: ClassVar[str] = "Models"

    synthetic_target: ShapeName | None = None
    target_type: FileType | None = None
    synthetic_drafter: ShapeName | None = None
    drafter_type: FileType = BF16


@dataclass(frozen=True)
class Results:
    """Where the results of a bench go, and in which form.

    Parameters
    ----------
    record : Path, optional
        Append the results below this folder, e.g. results.
    output : {"table", "md", "json", "csv"}
        Form of the results.
    wide : bool
        Show all columns of tables side by side, however long lines get.
    as_json : bool
        Print one JSON object instead of tables.
    """

    group: ClassVar[str] = "Output"

    record: Path | None = None
    output: Annotated[Literal["table", "md", "json", "csv"], Option(flags=("-o", "--output"))] = "table"
    wide: bool = False
    as_json: Annotated[bool, Option(flags=("--json",))] = False

    def __post_init__(self) -> None:
        check_folder(self.record, "--record")
        if self.as_json:
            object.__setattr__(self, "output", "json")

    def keep(self, made: Mapping[str, Any]) -> None:
        """Append a record, if that was asked for, at once: a later test may fail."""
        from sp.bench.record import append

        if self.record is not None:
            append(dict(made), self.record)

    def plain(self, rows: Sequence[Mapping[str, Any]], samples: Sequence[Any], **more: Any) -> bool:
        """Print rows as JSON, each with its samples, or as CSV; whether one of them was asked for."""
        if self.output == "json":
            tests = [{**row, "samples": each} for row, each in zip(rows, samples, strict=True)]
            print_json({"tests": tests, **more})
        elif self.output == "csv":
            print_csv(rows)
        return self.output in ("json", "csv")

    def title(self, text: str) -> None:
        """Print what stands above a table, within the width of a terminal."""
        print((fill(text, text_width()) if self.output == "table" else text) + "\n")

    def table(self, heads: Sequence[str], cells: Sequence[Sequence[str]], left: int, main: Sequence[str] = ()) -> None:
        """Print a table; see `print_table`."""
        print_table(heads, cells, self.output, left, main=main, wide=self.wide)


def kernels_of(path: str, device: str) -> tuple[str, AbstractContextManager[None]]:
    """The path that kernels take on a device, as records have it, and what to time within."""
    from sp.kernels import forced_path
    from sp.kernels.path import native_path

    if device != "cuda":
        return "numpy", nullcontext()
    return (native_path(), nullcontext()) if path == "auto" else (path, forced_path(path))


def speculator_file(target: Path | None, speculator: Path | None, decoder: str) -> Path:
    """Return the draft model's file, the embedded one for the embedded target; ConfigError if another target has none.

    `decoder`: name of the speculative decoder, for the message.
    """
    from sp.session import embedded

    if speculator is None and target is not None:
        raise ConfigError(
            f"--decode {decoder} is speculative and needs a draft model for {target.name}; pass --speculator FILE"
        )
    return speculator or embedded("draft")


def tell_thinking(thinking: Thinking, target: Loaded) -> None:
    """Say so, in a line, where the target's chat template does not take what was asked of thinking."""
    if note := thinking.note(target.template):
        print(f"sp: {target.path.name}: {note}", file=sys.stderr)


def scorers_of(options: RunOptions) -> list[Scorer]:
    """The scorers that runs with these options use, as `Pipeline.open` takes them."""
    return [] if options.compress == "off" else [options.scorer]


def open_pair(
    models: ModelOptions, place: PlaceOptions, scorers: Sequence[Scorer] | None = None, speculator: Path | None = None
) -> Pipeline:
    """The pair on its device, its kernels compiled; `speculator` is for speculative decoding."""
    from sp.kernels.device import pick_device
    from sp.session import Pipeline

    where = pick_device(place.device)
    if where == "cuda":
        compile_kernels()
    pair = Pipeline.open(**vars(models), **vars(place) | {"device": where}, scorers=scorers, reporter=once)
    pair = pair if place.break_even else pair.with_break_evens()
    if pair.drafter is not None and pair.drafter.chosen:  # as none was named
        print(f"sp: drafter: {pair.drafter.path.stem}, {pair.drafter.chosen}", file=sys.stderr)
    return settled(pair if speculator is None else pair.with_speculator(speculator))


@contextmanager
def once(what: str, total: int) -> Iterator[Any]:
    """A `progress_bar` of what is done once and kept, and a line about it wherever standard error goes."""
    why = "how its keys lie" if what.startswith("measuring") else "which of its layers retrieve"
    print(f"sp: {what}: {why}; once, it is kept", file=sys.stderr)
    with progress_bar(what.split()[0], total) as progress:
        yield progress


def settled(pair: Pipeline) -> Pipeline:
    """The same pair. On a device, where that takes a good part of a request, what was loaded by now is no more looked
    through for cycles."""
    if pair.target.model.device == "cuda":
        gc.collect()
        gc.freeze()
    return pair


def compile_kernels() -> None:
    """Compile what the cache lacks for the present GPU, and say so; silent where nothing is missing."""
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
