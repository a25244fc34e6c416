"""`sp plan`: whether a model file runs on which GPU, and how; how fast, predicted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.markup import escape

from sp.commands.asked import Synthetic
from sp.commands.shell.line import Part, arg, opt
from sp.commands.shell.terminal import AsJson, print_json
from sp.config import token_count
from sp.errors import SHOWN, ConfigError, known_names, short
from sp.keywords import recorded
from sp.planning.gpus import KEEP
from sp.session.options import ModelOptions

if TYPE_CHECKING:
    from sp.models.network.arithmetic import AskedPrecision
    from sp.planning.gpus import GPUSpec
    from sp.planning.subject import Subject

MOST_TOGETHER = 16  # GPUs of a machine; `Share` tells of no more either


def plan(
    models: Annotated[ModelOptions, Part("target_rope drafter_rope")],
    synthetic: Synthetic,
    file: Annotated[Path | None, arg("A GGUF file, or the first of its shards.")] = None,
    gpu: Annotated[
        str | None,
        opt(help="Memory of the GPU, e.g. 24g, or its name, e.g. rtx3090; the smallest that does, if left out."),
    ] = None,
    context: Annotated[
        str, opt("-p", "--context", help="Prompt and answer together, in tokens, e.g. 32k, or 8k,128k.")
    ] = "128k",
    keep_ratio: Annotated[float, opt(least=1e-6, most=1, help="Share of the prompt that the target reads.")] = KEEP,
    gpus: Annotated[
        int, opt(least=1, most=MOST_TOGETHER, help="GPUs like it that share the target and read prompts together.")
    ] = 1,
    target_gpus: Annotated[int | None, opt(least=1, help="GPUs that share it, if not as many as --gpus.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell whether a model file runs, on which GPU, with what memory and drafter, and by which command.

    Only headers are read. Of a drafter those layers count that the default scorer reads. Memory is reckoned as it is
    reserved when models are loaded, and what work takes besides by bounds that recorded requests stayed within. For a
    GPU by name times are predicted too, to within about 30 %, from the peaks and bandwidths of its data sheet, in the
    arithmetic of --precision and --drafter-precision, and on --gpus of them; memory beside them is that of bf16. With
    --gpus the target is shared, and memory is what each of them needs. Exit status 1 if the answer is no, 2 if no
    command takes the file.

    Examples
    --------
      sp plan Qwen3.6-27B-Q4_K_M.gguf
      sp plan Qwen3.6-27B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --gpu 24g --context 128k
      sp plan --synthetic-target qwen3.6-27b --synthetic-drafter qwen3-0.6b --gpu rtx3090 -p 8k,128k --keep-ratio 0.05
      sp plan --synthetic-target qwen3.6-27b --gpu h200 --precision int8 --drafter-precision auto --gpus 4
      sp plan Llama-3.3-70B-Q4_K_M.gguf --gpu 24g --gpus 2 --context 32k
    """
    from sp.planning.plan import make_plan
    from sp.planning.roofline import predicted_times
    from sp.planning.tables import render_plan, render_times, times_legend
    from sp.session.decision import break_even

    lengths, gib, known = read_lengths(context), None, None
    if not 0 < keep_ratio <= 1:
        raise ConfigError(f"--keep-ratio {keep_ratio:g}: it is a share of the prompt, above 0 and up to 1")
    if gpu is not None:
        gib, known = read_gpu(gpu)
    precisions: dict[str, Any] = dict(read_precisions(models.precision, models.drafter_precision))
    on: dict[str, Any] = {"gpus": gpus, "target_gpus": target_gpus or gpus}
    shapes = (synthetic.synthetic_target, synthetic.target_type), (synthetic.synthetic_drafter, synthetic.drafter_type)
    heavy = read_model("target", file or models.target, *shapes[0], on["target_gpus"])
    if heavy is None or (file and models.target):
        raise ConfigError("give one model: a GGUF file, or --synthetic-target with the name of a shape")
    small = read_model("drafter", models.drafter, *shapes[1])
    found = make_plan(heavy, small, gib, lengths[-1], keep_ratio, lengths if len(lengths) > 1 else ())
    told = found.as_dict()
    if found.drafter is not None and found.target.config is not None:
        told["drafter"]["pays_from_tokens"] = break_even(found.target.config, found.drafter.config, keep_ratio)
    times = [] if known is None else predicted_times(found, known, expected, gpus=gpus, **precisions)
    spoken = {name: str(one) for name, one in precisions.items()}
    told["predicted"] = (
        None if known is None else {"card": known.name, "kernels": known.path, **recorded(spoken | on), "times": times}
    )
    if told["command"] is not None:
        asked: dict[str, Any] = {name: one for name, one in spoken.items() if one != "bf16"}
        asked |= {"gpus": gpus} if gpus > 1 else {}
        asked |= {"target_gpus": on["target_gpus"]} if on["target_gpus"] != gpus else {}
        told["command"] += "".join(f" --{name.replace('_', '-')} {one}" for name, one in asked.items())
    if as_json:
        print_json(told)
    else:
        console = Console(highlight=False)
        console.print(render_plan(told))
        if known is not None and times:
            console.print("", render_times(times, known), sep="\n")
            for line in times_legend(keep_ratio, **precisions, **on):
                console.print(line, style="dim")
        if known is not None and max(on.values()) > 1 and not known.link:
            console.print("no times: of several GPUs they are predicted where NVLink joins these", style="dim")
        if told["command"] is not None:
            console.print(f"\n{escape(told['command'])}", style="bold", soft_wrap=True)  # on one line, to be copied
    if told["verdict"]["runs"] == "no":
        raise SystemExit(1 if heavy.refused is None else 2)


MOST_GPU, MOST_TOKENS, MOST_LENGTHS = 1 << 14, 1 << 24, 6
"""GiB of a GPU, and tokens, beyond any use; lengths that a table has room for."""


def read_lengths(text: str) -> list[int]:
    """Tokens of prompts with their answers, ascending.

    >>> read_lengths("128k,8k")
    [8192, 131072]
    """
    from sp.planning.gpus import ANSWER

    lengths = sorted({token_count(part, "--context") for part in text.split(",")})
    if len(lengths) > MOST_LENGTHS:
        raise ConfigError(f"--context takes up to {MOST_LENGTHS} lengths, not {len(lengths)}")
    if not ANSWER < lengths[0] <= lengths[-1] <= MOST_TOKENS:
        raise ConfigError(f"--context {short(text)}: {ANSWER} tokens of it are for the answer; give more, up to 16m")
    return lengths


def read_gpu(text: str) -> tuple[int, GPUSpec | None]:
    """GiB of a GPU, written with their unit, or those of a GPU by name, and that GPU."""
    from sp.planning.gpus import KNOWN

    known = {gpu.name: gpu for gpu in KNOWN}
    name = re.sub(r"[\s_-]|nvidia|geforce", "", text[:SHOWN].lower())
    if named := known.get(name) or known.get(f"rtx{name}"):
        return named.gib, named
    size = re.fullmatch(r"([0-9]{1,5})(?:g|gb|gib)", name)
    if size is None or not 2 <= int(size[1]) <= MOST_GPU:
        told = "--gpu takes whole GiB such as 24g, with the unit and at least 2, or the name of a GPU"
        raise ConfigError(f"{told}, not {short(repr(text), 40)}{known_names(name, known)}")
    return int(size[1]), None


PREDICTED = {"precision": ("bf16", "int8"), "drafter_precision": ("bf16", "auto")}
"""Arithmetics whose times are predicted. `auto` of a target hangs on what rounding its weights costs, and a
drafter with all products in int8 is no faster."""


def read_precisions(precision: str, drafter_precision: str) -> dict[str, AskedPrecision]:
    """The arithmetic that times are predicted in; ConfigError for what is none, and for what is not predicted.

    >>> read_precisions("int8", "auto")
    {'precision': <Math.INT8: 'int8'>, 'drafter_precision': 'auto'}
    >>> read_precisions("fp8", "bf16")
    Traceback (most recent call last):
    sp.errors.ConfigError: --precision fp8: no times of it are predicted; sp plan takes bf16 or int8
    """
    from sp.models import read_precision

    found = {}
    for name, text in (("precision", precision), ("drafter_precision", drafter_precision)):
        option = f"--{name.replace('_', '-')}"
        found[name] = read_precision(text, option)
        if text not in PREDICTED[name]:
            raise ConfigError(
                f"{option} {text}: no times of it are predicted; sp plan takes {' or '.join(PREDICTED[name])}"
            )
    return found


def read_model(role: str, path: Path | None, shape: str | None, file_type: str | None, gpus: int = 1) -> Subject | None:
    """A file's header, or a named shape, as one of so many GPUs has it; None if neither is given."""
    from sp.models.synthetic.shapes import type_of_shape
    from sp.planning.plan import read_file
    from sp.planning.subject import shape_subject
    from sp.scoring.calibration.measure import default_depth

    if path is not None and shape is not None:
        raise ConfigError(f"give either a file or --synthetic-{role}")
    if shape is not None:
        return shape_subject(shape, type_of_shape(shape, file_type), gpus, default_depth)
    return None if path is None else read_file(path, gpus, default_depth)


def expected(tokens: int) -> float | None:
    """Share of the blocks that a drafter is expected to read on a GPU, as `sp run` has it read; None for all."""
    from sp.ops.sparse.expected_density import expected_density
    from sp.scoring import SCORERS
    from sp.scoring.base import ReadingScorer

    scorer = SCORERS.build("auto", {"sparse": "auto"})
    assert isinstance(scorer, ReadingScorer)
    selector = scorer.resolve("cuda", tokens).sparse.rule
    return None if selector is None else expected_density(selector, tokens)
