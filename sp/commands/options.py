"""Options that several commands take, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sp.config import token_count
from sp.errors import ConfigError


def tokens_option(*names: str, least: int, **told: Any) -> Any:
    """An option that is a number of tokens, at least so many, which may be written as in 8k; the rest as Typer has it.

    Examples
    --------
    >>> tokens_option("--new", least=1).parser("8k")
    8192
    """

    def read(text: str | int) -> int:
        try:
            count = token_count(str(text), "it")
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from None
        if count < least:
            raise typer.BadParameter(f"it must be at least {least}, not {count}")
        return count

    return typer.Option(*names, parser=read, metavar="<tokens>", **told)


Target = Annotated[
    Path | None, typer.Option(help="GGUF of the heavy model, or a known name; the embedded one if left out.")
]
Drafter = Annotated[
    Path | None,
    typer.Option(help="GGUF of the small model, or a known name; if left out, the best one here (see sp get)."),
]
SyntheticTarget = Annotated[str | None, typer.Option(help="Random weights in a named shape instead, e.g. qwen3.6-27b.")]
SyntheticDrafter = Annotated[str | None, typer.Option(help="Random weights in a named shape instead, e.g. qwen3-0.6b.")]
TargetType = Annotated[str, typer.Option(help="File type of the target's random weights.")]
DrafterType = Annotated[str, typer.Option(help="File type of the drafter's random weights.")]
TargetRope = Annotated[
    str | None, typer.Option(help="RoPE scaling of the target in place of its file's: none, linear:2, yarn:4.")
]
DrafterRope = Annotated[
    str | None, typer.Option(help="The same of the drafter; left out, it reads beyond its window with YaRN as needed.")
]
TargetMath = Annotated[
    str, typer.Option("--math", help="What the target multiplies where it reads a prompt: bf16, int8, fp8 or auto.")
]
DrafterMath = Annotated[str, typer.Option(help="The same of the drafter.")]
ModelMath = Annotated[
    str, typer.Option("--math", help="What is multiplied where a prompt is read: bf16, int8, fp8 or auto.")
]
OnDevice = Annotated[str, typer.Option("--device", help="auto (the GPU if there is one), cpu or cuda.")]
Devices = Annotated[
    str, typer.Option("--devices", help="GPUs that share the runs, e.g. 0,1: a process each, which sees no other.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="HOST:PORT of a Ray cluster's head; RAY_ADDRESS, or else this machine alone, if left out.",
    ),
]
DraftingCards = Annotated[
    int, typer.Option("--cards", min=1, help="GPUs on which the drafter reads a prompt together, from the first on.")
]
RunCards = Annotated[
    int,
    typer.Option(
        "--cards",
        min=1,
        help="GPUs that work together, from the first on: they read a prompt for the drafter, and share the target.",
    ),
]
TargetCards = Annotated[
    int | None, typer.Option("--target-cards", min=1, help="GPUs that share the target, if not as many as --cards.")
]
VRAM = Annotated[
    str | None,
    typer.Option("--vram", help="GPU memory for models, caches and work, e.g. 24g; all there is if left out."),
]
KernelPath = Annotated[str, typer.Option("--path", help="Kernels: auto, or portable (those for any card).")]
RecordBelow = Annotated[
    Path | None, typer.Option("--record", help="Append the results below this folder, e.g. results.")
]
Output = Annotated[str, typer.Option("-o", "--output", help="table, md, json or csv.")]
Selector = Annotated[str, typer.Option("--selector", help="How tokens are chosen from their importance.")]
Scorer = Annotated[str, typer.Option("--scorer", help="What makes a token important: tail, lookahead, ...")]
Compress = Annotated[str, typer.Option("--compress", help="auto (where it pays), always or off.")]
BreakEven = Annotated[
    Path | None,
    typer.Option("--break-even", help="Records of sp bench ttft that decide with auto, in place of a prediction."),
]
Positions = Annotated[str, typer.Option("--positions", help="Of kept tokens: original or contiguous.")]
Cache = Annotated[str, typer.Option("--kv", help="Cached keys and values of the target: f16, q4_0 or f32.")]
Rotate = Annotated[
    bool | None,
    typer.Option(
        "--rotate/--no-rotate", help="Hadamard-rotate cached keys and values; where --kv is q4_0 if left out."
    ),
]
Decode = Annotated[str, typer.Option("--decode", help="greedy, or with a draft: dflash (a chain), ddtree (a tree).")]
ThinkingMode = Annotated[
    str,
    typer.Option("--thinking", help="Whether the model thinks first: auto (as its chat template has it), on or off."),
]
ReasoningEffort = Annotated[
    str | None,
    typer.Option("--reasoning-effort", help="How much it thinks, where the template takes it: low, medium, high, ..."),
]
Draft = Annotated[
    Path | None,
    typer.Option("--draft", help="DFlash draft of the target, .gguf or .safetensors; the embedded target has its own."),
]
