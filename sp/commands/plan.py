"""`sp plan`: check whether a model runs on a GPU, and predict its memory and speed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.markup import escape

from sp.commands.common import Synthetic
from sp.commands.shell.parser import Adjusted, arg, opt
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

MOST_TOGETHER = 16  # GPUs of a machine, the limit of `Share`


def plan(
    models: Annotated[ModelOptions, Adjusted("target_rope drafter_rope")],
    synthetic: Synthetic,
    file: Annotated[Path | None, arg("A GGUF file, or the first of its shards.")] = None,
    gpu: Annotated[
        str | None,
        opt(help="Memory of the GPU, e.g. 24g, or its name, e.g. rtx3090; the smallest sufficient one if omitted."),
    ] = None,
    context: Annotated[
        str, opt("-p", "--context", help="Tokens of prompt and answer together, e.g. 32k, or 8k,128k.")
    ] = "128k",
    keep_ratio: Annotated[float, opt(least=1e-6, most=1, help="Share of the prompt that the target reads.")] = KEEP,
    gpus: Annotated[
        int, opt(least=1, most=MOST_TOGETHER, help="Number of such GPUs that share the target and divide prompts.")
    ] = 1,
    target_gpus: Annotated[
        int | None, opt(least=1, help="Number of GPUs that share the target, if it differs from --gpus.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a model file runs, on which GPU, with how much memory and which drafter, and by which command.

    Only headers are read. Memory is what loading reserves, plus upper bounds of temporary memory from recorded
    requests; of a drafter only the layers count that the default scorer runs. For a GPU with a name, times are
    predicted to about 30 % from the peaks and bandwidths of its data sheet, for --precision, --drafter-precision and
    --gpus; memory is that of bf16. With --gpus the target is shared, and memory is per GPU. Exit status 1 if the model
    does not run, 2 if no command accepts the file.

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
        raise ConfigError(f"--keep-ratio {keep_ratio:g}: the share of the prompt must be above 0, and at most 1")
    if gpu is not None:
        gib, known = read_gpu(gpu)
    precisions: dict[str, Any] = dict(read_precisions(models.precision, models.drafter_precision))
    on: dict[str, Any] = {"gpus": gpus, "target_gpus": target_gpus or gpus}
    shapes = (synthetic.synthetic_target, synthetic.target_type), (synthetic.synthetic_drafter, synthetic.drafter_type)
    heavy = read_model("target", file or models.target, *shapes[0], on["target_gpus"])
    if heavy is None or (file and models.target):
        raise ConfigError("pass one model: a GGUF file, or --synthetic-target with the name of a shape")
    small = read_model("drafter", models.drafter, *shapes[1])
    memory_plan = make_plan(heavy, small, gib, lengths[-1], keep_ratio, lengths if len(lengths) > 1 else ())
    record, drafter = memory_plan.as_dict(), memory_plan.drafter
    if drafter is not None and memory_plan.target.config is not None:
        record["drafter"]["pays_from_tokens"] = break_even(memory_plan.target.config, drafter.config, keep_ratio)
    times = [] if known is None else predicted_times(memory_plan, known, expected, gpus=gpus, **precisions)
    names = {name: str(precision) for name, precision in precisions.items()}
    record["predicted"] = (
        None if known is None else {"card": known.name, "kernels": known.path, **recorded(names | on), "times": times}
    )
    if record["command"] is not None:
        options: dict[str, Any] = {name: precision for name, precision in names.items() if precision != "bf16"}
        options |= {"gpus": gpus} if gpus > 1 else {}
        options |= {"target_gpus": on["target_gpus"]} if on["target_gpus"] != gpus else {}
        record["command"] += "".join(f" --{name.replace('_', '-')} {value}" for name, value in options.items())
    if as_json:
        print_json(record)
    else:
        console = Console(highlight=False)
        console.print(render_plan(record))
        if known is not None and times:
            console.print("", render_times(times, known), sep="\n")
            for line in times_legend(keep_ratio, **precisions, **on):
                console.print(line, style="dim")
        if known is not None and max(on.values()) > 1 and not known.link:
            console.print("no times: for several GPUs they are predicted only with NVLink", style="dim")
        if record["command"] is not None:
            console.print(f"\n{escape(record['command'])}", style="bold", soft_wrap=True)  # on one line, to be copied
    if record["verdict"]["runs"] == "no":
        raise SystemExit(1 if heavy.refused is None else 2)


MOST_GPU, MOST_TOKENS, MOST_LENGTHS = 1 << 14, 1 << 24, 6
"""Limits of arguments: GiB of a GPU, tokens of a context, and lengths in a table."""


def read_lengths(text: str) -> list[int]:
    """Read lengths of prompts with their answers, in tokens, and sort them.

    >>> read_lengths("128k,8k")
    [8192, 131072]
    """
    from sp.planning.gpus import ANSWER

    lengths = sorted({token_count(part, "--context") for part in text.split(",")})
    if len(lengths) > MOST_LENGTHS:
        raise ConfigError(f"--context takes up to {MOST_LENGTHS} lengths, not {len(lengths)}")
    if not ANSWER < lengths[0] <= lengths[-1] <= MOST_TOKENS:
        raise ConfigError(f"--context {short(text)}: {ANSWER} tokens of it are for the answer; pass more, up to 16m")
    return lengths


def read_gpu(text: str) -> tuple[int, GPUSpec | None]:
    """Read the memory of a GPU in GiB, such as ``24g``, or its name; returns the memory, and the GPU if it is known."""
    from sp.planning.gpus import KNOWN

    known = {gpu.name: gpu for gpu in KNOWN}
    # "NVIDIA GeForce RTX 3090", "rtx-3090" and "3090" are one GPU
    name = re.sub(r"[\s_-]|nvidia|geforce", "", text[:SHOWN].lower())
    if named := known.get(name) or known.get(f"rtx{name}"):
        return named.gib, named
    size = re.fullmatch(r"([0-9]{1,5})(?:g|gb|gib)", name)
    if size is None or not 2 <= int(size[1]) <= MOST_GPU:
        syntax = "--gpu takes at least 2 whole GiB with the unit, such as 24g, or the name of a GPU"
        raise ConfigError(f"{syntax}, not {short(repr(text), 40)}{known_names(name, known)}")
    return int(size[1]), None


PREDICTED = {"precision": ("bf16", "int8"), "drafter_precision": ("bf16", "auto")}
"""Precisions whose times are predicted. Times of `auto` for a target depend on the cost of quantising its weights; a
drafter is no faster with all products in int8."""


def read_precisions(precision: str, drafter_precision: str) -> dict[str, AskedPrecision]:
    """Read the precisions of predicted times; ConfigError for an unknown one, or one without predictions.

    >>> read_precisions("int8", "auto")
    {'precision': <Math.INT8: 'int8'>, 'drafter_precision': 'auto'}
    >>> read_precisions("fp8", "bf16")
    Traceback (most recent call last):
    sp.errors.ConfigError: --precision fp8: its times are not predicted; sp plan takes bf16 or int8
    """
    from sp.models import read_precision

    precisions = {}
    for name, text in (("precision", precision), ("drafter_precision", drafter_precision)):
        option = f"--{name.replace('_', '-')}"
        precisions[name] = read_precision(text, option)
        if text not in PREDICTED[name]:
            raise ConfigError(
                f"{option} {text}: its times are not predicted; sp plan takes {' or '.join(PREDICTED[name])}"
            )
    return precisions


def read_model(role: str, path: Path | None, shape: str | None, file_type: str | None, gpus: int = 1) -> Subject | None:
    """Read a file's header, or a named shape, as one of `gpus` GPUs has it; None if both are None."""
    from sp.models.synthetic.shapes import type_of_shape
    from sp.planning.plan import read_file
    from sp.planning.subject import shape_subject
    from sp.scoring.calibration.measure import default_depth

    if path is not None and shape is not None:
        raise ConfigError(f"a {role} file and --synthetic-{role} exclude each other; omit one")
    if shape is not None:
        return shape_subject(shape, type_of_shape(shape, file_type), gpus, default_depth)
    return None if path is None else read_file(path, gpus, default_depth)


def expected(tokens: int) -> float | None:
    """Return the expected share of key blocks that a drafter reads on a GPU with `sp run`; None for all."""
    from sp.scoring import SCORERS
    from sp.scoring.base import ReadingScorer
    from sp.scoring.sparse import predicted_density

    scorer = SCORERS.build("auto", {"sparse": "auto"})
    assert isinstance(scorer, ReadingScorer)
    selector = scorer.resolve(tokens).sparse.rule
    return None if selector is None else predicted_density(selector, tokens)
