"""sp bench model and drafter: prefill and decode of one model, and how a drafter reads."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from sp.commands.asked import BF16, FileType, KernelPath, OnDevice, Prompts, Results, ShapeName, kernels_of
from sp.commands.bench.ttft import SparseWays
from sp.commands.shell.line import arg, opt
from sp.commands.shell.terminal import AsJson, Column, cells_of, print_json, progress_bar
from sp.config import Tokens
from sp.errors import ConfigError
from sp.models.cache.kv_type import USUAL, KVType
from sp.scoring.base import Sparse
from sp.session.options import PrecisionName


def bench_model(
    results: Results,
    file: Annotated[Path | None, arg("A GGUF file; or use --synthetic.")] = None,
    synthetic: Annotated[
        ShapeName | None, opt(help="Random weights in a named shape instead of a file, e.g. qwen3.6-27b.")
    ] = None,
    type_: Annotated[
        FileType | None,
        opt("--type", help="File type of the random weights; the shape's own if left out, q4_k_m of most."),
    ] = None,
    prompts: Annotated[tuple[Tokens, ...], opt("-p", "--prompts", help="Prompt lengths, comma-separated.")] = (512,),
    new: Annotated[tuple[Tokens, ...], opt("-n", "--new", help="Decoded tokens, comma-separated; 0 for none.")] = (64,),
    depth: Annotated[tuple[Tokens, ...], opt("-d", "--depth", help="Tokens read before decoding, comma-separated.")] = (
        0,
    ),
    repeats: Annotated[int, opt("-r", "--repeats", least=1, help="Samples a test.")] = 5,
    device: OnDevice = "auto",
    path: KernelPath = "auto",
    precision: Annotated[PrecisionName, opt(help="Matmul precision of prefill: bf16, int8, fp8 or auto.")] = "bf16",
    kv: Annotated[KVType, opt(help="Cached keys and values: f16, q8_0, 5bit, q4_0, k=q8_0,v=q4_0, ...")] = USUAL,
    rotate: Annotated[bool | None, opt(help="Hadamard-rotate them; where they are quantised if left out.")] = None,
    chunk: Annotated[Tokens | None, opt(least=1, help="Tokens that go through a layer together.")] = None,
    sparse: Annotated[
        Sparse, opt(help="Which key blocks attention reads in a prefill, such as density:0.05; off for all.")
    ] = Sparse("off"),  # noqa: B008
    gpus: Annotated[int, opt(least=1, help="GPUs that share the model, from the first on.")] = 1,
    kernels: Annotated[bool, opt(help="Also list the kernels a test spends its time in.")] = False,
) -> None:
    """Time prefill and decoding of a model with random tokens, after a warm-up.

    Examples
    --------
      sp bench model Qwen3.6-27B-Q4_K_M.gguf -p 512,8192,32768,131072 -n 64 -r 5
      sp bench model --synthetic qwen3.6-27b -p 8192 --path portable -o md
      sp bench model --synthetic qwen3.6-27b -p 8192,131072 -n 0 --precision int8
      sp bench model --synthetic qwen3.6-27b -p 131072 -n 0 --sparse density:0.05
      sp bench model --synthetic qwen3.6-27b -p 8k,128k -n 64 --gpus 2
    """
    from sp.bench.model import Trial, describe, run_tests
    from sp.bench.record import file_type_name, make_record, model_facts
    from sp.gguf import GGUFFile
    from sp.kernels.device import pick_device
    from sp.models import read_precision
    from sp.models.cache.kv_type import cache_name
    from sp.models.synthetic.shapes import type_of_shape
    from sp.parallel.nccl import group_of

    if (file is None) == (synthetic is None):
        raise ConfigError("give either a GGUF file or --synthetic with the name of a shape")
    tests = [Trial(n, sparse=sparse) for n in prompts if n] + [Trial(d, n) for d in depth for n in new if n]
    if not tests:
        raise ConfigError("nothing to time; give a prompt length with -p or tokens to decode with -n")
    type_ = type_ if synthetic is None else FileType(type_of_shape(synthetic, type_))
    where, asked = pick_device(device), read_precision(precision, "--precision")
    if kernels and gpus > 1:
        raise ConfigError("--kernels is for one GPU; leave --gpus away")
    group = group_of(gpus, where)
    with kernels_of(path, where)[1]:
        opened, name, load = open_model(file, synthetic, type_, where, asked, group)
    model, together = (opened, None) if group is None else (opened.models[0], opened.run)
    config = opened.config
    facts = model_facts(name, config, type_ if file is None else file_type_name(GGUFFile.open(file)))
    on_gpu = where == "cuda"
    taken, on_path = kernels_of(path, where)

    def keep(**entry: Any) -> None:
        """Write a result down at once: a later test may fail."""
        if on_gpu and results.record is not None:
            results.keep(make_record(**entry))

    if load is not None and group is None:
        first = {"model": name, "file_bytes": load[1], "mode": "first"}
        keep(bench="load", config=first, metrics={"seconds": load[0]}, samples=[load[0]])
    timings = []
    with on_path:
        how: dict[str, Any] = {"kv": kv, "rotate": rotate, "chunk": chunk, "together": together}
        with progress_bar("measuring", repeats * len(tests)) as advance:
            for timing in run_tests(model, tests, repeats, progress=lambda _: advance(1), **how):
                timings.append(timing)
                if timing.refused is not None:
                    print(f"sp: {timing.test.name}: not in a CUDA graph: {timing.refused}", file=sys.stderr)
                keep(**describe(timing, facts, taken, cache_name(kv, rotate), model.arithmetic))
        profiles = [(t.name, _kernels(model, t, kv, rotate, chunk)) for t in tests] if kernels and on_gpu else []
    rows = [_row(timing, name, model, kv, taken) for timing in timings]
    loading = {"load_seconds": load[0] if load else None, "file_bytes": load[1] if load else None}
    tables = {test: [vars(item) for item in found] for test, found in profiles}
    if results.plain(rows, [timing.rates for timing in timings], **loading, kernels=tables):
        return
    print_rows(rows, results)
    if results.output == "table" and load is not None:
        print(f"loaded {load[1] / 1e9:.2f} GB in {load[0]:.2f} s ({load[1] / load[0] / 1e9:.1f} GB/s)")
    for timing in timings:
        if timing.imbalance is not None and results.output == "table":
            print(f"{timing.test.name}: the most loaded expert has {timing.imbalance:.2f} times the mean load")
    for test, found in profiles:
        print_kernels(test, found, results)


def roofline(
    results: Annotated[Path, arg("Folder of one GPU, e.g. results/nvidia-h200.")],
    out: Annotated[
        Path | None, opt("-o", "--out", help="Folder of the pictures; that of the records if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the recorded kernels under the limits of their GPU: arithmetic rate over arithmetic intensity.

    Writes roofline.png with all of them and roofline-FAMILY.png for each family.

    Examples
    --------
      sp bench roofline results/nvidia-h200
    """
    from sp.studies.plots.roofline import draw, draw_families, points

    found, folder = points(results), out or results
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [draw(found, folder / "roofline.png"), *draw_families(found, folder)]
    if as_json:
        print_json({"pictures": [str(picture) for picture in pictures], "points": [vars(point) for point in found]})
        return
    for picture in pictures:
        print(picture)


def _row(timing: Any, name: str, model: Any, kv: str, path: str) -> dict[str, Any]:
    """One line of the report."""
    from sp.bench.record import running

    metrics = timing.metrics()
    return {
        "model": name,
        "weights_gb": model.nbytes / 1e9,
        "kv": kv,
        "path": path,
        "math": running(path, model.arithmetic)["math"],
        "cards": timing.gpus,
        "test": timing.test.name,
        "tok_s": metrics["tok_s_mean"],
        "sd": metrics["tok_s_sd"],
        "median": metrics["tok_s"],
        "peak_gb": metrics["peak_bytes"] / 1e9,
    }


def open_model(
    file: Path | None, shape: str | None, file_type: str | None, device: Any, precision: str, group: Any = None
) -> tuple[Any, str, tuple[float, int] | None]:
    """The model, or its shares on the GPUs of a group, its name in the results, and seconds and bytes of loading. The
    last is None for random weights."""
    from sp.gguf import GGUFFile
    from sp.models import load_model
    from sp.models.shards.load_shards import load_shards
    from sp.models.synthetic.random_store import random_model, random_shards

    if shape is not None:
        assert file_type is not None
        if device == "cpu":
            raise ConfigError("--synthetic makes its weights on the GPU; for the CPU write a file with sp synth first")
        random = (
            random_shards(shape, file_type, group, precision)
            if group
            else random_model(shape, file_type, precision=precision)
        )
        return random, f"{shape} {file_type} (random)", None
    assert file is not None
    start = time.perf_counter()
    opened = GGUFFile.open(file)
    with progress_bar("loading", opened.nbytes) as progress:
        how: dict[str, Any] = {"device": device, "progress": progress, "precision": precision}
        model: Any = load_shards(opened, group, **how) if group else load_model(opened, **how)
    return model, name_of(opened), (time.perf_counter() - start, opened.nbytes)


def name_of(file: Any) -> str:
    """What an open file is called in results."""
    from sp import values
    from sp.errors import plain

    name = values.text(file.metadata.get("general.name"))
    return plain(name, 80) if name else str(file.path.stem)


def _kernels(model: Any, test: Any, kv: str, rotate: bool | None, chunk: int | None) -> Any:
    """Kernels of one run of a test: of its prefill, or of one decoded token."""

    from sp.bench.model import run_prefill
    from sp.bench.timing import kernel_times
    from sp.models import decode_step, prefill

    cache = model.new_cache(max(1, test.prompt) + 2, kv, rotate=rotate)
    ids = np.random.default_rng(0).integers(0, model.config.vocab, max(1, test.prompt))
    if not test.new:
        return kernel_times(lambda: run_prefill(model, ids, cache, chunk, test.sparse))
    prefill(model, ids, np.arange(len(ids)), cache, chunk=chunk)
    decode_step(model, 0, len(ids), cache)
    return kernel_times(lambda: decode_step(model, 0, len(ids) + 1, cache), hold_ms=60.0)


def print_rows(rows: Sequence[Mapping[str, Any]], results: Results) -> None:
    """Tests of `sp bench model`, one a row."""
    columns: list[Column] = [
        ("model", lambda row: row["model"] + (f" on {row['cards']} GPUs" if row["cards"] > 1 else "")),
        ("weights", "{weights_gb:.2f} GB"),
        *((name, f"{{{name}}}") for name in ("kv", "path", "math", "test")),
        ("tok/s", "{tok_s:.2f} ± {sd:.2f}"),
        ("median", "{median:.2f}"),
        ("peak memory", lambda row: f"{row['peak_gb']:.2f} GB" if row["peak_gb"] else ""),
    ]
    results.table(*cells_of(rows, columns), 6, ("model", "test", "tok/s", "median", "peak memory"))


def print_kernels(test: str, found: Any, results: Results) -> None:
    """Kernels of a test, and what they take of its time."""
    total = sum(item.ms for item in found)
    print(f"{test}: {total:.3f} ms")
    cells = [[x.entry, x.variant, str(x.launches), f"{x.ms:.3f}", f"{x.ms / total:.1%}"] for x in found]
    results.table(["kernel", "variant and grid", "launches", "ms", "share"], cells, 2)


DRAFTER_MAIN = ("model", "tokens", "attention", "density", "score (s)", "limit (s)")


def bench_drafter(
    results: Results,
    file: Annotated[
        Path | None, opt("-m", "--model", help="A GGUF file; the embedded drafter if nothing is named.")
    ] = None,
    synthetic: Annotated[
        ShapeName | None, opt(help="Random weights in a named shape instead of a file, e.g. qwen3-0.6b.")
    ] = None,
    type_: Annotated[FileType, opt("--type", help="File type of the random weights.")] = BF16,
    prompts: Prompts = (8192,),
    sparse: SparseWays = (),
    layers: Annotated[int | None, opt(least=1, help="Run only so many layers.")] = None,
    gpus: Annotated[
        int, opt(least=1, help="GPUs on which the drafter reads a prompt together, from the first on.")
    ] = 1,
    repeats: Annotated[int, opt("-r", "--repeats", least=1, help="Samples a test; of short ones more.")] = 5,
    device: OnDevice = "auto",
    path: KernelPath = "auto",
    precision: Annotated[PrecisionName, opt(help="Matmul precision of prefill: bf16, int8, fp8 or auto.")] = "bf16",
) -> None:
    """Time the tail scorer: seconds from ids to scores, stages, density, memory, and the limit.

    A model from a file reads the embedded document over and over, so that densities are those of text. Random weights
    attend to everything alike, so synthetic drafters read random tokens and are timed at a set density.

    Examples
    --------
      sp bench drafter --synthetic qwen3-0.6b -p 8k,32k,64k,128k,256k --sparse density:0.05
      sp bench drafter --synthetic qwen3-0.6b -p 128k --sparse density:0.05 --precision auto
      sp bench drafter --synthetic qwen3-0.6b -p 128k,256k,512k --sparse blocks:64,sqrt:64,density:0.05
      sp bench drafter --synthetic qwen3-0.6b -p 128k,1m --sparse density:0.05 --gpus 4
      sp bench drafter -m Qwen3-0.6B-BF16.gguf -p 131072 --sparse off,alpha:0.05,alpha:0.1,alpha:0.2 -o md
    """
    from sp.bench.drafter import ScoringTrial, describe, run_scoring
    from sp.bench.record import make_record
    from sp.gguf import GGUFFile, Tokenizer
    from sp.kernels.device import pick_device
    from sp.models import ContextParallel, read_precision
    from sp.models.network.arithmetic import scoring
    from sp.parallel.nccl import copies, group_of
    from sp.session.loaded import LONGEST_DRAFT, embedded
    from sp.studies.sample import sample

    if file is not None and synthetic is not None:
        raise ConfigError("give either a GGUF file or --synthetic with the name of a shape")
    common = {} if layers is None else {"depth": layers}
    drafts = [ScoringTrial(n, {"sparse": how, **common}) for n in prompts for how in sparse or ("off",)]
    where, asked = pick_device(device), read_precision(precision, "--precision")
    named = file or (embedded("drafter") if synthetic is None else None)
    group = group_of(gpus, where)
    with kernels_of(path, where)[1]:
        model, name, _ = open_model(named, synthetic, type_, where, asked)
        spread = None
        if group is not None:
            others = copies(group, lambda: open_model(named, synthetic, type_, where, asked)[0])
            spread = ContextParallel(group, [model, *others])
    text = None if named is None else np.asarray(Tokenizer.from_gguf(GGUFFile.open(named)).encode(sample()[0]).ids)
    for one in [model] if spread is None else spread.models:
        one.arithmetic = scoring(one.arithmetic, where, one.config.head_dim)
        one.config = replace(one.config, context=max(one.config.context, LONGEST_DRAFT))
    timings, (taken, kernels) = [], kernels_of(path, where)
    with kernels, progress_bar("measuring", repeats * len(drafts)) as advance:
        for timing in run_scoring(model, drafts, repeats, lambda: advance(1), text, spread):
            timings.append(timing)
            if where == "cuda" and results.record is not None:
                tokens = "random" if text is None else "text"
                results.keep(make_record(**describe(timing, name, taken, tokens, model.arithmetic)))
    rows = [_drafter_row(timing, name, taken) for timing in timings]
    if not results.plain(rows, [timing.seconds for timing in timings]):
        print_drafter_rows(rows, results)


def _drafter_row(timing: Any, name: str, path: str) -> dict[str, Any]:
    metrics = timing.metrics()
    return {
        "model": name,
        "path": path,
        "cards": timing.gpus,
        "prompt_tokens": timing.trial.tokens,
        "attention": timing.trial.attention,
        **{key: metrics[key] for key in ("score_s", "limit_s", "density", "peak_bytes", "weight_bytes")},
        **{f"{stage}_ms": ms for stage, ms in timing.stages.items()},
        **({"sum_ms": sum(timing.stages.values())} if timing.stages else {}),
    }


def print_drafter_rows(rows: list[dict[str, Any]], results: Results) -> None:
    """Readings, one a row; rates of a GPU have their stages besides."""
    stages = [key for key in rows[0] if key.endswith("_ms")]
    columns: list[Column] = [
        *((name, f"{{{key}}}") for name, key in (("model", "model"), ("path", "path"), ("tokens", "prompt_tokens"))),
        ("attention", "{attention}"),
        ("density", "{density:.1%}"),
        ("score (s)", "{score_s:.3f}"),
        ("limit (s)", lambda row: f"{row['limit_s']:.3f}" if row["limit_s"] else ""),
        ("peak memory", lambda row: f"{row['peak_bytes'] / 1e9:.2f} GB" if row["peak_bytes"] else ""),
        ("of it weights", lambda row: f"{row['weight_bytes'] / 1e9:.2f} GB" if row["weight_bytes"] else ""),
        *((f"{key.removesuffix('_ms').replace('_', '+')} (ms)", f"{{{key}:.1f}}") for key in stages),
    ]
    results.table(*cells_of(rows, columns), 2, DRAFTER_MAIN)
