"""`sp synth`: write a target or draft model with random weights, or a constructed retriever."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from sp.commands.shell.parser import opt
from sp.commands.shell.terminal import AsJson, print_json, progress_bar
from sp.errors import unknown_name


def synth(
    shape: Annotated[str, opt(help="Named shape: qwen3.6-27b, llama-3.1-70b, qwen2.5-0.5b, dflash-..., tiny-..., ...")],
    out: Annotated[Path, opt("-o", "--out", writes="file", help="GGUF file to write.")],
    type_: Annotated[
        str | None,
        opt(
            "--type",
            help="File type: a format (q8_0, iq4_xs, ...) or a mix (q4_k_m, ud-q4_k_xl, mxfp4_moe); the shape's own if "
            "omitted.",
        ),
    ] = None,
    seed: Annotated[int, opt(least=0, help="Seed of the weights.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write a model or a draft model with random weights in a real shape, or a constructed retriever (for tests).

    Examples
    --------
      sp synth --shape qwen3.6-27b --type q4_k_m -o target.gguf
      sp synth --shape dflash-qwen3.6-27b --type bf16 -o draft.gguf
      sp synth --shape retriever-qwen3 --type f16 -o retriever.gguf
    """
    from sp.models.synthetic.dflash_synthetic import find_draft_shape, list_draft_shapes, write_synthetic_draft
    from sp.models.synthetic.retriever import RETRIEVER_SHAPES, write_retriever
    from sp.models.synthetic.shapes import list_shapes, tensor_plan, type_of_shape
    from sp.models.synthetic.synthetic import write_synthetic

    drafts = list_draft_shapes()
    if shape not in RETRIEVER_SHAPES and shape not in list_shapes() and shape not in drafts:
        raise unknown_name("shape", shape, [*list_shapes(), *drafts, *RETRIEVER_SHAPES])
    start = time.perf_counter()
    if shape in RETRIEVER_SHAPES:
        type_ = type_ or "f16"
        out.parent.mkdir(parents=True, exist_ok=True)
        write_retriever(out, shape, type_, seed=seed)
    else:
        type_ = type_ or ("q4_k_m" if shape in drafts else type_of_shape(shape, None))
        plan = find_draft_shape(shape).plan(type_) if shape in drafts else tensor_plan(shape, type_)
        out.parent.mkdir(parents=True, exist_ok=True)
        write = write_synthetic_draft if shape in drafts else write_synthetic
        with progress_bar("writing", sum(fmt.nbytes(dims) for _, dims, fmt in plan)) as progress:
            write(out, shape, type_, seed, progress)
    seconds, size = time.perf_counter() - start, out.stat().st_size
    if as_json:
        print_json({"file": str(out), "bytes": size, "seconds": seconds, "shape": shape, "type": type_, "seed": seed})
    else:
        print(f"{out}: {size:,} bytes in {seconds:.1f} s ({size / seconds / 1e6:.0f} MB/s)")
