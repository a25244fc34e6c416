"""`sp bench model`: prefill and decoding of one model; `sp bench drafter`: scoring; `sp bench roofline`: a plot."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from sp.commands.bench.ttft import SparseRules
from sp.commands.common import BF16, FileType, KernelPath, OnDevice, OutputOptions, Prompts, ShapeName, kernels_of
from sp.commands.shell.parser import arg, opt
from sp.commands.shell.terminal import AsJson, Column, cells_of, print_json, progress_bar
from sp.config import Tokens
from sp.errors import ConfigError
from sp.models.cache.kv_type import USUAL, KVType
from sp.scoring.sparse import Sparse
from sp.session.options import PrecisionName


def bench_model(
    results: OutputOptions,
    file: Annotated[Path | None, arg("A GGUF file; or use --synthetic.")] = None,
    synthetic: Annotated[
        ShapeName | None, opt(help="Shape of random weights in place of a file, e.g. qwen3.6-27b.")
    ] = None,
    type_: Annotated[
        FileType | None,
        opt("--type", help="File type of the random weights; the shape's own if omitted, mostly q4_k_m."),
    ] = None,
    prompts: Annotated[tuple[Tokens, ...], opt("-p", "--prompts", help="Prompt lengths, comma-separated.")] = (512,),
    new: Annotated[tuple[Tokens, ...], opt("-n", "--new", help="Decoded tokens, comma-separated; 0 for none.")] = (64,),
    depth: Annotated[tuple[Tokens, ...], opt("-d", "--depth", help="Tokens read before decoding, comma-separated.")] = (
        0,
    ),
    repeats: Annotated[int, opt("-r", "--repeats", least=1, help="Samples per test.")] = 5,
    device: OnDevice = "auto",
    path: KernelPath = "auto",
    precision: Annotated[PrecisionName, opt(help="Matmul precision of prefill: bf16, int8, fp8 or auto.")] = "bf16",
    kv: Annotated[KVType, opt(help="Format of the KV cache: f16, q8_0, 5bit, 4bit, q4_0, k=q8_0,v=q4_0, ...")] = USUAL,
    rotate: Annotated[
        bool | None, opt(help="Hadamard-rotate keys and values; if omitted, when the cache is quantised.")
    ] = None,
    chunk: Annotated[Tokens | None, opt(least=1, help="Tokens per prefill chunk.")] = None,
    sparse: Annotated[
        Sparse, opt(help="Rule for the key blocks that prefill attention reads, e.g. density:0.05; off for all.")
    ] = Sparse("off"),  # noqa: B008
    gpus: Annotated[int, opt(least=1, help="Number of GPUs that share the model, from the first on.")] = 1,
    kernels: Annotated[bool, opt(help="Also list the kernels of each test by time.")] = False,
) -> None:
    """Time prefill and decoding of a model on random tokens, after a warm-up.

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
        raise ConfigError("pass either a GGUF file, or --synthetic with the name of a shape")
    tests = [Trial(n, sparse=sparse) for n in prompts if n] + [Trial(d, n) for d in depth for n in new if n]
    if not tests:
        raise ConfigError("nothing to time; pass prompt lengths with -p or numbers of decoded tokens with -n")
    type_ = type_ if synthetic is None else FileType(type_of_shape(synthetic, type_))
    where, matmul_precision = pick_device(device), read_precision(precision, "--precision")
    if kernels and gpus > 1:
        raise ConfigError("--kernels needs a single GPU; omit --gpus")
    group = group_of(gpus, device)
    with kernels_of(path, where)[1]:
        opened, name, load = open_model(file, synthetic, type_, where, matmul_precision, group)
    model, together = (opened, None) if group is None else (opened.models[0], opened.run)
    config = opened.config
    facts = model_facts(name, config, type_ if file is None else file_type_name(GGUFFile.open(file)))
    kernel_path, on_path = kernels_of(path, where)

    def append(**entry: Any) -> None:
        """Append a record at once, as a later test may fail."""
        if results.record is not None:
            results.append_record(make_record(**entry, device=where))

    if load is not None and group is None:
        first = {"model": name, "file_bytes": load[1], "mode": "first"}
        append(bench="load", config=first, metrics={"seconds": load[0]}, samples=[load[0]])
    timings = []
    with on_path:
        options: dict[str, Any] = {"kv": kv, "rotate": rotate, "chunk": chunk, "together": together}
        with progress_bar("measuring", repeats * len(tests)) as advance:
            for timing in run_tests(model, tests, repeats, progress=lambda _: advance(1), **options):
                timings.append(timing)
                if timing.refused is not None:
                    print(f"sp: {timing.test.name}: not in a CUDA graph: {timing.refused}", file=sys.stderr)
                append(**describe(timing, facts, kernel_path, cache_name(kv, rotate), model.arithmetic))
        profiles = (
            [(t.name, _kernels(model, t, kv, rotate, chunk)) for t in tests] if kernels and where == "cuda" else []
        )
    rows = [_row(timing, name, model, kv, kernel_path) for timing in timings]
    loading = {"load_seconds": load[0] if load else None, "file_bytes": load[1] if load else None}
    tables = {test: [vars(item) for item in profile] for test, profile in profiles}
    if results.print_plain(rows, [timing.rates for timing in timings], **loading, kernels=tables):
        return
    print_rows(rows, results)
    if results.output == "table" and load is not None:
        print(f"loaded {load[1] / 1e9:.2f} GB in {load[0]:.2f} s ({load[1] / load[0] / 1e9:.1f} GB/s)")
    for timing in timings:
        if timing.imbalance is not None and results.output == "table":
            print(f"{timing.test.name}: the most loaded expert has {timing.imbalance:.2f} times the mean load")
    for test, profile in profiles:
        print_kernels(test, profile, results)


def roofline(
    results: Annotated[Path, arg("Folder with the records of one GPU, e.g. results/nvidia-h200.")],
    out: Annotated[
        Path | None,
        opt("-o", "--out", writes="folder", help="Folder for the pictures; that of the records if omitted."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw a roofline plot of recorded kernels: arithmetic rate over arithmetic intensity, with the GPU's limits.

    Writes roofline.png with all kernels and roofline-FAMILY.png for each family.

    Examples
    --------
      sp bench roofline results/nvidia-h200
    """
    from sp.studies.plots.roofline import draw, draw_families, points

    kernels, folder = points(results), out or results
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [draw(kernels, folder / "roofline.png"), *draw_families(kernels, folder)]
    if as_json:
        print_json({"pictures": [str(picture) for picture in pictures], "points": [vars(point) for point in kernels]})
        return
    for picture in pictures:
        print(picture)


def _row(timing: Any, name: str, model: Any, kv: str, path: str) -> dict[str, Any]:
    """Return one row of the table."""
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
    """Open a model, or its tensor-parallel shards on the GPUs of a group.

    Returns the model, its name in results, and seconds and bytes of loading, which are None for random weights.
    """
    from sp.gguf import GGUFFile
    from sp.models import load_model
    from sp.models.shards.load_shards import load_shards
    from sp.models.synthetic.random_store import random_model, random_shards

    if shape is not None:
        assert file_type is not None
        if device == "cpu":
            raise ConfigError("--synthetic needs a GPU; on the CPU write a file with sp synth, and pass the file")
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
        options: dict[str, Any] = {"device": device, "progress": progress, "precision": precision}
        model: Any = load_shards(opened, group, **options) if group else load_model(opened, **options)
    return model, name_of(opened), (time.perf_counter() - start, opened.nbytes)


def name_of(file: Any) -> str:
    """Return the name of an open file in results."""
    from sp import values
    from sp.errors import plain

    name = values.text(file.metadata.get("general.name"))
    return plain(name, 80) if name else str(file.path.stem)


def _kernels(model: Any, test: Any, kv: str, rotate: bool | None, chunk: int | None) -> Any:
    """Time the kernels of a test's prefill, or of one decoded token."""
    from sp.bench.model import run_prefill
    from sp.bench.timing import kernel_times
    from sp.models import decode_step, prefill

    cache = model.new_cache(max(1, test.prompt) + 2, kv, rotate=rotate)
    ids = np.random.default_rng(0).integers(0, model.config.vocab, max(1, test.prompt))
    if not test.new:
        return kernel_times(lambda: run_prefill(model, ids, cache, chunk, test.sparse))
    prefill(model, ids, np.arange(len(ids)), cache, chunk=chunk)
    decode_step(model, 0, len(ids), cache)  # compiles and warms up; the next step is timed
    return kernel_times(lambda: decode_step(model, 0, len(ids) + 1, cache), hold_ms=60.0)


def print_rows(rows: Sequence[Mapping[str, Any]], results: OutputOptions) -> None:
    """Print the tests of `sp bench model`, one per row."""
    columns: list[Column] = [
        ("model", lambda row: row["model"] + (f" on {row['cards']} GPUs" if row["cards"] > 1 else "")),
        ("weights", "{weights_gb:.2f} GB"),
        *((name, f"{{{name}}}") for name in ("kv", "path", "math", "test")),
        ("tok/s", "{tok_s:.2f} ± {sd:.2f}"),
        ("median", "{median:.2f}"),
        ("peak memory", lambda row: f"{row['peak_gb']:.2f} GB" if row["peak_gb"] else ""),
    ]
    results.print_table(*cells_of(rows, columns), 6, ("model", "test", "tok/s", "median", "peak memory"))


def print_kernels(test: str, profile: Any, results: OutputOptions) -> None:
    """Print the kernels of a test with their times and shares."""
    total = sum(item.ms for item in profile)
    print(f"{test}: {total:.3f} ms")
    cells = [[x.entry, x.variant, str(x.launches), f"{x.ms:.3f}", f"{x.ms / total:.1%}"] for x in profile]
    results.print_table(["kernel", "variant and grid", "launches", "ms", "share"], cells, 2)


DRAFTER_MAIN = ("model", "tokens", "attention", "density", "score (s)", "limit (s)")


def bench_drafter(
    results: OutputOptions,
    file: Annotated[
        Path | None, opt("-m", "--model", help="GGUF file; the embedded drafter if omitted, without --synthetic.")
    ] = None,
    synthetic: Annotated[
        ShapeName | None, opt(help="Shape of random weights in place of a file, e.g. qwen3-0.6b.")
    ] = None,
    type_: Annotated[FileType, opt("--type", help="File type of the random weights.")] = BF16,
    prompts: Prompts = (8192,),
    sparse: SparseRules = (),
    layers: Annotated[int | None, opt(least=1, help="Run only the first layers, this many.")] = None,
    gpus: Annotated[
        int, opt(least=1, help="Number of GPUs that divide each prompt (context parallelism), from the first on.")
    ] = 1,
    repeats: Annotated[int, opt("-r", "--repeats", least=1, help="Samples per test; more for short tests.")] = 5,
    device: OnDevice = "auto",
    path: KernelPath = "auto",
    precision: Annotated[PrecisionName, opt(help="Matmul precision of prefill: bf16, int8, fp8 or auto.")] = "bf16",
) -> None:
    """Time the scorer tail: seconds from token ids to scores, stages, density, memory, and the hardware limit.

    A model from a file reads copies of the embedded document, so that densities are those of text. Random weights
    attend to all tokens equally, so synthetic drafters read random tokens and need a fixed density.

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
        raise ConfigError("pass either a GGUF file, or --synthetic with the name of a shape")
    common = {} if layers is None else {"depth": layers}
    drafts = [ScoringTrial(n, {"sparse": rule, **common}) for n in prompts for rule in sparse or ("off",)]
    where, matmul_precision = pick_device(device), read_precision(precision, "--precision")
    path_to_model = file or (embedded("drafter") if synthetic is None else None)
    group = group_of(gpus, device)
    with kernels_of(path, where)[1]:
        model, name, _ = open_model(path_to_model, synthetic, type_, where, matmul_precision)
        parallel = None
        if group is not None:
            others = copies(group, lambda: open_model(path_to_model, synthetic, type_, where, matmul_precision)[0])
            parallel = ContextParallel(group, [model, *others])
    text = None
    if path_to_model is not None:
        text = np.asarray(Tokenizer.from_gguf(GGUFFile.open(path_to_model)).encode(sample()[0]).ids)
    for drafter in [model] if parallel is None else parallel.models:
        drafter.arithmetic = scoring(drafter.arithmetic, where, drafter.config)
        # Drafters of a pair may read beyond their context, by extrapolation; the benchmark does as well.
        drafter.config = replace(drafter.config, context=max(drafter.config.context, LONGEST_DRAFT))
    timings, (kernel_path, kernels) = [], kernels_of(path, where)
    with kernels, progress_bar("measuring", repeats * len(drafts)) as advance:
        for timing in run_scoring(model, drafts, repeats, lambda: advance(1), text, parallel):
            timings.append(timing)
            if results.record is not None:
                tokens = "random" if text is None else "text"
                entry = describe(timing, name, kernel_path, tokens, model.arithmetic)
                results.append_record(make_record(**entry, device=where))
    rows = [_drafter_row(timing, name, kernel_path) for timing in timings]
    if not results.print_plain(rows, [timing.seconds for timing in timings]):
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


def print_drafter_rows(rows: list[dict[str, Any]], results: OutputOptions) -> None:
    """Print the tests of `sp bench drafter`, one per row; on a GPU with the times of stages."""
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
    results.print_table(*cells_of(rows, columns), 2, DRAFTER_MAIN)
